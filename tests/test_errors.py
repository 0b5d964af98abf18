"""Bad input: exit status 2, one line that names the flag, nothing left behind. Trouble while training: exit status 1,
one line that names iteration and quantity, and a checkpoint to go on from. Through main(), mostly in this process."""

import errno
import importlib
import json
import math
import os
import resource
import subprocess
import sys
import time
import typing
from pathlib import Path

import pytest
import torch
from conftest import FULL, MINIMAL, PPO, ROOT, SCRIPTS, TRPO, files, lines, run_script, saved

pytestmark = pytest.mark.slow

TESTS = ROOT / "tests"
TOY = ("--env-id", "envs:Toy-v0")
TINY = (*TOY, "--num-steps", "32", "--num-minibatches", "4", "--total-timesteps", "128", "--no-progress")


def assert_refused(m, result, flag):
    """Exit status 2 and one line, which names the flag; from what tyro itself rejects, its box."""
    status, out, err = result
    assert status == 2, (out, err)
    assert "Traceback" not in out + err and flag in err, err
    if "--help" not in err:
        assert len(lines(err)) == 1 and lines(err)[0].startswith(f"{m.__name__}.py: error: "), err


ENVIRONMENTS = {
    "unknown": ("--env-id", "NoSuchEnvironment-v0"),
    "unknown-version": ("--env-id", "Hopper-v99"),
    "malformed": ("--env-id", "no such id!"),
    "empty": ("--env-id", ""),
    "no-module": ("--env-id", "no_such_module:Env-v0"),
    "not-in-module": ("--env-id", "envs:NoSuchEnvironment-v0"),
    "discrete-actions": ("--env-id", "CartPole-v1"),
    "integer-actions": ("--env-id", "envs:IntegerActions-v0"),
    "sequence-observations": ("--env-id", "envs:SequenceObs-v0"),
    "graph-observations": ("--env-id", "envs:GraphObs-v0"),
    "not-json": ("--env-kwargs", "{length: 3}"),
    "json-list": ("--env-kwargs", "[3]"),
    "json-number": ("--env-kwargs", "3"),
    "unknown-kwarg": ("--env-kwargs", '{"no_such_keyword": 3}'),
    "kwarg-of-wrong-value": ("--env-kwargs", '{"dtype": "no such type"}'),
}


@pytest.mark.parametrize("case", ENVIRONMENTS)
def test_environment(script, cli, case):
    flags = ENVIRONMENTS[case]
    assert_refused(script, cli(script, *(TOY if flags[0] == "--env-kwargs" else ()), *flags), flags[0])
    assert files() == []


COUNTS = ("num-envs", "num-steps", "num-minibatches", "update-epochs", "checkpoint-every", "total-timesteps")
RATES = ("value-lr", "adam-eps")  # in (0, inf)
CLIPS = ("vf-clip-coef", "clip-reward", "clip-obs", "max-grad-norm")  # in (0, inf]
NUMBERS = [(SCRIPTS, flag, value) for flag in COUNTS for value in ("0", "-1", "nan", "1.5")]
NUMBERS += [(SCRIPTS, flag, value) for flag in RATES for value in ("0", "-1", "nan", "inf", "x")]
NUMBERS += [(SCRIPTS, flag, value) for flag in ("gamma", "gae-lambda") for value in ("-0.1", "1.1", "nan", "inf")]
NUMBERS += [(SCRIPTS, "seed", value) for value in ("-1", "4294967296", "0.5")]
NUMBERS += [(SCRIPTS, "heldout-every", "-1")]
NUMBERS += [(SCRIPTS, "hidden-sizes", value) for value in ("0", "-1", "nan", "64 0")]
NUMBERS += [(PPO, "clip-coef", value) for value in ("0", "-1", "nan")]
NUMBERS += [(PPO, "policy-lr", value) for value in ("0", "-1", "nan", "inf")]
NUMBERS += [(PPO, "ent-coef", value) for value in ("nan", "inf")]
NUMBERS += [(TRPO, flag, value) for flag in ("cg-steps", "max-backtracks") for value in ("0", "-1", "nan")]
NUMBERS += [(TRPO, "max-kl", value) for value in ("0", "-1", "nan", "inf")]
NUMBERS += [(TRPO, "cg-damping", value) for value in ("-1", "nan", "inf")]
NUMBERS += [(TRPO, "fisher-fraction", value) for value in ("0", "-1", "1.1", "nan", "inf")]
NUMBERS += [(FULL, flag, value) for flag in CLIPS for value in ("0", "-1", "nan")]
NUMBERS += [(("trpo_plus",), "max-kl-final", value) for value in ("0", "-1", "nan", "inf")]
CHOICES = [(FULL, "reward-scaling", "x"), (FULL, "init", "x"), (SCRIPTS, "activation", "x")]


@pytest.mark.parametrize("name", SCRIPTS)
def test_numbers_and_choices(name, cli):
    """Every numeric flag at values it does not take, and every choice; all in one test, for they take 10 ms each."""
    m, wrong = importlib.import_module(name), []
    for scripts, flag, value in NUMBERS + CHOICES:
        if name in scripts:
            try:
                assert_refused(m, cli(m, *TINY, f"--{flag}", *value.split()), f"--{flag}")
            except AssertionError as error:
                wrong.append(f"--{flag} {value}: {error}")
    assert wrong == [] and files() == []


def test_every_numeric_flag_is_tested(script):
    """A flag added to a script must be added above."""
    hints = typing.get_type_hints(script.Args, include_extras=True)
    numeric = {name for name, hint in hints.items() if "[int" in str(hint) or "[float" in str(hint)}
    tested = {flag.replace("-", "_") for scripts, flag, _ in NUMBERS if script.__name__ in scripts}
    assert numeric - tested == {"episodes", "max_episode_steps"} and len(numeric) > 15


def test_no_hidden_layer(script, cli):
    assert_refused(script, cli(script, *TINY, "--hidden-sizes"), "--hidden-sizes")
    assert files() == []


@pytest.mark.parametrize("minibatches", [5, 64])
def test_batch_does_not_divide(script, cli, minibatches):
    assert_refused(script, cli(script, *TINY, "--num-minibatches", minibatches), "--num-minibatches")
    assert files() == []


@pytest.mark.parametrize("envs, steps", [(1, 31), (2, 63)])
def test_less_than_one_batch(script, cli, envs, steps):
    flags = ("--num-envs", envs, "--total-timesteps", steps)
    assert_refused(script, cli(script, *TINY, *flags), "--total-timesteps")
    assert files() == []


def test_existing_run(script, cli):
    os.makedirs("runs/old")
    assert_refused(script, cli(script, *TINY, "--run-name", "old"), "--run-name")
    assert files() == ["./runs", "./runs/old"]


def test_runs_dir_below_a_file(script, cli):
    Path("file").touch()
    for folder in ("file", "file/below"):
        assert_refused(script, cli(script, *TINY, "--runs-dir", folder), "--runs-dir")
    assert files() == ["./file"]


def test_run_name_too_long(script, cli):
    assert_refused(script, cli(script, *TINY, "--run-name", "x" * 300), "--run-name")
    assert files() in ([], ["./runs"])  # at most the empty folder of all runs


def test_full_disk_at_the_start(script, cli, monkeypatch):
    """args.json cannot be written: not half a run is left."""

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(script.os, "fsync", full)
        result = cli(script, *TINY, "--run-name", "new")
    assert_refused(script, result, "--runs-dir")
    assert [path for path in files() if "new" in path] == []


def test_video_without_evaluate(script, cli):
    assert_refused(script, cli(script, *TINY, "--video"), "--video")
    assert files() == []


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of each script."""
    folder = tmp_path_factory.mktemp("finished")
    for name in SCRIPTS:
        m = importlib.import_module(name)
        sizes = {"num_steps": 32, "num_minibatches": 4, "total_timesteps": 64, "env_id": "envs:Toy-v0"}
        m.train(m.Args(runs_dir=str(folder), run_name=name, progress=False, **sizes))
    return folder


def checkpoint_of_kind(kind, whole, path):
    """Writes a checkpoint that cannot be used."""
    content = whole.read_bytes()
    path.parent.mkdir()
    if kind == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "garbage":
        path.write_bytes(bytes(range(256)) * 16)
    elif kind == "directory":
        path.mkdir()
    elif kind == "list":
        torch.save([1, 2, 3], path)
    elif kind == "dict":
        torch.save({"policy": torch.zeros(3)}, path)
    elif kind == "args-not-dict":
        torch.save({"script": "x", "args": [1]}, path)


KINDS = ("missing", "truncated", "empty", "garbage", "directory", "list", "dict", "args-not-dict", "foreign")


@pytest.mark.parametrize("flag", ["--resume", "--evaluate"])
@pytest.mark.parametrize("kind", KINDS)
def test_checkpoint_that_cannot_be_used(script, cli, finished, tmp_path, flag, kind):
    name, run = script.__name__, tmp_path / "run"
    if kind == "foreign":
        run = finished / SCRIPTS[(SCRIPTS.index(name) + 1) % 4]
    elif kind != "missing":
        checkpoint_of_kind(kind, finished / name / "checkpoint.pt", run / "checkpoint.pt")
    before = files(run)
    status, out, err = result = cli(script, flag, run)
    assert_refused(script, result, str(run))
    assert not lines(err)[0].endswith(": "), "no reason given"
    assert files(run) == before and files() == []


@pytest.mark.parametrize("flag", ["--resume", "--evaluate"])
def test_message_about_a_checkpoint_names_the_flag(script, cli, flag):
    assert flag in cli(script, flag, "nowhere")[2]


@pytest.mark.parametrize("episodes", [0, -1])
def test_no_episodes(script, cli, finished, episodes):
    assert_refused(script, cli(script, "--evaluate", finished / script.__name__, "--episodes", episodes), "--episodes")


@pytest.mark.parametrize("seed", [-1, 2**70])
def test_seed_of_evaluation(script, cli, finished, seed):
    result = cli(script, "--evaluate", finished / script.__name__, "--seed", seed)
    assert_refused(script, result, "--seed")
    assert "--video" not in result[2]


@pytest.mark.filterwarnings("ignore")
def test_video_that_cannot_be_rendered(script, cli, finished):
    assert_refused(script, cli(script, "--evaluate", finished / script.__name__, "--video"), "--video")


REAL = {
    "ppo_continuous": (("--env-id", "NoSuchEnvironment-v0"), "--env-id"),
    "ppo_m": (("--num-minibatches", "7"), "--num-minibatches"),
    "trpo_continuous": (("--resume", "nowhere"), "nowhere"),
    "trpo_plus": (("--gamma", "nan"), "--gamma"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_real_process(name, tmp_path):
    """One case for each script without any patching."""
    flags, named = REAL[name]
    done = run_script(name, *flags, cwd=tmp_path)
    assert_refused(importlib.import_module(name), (done.returncode, done.stdout, done.stderr), named)
    assert files(tmp_path) == []


def assert_stopped(m, result, iteration, quantity):
    """Exit status 1 and one line naming iteration and quantity; the checkpoint of the iteration before is whole."""
    status, out, err = result
    assert status == 1 and "Traceback" not in out + err, err
    said = [line for line in lines(err) if not line.startswith("no TRPO step")]
    assert len(said) == 1 and said[0].startswith(f"{m.__name__}.py: error: iteration {iteration}: {quantity}"), err
    assert "not finite" in said[0] and "runs/run" in said[0], err
    checkpoint = saved("runs/run")
    assert len(checkpoint["history"]) == iteration - 1
    state = checkpoint["agent"]
    assert all(value.isfinite().all() for part in ("policy", "value") for value in state[part].values())
    assert "finished" not in out
    if iteration > 1:  # of checkpoint 0 there is no policy to play
        m.load_policy("runs/run")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("bad", ["reward", "obs"])
def test_environment_returns_non_finite(script, cli, bad, value):
    """At step 70, in the third iteration of 32 steps. A new process counts anew: there the run can go on."""
    kwargs = json.dumps({"bad_at": 70, "bad": bad, "bad_value": value})
    result = cli(script, *TINY, "--env-kwargs", kwargs, "--run-name", "run")
    assert_stopped(script, result, 3, {"obs": "observation", "reward": "reward"}[bad])
    assert cli(script, "--resume", "runs/run", "--no-progress")[0] == 0
    assert len(saved("runs/run")["history"]) == 4


def test_non_finite_in_the_first_observation(script, cli):
    """Found before anything is written."""
    result = cli(script, *TINY, "--env-kwargs", '{"obs": NaN}', "--run-name", "run")
    assert_refused(script, result, "observation is not finite")
    assert files() == []


def test_huge_value_rate(script, cli):
    result = cli(script, *TINY, "--value-lr", "1e38", "--run-name", "run")
    assert_stopped(script, result, 1, "")
    assert "loss" in result[2] or "parameter" in result[2]


@pytest.mark.parametrize("name", PPO)
def test_huge_policy_rate(name, cli):
    m = importlib.import_module(name)
    result = cli(m, *TINY, "--policy-lr", "1e38", "--run-name", "run")
    assert_stopped(m, result, 1, "")
    assert "loss" in result[2] or "parameter" in result[2]


def test_non_finite_parameter(script, cli, monkeypatch):
    """A finite loss with a NaN among the parameters is found at once, not in the next iteration."""
    update = script.update

    def spoil(args, agent, batch):
        row = update(args, agent, batch)
        agent.policy.log_std.data[0] = math.nan
        return row

    monkeypatch.setattr(script, "update", spoil)
    assert_stopped(script, cli(script, *TINY, "--run-name", "run"), 1, "parameter")


@pytest.mark.parametrize("name", FULL)
def test_reward_of_1e30_trains_when_scaled(name, cli):
    m = importlib.import_module(name)
    status, _, err = cli(m, *TINY, "--env-kwargs", '{"reward": 1e30}', "--run-name", "run")
    assert status == 0 and [line for line in lines(err) if not line.startswith("no TRPO step")] == []
    checkpoint = saved("runs/run")
    assert all(math.isfinite(value) for row in checkpoint["history"] for value in row.values())
    assert checkpoint["history"][-1]["charts/episodic_return"] == pytest.approx(1e31)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("reward", ["1e30", "1e300"])
@pytest.mark.parametrize("name", MINIMAL)
def test_reward_of_1e30_unscaled(name, cli, reward):
    """Its square has no place in float32; 1e300 has none itself."""
    m = importlib.import_module(name)
    result = cli(m, *TINY, "--env-kwargs", json.dumps({"reward": float(reward)}), "--run-name", "run")
    assert_stopped(m, result, 1, "")


def test_non_finite_in_a_real_process(tmp_path):
    """Nothing is patched here, and NumPy's warnings would be seen."""
    flags = (*TINY, "--env-kwargs", '{"bad_at": 70, "bad": "obs"}', "--run-name", "run")
    done = run_script("ppo_continuous", *flags, cwd=tmp_path, PYTHONPATH=TESTS)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert len(lines(done.stderr)) == 1 and "iteration 3: observation is not finite" in done.stderr


def no_space(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


def assert_disk_full(m, result, iterations):
    status, out, err = result
    assert status == 1 and "Traceback" not in out + err and len(lines(err)) in (1, 2), err
    said = [line for line in lines(err) if not line.startswith("no TRPO step")]
    assert len(said) == 1 and said[0].startswith(f"{m.__name__}.py: error: ") and "No space left" in said[0]
    assert len(saved("runs/run")["history"]) == iterations
    if iterations:
        m.load_policy("runs/run")


# the call, counted from the start, that belongs to the second iteration: fsync's 5th is the history's
@pytest.mark.parametrize("where, call", [("replace", 4), ("fsync", 5), ("fsync", 6), ("save", 3)])
def test_full_disk(script, cli, monkeypatch, where, call):
    """While the checkpoint of the second iteration is written: the first one's stays whole, and the run can go on."""
    owner = {"replace": script.os, "fsync": script.os, "save": script.torch}[where]
    real, calls = getattr(owner, where), []

    def fails(*args, **kwargs):
        calls.append(args)
        return no_space() if len(calls) == call else real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, where, fails)
        result = cli(script, *TINY, "--run-name", "run")
    assert_disk_full(script, result, 1)
    assert cli(script, "--resume", "runs/run", "--no-progress")[0] == 0
    assert len(saved("runs/run")["history"]) == 4


class DiskWithRoomFor:
    """A file on a disk with room for some bytes more."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        data = memoryview(data).cast("B")
        self.room -= len(data)
        return no_space() if self.room < 0 else self.file.write(data)


@pytest.mark.parametrize("room", [0, 10_000, 60_000])
def test_full_disk_in_the_midst_of_a_checkpoint(script, cli, monkeypatch, room):
    """However much still fits: torch.save itself would raise something else than OSError here."""
    opened = []

    def opener(path, mode="r", **kwargs):
        file = open(path, mode, **kwargs)  # noqa: SIM115
        opened.append(path)
        return DiskWithRoomFor(file, room) if len(opened) == 4 else file  # args.json, checkpoint 0, history

    with monkeypatch.context() as patch:
        patch.setattr(script, "open", opener, raising=False)
        result = cli(script, *TINY, "--run-name", "run")
    assert_disk_full(script, result, 0)


@pytest.mark.parametrize("from_the_start", [True, False])
def test_full_disk_in_a_real_process(from_the_start, tmp_path):
    """A limit on the size of files stands for the full disk: it cuts checkpoint 0, or a later one."""
    flags, limit = (*TOY, "--num-steps", "32", "--num-minibatches", "4", "--no-progress"), (50 * 1024, 50 * 1024)
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "ppo_continuous.py"), *flags, "--run-name", "run"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit) if from_the_start else None,
    )
    history = tmp_path / "runs/run/history.jsonl"
    while not from_the_start and not (history.exists() and history.read_text().count("\n") > 1):
        assert process.poll() is None
        time.sleep(0.01)
    if not from_the_start:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limit)
    _, err = process.communicate(timeout=100)
    assert len(lines(err)) == 1 and "File too large" in err
    if from_the_start:
        assert process.returncode == 2 and files(tmp_path) == [str(tmp_path / "runs")]
    else:
        assert process.returncode == 1 and saved(tmp_path / "runs/run")["iteration"] >= 1
