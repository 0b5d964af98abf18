"""Bit for bit, through the real command lines on Hopper-v5: tricks off is minimal, same seed same weights, held-out
measurement changes nothing."""

import importlib
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from conftest import FULL, MINIMAL, SCRIPTS, assert_equal, run_script, saved, trained

SMALL = ("--num-steps", 512, "--total-timesteps", 1536, "--num-minibatches", 8, "--no-progress")
THREE = (*SMALL, "--num-envs", 3, "--total-timesteps", 4608)
OFF = ("--vf-clip-coef", "inf", "--reward-scaling", "none", "--init", "xavier", "--no-anneal-lr")
OFF += ("--clip-reward", "inf", "--clip-obs", "inf", "--max-grad-norm", "inf")
RATES = {"ppo": ("--policy-lr", 3e-4, "--value-lr", 4e-4), "trpo": ("--max-kl", 0.07, "--value-lr", 4e-4)}
SEED = ("--seed", 7)
PAIRS = tuple(zip(FULL, MINIMAL))


def commands():
    """Run -> (script, flags). Two neighbours run at the same moment: so do the "first" and "second" of a script."""
    for name in SCRIPTS:
        rates = () if name in FULL else RATES[name.split("_")[0]]
        yield f"{name}-first", (name, *SMALL, *SEED, *rates)
        yield f"{name}-second", (name, *SMALL, *SEED, *rates)
    for full, minimal in PAIRS:
        rates = RATES[full.split("_")[0]]
        yield f"{full}-heldout", (full, *SMALL, *SEED, "--heldout-every", 2)
        yield f"{full}-off-1", (full, *SMALL, *SEED, *rates, *OFF)
        yield f"{full}-off-3", (full, *THREE, *SEED, *rates, *OFF)
        yield f"{minimal}-3", (minimal, *THREE, *SEED, *rates)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run -> its last checkpoint. All commands run here, two at a time."""
    folder = tmp_path_factory.mktemp("bits")

    def run(item):
        run_name, (script, *flags) = item
        done = run_script(script, *flags, "--run-name", run_name, cwd=folder)
        assert done.returncode == 0, done.stderr
        return run_name, torch.load(folder / "runs" / run_name / "checkpoint.pt", weights_only=True)

    with ThreadPoolExecutor(2) as pool:
        return dict(pool.map(run, commands()))


def weights(checkpoint):
    return {name: checkpoint["agent"][name] for name in ("policy", "value")}


def equal_weights(a, b):
    flat = [[*weights(x)["policy"].values(), *weights(x)["value"].values()] for x in (a, b)]
    return all(torch.equal(x, y) for x, y in zip(*flat))


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("full, minimal", PAIRS)
def test_all_tricks_off_is_the_minimal_script(runs, full, minimal, envs):
    off, plain = runs[f"{full}-off-{envs}"], runs[f"{minimal}-3" if envs == 3 else f"{minimal}-first"]
    assert len(off["history"]) == len(plain["history"]) == 3
    assert_equal(weights(off), weights(plain))
    assert_equal(off["agent"]["obs_filter"], plain["agent"]["obs_filter"])
    assert_equal(off["torch_rng"], plain["torch_rng"])


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


@pytest.fixture(scope="module", params=FULL)
def plain(request, tmp_path_factory):
    """A full script, its arguments with all tricks off, and the weights they end with, in this process."""
    m, folder = importlib.import_module(request.param), tmp_path_factory.mktemp("tricks")
    off = {"vf_clip_coef": math.inf, "reward_scaling": "none", "init": "xavier", "anneal_lr": False}
    off |= {"clip_reward": math.inf, "clip_obs": math.inf, "max_grad_norm": math.inf, "value_lr": 1e-3}

    def train(**changed):
        args = {"num_steps": 128, "total_timesteps": 256, "num_minibatches": 4, "progress": False, **off, **changed}
        run = m.train(m.Args(runs_dir=str(folder), run_name="-".join(["run", *changed]), **args)).run
        return saved(run)

    return train, train()


def test_the_same_call_gives_the_same_weights(plain):
    train, checkpoint = plain
    assert equal_weights(train(num_envs=1), checkpoint)


@pytest.mark.parametrize("trick", TRICKS)
def test_each_trick_changes_the_weights(plain, trick):
    """Else the equality above would prove nothing."""
    train, checkpoint = plain
    assert not equal_weights(train(**{trick: TRICKS[trick]}), checkpoint)


def test_an_annealed_kl_bound_changes_the_weights(tmp_path):
    m, ends = importlib.import_module("trpo_plus"), {}
    for final in (None, 0.02):
        args = {"num_steps": 128, "total_timesteps": 256, "num_minibatches": 4, "progress": False}
        result = m.train(m.Args(runs_dir=str(tmp_path), run_name=str(final), max_kl_final=final, **args))
        ends[final] = saved(result.run)
        bounds = [row["trust_region/max_kl"] for row in result.history]
        assert bounds == pytest.approx([0.03, 0.02] if final else [0.04, 0.04])
    assert not equal_weights(ends[None], ends[0.02])


@pytest.mark.parametrize("name", SCRIPTS)
def test_same_seed_same_bits(runs, name):
    """Two processes at once."""
    assert_equal(trained(runs[f"{name}-first"]), trained(runs[f"{name}-second"]))


def assert_heldout_differs_by_its_scalars_alone(heldout, without):
    names = ("trust_region/heldout_mean_kl", "trust_region/heldout_max_ratio")
    measured = [[name in row for name in names] for row in heldout["history"]]
    assert measured == [[True, True], [False, False], [True, True]]
    row = heldout["history"][0]
    assert row[names[0]] > 0 and row[names[0]] != row["trust_region/mean_kl"]
    assert_equal(trained(heldout, drop=("heldout_",)), trained(without))


@pytest.mark.parametrize("name", FULL)
def test_heldout_measurement_changes_nothing_in_training(runs, name):
    assert_heldout_differs_by_its_scalars_alone(runs[f"{name}-heldout"], runs[f"{name}-first"])


@pytest.mark.parametrize("name", SCRIPTS)
def test_from_python(runs, name, tmp_path, monkeypatch):
    """train(Args(...)) gives the bits of the command line, with held-out measurement too; another seed others."""
    m = importlib.import_module(name)
    monkeypatch.chdir(tmp_path)
    rates = {} if name in FULL else {"policy_lr": 3e-4} if name == "ppo_m" else {"max_kl": 0.07}
    rates |= {} if name in FULL else {"value_lr": 4e-4}
    args = m.Args(num_steps=512, total_timesteps=1536, num_minibatches=8, progress=False, **rates)

    def train(**changed):
        run = m.train(m.replace(args, **changed)).run
        assert run.parent.name == "runs" and run.name.startswith(f"Hopper-v5__{name}__{changed['seed']}__")
        return saved(run)

    heldout = train(seed=7, heldout_every=2)
    assert_heldout_differs_by_its_scalars_alone(heldout, runs[f"{name}-first"])
    assert not equal_weights(train(seed=8), heldout)
