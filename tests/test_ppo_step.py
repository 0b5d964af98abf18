"""PPO's loss and update against plain textbook code, in float64."""

import copy
from math import inf

import numpy as np
import pytest
import torch
from conftest import ACTION_DIM, FULL, OBS_DIM, PPO, load, parameters, same_bits, small_agent
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.usefixtures("float64")


def make_batch(m, size=24, seed=0, distance=1.0):
    """Old log-probabilities of a policy that is not the agent's, so that ratios lie on both sides of the clip."""
    generator = torch.Generator().manual_seed(seed)
    obs, actions = (torch.randn(size, n, generator=generator) for n in (OBS_DIM, ACTION_DIM))
    log_probs = -2.5 + distance * torch.randn(size, generator=generator)
    values, advantages, returns = torch.randn(3, size, generator=generator)
    return m.Batch(obs, actions, log_probs, values, advantages, returns)


def textbook_policy_loss(policy, batch, clip_coef, ent_coef, norm_adv):
    """Sample by sample, with torch.distributions and ifs: -mean of min(r A, clip(r) A), less the entropy bonus."""
    advantages = batch.advantages.tolist()
    if norm_adv and len(advantages) > 1:
        mean, std = np.mean(advantages), np.std(advantages, ddof=1)
        advantages = [(a - mean) / (std + 1e-8) for a in advantages]
    total, clipped = 0, 0
    for obs, action, old, advantage in zip(batch.obs, batch.actions, batch.log_probs, advantages):
        distribution = torch.distributions.Normal(policy.mean_net(obs), policy.log_std.exp())
        ratio = (distribution.log_prob(action).sum() - old).exp()
        if ratio > 1 + clip_coef:
            bounded, clipped = 1 + clip_coef, clipped + 1
        elif ratio < 1 - clip_coef:
            bounded, clipped = 1 - clip_coef, clipped + 1
        else:
            bounded = ratio
        gain, bounded_gain = ratio * advantage, ratio * 0 + bounded * advantage  # all clipped: gradient 0, not none
        total = total + (gain if gain < bounded_gain else bounded_gain)
        entropy = distribution.entropy().sum()
    return -total / len(batch.obs) - ent_coef * entropy, clipped / len(batch.obs)


def gradient(loss, network):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(network.parameters()))])


@settings(deadline=None, max_examples=25, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 12),
    clip_coef=st.sampled_from([0.05, 0.2, 0.9, 1.5, inf]),
    ent_coef=st.sampled_from([0.0, 0.01, -0.5]),
    norm_adv=st.booleans(),
)
def test_policy_loss_is_the_textbook_one(seed, size, clip_coef, ent_coef, norm_adv):
    for m in map(load, PPO):
        args, agent = small_agent(m, seed, clip_coef=clip_coef, ent_coef=ent_coef, norm_adv=norm_adv)
        batch = make_batch(m, size, seed)
        loss, clipfrac = m.policy_loss(args, agent.policy(batch.obs), batch)
        expected, expected_clipfrac = textbook_policy_loss(agent.policy, batch, clip_coef, ent_coef, norm_adv)
        torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-11)
        assert clipfrac.item() == pytest.approx(expected_clipfrac)
        ours, theirs = gradient(loss, agent.policy), gradient(expected, agent.policy)
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


@pytest.fixture(params=PPO)
def m(request):
    """Both PPO scripts."""
    return load(request.param)


def test_clip_coef_inf_is_no_clip(m):
    """Bit for bit the unclipped ratio loss, value and gradient; where a clip would bite, a finite one differs."""
    args, agent = small_agent(m, clip_coef=inf)
    batch = make_batch(m, 64, distance=2.0)
    loss, clipfrac = m.policy_loss(args, agent.policy(batch.obs), batch)
    ratio = (agent.policy(batch.obs).log_prob(batch.actions) - batch.log_probs).exp()
    unclipped = -(ratio * m.normalize(batch.advantages)).mean()
    assert torch.equal(loss, unclipped) and clipfrac == 0
    assert torch.equal(gradient(loss, agent.policy), gradient(unclipped, agent.policy))
    clipped, fraction = m.policy_loss(m.Args(clip_coef=0.2), agent.policy(batch.obs), batch)
    assert not torch.equal(clipped, loss) and fraction > 0.5


@pytest.mark.parametrize("coefficient", [0.1, -0.1])
def test_entropy_bonus_sign(m, coefficient):
    """A positive coefficient rewards entropy: descending the loss raises log_std; a negative one lowers it."""
    args, agent = small_agent(m, ent_coef=coefficient)
    batch = make_batch(m)._replace(advantages=torch.zeros(24))
    loss, _ = m.policy_loss(args, agent.policy(batch.obs), batch)
    descent = -torch.autograd.grad(loss, agent.policy.log_std)[0]
    torch.testing.assert_close(descent, torch.full((ACTION_DIM,), coefficient))
    distribution = torch.distributions.Normal(torch.zeros(ACTION_DIM), agent.policy.log_std.exp())
    assert loss.item() == pytest.approx(-coefficient * distribution.entropy().sum().item())


def losses(m, args, policy, value, batch):
    """Of a minibatch, as the formulas say; with all nine optimizations the value function's is clipped."""
    values = value(batch.obs).squeeze(-1)
    clipped = getattr(args, "vf_clip_coef", inf) < inf
    value_loss = m.clipped_value_loss(args, values, batch) if clipped else m.value_loss(values, batch)
    return *m.policy_loss(args, policy(batch.obs), batch), value_loss


@pytest.mark.parametrize("tricks", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_update_is_that_of_two_separate_networks(m, tricks, dtype):
    """Bit for bit: one Adam step for both, or for each network a backward pass and an Adam of its own."""
    torch.set_default_dtype(dtype)
    changes = {"max_grad_norm": 0.05 if tricks else inf, "vf_clip_coef": 0.2 if tricks else inf}
    if m.__name__ not in FULL:
        changes = {}
    args, agent = small_agent(m, num_minibatches=4, update_epochs=3, ent_coef=0.01, policy_lr=3e-3, **changes)
    batch, policy, value = make_batch(m, 32), copy.deepcopy(agent.policy), copy.deepcopy(agent.value)
    adams = [
        torch.optim.Adam(network.parameters(), lr=lr, eps=args.adam_eps, fused=True)
        for network, lr in ((policy, args.policy_lr), (value, args.value_lr))
    ]
    torch.manual_seed(5)
    row, means = m.update(args, agent, batch), []
    torch.manual_seed(5)
    for _ in range(args.update_epochs):
        for rows in torch.randperm(32).split(8):
            minibatch = m.Batch(*(x[rows] for x in batch))
            policy_loss, clipfrac, value_loss = losses(m, args, policy, value, minibatch)
            for network, adam, loss in zip((policy, value), adams, (policy_loss, value_loss)):
                adam.zero_grad()
                loss.backward()
                if changes.get("max_grad_norm", inf) < inf:
                    for p, grad in zip(
                        network.parameters(), m.clip_grads(args, [p.grad for p in network.parameters()])
                    ):
                        p.grad = grad
                adam.step()
            means.append([policy_loss.item(), value_loss.item(), clipfrac.item()])
    assert same_bits(parameters(policy), agent.policy) and same_bits(parameters(value), agent.value)
    initial = small_agent(m)[1]
    assert not any(map(torch.equal, parameters(initial.policy), agent.policy.parameters()))
    expected = dict(zip(("losses/policy_loss", "losses/value_loss", "losses/clipfrac"), np.mean(means, axis=0)))
    assert row == pytest.approx(expected, rel=1e-5)
    assert row["losses/clipfrac"] > 0


def test_update_returns_the_losses_before_its_steps(m):
    """With a single minibatch, those of the untouched networks."""
    args, agent = small_agent(m, num_minibatches=1, update_epochs=1)
    batch = make_batch(m)
    expected = [loss.item() for loss in losses(m, args, agent.policy, agent.value, batch)]
    row = m.update(args, agent, batch)
    assert list(row.values()) == pytest.approx([expected[0], expected[2], expected[1]])
