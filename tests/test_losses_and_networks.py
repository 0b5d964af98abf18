"""PPO's loss and update against plain textbook code; networks, their initialization, gradient clipping, the log."""

import copy
import importlib
import math
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import FULL, PPO, SCRIPTS
from hypothesis import given, settings
from hypothesis import strategies as st

INF = float("inf")
OBS_DIM, ACTION_DIM = 3, 2
PROPERTY = settings(deadline=None, max_examples=25, derandomize=True)
seeds = st.integers(0, 2**32 - 1)


class Env(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (OBS_DIM,), np.float64)
    action_space = gym.spaces.Box(-1, 1, (ACTION_DIM,), np.float64)


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def load(name):
    return importlib.import_module(name)


def make_agent(m, seed=0, **changes):
    torch.manual_seed(seed)
    args = m.Args(hidden_sizes=(4, 5), **changes)
    agent = m.Agent(args, Env.observation_space, Env.action_space)
    with torch.no_grad():
        for p in [*agent.policy.parameters(), *agent.value.parameters()]:
            p.add_(0.3 * torch.randn_like(p))
    return args, agent


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
        mean, log_std = policy(obs[None])
        distribution = torch.distributions.Normal(mean[0], log_std.exp())
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


def policy_loss(m, args, agent, batch):
    return m.policy_loss(args, agent.policy(batch.obs), batch)


def value_loss(m, args, agent, batch):
    """The value loss that a script trains with: clipped where [1] is on."""
    values = agent.value(batch.obs).squeeze(-1)
    if getattr(args, "vf_clip_coef", INF) < INF:
        return m.clipped_value_loss(args, values, batch)
    return m.value_loss(values, batch)


def gradient(loss, network):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(network.parameters()))])


@PROPERTY
@given(
    seed=seeds,
    size=st.integers(1, 12),
    clip_coef=st.sampled_from([0.05, 0.2, 0.9, 1.5, INF]),
    ent_coef=st.sampled_from([0.0, 0.01, -0.5]),
    norm_adv=st.booleans(),
)
def test_policy_loss_is_the_textbook_one(seed, size, clip_coef, ent_coef, norm_adv):
    for name in PPO:
        m = load(name)
        args, agent = make_agent(m, seed, clip_coef=clip_coef, ent_coef=ent_coef, norm_adv=norm_adv)
        batch = make_batch(m, size, seed)
        loss, clipfrac = policy_loss(m, args, agent, batch)
        expected, expected_clipfrac = textbook_policy_loss(agent.policy, batch, clip_coef, ent_coef, norm_adv)
        torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-11)
        assert clipfrac.item() == pytest.approx(expected_clipfrac)
        torch.testing.assert_close(
            gradient(loss, agent.policy), gradient(expected, agent.policy), rtol=1e-8, atol=1e-10
        )


@pytest.mark.parametrize("name", PPO)
def test_clip_coef_inf_is_no_clip(name):
    """Bit for bit the unclipped ratio loss, value and gradient; where a clip would bite, a finite one differs."""
    m = load(name)
    args, agent = make_agent(m, clip_coef=INF)
    batch = make_batch(m, 64, distance=2.0)
    loss, clipfrac = policy_loss(m, args, agent, batch)
    ratio = (agent.policy(batch.obs).log_prob(batch.actions) - batch.log_probs).exp()
    unclipped = -(ratio * m.normalize(batch.advantages)).mean()
    assert torch.equal(loss, unclipped) and clipfrac == 0
    assert torch.equal(gradient(loss, agent.policy), gradient(unclipped, agent.policy))
    clipped, fraction = policy_loss(m, m.Args(clip_coef=0.2), agent, batch)
    assert not torch.equal(clipped, loss) and fraction > 0.5


@pytest.mark.parametrize("name", PPO)
def test_entropy_bonus_sign(name):
    """A positive coefficient rewards entropy: descending the loss raises log_std; a negative one lowers it."""
    m = load(name)
    for coefficient in (0.1, -0.1):
        args, agent = make_agent(m, ent_coef=coefficient)
        batch = make_batch(m)._replace(advantages=torch.zeros(24))
        loss, _ = policy_loss(m, args, agent, batch)
        descent = -torch.autograd.grad(loss, agent.policy.log_std)[0]
        torch.testing.assert_close(descent, torch.full((ACTION_DIM,), coefficient))
        distribution = torch.distributions.Normal(torch.zeros(ACTION_DIM), agent.policy.log_std.exp())
        assert loss.item() == pytest.approx(-coefficient * distribution.entropy().sum().item())


@PROPERTY
@given(seed=seeds, size=st.floats(1e-3, 1e3), max_norm=st.floats(1e-3, 1e3))
def test_clip_grads(seed, size, max_norm):
    """torch.nn.utils.clip_grad_norm_, all parameters as one vector; a gradient within the bound keeps its bits."""
    for name in FULL:
        m = load(name)
        args, agent = make_agent(m, seed, max_grad_norm=max_norm)
        before = [size * torch.randn_like(p) for p in agent.value.parameters()]
        for p, grad in zip(agent.value.parameters(), before):
            p.grad = grad.clone()
        norm = torch.nn.utils.clip_grad_norm_(agent.value.parameters(), max_norm)
        after = m.clip_grads(args, before)
        for ours, theirs in zip(after, agent.value.parameters()):
            torch.testing.assert_close(ours, theirs.grad, rtol=1.01e-6 / min(1, norm.item()), atol=0)  # its norm + 1e-6
        if norm < max_norm:
            assert all(torch.equal(old, new) for old, new in zip(before, after))
        else:
            assert torch.cat([g.flatten() for g in after]).norm().item() == pytest.approx(max_norm, rel=1e-9)


def test_normalize(script):
    advantages = torch.tensor([1.0, 2.0, 4.0, 9.0])
    expected = (advantages.numpy() - 4.0) / (np.std(advantages.numpy(), ddof=1) + 1e-8)
    np.testing.assert_allclose(script.normalize(advantages).numpy(), expected, rtol=1e-12)
    single = torch.tensor([3.7])
    assert torch.equal(script.normalize(single), single)
    assert torch.equal(script.normalize(torch.tensor([5.0, 5.0])), torch.zeros(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normalize_constant(script, dtype):
    """Equal advantages say nothing about the actions (where their mean is exact; 1e-8 is no more than rounding)."""
    for constant in (0.0, 1.0, -0.25, 3e4):
        assert torch.equal(script.normalize(torch.full((64,), constant, dtype=dtype)), torch.zeros(64, dtype=dtype))


def linears(network):
    return [layer for layer in network if isinstance(layer, torch.nn.Linear)]


@pytest.mark.parametrize("name", FULL)
def test_orthogonal_initialization(name):
    """W W' = gain^2 I: sqrt(2) in the hidden layers, 0.01 at the policy's output, 1 at the value's; zero biases."""
    m = load(name)
    torch.manual_seed(1)
    agent = m.Agent(m.Args(hidden_sizes=(16, 8), init="orthogonal"), Env.observation_space, Env.action_space)
    for network, output_gain in ((agent.policy.mean_net, 0.01), (agent.value, 1.0)):
        layers = linears(network)
        assert len(layers) == 3
        for layer, gain in zip(layers, (2**0.5, 2**0.5, output_gain)):
            weight = layer.weight.detach()
            small = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
            torch.testing.assert_close(small, gain**2 * torch.eye(len(small)), rtol=0, atol=1e-9)
            assert not layer.bias.any()
    assert torch.equal(agent.policy.log_std, torch.zeros(ACTION_DIM))


@pytest.mark.parametrize("name", SCRIPTS)
def test_xavier_initialization(name):
    """Uniform in +- sqrt(6 / (fan_in + fan_out)), filling that range; zero biases, log_std zero."""
    m = load(name)
    torch.manual_seed(1)
    args = m.Args(hidden_sizes=(64, 32), **({"init": "xavier"} if name in FULL else {}))
    agent = m.Agent(args, Env.observation_space, Env.action_space)
    for network in (agent.policy.mean_net, agent.value):
        for layer in linears(network):
            bound = math.sqrt(6 / sum(layer.weight.shape))
            largest = layer.weight.abs().max()
            assert 0.8 * bound < largest <= bound
            if layer.weight.numel() > 1000:
                assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
            assert not layer.bias.any()
    assert torch.equal(agent.policy.log_std, torch.zeros(ACTION_DIM))


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_numpy_forward(script, activation):
    """The torch network's outputs, and those of every later in-place change: an optimizer step, a loaded state."""
    args, agent = make_agent(script, activation=activation)
    forward = script.numpy_forward(args, agent.policy.mean_net)
    obs = 3 * torch.randn(9, OBS_DIM)

    def equal():
        return np.allclose(forward(obs.numpy()), agent.policy.mean_net(obs).detach().numpy(), rtol=1e-12, atol=1e-14)

    first = forward(obs.numpy())
    assert first.shape == (9, ACTION_DIM) and equal()
    np.testing.assert_allclose(forward(obs[0].numpy()), first[0], rtol=1e-12)
    optimizer = torch.optim.Adam(agent.policy.parameters(), lr=0.1)
    agent.policy.mean_net(obs).sum().backward()
    optimizer.step()
    assert not np.allclose(forward(obs.numpy()), first) and equal()
    agent.policy.load_state_dict(make_agent(script, 7, activation=activation)[1].policy.state_dict())
    assert not np.allclose(forward(obs.numpy()), first) and equal()
    hidden = agent.policy.mean_net[1](torch.tensor([-2.0, 2.0]))
    expected = np.tanh([-2.0, 2.0]) if activation == "tanh" else [0.0, 2.0]
    np.testing.assert_allclose(hidden.numpy(), expected)


@pytest.mark.parametrize("name", PPO)
@pytest.mark.parametrize("max_grad_norm", [INF, 0.05])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_joint_update_equals_two_separate_ones(name, max_grad_norm, dtype):
    """Bit for bit: one backward pass and one Adam step for both, or each network with its own."""
    if max_grad_norm < INF and name not in FULL:
        pytest.skip("ppo_m.py does not clip gradients")
    torch.set_default_dtype(dtype)
    m = load(name)
    changes = {"max_grad_norm": max_grad_norm} if name in FULL else {}
    args, agent = make_agent(m, num_minibatches=4, update_epochs=3, ent_coef=0.01, policy_lr=3e-3, **changes)
    batch, twin = make_batch(m, 32), copy.deepcopy(agent)
    before = copy.deepcopy(agent)
    torch.manual_seed(5)
    m.update(args, agent, batch)
    adams = [
        torch.optim.Adam(twin.policy.parameters(), lr=args.policy_lr, eps=args.adam_eps, fused=True),
        torch.optim.Adam(twin.value.parameters(), lr=args.value_lr, eps=args.adam_eps, fused=True),
    ]
    torch.manual_seed(5)
    for _ in range(args.update_epochs):
        order = torch.randperm(32)
        for rows in order.split(8):
            minibatch = m.Batch(*(x[rows] for x in batch))
            losses = policy_loss(m, args, twin, minibatch)[0], value_loss(m, args, twin, minibatch)
            for network, adam, loss in zip((twin.policy, twin.value), adams, losses):
                adam.zero_grad()
                loss.backward()
                if max_grad_norm < INF:
                    for p, grad in zip(
                        network.parameters(), m.clip_grads(args, [p.grad for p in network.parameters()])
                    ):
                        p.grad = grad
                adam.step()
    for network in ("policy", "value"):
        ours, theirs, old = (getattr(x, network).state_dict() for x in (agent, twin, before))
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
        assert not any(torch.equal(ours[key], old[key]) for key in ours)


@pytest.mark.parametrize("name", PPO)
def test_update_returns_means(name):
    """Of the losses and the clipped fraction over all minibatches; the first is that of the untouched networks."""
    m = load(name)
    args, agent = make_agent(m, num_minibatches=1, update_epochs=1)
    batch = make_batch(m)
    expected = policy_loss(m, args, agent, batch)[0].item(), value_loss(m, args, agent, batch).item()
    clipfrac = policy_loss(m, args, agent, batch)[1].item()
    row = m.update(args, agent, batch)
    assert row == pytest.approx(
        {"losses/policy_loss": expected[0], "losses/value_loss": expected[1], "losses/clipfrac": clipfrac}
    )
    args, agent = make_agent(m, num_minibatches=2, update_epochs=2, policy_lr=1e-30, value_lr=1e-30)
    torch.manual_seed(3)
    row, means = m.update(args, agent, batch), []
    torch.manual_seed(3)
    for _ in range(2):
        for rows in torch.randperm(24).split(12):
            minibatch = m.Batch(*(x[rows] for x in batch))
            means.append((policy_loss(m, args, agent, minibatch)[0], value_loss(m, args, agent, minibatch)))
    assert row["losses/policy_loss"] == pytest.approx(np.mean([p.item() for p, _ in means]))
    assert row["losses/value_loss"] == pytest.approx(np.mean([v.item() for _, v in means]))


@PROPERTY
@given(seed=seeds, size=st.integers(1, 20))
def test_trust_region(seed, size):
    """Mean KL(old || new), in this order, and the largest ratio new / old, by torch.distributions."""
    for name in SCRIPTS:
        m = load(name)
        _, old = make_agent(m, seed)
        _, new = make_agent(m, (seed + 1) % 2**32)
        obs, actions = torch.randn(size, OBS_DIM), torch.randn(size, ACTION_DIM)
        with torch.no_grad():
            p, q = (
                torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)
                for mean, log_std in (old.policy(obs), new.policy(obs))
            )
            kl = torch.distributions.kl_divergence(p, q).mean().item()
            ratio = (q.log_prob(actions) - p.log_prob(actions)).exp().max().item()
        row = m.measure(SimpleNamespace(old_policy=old.policy), new, obs, actions, "heldout_")
        assert row == pytest.approx(
            {"trust_region/heldout_mean_kl": kl, "trust_region/heldout_max_ratio": ratio}, rel=1e-9
        )


TINY = {"env_id": "InvertedPendulum-v5", "num_steps": 40, "num_minibatches": 4, "update_epochs": 2, "progress": False}
TINY |= {"hidden_sizes": (8,), "reset_each_iteration": False}


@pytest.fixture
def train(tmp_path):
    torch.set_default_dtype(torch.float32)

    def run(name, iterations=5, **changes):
        m = load(name)
        args = m.Args(**TINY, total_timesteps=iterations * 40, runs_dir=str(tmp_path), run_name=name, **changes)
        return m.train(args).history

    return run


def spy_on_update(monkeypatch, m, record):
    original = m.update

    def update(args, agent, batch):
        record(agent, batch)
        return original(args, agent, batch)

    monkeypatch.setattr(m, "update", update)


@pytest.mark.parametrize("name", PPO)
def test_learning_rate_annealing(name, train, monkeypatch):
    """Both rates by 1 - i/N, i from 0: 1/N in the last iteration, never 0. In ppo_m.py they stay."""
    rates = []
    spy_on_update(monkeypatch, load(name), lambda a, _: rates.append([g["lr"] for g in a.optimizer.param_groups]))
    history = train(name, policy_lr=1e-3, value_lr=4e-3)
    factors = [1 - i / 5 for i in range(5)] if name in FULL else [1] * 5
    assert rates == [[1e-3 * f, 4e-3 * f] for f in factors]
    logged = [[row["charts/learning_rate"], row["charts/value_learning_rate"]] for row in history]
    assert logged == rates
    if name in FULL:
        assert rates[-1] == pytest.approx([1e-3 / 5, 4e-3 / 5])


def test_learning_rate_stays_when_asked_to(train):
    history = train("ppo_continuous", policy_lr=1e-3, anneal_lr=False)
    assert [row["charts/learning_rate"] for row in history] == [1e-3] * 5


@pytest.mark.parametrize("name", SCRIPTS)
def test_explained_variance_and_entropy_are_logged(name, train, monkeypatch):
    """1 - Var(returns - V_old) / Var(returns) of the batch; the entropy of the policy after the update."""
    explained, agents = [], []

    def record(agent, batch):
        values, returns = batch.values.double().numpy(), batch.returns.double().numpy()
        explained.append(1 - np.var(returns - values) / np.var(returns))
        agents.append(agent)

    spy_on_update(monkeypatch, load(name), record)
    history = train(name)
    assert [row["losses/explained_variance"] for row in history] == pytest.approx(explained, rel=1e-3, abs=1e-5)
    entropy = torch.distributions.Normal(0.0, agents[-1].policy.log_std.detach().exp()).entropy().sum().item()
    assert history[-1]["losses/entropy"] == pytest.approx(entropy, rel=1e-6)
    assert history[0]["losses/entropy"] != history[-1]["losses/entropy"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_the_policy_returns_is_safe_to_keep(name):
    """A reader who stores pi_old and adds a KL penalty: the old distribution stays, and backward works each time."""
    m = load(name)
    _, agent = make_agent(m)
    obs = torch.randn(5, OBS_DIM)
    with torch.no_grad():
        old = agent.policy(obs)
    kept, optimizer = [x.clone() for x in old], torch.optim.Adam(agent.policy.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        pi = agent.policy(obs)
        (old.kl(pi).mean() - pi.entropy()).backward()
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(kept, old))
    assert old.kl(agent.policy(obs)).mean() > 0
