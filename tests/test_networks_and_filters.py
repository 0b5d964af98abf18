"""The parts that all four scripts share: networks, the Gaussian, running statistics and what they normalize."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ACTION_DIM, OBS_DIM, SCRIPTS, assert_equal, load, small_agent
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_numpy_forward(script, float64, activation):
    """The torch network's outputs, and those of every later in-place change: an optimizer step, a loaded state."""
    args, agent = small_agent(script, activation=activation)
    mean_net = agent.policy.mean_net
    forward, obs = script.numpy_forward(args, mean_net), 3 * torch.randn(9, OBS_DIM)

    def equal():
        return np.allclose(forward(obs.numpy()), mean_net(obs).detach().numpy(), rtol=1e-12, atol=1e-14)

    first = forward(obs.numpy())
    assert first.shape == (9, ACTION_DIM) and equal()
    np.testing.assert_allclose(forward(obs[:1].numpy()), first[:1], rtol=1e-12)
    optimizer = torch.optim.Adam(agent.policy.parameters(), lr=0.1)
    mean_net(obs).sum().backward()
    optimizer.step()
    assert not np.allclose(forward(obs.numpy()), first) and equal()
    agent.policy.load_state_dict(small_agent(script, 7, activation=activation)[1].policy.state_dict())
    assert not np.allclose(forward(obs.numpy()), first) and equal()
    hidden = mean_net[1](torch.tensor([-2.0, 2.0]))
    np.testing.assert_allclose(hidden.numpy(), np.tanh([-2.0, 2.0]) if activation == "tanh" else [0.0, 2.0])


@settings(deadline=None, max_examples=25, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), shape=st.lists(st.integers(1, 7), max_size=2))
def test_gaussian(seed, shape):
    """Its three words are torch.distributions', for one action, a batch, a rollout of several environments."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(3, *shape, ACTION_DIM, generator=generator, dtype=torch.float64)
    log_stds = torch.randn(2, ACTION_DIM, generator=generator, dtype=torch.float64)
    for m in map(load, SCRIPTS):
        ours = [m.Gaussian(mean, log_std) for mean, log_std in zip(draw, log_stds)]
        theirs = [torch.distributions.Normal(pi.mean, pi.log_std.exp()) for pi in ours]
        theirs = [torch.distributions.Independent(normal, 1) for normal in theirs]
        for expected, actual in (
            (theirs[0].log_prob(draw[2]), ours[0].log_prob(draw[2])),
            (theirs[0].entropy(), ours[0].entropy().expand(shape)),
            (torch.distributions.kl_divergence(*theirs), ours[0].kl(ours[1])),
        ):
            torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


def test_what_a_policy_returned_can_be_kept(script):
    """Later changes of the parameters, in place as an optimizer makes them, do not reach it."""
    _, agent = small_agent(script)
    pi = agent.policy(torch.randn(4, OBS_DIM))
    before = [x.detach().clone() for x in pi]
    with torch.no_grad():
        for p in agent.policy.parameters():
            p.add_(1.0)
    assert all(map(torch.equal, before, pi))
    assert torch.autograd.grad(pi.log_std.sum(), agent.policy.log_std)[0].tolist() == [1.0] * ACTION_DIM


def test_normalize(script, float64):
    advantages = torch.tensor([1.0, 2.0, 4.0, 9.0])
    expected = (advantages.numpy() - 4.0) / (np.std(advantages.numpy(), ddof=1) + 1e-8)
    np.testing.assert_allclose(script.normalize(advantages).numpy(), expected, rtol=1e-12)
    single = torch.tensor([3.7])
    assert torch.equal(script.normalize(single), single)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normalize_constant(script, dtype):
    """Equal advantages say nothing about the actions (where their mean is exact; 1e-8 is no more than rounding)."""
    for constant in (0.0, 1.0, -0.25, 3e4):
        assert torch.equal(script.normalize(torch.full((64,), constant, dtype=dtype)), torch.zeros(64, dtype=dtype))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.floats(-1e6, 1e6)] * 2), min_size=1, max_size=30))
def test_running_statistics(samples):
    """numpy's mean and standard deviation (n - 1), also after a stop in the middle; |mean| of one sample."""
    samples = np.array(samples)
    for m in map(load, SCRIPTS):
        statistics = m.RunningStatistics((2,))
        for count, sample in enumerate(samples):
            if count == len(samples) // 2:
                state, statistics = statistics.state_dict(), m.RunningStatistics((2,))
                statistics.load_state_dict(state)
            statistics.push(sample)
        std = samples.std(axis=0, ddof=1) if len(samples) > 1 else abs(samples[0])
        np.testing.assert_allclose(statistics.mean, samples.mean(axis=0), rtol=1e-7, atol=1e-7)
        np.testing.assert_allclose(statistics.std, std, rtol=1e-6, atol=1e-6)


def test_frozen_observation_filter(script):
    """Frozen, it normalizes by what it has and learns nothing."""
    obs_filter = script.ObservationFilter(script.Args(), gym.spaces.Box(-np.inf, np.inf, (2,), np.float64))
    for obs in ([1.0, 2.0], [3.0, 6.0]):
        obs_filter(np.array(obs))
    before = [obs_filter.count, *obs_filter.mean, *obs_filter.m2]
    obs_filter.frozen = True
    np.testing.assert_allclose(obs_filter(np.array([4.0, 4.0])), [2 / 2**0.5, 0], atol=1e-7)
    assert [obs_filter.count, *obs_filter.mean, *obs_filter.m2] == before and obs_filter.count == 2
    obs_filter.frozen = False
    obs_filter(np.array([4.0, 4.0]))
    assert obs_filter.count == 3


def test_observations_of_several_parts_are_flattened(script):
    env = gym.make("envs:DictObs-v0", obs=7.0)
    raw = script.ObservationFilter(script.Args(norm_obs=False), env.observation_space)
    assert raw(env.reset(seed=0)[0]).tolist() == [7, 7, 7, 0, 0, 1]


@pytest.mark.parametrize("steps_before", [0, 3])
def test_adam(script, steps_before):
    """Bit for bit torch.optim.Adam, new or with a past from a checkpoint, each group at a rate of its own that changes;
    it saves what that would."""
    theirs, ours = ([torch.nn.Parameter(torch.linspace(-1, 1, 18 * n).view(n, 3, 6)) for n in (1, 5, 2)] for _ in "ab")
    groups = [[{"params": p[:2], "lr": 0.01}, {"params": p[2:], "lr": 0.3}] for p in (theirs, ours)]
    reference = torch.optim.Adam(groups[0], eps=1e-5, fused=True)

    def advance(number):
        reference.param_groups[1]["lr"] *= 0.9
        for p in theirs:
            p.grad = torch.randn_like(p) * 10.0**number
        reference.step()

    for number in range(steps_before):
        advance(number)
    with torch.no_grad():
        for p, q in zip(ours, theirs):
            p.copy_(q)
    optimizer = script.Adam(groups[1], 1e-5)
    optimizer.load_state_dict(copy.deepcopy(reference.state_dict()))
    for number in range(4):
        advance(number)
        optimizer.param_groups[1]["lr"] = reference.param_groups[1]["lr"]
        optimizer.step([[p.grad for p in theirs[:2]], [theirs[2].grad]])
        assert_equal([p.data for p in ours], [p.data for p in theirs])
        assert_equal(optimizer.state_dict()["state"], reference.state_dict()["state"])


def test_adam_refuses_what_does_not_fit(script):
    """A part that lacks, or has another size, where copying would broadcast."""
    _, agent = small_agent(script)
    whole = copy.deepcopy(agent.optimizer.state_dict())
    for broken in ({0: whole["state"][0]}, whole["state"] | {0: whole["state"][0] | {"exp_avg": torch.zeros(())}}):
        with pytest.raises((KeyError, RuntimeError)):
            agent.optimizer.load_state_dict({"state": broken})
    agent.optimizer.load_state_dict(whole)
