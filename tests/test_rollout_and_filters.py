"""Rollouts, batches, running filters: spaces, sizes and rewards at their limits, truncation, several environments."""

import importlib
import itertools
import json
import math

import envs
import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import FULL, MINIMAL, ROOT, run_script, saved
from hypothesis import given, settings
from hypothesis import strategies as st

TINY = {"env_id": "envs:Toy-v0", "num_steps": 32, "num_minibatches": 4, "total_timesteps": 96, "progress": False}


@pytest.fixture
def train(script, tmp_path):
    """Trains the script on a small environment; returns its history and checkpoint, all of it finite."""

    def run(kwargs=None, **changed):
        arguments = {**TINY, "runs_dir": str(tmp_path), "env_kwargs": json.dumps(kwargs or {}), **changed}
        result = script.train(script.Args(**arguments))
        checkpoint = saved(result.run)
        assert all(math.isfinite(value) for row in result.history for value in row.values())
        weights = [value for part in ("policy", "value") for value in checkpoint["agent"][part].values()]
        assert all(value.isfinite().all() for value in weights)
        return result.history, checkpoint

    return run


def make_agent(m, args, env):
    return m.Agent(args, env.observation_space, env.action_space)


def returns(history):
    return [row.get("charts/episodic_return") for row in history]


def test_minibatch_of_one_sample(script, train):
    history, _ = train(num_minibatches=32)
    assert len(history) == 3
    one = torch.tensor([2.5])
    assert torch.equal(script.normalize(one), one)


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


def test_dict_observations_are_flattened(script, train):
    _, checkpoint = train(env_id="envs:DictObs-v0")
    assert checkpoint["agent"]["policy"]["mean_net.0.weight"].shape == (64, 6)
    env = script.make_env(script.Args(env_id="envs:DictObs-v0", env_kwargs='{"obs": 7.0}'))
    raw = script.ObservationFilter(script.Args(norm_obs=False), env.observation_space)
    assert raw(env.reset(seed=0)[0]).tolist() == [7, 7, 7, 0, 0, 1]


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape, bound", [((2, 2), "1"), ((3,), "inf"), ((), "0.5")])
def test_actions_have_the_shape_and_dtype_of_the_space(train, shape, dtype, bound, clip):
    """The environment asserts it; one action is that of the trial before the start."""
    envs.ACTIONS.clear()
    train({"shape": shape, "dtype": dtype, "bound": bound, "inside": clip}, clip_actions=clip)
    assert len(envs.ACTIONS) == 97 and envs.ACTIONS[0].dtype == dtype and envs.ACTIONS[0].shape == shape


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


def test_log_probabilities_are_of_the_raw_action(script):
    args = script.Args(**{**TINY, "num_steps": 200}, clip_actions=True, env_kwargs='{"bound": "0.5"}')
    env = script.make_env(args)
    agent = make_agent(script, args, env)
    data = script.rollout(args, agent, [env], script.reset(args, agent, [env], 0))
    assert np.abs(data.actions).max() > 1.0
    batch = script.make_batch(args, agent, data)
    mean, log_std = agent.policy(batch.obs)
    expected = torch.distributions.Normal(mean, log_std.exp()).log_prob(torch.from_numpy(data.actions[:, 0])).sum(-1)
    torch.testing.assert_close(batch.log_probs, expected.detach())


def test_three_environments(script, train):
    history, checkpoint = train(num_envs=3, total_timesteps=288)
    assert [row["global_step"] for row in history] == [96, 192, 288]
    # every step of every environment, and every first observation
    episodes = 3 * 3 * (1 + 32 // 10)
    assert checkpoint["agent"]["obs_filter"]["count"] == 288 + episodes


def test_environments_differ_and_depend_on_the_seed_and_iteration(script):
    seeds = {script.seed_for(seed, iteration, i) for seed in range(3) for iteration in range(3) for i in range(3)}
    assert len(seeds) == 27


def test_env_kwargs_reach_the_environment(train):
    history, _ = train({"length": 4, "reward": 0.5})
    assert returns(history) == [2.0] * 3


@pytest.mark.parametrize("name", FULL)
def test_module_id_from_the_command_line(name, tmp_path):
    """`module:Env-v0`, the module on PYTHONPATH, and --env-kwargs, in a process of its own."""
    flags = ("--env-id", "envs:Toy-v0", "--env-kwargs", '{"length": 4, "reward": 0.5}', "--total-timesteps", 64)
    done = run_script(name, *flags, "--num-steps", 32, "--no-progress", cwd=tmp_path, PYTHONPATH=ROOT / "tests")
    assert done.returncode == 0 and "return 2.0 (mean" in done.stdout, done.stderr
    [run] = (tmp_path / "runs").iterdir()
    assert run.name.startswith(f"envs_Toy-v0__{name}__1__")


class Value(torch.nn.Module):
    """V(s) = the first component of s."""

    def forward(self, obs):
        return obs[..., :1]


def column(*values, dtype=np.float32):
    return np.array(values, dtype)[:, None]


@pytest.mark.parametrize("bootstrap", [False, True])
def test_bootstrap_by_hand(script, bootstrap):
    """gamma = lambda = 1/2. The second step is truncated at a state of value 24, the last one leads on to 40.

    deltas: 1 + 20/2 - 10 = 1;  2 + 24/2 - 20 = -6, without bootstrap 2 - 20 = -18;  3 + 40/2 - 30 = -7
    """
    args = script.Args(gamma=0.5, gae_lambda=0.5, bootstrap_truncated=bootstrap)
    agent = make_agent(script, args, gym.make("envs:Toy-v0"))
    agent.value = Value()
    obs, next_obs = (np.repeat(column(*x)[..., None], 3, -1) for x in ((10, 20, 30), (20, 24, 40)))
    no, truncated = column(0, 0, 0, dtype=bool), column(0, 1, 0, dtype=bool)
    actions = np.zeros((3, 1, 2), np.float32)
    data = script.Rollout(obs, actions, column(1, 2, 3), next_obs, no, truncated, [])
    batch = script.make_batch(args, agent, data)
    cut = -6.0 if bootstrap else -18.0
    assert batch.advantages.tolist() == [1 + cut / 4, cut, -7.0]
    assert batch.values.tolist() == [10, 20, 30]
    assert batch.returns.tolist() == [11 + cut / 4, 20 + cut, 23]
    terminated = script.make_batch(args, agent, data._replace(terminated=truncated, truncated=no))
    assert terminated.advantages.tolist() == [1 - 18 / 4, -18.0, -7.0]  # a termination is one either way


def test_final_observation_is_the_next_observation(script):
    """Where an episode ends, next_obs is its last observation, and obs goes on with the next episode's first."""
    kwargs = '{"length": 4, "truncate": true}'
    off = {"clip_obs": math.inf, "reward_scaling": "none"} if script.__name__ in FULL else {}
    args = script.Args(**{**TINY, "num_steps": 10}, norm_obs=False, env_kwargs=kwargs, **off)
    env = script.make_env(args)
    agent = make_agent(script, args, env)
    state = script.reset(args, agent, [env], 0)
    data = script.rollout(args, agent, [env], state)
    assert state.obs[0, 0] == 2 and state.lengths.tolist() == [2]  # where the next rollout may go on
    assert data.obs[:, 0, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert data.next_obs[:, 0, 0].tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
    assert data.truncated[:, 0].tolist() == [False, False, False, True] * 2 + [False] * 2
    assert not data.terminated.any() and len(data.episodes) == 2


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 4), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_gae_of_several_environments(steps, num_envs, gamma, gae_lambda, seed):
    """Against the sum's definition, element by element."""
    draw = np.random.default_rng(seed)
    rewards, values, next_values = draw.normal(size=(3, steps, num_envs))
    terminated, truncated = draw.random((2, steps, num_envs)) < 0.2
    done = terminated | truncated
    expected = np.zeros((steps, num_envs))
    for i in range(num_envs):
        for t in range(steps):
            weight = 1.0
            for k in range(t, steps):
                bootstrap = 0.0 if terminated[k, i] else next_values[k, i]
                expected[t, i] += weight * (rewards[k, i] + gamma * bootstrap - values[k, i])
                weight *= gamma * gae_lambda
                if done[k, i]:
                    break
    for name in (*FULL, *MINIMAL):
        m = importlib.import_module(name)
        args = m.Args(gamma=gamma, gae_lambda=gae_lambda)
        actual = m.gae(args, rewards, values, next_values, terminated, done)
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)


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


@pytest.mark.parametrize("name", FULL)
def test_reward_filter_of_several_environments(name):
    """R per environment, zero at each reset; one statistic takes them in the order of the calls."""
    m = importlib.import_module(name)
    draw, sums, seen = np.random.default_rng(1), np.zeros(3), []
    reward_filter = m.RewardFilter(m.Args(num_envs=3, gamma=0.9, clip_reward=math.inf))
    for t in range(40):
        for i in range(3):
            reward = float(draw.normal(1.0))
            sums[i] = 0.9 * sums[i] + reward
            seen.append(sums[i])
            std = np.std(seen, ddof=1) if len(seen) > 1 else abs(seen[0])
            assert reward_filter(reward, i) == pytest.approx(reward / (std + 1e-8), rel=1e-9)
            if (t + i) % 7 == 0:
                reward_filter.discounted_sums[i] = 0.0
                sums[i] = 0.0


@pytest.mark.parametrize("name", FULL)
def test_reward_sum_within_a_rollout(name):
    """Two environments whose rewards are 1: R is 1, 1.9, ... in each and starts again with every episode."""
    m = importlib.import_module(name)
    kwargs = '{"length": 3, "reward": 1.0}'
    args = m.Args(**{**TINY, "num_steps": 7}, num_envs=2, gamma=0.9, env_kwargs=kwargs)
    pair = [m.make_env(args) for _ in range(2)]
    agent = make_agent(m, args, pair[0])
    state = m.reset(args, agent, pair, 0)
    seen, push = [], agent.reward_filter.push
    agent.reward_filter.push = lambda x: (seen.append(float(x)), push(x))
    m.rollout(args, agent, pair, state)
    once = [1.0, 1.9, 2.71] * 2 + [1.0]
    assert seen == pytest.approx([value for value in once for _ in range(2)])


def test_observations_count_in_the_order_of_the_environments(script):
    args = script.Args(**{**TINY, "num_steps": 3}, num_envs=2)
    pair = [script.make_env(script.replace(args, env_kwargs=json.dumps({"obs": obs}))) for obs in (1.0, 5.0)]
    agent, seen = make_agent(script, args, pair[0]), []
    push = agent.obs_filter.push
    agent.obs_filter.push = lambda x: (seen.append(float(x[0])), push(x))
    script.rollout(args, agent, pair, script.reset(args, agent, pair, 0))
    assert seen == [1.0, 5.0] * 4


def test_frozen_observation_filter(script):
    """Frozen, it normalizes by what it has and learns nothing."""
    args = script.Args()
    obs_filter = script.ObservationFilter(args, gym.spaces.Box(-np.inf, np.inf, (2,), np.float64))
    for obs in ([1.0, 2.0], [3.0, 6.0]):
        obs_filter(np.array(obs))
    before = {name: value.tolist() if name != "count" else value for name, value in obs_filter.state_dict().items()}
    obs_filter.frozen = True
    np.testing.assert_allclose(obs_filter(np.array([4.0, 4.0])), [2 / 2**0.5, 0], atol=1e-7)
    after = {name: value.tolist() if name != "count" else value for name, value in obs_filter.state_dict().items()}
    assert before == after and before["count"] == 2
    obs_filter.frozen = False
    obs_filter(np.array([4.0, 4.0]))
    assert obs_filter.count == 3


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.floats(-1e6, 1e6)] * 2), min_size=1, max_size=30))
def test_running_statistics(samples):
    """numpy's mean and standard deviation (n - 1), also after a stop in the middle; |mean| of one sample."""
    samples = np.array(samples)
    for name in (*FULL, *MINIMAL):
        m = importlib.import_module(name)
        statistics = m.RunningStatistics((2,))
        for count, sample in enumerate(samples):
            if count == len(samples) // 2:
                state, statistics = statistics.state_dict(), m.RunningStatistics((2,))
                statistics.load_state_dict(state)
            statistics.push(sample)
        std = samples.std(axis=0, ddof=1) if len(samples) > 1 else abs(samples[0])
        np.testing.assert_allclose(statistics.mean, samples.mean(axis=0), rtol=1e-7, atol=1e-7)
        np.testing.assert_allclose(statistics.std, std, rtol=1e-6, atol=1e-6)


def test_deterministic_and_stochastic_policy(script, train, tmp_path):
    """load_policy: the mean without noise, and with it something else each time; statistics stay frozen."""
    train(run_name="run")
    mean, noisy = (script.load_policy(tmp_path / "run", stochastic) for stochastic in (False, True))
    obs = np.array([1.0, 0.2, -0.3])
    assert np.array_equal(mean(obs), mean(obs)) and not np.array_equal(noisy(obs), noisy(obs))
    assert mean(obs).shape == (2,) and mean(obs).dtype == np.float32


def test_every_reset_has_a_seed_of_its_own(script):
    """Of training, held-out batches and evaluation alike, over runs, iterations and environments."""
    keys = itertools.product((1, 2), range(20), range(5), (None, 1, 2))
    seeds = [script.seed_for(*(part for part in key if part is not None)) for key in keys]
    assert len(set(seeds)) == len(seeds)
    args = script.Args(**TINY)
    assert script.seed_for(args.seed, 0, 0) == script.seed_for(args.seed, 0, 0)
