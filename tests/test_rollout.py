"""Acting and what is made of it: seeds, episodes, final observations, several environments, advantages."""

import itertools
from math import inf

import envs
import numpy as np
import pytest
import torch
from conftest import FULL, SCRIPTS, load
from hypothesis import given, settings
from hypothesis import strategies as st


def act(m, environments, **arguments):
    """Arguments, a new agent, and what a rollout from reset gave it, in the environments."""
    torch.manual_seed(0)
    args = m.Args(num_envs=len(environments), **arguments)
    agent = m.Agent(args, environments[0].observation_space, environments[0].action_space)
    return args, agent, m.rollout(args, agent, environments, m.reset(args, agent, environments, 0))


def test_every_reset_has_a_seed_of_its_own(script):
    """Of training, held-out batches and evaluation alike, over runs, iterations and environments."""
    keys = itertools.product((1, 2), range(20), range(5), (None, 1, 2))
    seeds = [script.seed_for(*(part for part in key if part is not None)) for key in keys]
    assert len(set(seeds)) == len(seeds)
    assert script.seed_for(1, 0, 0) == script.seed_for(1, 0, 0)


@pytest.mark.parametrize("purpose", [(), (1,)])
def test_reset(script, purpose):
    """Environment i in iteration k has the seed of (seed, k, i) and of the purpose, if any; returns are zero."""
    args, seeds = script.Args(num_envs=2, seed=6, norm_obs=False), []
    pair = [envs.Toy() for _ in range(2)]
    for env in pair:
        env.reset = lambda seed, reset=env.reset: (seeds.append(seed), reset(seed=seed))[1]
    agent = script.Agent(args, pair[0].observation_space, pair[0].action_space)
    state = script.reset(args, agent, pair, 3, *purpose)
    assert seeds == [script.seed_for(6, 3, i, *purpose) for i in range(2)]
    assert state.obs.dtype == np.float32 and not np.array_equal(*state.obs)
    assert state.returns.tolist() == state.lengths.tolist() == [0, 0]


def test_log_probabilities_are_of_the_raw_action(script):
    args, agent, data = act(script, [envs.Toy(bound="0.5", inside=True)], num_steps=200, clip_actions=True)
    assert np.abs(data.actions).max() > 1.0
    batch = script.make_batch(args, agent, data)
    pi = torch.distributions.Normal(agent.policy.mean_net(batch.obs), agent.policy.log_std.exp())
    expected = pi.log_prob(torch.from_numpy(data.actions[:, 0])).sum(-1)
    torch.testing.assert_close(batch.log_probs, expected.detach())


def test_actions_are_the_policys(script):
    """Mean and standard deviation of many actions in one state; each environment has noise of its own."""
    _, agent, data = act(script, [envs.Toy(obs=1.0)] * 2, num_steps=5000, norm_obs=False)
    mean = agent.policy.mean_net(torch.ones(3)).detach().numpy()
    np.testing.assert_allclose(data.actions.mean((0, 1)), mean, atol=0.05)
    np.testing.assert_allclose(data.actions.std((0, 1)), [1.0, 1.0], atol=0.05)
    assert abs(np.corrcoef(data.actions[:, 0, 0], data.actions[:, 1, 0])[0, 1]) < 0.05


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape, bound", [((2, 2), "1"), ((3,), "inf"), ((), "0.5")])
def test_actions_have_the_shape_and_dtype_of_the_space(script, shape, dtype, bound, clip):
    """The environment asserts it, and with --clip-actions that they lie within."""
    envs.ACTIONS.clear()
    act(script, [envs.Toy(shape=shape, dtype=dtype, bound=bound, inside=clip)], num_steps=30, clip_actions=clip)
    assert len(envs.ACTIONS) == 30 and envs.ACTIONS[0].dtype == dtype and envs.ACTIONS[0].shape == shape


@pytest.mark.parametrize("truncate", [True, False])
def test_final_observation_is_the_next_observation(script, truncate):
    """Where an episode ends, next_obs is its last observation, and obs goes on with the next episode's first."""
    off = {"clip_obs": inf, "reward_scaling": "none"} if script.__name__ in FULL else {}
    env = envs.Toy(length=4, truncate=truncate, reward=1.5)
    args, agent, data = act(script, [env], num_steps=10, norm_obs=False, **off)
    assert data.obs[:, 0, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert data.next_obs[:, 0, 0].tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
    ends = [False, False, False, True] * 2 + [False] * 2
    assert data.truncated[:, 0].tolist() == (ends if truncate else [False] * 10)
    assert data.terminated[:, 0].tolist() == ([False] * 10 if truncate else ends)
    assert data.rewards[:, 0].tolist() == [1.5] * 10
    assert data.episodes == [(6.0, 4), (6.0, 4)]


def test_state_moves_along(script):
    """A second rollout goes on where the first one ended."""
    args, env = script.Args(num_steps=6, norm_obs=False), envs.Toy(length=10, reward=1.0)
    agent = script.Agent(args, env.observation_space, env.action_space)
    state = script.reset(args, agent, [env], 0)
    first = script.rollout(args, agent, [env], state)
    assert (state.obs[0, 0], state.returns[0], state.lengths[0]) == (6, 6.0, 6) and first.episodes == []
    second = script.rollout(args, agent, [env], state)
    assert np.array_equal(second.obs[0], first.next_obs[-1]) and second.episodes == [(10.0, 10)]
    assert (state.obs[0, 0], state.returns[0], state.lengths[0]) == (2, 2.0, 2)


def test_a_generator_of_its_own(script):
    """Rollouts with a generator leave torch's alone."""
    args, env = script.Args(num_steps=6), envs.Toy()
    agent, actions = script.Agent(args, env.observation_space, env.action_space), []
    for seed in (1, 1, 2):
        before, generator = torch.get_rng_state(), torch.Generator().manual_seed(seed)
        data = script.rollout(args, agent, [env], script.reset(args, agent, [env], 0), generator)
        assert torch.equal(torch.get_rng_state(), before)
        agent.obs_filter.frozen = True  # else the observations would differ
        actions.append(
            data.actions - np.stack([script.numpy_forward(args, agent.policy.mean_net)(x) for x in data.obs])
        )
    np.testing.assert_allclose(actions[0], actions[1], atol=1e-6)
    assert not np.allclose(actions[0], actions[2], atol=1e-2)


def test_observations_count_in_the_order_of_the_environments(script):
    args, pair, seen = script.Args(num_envs=2, num_steps=3), [envs.Toy(obs=1.0), envs.Toy(obs=5.0)], []
    agent = script.Agent(args, pair[0].observation_space, pair[0].action_space)
    push = agent.obs_filter.push
    agent.obs_filter.push = lambda x: (seen.append(float(x[0])), push(x))
    script.rollout(args, agent, pair, script.reset(args, agent, pair, 0))
    assert seen == [1.0, 5.0] * 4


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
    agent = script.Agent(args, envs.Toy().observation_space, envs.Toy().action_space)
    agent.value = Value()
    obs, next_obs = (np.repeat(column(*x)[..., None], 3, -1) for x in ((10, 20, 30), (20, 24, 40)))
    no, truncated = column(0, 0, 0, dtype=bool), column(0, 1, 0, dtype=bool)
    data = script.Rollout(obs, np.zeros((3, 1, 2), np.float32), column(1, 2, 3), next_obs, no, truncated, [])
    batch = script.make_batch(args, agent, data)
    cut = -6.0 if bootstrap else -18.0
    assert batch.advantages.tolist() == [1 + cut / 4, cut, -7.0]
    assert batch.values.tolist() == [10, 20, 30]
    assert batch.returns.tolist() == [11 + cut / 4, 20 + cut, 23]
    terminated = script.make_batch(args, agent, data._replace(terminated=truncated, truncated=no))
    assert terminated.advantages.tolist() == [1 - 18 / 4, -18.0, -7.0]  # a termination is one either way


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 4), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_gae_of_several_environments(steps, num_envs, gamma, gae_lambda, seed):
    """Against the sum's definition, element by element."""
    draw = np.random.default_rng(seed)
    rewards, values, next_values = draw.normal(size=(3, steps, num_envs))
    terminal, truncated = draw.random((2, steps, num_envs)) < 0.2
    done = terminal | truncated
    expected = np.zeros((steps, num_envs))
    for i in range(num_envs):
        for t in range(steps):
            weight = 1.0
            for k in range(t, steps):
                bootstrap = 0.0 if terminal[k, i] else next_values[k, i]
                expected[t, i] += weight * (rewards[k, i] + gamma * bootstrap - values[k, i])
                weight *= gamma * gae_lambda
                if done[k, i]:
                    break
    for m in map(load, SCRIPTS):
        actual = m.gae(m.Args(gamma=gamma, gae_lambda=gae_lambda), rewards, values, next_values, terminal, done)
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)
