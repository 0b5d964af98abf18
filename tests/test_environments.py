"""Environments as people write them: those that keep Gymnasium's interface in their own way train; of those that break
it one line says how, before anything is written or with the last checkpoint whole; their own errors keep a traceback.

The lower floor is the same in all scripts: one of them is enough for most of this."""

import itertools
import json
import math
import re
import traceback
import types
from pathlib import Path

import envs
import numpy as np
import pytest
import threadpoolctl
import torch
from conftest import ROOT, assert_equal, files, lines, load, read_checkpoint, run_script, trained

pytestmark = pytest.mark.slow

SIZES = {"num_steps": 8, "num_minibatches": 1, "update_epochs": 1, "total_timesteps": 32, "hidden_sizes": (4,)}
FLAGS = [word for name, value in SIZES.items() for word in (f"--{name.replace('_', '-')}", str(value).strip("(),"))]
FLAGS += ["--no-progress", "--run-name", "run"]
GO_ON = "; runs/run keeps its last checkpoint; to go on: python "
NOTHING = ": its first reset or step failed; nothing was written."


@pytest.fixture
def m():
    return load("ppo_continuous")


def task(name, **kwargs):
    return ["--env-id", f"envs:{name}-v0", "--env-kwargs", json.dumps(kwargs)]


def train(m, name, changed=None, **kwargs):
    """Trains on one of the environments of envs.py, in runs/run."""
    sizes = {**SIZES, "progress": False, "run_name": "run", **(changed or {})}
    return m.train(m.Args(env_id=f"envs:{name}-v0", env_kwargs=json.dumps(kwargs), **sizes))


RESET = "reset must return (observation, info), not a "
STEP = "step must return (observation, reward, terminated, truncated, info), not "
NUMBERS = "step must return a number as reward and two booleans, not ("
SHAPE = "an observation has the shape ({}), its space (3,)"
KIND = "an observation is not one of Box(-inf, inf, (3,), float64) ("
BROKEN = {
    ("reset", "no info"): f"{RESET}ndarray",
    ("reset", "a list"): f"{RESET}list",
    ("reset", "one value"): RESET[:-2],
    ("reset", "three values"): RESET[:-2],
    ("reset", "nothing"): f"{RESET}NoneType",
    ("reset", "a longer observation"): SHAPE.format("5,"),
    ("reset", "a shorter observation"): SHAPE.format("1,"),
    ("step", "four values"): f"{STEP}4 values",
    ("step", "six values"): f"{STEP}6 values",
    ("step", "a list"): f"{STEP}a list",
    ("step", "nothing"): f"{STEP}a NoneType",
    ("step", "observation longer"): SHAPE.format("5,"),
    ("step", "observation of one"): SHAPE.format("1,"),
    ("step", "observation a number"): SHAPE.format(""),
    ("step", "observation a column"): SHAPE.format("3, 1"),
    ("step", "observation None"): SHAPE.format(""),
    ("step", "observation a word"): f"{KIND}ValueError: ",
    ("step", "observation a dict"): f"{KIND}TypeError: ",
    ("step", "observation ragged"): f"{KIND}ValueError: ",
    ("step", "reward None"): f"{NUMBERS}None, False, False)",
    ("step", "reward a word"): f"{NUMBERS}'1.0', False, False)",
    ("step", "reward of one"): f"{NUMBERS}array([",
    ("step", "reward of two"): f"{NUMBERS}array([",
    ("step", "reward a matrix"): f"{NUMBERS}array([[",
    ("step", "reward complex"): f"{NUMBERS}1j, False, False)",
    ("step", "reward a dict"): f"{NUMBERS}{{'agent': ",
    ("step", "end None"): f"{NUMBERS}1.0, None, False)",
    ("step", "end a word"): f"{NUMBERS}1.0, 'no', False)",
    ("step", "cut of one"): f"{NUMBERS}1.0, False, [False])",
}
ERRORS = {
    "bare": "AssertionError",
    "newline": "ValueError: the bridge is out",
    "time-out": "TimeoutError",
    "refused": "ConnectionRefusedError: [Errno 111] Connection refused",
    "no file": "FileNotFoundError: [Errno 2] No such file or directory: 'level.json'",
    "stop": "StopIteration: the bridge is out",
}


def test_every_awkwardness_is_tested():
    resets, steps = ({how for where, how in BROKEN if where == kind} for kind in ("reset", "step"))
    assert (resets, steps, set(ERRORS)) == tuple(
        map(set, (envs.Awkward.RESETS, envs.Awkward.STEPS, envs.Awkward.ERRORS))
    )


@pytest.mark.parametrize("where, how", BROKEN)
def test_broken_interface(m, cli, where, how):
    """Found before the start: one line with status 2, nothing written."""
    status, out, err = cli(m, *task("Awkward", where=where, how=how, reward=1.0), *FLAGS)
    assert (status, out) == (2, "") and len(lines(err)) == 1 and "Traceback" not in err, err
    assert lines(err)[0].startswith(f"ppo_continuous.py: error: --env-id envs:Awkward-v0: {BROKEN[where, how]}")
    assert files() == []


def test_broken_interface_below_a_time_limit(m, cli):
    """Gymnasium's own wrapper would be the first to stumble."""
    for (where, how), said in BROKEN.items():
        with pytest.raises(m.InputError) as refused:
            train(m, "Awkward", where=where, how=how, reward=1.0, max_episode_steps=8)
        assert str(refused.value).startswith(f"--env-id envs:Awkward-v0: {said}")
    assert files() == []


@pytest.mark.parametrize("where, how", BROKEN)
def test_interface_broken_later(m, cli, where, how):
    """In the third iteration: the same line with status 1, iteration, run and how to go on, which then works."""
    at = {"reset": 3, "step": 20}[where]
    status, _, err = cli(m, *task("Awkward", where=where, how=how, at=at, reward=1.0), *FLAGS)
    assert status == 1 and len(lines(err)) == 1 and "Traceback" not in err, err
    said, told = lines(err)[0].split(GO_ON)
    assert said.startswith(f"ppo_continuous.py: error: iteration 3: {BROKEN[where, how]}")
    assert told.endswith("ppo_continuous.py --resume runs/run")
    assert read_checkpoint("runs/run")["iteration"] == 2
    assert len(m.train(m.Args(resume="runs/run")).history) == 4


def test_reset_that_knows_no_seed(m, cli):
    status, _, err = cli(m, *task("SeedlessReset"), *FLAGS)
    assert status == 2 and len(lines(err)) == 1 and files() == []
    assert "--env-id envs:SeedlessReset-v0: " in err and "unexpected keyword argument 'seed'" in err


@pytest.mark.parametrize("how", ERRORS)
def test_error_in_the_constructor(m, cli, how):
    """One line that is never empty: the error's name, the first line of its message that has words."""
    status, out, err = cli(m, *task("Awkward", where="constructor", how=how), *FLAGS)
    assert (status, out) == (2, "") and len(lines(err)) == 1 and "Traceback" not in err
    assert err.startswith("ppo_continuous.py: error: --env-id envs:Awkward-v0 --env-kwargs {")
    assert err.endswith(f"}}: {ERRORS[how]}\n") and files() == []


def printed(error) -> list[str]:
    """What the interpreter prints of an exception that nothing caught."""
    return "".join(traceback.format_exception(error)).rstrip().splitlines()


def raised_by(m, cli, *flags):
    """The exception with which a command line ends."""
    with pytest.raises(Exception) as caught:  # noqa: B017
        cli(m, *flags)
    assert not isinstance(caught.value, m.InputError | m.Fault)
    return caught.value


@pytest.mark.parametrize("how", ERRORS)
@pytest.mark.parametrize("where", ["reset", "step"])
def test_error_in_the_first_reset_or_step(m, cli, where, how):
    """The traceback of the environment's own code, then a line of ours; nothing is written."""
    shown = printed(raised_by(m, cli, *task("Awkward", where=where, how=how), *FLAGS))
    assert shown[0].startswith("Traceback") and "    raise self.ERRORS[self.how]()" in shown
    assert shown[-1] == f"--env-id envs:Awkward-v0{NOTHING}" and files() == []


@pytest.mark.parametrize("how", ERRORS)
@pytest.mark.parametrize("where", ["reset", "step"])
def test_error_later(m, cli, where, how):
    """The traceback, then iteration, run and how to go on; the checkpoint before is whole."""
    at = {"reset": 3, "step": 20}[where]
    shown = printed(raised_by(m, cli, *task("Awkward", where=where, how=how, at=at), *FLAGS))
    assert shown[0].startswith("Traceback") and "    raise self.ERRORS[self.how]()" in shown
    assert shown[-1].startswith(f"iteration 3: {GO_ON[2:]}")
    assert shown[-1].endswith("ppo_continuous.py --resume runs/run")
    assert read_checkpoint("runs/run")["iteration"] == 2


def test_error_in_a_real_process(tmp_path):
    """A refused connection is the environment's own, not a file of ours: status 1, traceback, and a last line."""
    flags = (*task("Awkward", how="refused", at=20), *FLAGS, "--clip-actions")
    done = run_script("trpo_plus", *flags, cwd=tmp_path, PYTHONPATH=ROOT / "tests")
    shown = lines(done.stderr)
    assert done.returncode == 1 and shown[-2] == ERRORS["refused"] and any(x.startswith("Traceback") for x in shown)
    assert shown[-1].startswith(f"iteration 3: {GO_ON[2:]}") and "trpo_plus.py --resume runs/run" in shown[-1]
    assert read_checkpoint(tmp_path / "runs" / "run")["iteration"] == 2


@pytest.mark.parametrize("how", ERRORS)
def test_error_in_close(m, cli, how):
    """After training and after evaluation: traceback, a line of ours, and still the closing line with status 0."""
    for flags, closing in (
        ((*task("Awkward", where="close", how=how, length=4), *FLAGS), "runs/run: finished, 32 steps"),
        (("--evaluate", "runs/run", "--episodes", 2), "runs/run: mean return "),
    ):
        status, out, err = cli(m, *flags)
        assert status == 0 and out.splitlines()[-1].startswith(closing)
        assert "Traceback" in err and "raise self.ERRORS[self.how]()" in err
        assert lines(err)[-1] == "warning: an environment could not be closed"


def test_error_in_close_does_not_hide_the_first_error(m, cli):
    """A run that ends in a fault says so in its last line, whatever close says."""
    kwargs = {"where": "close", "how": "bare", "bad_at": 20}
    status, _, err = cli(m, *task("Awkward", **kwargs), *FLAGS)
    assert status == 1 and "could not be closed" in err
    assert lines(err)[-1].startswith("ppo_continuous.py: error: iteration 3: reward is not finite; runs/run keeps")


def test_environment_that_cannot_be_closed_before_its_reset(m, cli):
    run = train(m, "UncloseableBeforeReset", length=4, reward=1.0).run
    assert m.load_policy(run)(np.zeros(3)).shape == (2,)
    assert m.evaluate(run, episodes=2) == [4.0, 4.0]


def test_environment_of_which_one_may_be_open(m, cli):
    """The one that is tried before the start is closed then; the one whose spaces load_policy reads, too."""
    run = train(m, "Single", length=4, reward=1.0).run
    assert m.evaluate(run, episodes=2) == [4.0, 4.0] and not envs.Single.is_open


@pytest.mark.parametrize("where", ["reset", "step"])
def test_evaluation_of_a_broken_interface(m, cli, where):
    """In one line, too."""
    train(m, "Awkward", length=4)
    how = {"reset": "three values", "step": "four values"}[where]
    kwargs = json.dumps({"where": where, "how": how})
    status, out, err = cli(m, "--evaluate", "runs/run", "--env-kwargs", kwargs)
    assert (status, out) == (1, "") and len(lines(err)) == 1
    assert err.startswith(f"ppo_continuous.py: error: {BROKEN[where, how]}")


def test_environment_that_asserts_actions_inside_its_space(m, cli):
    """It fails in the first iteration, as actions arrive unclipped; the lines name the flag with which it trains."""
    shown = printed(raised_by(m, cli, *task("Toy", inside=True), *FLAGS))
    assert "AssertionError" in shown[-3] and "--clip-actions" in shown[-2]
    assert shown[-1].startswith(f"iteration 1: {GO_ON[2:]}")
    assert cli(m, *task("Toy", inside=True), *FLAGS[:-1], "clipped", "--clip-actions")[0] == 0
    other = printed(raised_by(m, cli, *task("Awkward", how="bare", at=20), *FLAGS[:-1], "other", "--clip-actions"))
    assert "--clip-actions" not in "".join(other)  # another error has nothing to do with it


@pytest.mark.parametrize("name", ["Counted", "Recorded", "Loud"])
def test_environment_that_counts_its_episodes(script, cli, name):
    """RecordEpisodeStatistics within or at registration, or an "episode" in info: our own count is logged."""
    kwargs = {"kind": "float64"} if name == "Loud" else {}
    history = train(script, name, length=4, reward=0.5, **kwargs).history
    assert [row["charts/episodic_return"] for row in history] == [2.0] * 4
    assert [row["charts/episodic_length"] for row in history] == [4.0] * 4


REWARDS = [("float16", 0.1), ("float16", 2000.0), ("float32", 0.1), ("uint8", 200), ("int8", -100), ("int64", 3)]
REWARDS += [("bool", 1), ("python bool", 1), ("torch", 0.1)]


@pytest.mark.parametrize("kind, reward", REWARDS)
def test_kinds_of_rewards_are_summed_in_float64(m, cli, kind, reward):
    """64 of them have no place, or no exact one, in the small kinds. Evaluation sums them as training does."""
    sizes = {"num_steps": 64, "total_timesteps": 64}
    result = train(m, "Loud", sizes, length=64, kind=kind, reward=reward)
    exact = float(np.float32(reward) if kind in ("torch", "float32") else np.float16(reward)) * 64
    assert result.history[0]["charts/episodic_return"] == pytest.approx(exact, rel=1e-12)
    assert m.evaluate(result.run, episodes=1) == pytest.approx([exact], rel=1e-12)


@pytest.mark.parametrize("shape", [(1,), (5,), (), (3, 1), (1, 3)])
def test_a_loaded_policy_compares_shapes(m, cli, shape):
    act = m.load_policy(train(m, "Toy").run)
    with pytest.raises(m.Fault) as fault:
        act(np.zeros(shape))
    assert str(fault.value) == f"an observation has the shape {shape}, its space (3,)"
    assert act([0.0, 0.0, 0.0]).shape == (2,)


@pytest.mark.parametrize("kind", ["Box", "Discrete", ""])
@pytest.mark.parametrize("which", ["observation_space", "action_space"])
def test_spaces_of_another_package(m, cli, which, kind):
    """The message names it."""
    status, out, err = cli(m, *task("Spaces", which=which, kind=kind), *FLAGS)
    assert (status, out) == (2, "") and len(lines(err)) == 1 and files() == []
    assert f"needs gymnasium's spaces, not {f'gym.spaces.box.{kind}' if kind else 'builtins.NoneType'}\n" in err


def test_environment_of_another_package(m, cli):
    status, out, err = cli(m, *task("OtherPackage"), *FLAGS)
    assert (status, out) == (2, "") and len(lines(err)) == 1 and files() == []
    assert "--env-id envs:OtherPackage-v0" in err and "gymnasium" in err


INF = math.inf
ODD = [
    ([-10, -10], [10, 10]),
    ([-0.01, -0.01], [0.01, 0.01]),
    ([0, 0], [1, 1]),
    ([-1, -1], [1, 100]),
    ([5, -1], [6, 1]),
]
ODD += [([-1, 3], [1, 4]), ([-1, -1], [0, 1]), ([-1, -30], [INF, 30])]
USUAL = [
    ([-1, -1], [1, 1]),
    ([-0.4, -0.4], [0.4, 0.4]),
    ([-2, -2], [2, 2]),
    ([-INF, -INF], [INF, INF]),
    ([0, -1], [INF, 1]),
]
USUAL += [([-3, -0.5], [3, 0.5]), ([-INF, -1], [0, 1])]


@pytest.mark.parametrize("low, high", ODD + USUAL)
def test_action_bounds_far_from_one(m, cli, low, high):
    """Wide, tiny, shifted, in any component: one line before the start names the wrapper that scales; it trains on."""
    status, out, err = cli(m, *task("Shifted", low=low, high=high), *FLAGS)
    assert status == 0 and "finished" in out
    warned = lines(err)
    assert len(warned) == ((low, high) in ODD), err
    assert all("gymnasium.wrappers.RescaleAction(env, -1, 1)" in line and "actions lie in [" in line for line in warned)
    if warned:
        assert f"[{min(low):g}, {max(high):g}]" in warned[0]


def test_training_in_which_no_episode_ends(m, cli, capsys):
    result = train(m, "Toy", length=10**9)
    assert capsys.readouterr().out.endswith("runs/run: finished, 32 steps (4 iterations); no episode ended\n")
    assert math.isnan(result.final_return) and not any("charts/episodic_return" in row for row in result.history)


@pytest.mark.parametrize("seconds, told", [(1, 2), (0, 0)])
def test_evaluation_of_an_environment_that_never_ends(m, cli, monkeypatch, capsys, seconds, told):
    """A line after a while, that names the limit; a step takes a second by a clock of our own. The limit is an end."""
    run = train(m, "Toy", length=10**9, reward=1.5, bad_at=100).run  # by then it has failed
    clock = itertools.count(0, seconds)
    monkeypatch.setattr(m, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    assert m.evaluate(run, episodes=1, max_episode_steps=40) == [60.0]
    said = lines(capsys.readouterr().err)
    assert len(said) == told and all(x.startswith("episode 1: ") and "--max-episode-steps" in x for x in said)
    assert m.evaluate(run, episodes=3, max_episode_steps=4) == [6.0] * 3


def test_limit_of_evaluation_on_the_command_line(m, cli):
    train(m, "Toy", length=10**9, reward=1.5, bad_at=100)
    status, out, err = cli(m, "--evaluate", "runs/run", "--episodes", 2, "--max-episode-steps", 4)
    assert (status, err) == (0, "") and "mean return 6.0, standard deviation 0.0, 2 episodes" in out


@pytest.mark.parametrize("seed", [1, 2])
def test_global_generators_are_seeded(m, cli, seed):
    """An environment that draws from them sees the same in two runs of a seed, whatever was drawn before."""
    runs = [train(m, "Global", {"seed": s, "run_name": f"{s} {i}"}).run for i, s in enumerate((seed, seed, seed + 1))]
    assert_equal(*map(trained, runs[:2]))
    assert (
        trained(runs[0])["agent"]["obs_filter"]["mean"].tolist()
        != trained(runs[2])["agent"]["obs_filter"]["mean"].tolist()
    )


def test_one_thread_while_training(m, cli):
    """NumPy's, too, whose threads cost most of the time on wide inputs; afterwards it has its own again."""
    envs.Threads.seen.clear()
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        before = [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
        train(m, "Threads")
        after = [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    assert 2 in before and after == before
    assert len(envs.Threads.seen) > 32 and set(envs.Threads.seen) == {1}


def test_no_run_is_named_after_a_broken_environment(m, cli):
    """The same name can be taken once the environment works."""
    assert cli(m, *task("Awkward", how="four values"), *FLAGS)[0] == 2 and not Path("runs").exists()
    assert cli(m, *task("Awkward"), *FLAGS)[0] == 0


@pytest.mark.parametrize("kind", ["grad", "ragged"])
def test_reward_that_numpy_cannot_hold(m, cli, kind):
    status, _, err = cli(m, *FLAGS, *task("OddReward", kind=kind))
    assert status == 2 and len(lines(err)) == 1 and "must return a number as reward" in err and files() == []


@pytest.mark.filterwarnings("error")
def test_bounds_at_the_limits(m, cli):
    assert len(train(m, "Limits").history) == 4


@pytest.mark.parametrize("kind", ["dict", "tuple"])
def test_a_part_of_another_shape(m, cli, kind):
    with pytest.raises(m.InputError, match=r"has the shape \(3, 2\), its space \(2, 3\)"):
        train(m, "Parts", kind=kind)


def test_reset_without_options(m, cli):
    status, _, err = cli(m, *FLAGS, *task("NoOptions"))
    assert status == 2 and len(lines(err)) == 1 and "unexpected keyword argument 'options'" in err and files() == []


@pytest.mark.parametrize("how", ["exit", "other"])
def test_environment_that_ends_the_process(m, cli, how):
    """Exit status 0 would let a shell's `&&` go on: a fault, with the run and how to go on."""
    if how == "exit":
        status, _, err = cli(m, *FLAGS, *task("Exits", how=how))
        assert status == 1 and lines(err)[-1].startswith(
            "ppo_continuous.py: error: iteration 3: step ended with SystemExit" + GO_ON
        )
    else:
        with pytest.raises(GeneratorExit) as caught:
            train(m, "Exits", how=how)
        assert caught.value.__notes__[0].startswith("iteration 3: " + GO_ON.removeprefix("; "))
    assert read_checkpoint("runs/run")["iteration"] == 2


@pytest.mark.parametrize("where", ["constructor", "reset"])
def test_environment_that_ends_the_process_at_once(m, cli, where):
    status, _, err = cli(m, *FLAGS, *task("Exits", where=where))
    assert status == 2 and len(lines(err)) == 1 and "SystemExit: 3" in err and files() == []


@pytest.mark.parametrize("where", ["step", "reset", "close"])
def test_environment_that_ends_the_process_in_evaluation(m, cli, where):
    """Exit status 0 without a word would pass for an evaluation."""
    train(m, "Exits", at=-1)
    kwargs = json.dumps({"where": where, "at": 2})
    if where == "close":  # of the environment that tells its spaces, and of the one that is played in
        status, out, err = cli(m, "--evaluate", train(m, "Exits", {"run_name": "closes"}, where=where).run)
        assert status == 0 and "mean return" in out and err.count("warning: an environment could not be closed") >= 2
        return
    status, out, err = cli(m, "--evaluate", "runs/run", "--env-kwargs", kwargs)
    assert (status, out) == (1, "") and err.startswith(f"ppo_continuous.py: error: {where} ended with SystemExit")


@pytest.mark.parametrize("kind", ["discrete", "multi", "integer", "nested_discrete"])
def test_observations_beyond_their_space(m, cli, kind):
    """Flattened, -1 would be the last of three, 3 of a first part the second's, 0.5 no more than 0."""
    flags = [*FLAGS, *task("Beyond", kind=kind)]
    status, _, err = cli(m, *flags)
    said = "has values that its space's uint8 does not hold" if kind == "integer" else "is not one of"
    assert status == 2 and len(lines(err)) == 1 and said in err and files() == []
    status, _, err = cli(m, *FLAGS, *task("Beyond", kind=kind, at=10))
    assert status == 1 and re.search(rf"error: iteration \d: an observation {said}", err)
    assert len(train(m, "Beyond", {"run_name": "whole"}, kind=kind, at=10**6).history) == 4


def test_environment_that_ends_the_process_when_it_is_closed(m, cli):
    """The run is finished and says so; that of the trial, both of training: each is tried."""
    status, out, err = cli(m, *FLAGS, "--num-envs", 2, *task("Exits", where="close"))
    assert status == 0 and "finished" in out and err.count("warning: an environment could not be closed") == 3


def test_every_environment_is_closed(m, cli):
    """After training and evaluation, and where a start is refused: one that holds a process would keep ours alive."""
    run = train(m, "Worker", {"num_envs": 2, "heldout_every": 1}).run
    assert envs.Worker.OPEN == 0
    m.evaluate(run, episodes=1)
    assert envs.Worker.OPEN == 0
    for changed, kwargs in (({}, {}), ({"run_name": "other"}, {"reward_kind": "none"}), ({"num_minibatches": 3}, {})):
        with pytest.raises(m.InputError):  # the name is taken; no reward; a batch that cannot be divided
            train(m, "Worker", changed, **kwargs)
        assert envs.Worker.OPEN == 0
    with pytest.raises((m.Fault, m.InputError)):
        m.evaluate(run, episodes=1, env_kwargs='{"reward_kind": "none"}')
    assert envs.Worker.OPEN == 0


def test_a_checkpoint_that_does_not_fit(m, cli):
    """The environment has changed since: one line, not PyTorch's many."""
    run = train(m, "Toy").run
    checkpoint = read_checkpoint(run)
    checkpoint["args"]["hidden_sizes"] = (5,)
    torch.save(checkpoint, run / "checkpoint.pt")
    status, _, err = cli(m, "--evaluate", run)
    assert status == 2 and len(lines(err)) == 1 and "does not fit envs:Toy-v0 as it is now" in err


def test_evaluation_seeds_the_global_generators(m, cli):
    run = train(m, "Global").run
    assert m.evaluate(run, episodes=3, stochastic=True) == m.evaluate(run, episodes=3, stochastic=True)
