"""What the paper's code-level optimizations do, in the scripts that have them; more of it in test_golden.py."""

import math
from math import inf

import envs
import numpy as np
import pytest
import torch
from conftest import FULL, PPO, SPACES, TRPO, load, small_agent
from hypothesis import given, settings
from hypothesis import strategies as st

PENDULUM = {"env_id": "InvertedPendulum-v5", "num_steps": 40, "num_minibatches": 4, "update_epochs": 1}
PENDULUM |= {"hidden_sizes": (8,), "reset_each_iteration": False, "total_timesteps": 200, "progress": False}


@pytest.mark.parametrize("name", FULL)
def test_reward_filter_of_several_environments(name):
    """[2] R per environment, zero at each reset; one statistic takes them in the order of the calls."""
    m, draw, sums, seen = load(name), np.random.default_rng(1), np.zeros(3), []
    reward_filter = m.RewardFilter(m.Args(num_envs=3, gamma=0.9, clip_reward=inf))
    for t in range(40):
        for i in range(3):
            reward = float(draw.normal(1.0))
            sums[i] = 0.9 * sums[i] + reward
            seen.append(sums[i])
            std = np.std(seen, ddof=1) if len(seen) > 1 else abs(seen[0])
            assert reward_filter(reward, i) == pytest.approx(reward / (std + 1e-8), rel=1e-9)
            if (t + i) % 7 == 0:
                reward_filter.discounted_sums[i] = sums[i] = 0.0


@pytest.mark.parametrize("name", FULL)
def test_reward_sums_within_a_rollout(name):
    """[2] Two environments whose rewards are 1: R is 1, 1.9, ... in each and starts again with every episode."""
    m, seen = load(name), []
    args = m.Args(num_envs=2, num_steps=7, gamma=0.9)
    pair = [envs.Toy(length=3, reward=1.0) for _ in range(2)]
    agent = m.Agent(args, pair[0].observation_space, pair[0].action_space)
    push = agent.reward_filter.push
    agent.reward_filter.push = lambda x: (seen.append(float(x)), push(x))
    state = m.reset(args, agent, pair, 0)
    m.rollout(args, agent, pair, state)
    once = [1.0, 1.9, 2.71] * 2 + [1.0]
    assert seen == pytest.approx([value for value in once for _ in range(2)])
    assert agent.reward_filter.discounted_sums.tolist() == [1.0, 1.0]
    m.reset(args, agent, pair, 1)
    assert agent.reward_filter.discounted_sums.tolist() == [0.0, 0.0]


def linears(network):
    return [layer for layer in network if isinstance(layer, torch.nn.Linear)]


@pytest.mark.parametrize("name", FULL)
def test_orthogonal_initialization(name, float64):
    """[3] W W' = gain^2 I: sqrt(2) in the hidden layers, 0.01 at the policy's output, 1 at the value's; no biases."""
    m = load(name)
    torch.manual_seed(1)
    agent = m.Agent(m.Args(hidden_sizes=(16, 8), init="orthogonal"), *SPACES)
    for network, output_gain in ((agent.policy.mean_net, 0.01), (agent.value, 1.0)):
        layers = linears(network)
        assert len(layers) == 3
        for layer, gain in zip(layers, (2**0.5, 2**0.5, output_gain)):
            weight = layer.weight.detach()
            small = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
            torch.testing.assert_close(small, gain**2 * torch.eye(len(small)), rtol=0, atol=1e-9)
            assert not layer.bias.any()
    assert not agent.policy.log_std.any()


def test_xavier_initialization(script):
    """Without [3]: uniform in +- sqrt(6 / (fan_in + fan_out)), filling that range; zero biases, log_std zero."""
    torch.manual_seed(1)
    args = script.Args(hidden_sizes=(64, 32), **({"init": "xavier"} if script.__name__ in FULL else {}))
    agent = script.Agent(args, *SPACES)
    for layer in [*linears(agent.policy.mean_net), *linears(agent.value)]:
        bound = math.sqrt(6 / sum(layer.weight.shape))
        assert 0.8 * bound < layer.weight.abs().max() <= bound * (1 + 1e-6)
        if layer.weight.numel() > 1000:
            assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
        assert not layer.bias.any()
    assert not agent.policy.log_std.any()


@pytest.mark.parametrize("name", PPO + TRPO)
@pytest.mark.parametrize("anneal_lr", [True, False])
def test_learning_rate_annealing(name, tmp_path, monkeypatch, anneal_lr):
    """[4] Each rate by 1 - i/N, i from 0: 1/N in the last iteration, never 0. They stay in the minimal scripts."""
    m, rates, expected = load(name), [], {"policy_lr": 1e-3, "value_lr": 4e-3}
    if name in TRPO:
        del expected["policy_lr"]
    update = m.update

    def spy(args, agent, batch):
        rates.append([group["lr"] for group in agent.optimizer.param_groups])
        return update(args, agent, batch)

    monkeypatch.setattr(m, "update", spy)
    own = {"anneal_lr": anneal_lr} if name in FULL else {}
    history = m.train(m.Args(**PENDULUM, **expected, **own, runs_dir=str(tmp_path))).history
    factors = [1 - i / 5 for i in range(5)] if own and anneal_lr else [1] * 5
    assert rates == [[lr * factor for lr in expected.values()] for factor in factors]
    logged = {"policy_lr": "charts/learning_rate", "value_lr": "charts/value_learning_rate"}
    assert [[row[logged[lr]] for lr in expected] for row in history] == rates
    assert ("charts/learning_rate" in history[0]) == (name in PPO)


@pytest.mark.parametrize("final", [0.07, None])
def test_annealing_of_the_kl_bound(tmp_path, final):
    """[4] First + (i + 1)(last - first)/N: the first iteration is already on the way, the last is there, exactly."""
    m = load("trpo_plus")
    history = m.train(m.Args(**PENDULUM, max_kl=0.04, max_kl_final=final, runs_dir=str(tmp_path))).history
    bounds = [row["trust_region/max_kl"] for row in history]
    assert bounds == (pytest.approx([0.046, 0.052, 0.058, 0.064, 0.07]) if final else [0.04] * 5)
    assert bounds[-1] == (final or 0.04)
    for row in history:
        assert row["trust_region/mean_kl"] <= row["trust_region/max_kl"] * (1 + 1e-5)
    assert max(row["trust_region/mean_kl"] for row in history) > 0.02  # the bound is one that matters


@settings(deadline=None, max_examples=25, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), size=st.floats(1e-3, 1e3), max_norm=st.floats(1e-3, 1e3))
def test_clip_grads(seed, size, max_norm):
    """[9] torch.nn.utils.clip_grad_norm_, all as one vector; a gradient within the bound keeps its bits."""
    for m in map(load, FULL):
        args, agent = small_agent(m, seed, max_grad_norm=max_norm)
        parameters = list(agent.value.double().parameters())
        grads = [size * torch.randn_like(p) for p in parameters]
        for p, grad in zip(parameters, grads):
            p.grad = grad.clone()
        norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        clipped = m.clip_grads(args, grads)
        for ours, p in zip(clipped, parameters):
            torch.testing.assert_close(ours, p.grad, rtol=1.01e-6 / min(1, norm.item()), atol=0)  # its norm + 1e-6
        if norm < max_norm:
            assert all(map(torch.equal, grads, clipped))
        else:
            assert torch.cat([g.flatten() for g in clipped]).norm().item() == pytest.approx(max_norm, rel=1e-9)


@pytest.mark.parametrize("name", FULL)
def test_clipping_of_gradients_is_for_each_network_by_itself(name):
    """[9] The whole gradient of each network that Adam trains has the l2 norm asked for; the other's does not count."""
    m, norms = load(name), []
    batch = m.Batch(torch.randn(8, 3), torch.randn(8, 2), *100 * torch.randn(4, 8))
    batch = batch._replace(log_probs=torch.zeros(8))
    for max_norm in (0.01, 1e9):
        args, agent = small_agent(m, max_grad_norm=max_norm)
        networks = (agent.policy, agent.value) if name in PPO else (agent.value,)
        grads = m.gradients(args, *networks, batch)[0]
        assert [len(part) for part in grads] == [len(list(network.parameters())) for network in networks]
        norms.append([torch.cat([g.flatten() for g in part]).norm().item() for part in grads])
    assert norms[0] == pytest.approx([0.01] * len(networks), rel=1e-5)
    assert min(norms[1]) > 0.011
