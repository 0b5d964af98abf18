"""Training at the limits: sizes of one, constant rewards and observations, unusual spaces, several environments."""

import json
import math

import envs
import numpy as np
import pytest
from conftest import FULL, ROOT, read_checkpoint, run_script

TINY = {"env_id": "envs:Toy-v0", "num_steps": 32, "num_minibatches": 4, "update_epochs": 2}
TINY |= {"total_timesteps": 96, "progress": False}


@pytest.fixture
def train(script, tmp_path):
    """Trains the script on a small environment; returns its history and checkpoint, all of it finite."""

    def run(kwargs=None, **changed):
        arguments = {**TINY, "runs_dir": str(tmp_path), "env_kwargs": json.dumps(kwargs or {}), **changed}
        result = script.train(script.Args(**arguments))
        checkpoint = read_checkpoint(result.run)
        assert all(math.isfinite(value) for row in result.history for value in row.values())
        weights = [value for part in ("policy", "value") for value in checkpoint["agent"][part].values()]
        assert all(value.isfinite().all() for value in weights)
        return result.history, checkpoint

    return run


def returns(history):
    return [row.get("charts/episodic_return") for row in history]


def test_minibatch_of_one_sample(train):
    history, _ = train(num_minibatches=32)
    assert len(history) == 3


def test_batch_of_one_sample(train):
    history, _ = train(num_steps=1, num_minibatches=1, total_timesteps=3)
    assert len(history) == 3


@pytest.mark.parametrize("reward", [0.0, 1.0, -1e-30])
def test_constant_reward(train, reward):
    history, _ = train({"reward": reward})
    assert returns(history) == pytest.approx([10 * reward] * 3)


def test_one_step_episodes(train):
    history, _ = train({"length": 1, "reward": 2.0})
    assert returns(history) == [2.0] * 3
    assert [row["charts/episodic_length"] for row in history] == [1.0] * 3


@pytest.mark.parametrize("obs", [0.0, 1.0, 1e6])
def test_zero_variance_observation(train, obs):
    _, checkpoint = train({"obs": obs})
    statistics = checkpoint["agent"]["obs_filter"]
    assert statistics["mean"].tolist() == [obs] * 3 and statistics["m2"].tolist() == [0.0] * 3


def test_dict_observations(train):
    _, checkpoint = train(env_id="envs:DictObs-v0")
    assert checkpoint["agent"]["policy"]["mean_net.0.weight"].shape == (64, 6)


def test_clipped_and_raw_actions(script, train, tmp_path):
    """Clipped, they stay inside (the environment asserts it) and some lie on the bound; else the raw ones arrive."""
    envs.ACTIONS.clear()
    train({"bound": "0.5", "inside": True}, clip_actions=True, run_name="clipped")
    assert np.abs(envs.ACTIONS).max() == 0.5
    act = script.load_policy(tmp_path / "clipped", stochastic=True)
    assert max(np.abs(act(np.zeros(3))).max() for _ in range(50)) == 0.5
    envs.ACTIONS.clear()
    train({"bound": "0.5"}, run_name="raw")
    assert np.abs(envs.ACTIONS).max() > 1.0


def test_three_environments(script, train):
    history, checkpoint = train(num_envs=3, total_timesteps=288)
    assert [row["global_step"] for row in history] == [96, 192, 288]
    # every step of every environment, and every first observation
    episodes = 3 * 3 * (1 + 32 // 10)
    assert checkpoint["agent"]["obs_filter"]["count"] == 288 + episodes


def test_env_kwargs_reach_the_environment(train):
    history, _ = train({"length": 4, "reward": 0.5})
    assert returns(history) == [2.0] * 3


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL)
def test_module_id_from_the_command_line(name, tmp_path):
    """`module:Env-v0`, the module on PYTHONPATH, and --env-kwargs, in a process of its own."""
    flags = ("--env-id", "envs:Toy-v0", "--env-kwargs", '{"length": 4, "reward": 0.5}', "--total-timesteps", 64)
    done = run_script(name, *flags, "--num-steps", 32, "--no-progress", cwd=tmp_path, PYTHONPATH=ROOT / "tests")
    assert done.returncode == 0 and "return 2.0 (mean" in done.stdout, done.stderr
    [run] = (tmp_path / "runs").iterdir()
    assert run.name.startswith(f"envs_Toy-v0__{name}__1__")


def test_episodes_go_on_across_iterations(train):
    """Ten steps an episode, four an iteration: none ends within one, unless it is carried on."""
    sizes = {"num_steps": 4, "num_minibatches": 1, "total_timesteps": 20}
    cut, _ = train({"reward": 1.5}, **sizes, run_name="cut")
    assert returns(cut) == [None] * 5
    whole, _ = train({"reward": 1.5}, **sizes, reset_each_iteration=False, run_name="whole")
    assert returns(whole) == [None, None, 15.0, None, 15.0]


@pytest.mark.parametrize("steps, reset, warns", [(16, True, True), (20, True, False), (16, False, False)])
def test_warning_when_iterations_cut_episodes(train, capsys, steps, reset, warns):
    """The time limit is 20 steps."""
    train({"max_episode_steps": 20}, num_steps=steps, reset_each_iteration=reset)
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: --num-steps")]
    assert len(warnings) == warns
    if warns:
        assert "20" in warnings[0] and "--no-reset-each-iteration" in warnings[0]


def test_no_warning_speaks_of_a_limit_that_is_none(train, capsys):
    """The environment sets no time limit: there is nothing to say about it."""
    train({"length": 2})
    assert "inf" not in capsys.readouterr().err


def test_deterministic_and_stochastic_policy(script, train, tmp_path):
    """load_policy: the mean without noise, and with it something else each time; statistics stay frozen."""
    train(run_name="run")
    mean, noisy = (script.load_policy(tmp_path / "run", stochastic) for stochastic in (False, True))
    obs = np.array([1.0, 0.2, -0.3])
    assert np.array_equal(mean(obs), mean(obs)) and not np.array_equal(noisy(obs), noisy(obs))
    assert mean(obs).shape == (2,) and mean(obs).dtype == np.float32
