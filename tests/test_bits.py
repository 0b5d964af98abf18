"""Bit for bit, on Hopper-v5: tricks off is minimal, same seed same weights, from a command line and from Python alike,
held-out measurement changes nothing."""

from concurrent.futures import ThreadPoolExecutor
from math import inf

import pytest
import torch
from conftest import FULL, MINIMAL, SCRIPTS, assert_equal, load, read_history, run_script, trained, weights

pytestmark = pytest.mark.slow
SIZES = {"num_steps": 512, "total_timesteps": 1536, "num_minibatches": 8, "seed": 7, "progress": False}
RATES = {"ppo": {"policy_lr": 3e-4, "value_lr": 4e-4}, "trpo": {"max_kl": 0.07, "value_lr": 4e-4}}
RATES = {name: RATES[name.split("_")[0]] for name in SCRIPTS}
OFF = {"vf_clip_coef": inf, "reward_scaling": "none", "init": "xavier", "anneal_lr": False}
OFF |= {"clip_reward": inf, "clip_obs": inf, "max_grad_norm": inf}


@pytest.fixture
def train(tmp_path):
    """Trains a script in this process and returns the run's folder."""

    def run(name, **arguments):
        m, number = load(name), len(list(tmp_path.iterdir()))
        return m.train(m.Args(**{**SIZES, **arguments}, runs_dir=str(tmp_path), run_name=f"run-{number}")).run

    return run


def flags(arguments):
    """Arguments as a command line has them."""
    for name, value in arguments.items():
        word = name.replace("_", "-")
        yield from [f"--{'' if value else 'no-'}{word}"] if isinstance(value, bool) else [f"--{word}", value]


@pytest.fixture(scope="module")
def command_line_runs(tmp_path_factory):
    """Script -> the folder of a run by its command line; two processes at once."""
    folder = tmp_path_factory.mktemp("bits")

    def run(name):
        done = run_script(name, *flags(SIZES | RATES[name]), "--run-name", name, cwd=folder)
        assert done.returncode == 0, done.stderr
        return folder / "runs" / name

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(SCRIPTS, pool.map(run, SCRIPTS)))


@pytest.mark.parametrize("name", SCRIPTS)
def test_from_python_and_with_held_out_measurement(command_line_runs, train, name):
    """Another process, train(Args(...)) and measuring beside it: the same bits, but for what was measured."""
    heldout, names = train(name, **RATES[name], heldout_every=2), ("heldout_mean_kl", "heldout_max_ratio")
    history = read_history(heldout)
    measured = [[f"trust_region/{name}" in row for name in names] for row in history]
    assert measured == [[True, True], [False, False], [True, True]]
    assert 0 < history[0]["trust_region/heldout_mean_kl"] != history[0]["trust_region/mean_kl"]
    assert_equal(trained(heldout, drop=("heldout_",)), trained(command_line_runs[name]))


@pytest.mark.parametrize("name", SCRIPTS)
def test_another_seed_gives_other_weights(command_line_runs, train, name):
    with pytest.raises(AssertionError):
        assert_equal(weights(train(name, **RATES[name], seed=8)), weights(command_line_runs[name]))


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("full, minimal", tuple(zip(FULL, MINIMAL)))
def test_all_tricks_off_is_the_minimal_script(train, full, minimal, num_envs):
    changed = {**RATES[full], "num_envs": num_envs, "total_timesteps": 1536 * num_envs}
    off, plain = trained(train(full, **changed, **OFF)), trained(train(minimal, **changed))
    del off["agent"]["reward_filter"]
    assert_equal(off, plain)


# for each of the nine that a minimal script lacks, a setting that must show within two short iterations
TRICKS = {
    "vf_clip_coef": 0.02,
    "reward_scaling": "returns",
    "init": "orthogonal",
    "anneal_lr": True,
    "clip_reward": 0.5,
    "clip_obs": 0.5,
    "max_grad_norm": 0.01,
}


@pytest.mark.parametrize("name", FULL)
def test_each_trick_changes_the_weights(train, name):
    """Else the equality above would prove nothing."""
    small = {"num_steps": 128, "total_timesteps": 256, "num_minibatches": 4, "value_lr": 1e-3, **OFF}
    plain = trained(train(name, **small))
    assert_equal(trained(train(name, **small)), plain)
    tricks = TRICKS | ({"max_kl_final": 0.02} if name == "trpo_plus" else {})
    for trick, value in tricks.items():
        changed = trained(train(name, **{**small, trick: value}))
        pairs = [(changed["agent"][part], plain["agent"][part]) for part in ("policy", "value")]
        assert not all(torch.equal(a[key], b[key]) for a, b in pairs for key in a), trick
