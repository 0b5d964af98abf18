"""Properties of the TRPO step, in float64: Fisher matrix, conjugate gradient, KL bound, and where no step exists."""

import copy
import math

import numpy as np
import pytest
import torch
from conftest import ACTION_DIM, OBS_DIM, TRPO, load, parameters, same_bits, small_agent
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.usefixtures("float64")
SLOW = settings(deadline=None, max_examples=30, derandomize=True)
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(params=TRPO)
def m(request):
    """Both TRPO scripts."""
    return load(request.param)


def make_batch(m, agent, size=40, seed=0, **changes):
    generator = torch.Generator().manual_seed(seed)
    obs = torch.randn(size, OBS_DIM, generator=generator)
    with torch.no_grad():
        pi = agent.policy(obs)
        actions = pi.mean + pi.log_std.exp() * torch.randn(size, ACTION_DIM, generator=generator)
        log_probs = pi.log_prob(actions)
    values, advantages, returns = torch.randn(3, size, generator=generator)
    return m.Batch(obs, actions, log_probs, values, advantages, returns)._replace(**changes)


def fisher_of_gaussian(policy, obs):
    """E[grad log pi grad log pi'] in closed form: J' Sigma^-1 J for the mean's parameters, 2 I for log_std."""
    names = [name for name, _ in policy.named_parameters()]
    size = sum(p.numel() for p in policy.parameters())
    fisher = torch.zeros(size, size)
    for row in obs:
        mean, log_std = policy(row[None])
        jacobian = [torch.autograd.grad(x, policy.mean_net.parameters(), retain_graph=True) for x in mean[0]]
        jacobian = torch.stack([torch.cat([part.flatten() for part in grads]) for grads in jacobian])
        full = torch.zeros(size, size)
        offset = {name: sum(p.numel() for p in list(policy.parameters())[:i]) for i, name in enumerate(names)}
        start = offset["log_std"]
        keep = [i for i in range(size) if not start <= i < start + ACTION_DIM]
        full[np.ix_(keep, keep)] = jacobian.T @ torch.diag((-2 * log_std.detach()).exp()) @ jacobian
        full[range(start, start + ACTION_DIM), range(start, start + ACTION_DIM)] = 2.0
        fisher += full / len(obs)
    return fisher


def hessian_of_kl(m, policy, obs):
    """The same matrix as the Hessian of mean KL(pi_old || pi) at pi = pi_old, by torch's own function."""
    named = dict(policy.named_parameters())
    shapes = [p.shape for p in named.values()]
    with torch.no_grad():
        old_mean, old_log_std = policy(obs)

    def mean_kl(vector):
        parts = [part.view(shape) for part, shape in zip(vector.split([s.numel() for s in shapes]), shapes)]
        new = torch.func.functional_call(policy, dict(zip(named, parts)), (obs,))
        old = torch.distributions.Independent(torch.distributions.Normal(old_mean, old_log_std.exp()), 1)
        new = torch.distributions.Independent(torch.distributions.Normal(new[0], new[1].exp()), 1)
        return torch.distributions.kl_divergence(old, new).mean()

    return torch.autograd.functional.hessian(mean_kl, torch.cat([p.detach().flatten() for p in named.values()]))


def fisher_by_products(m, policy, obs):
    size, args = sum(p.numel() for p in policy.parameters()), m.Args(cg_damping=0.0)
    return torch.stack([m.fisher_vector_product(args, policy, obs)(v) for v in torch.eye(size)], dim=1)


@pytest.mark.parametrize("seed", [1, 2])
def test_fisher_vector_product(m, seed):
    """Column by column the matrix of the products is the Fisher matrix, built in two ways; damping adds to it."""
    _, agent = small_agent(m, seed)
    obs = torch.randn(7, OBS_DIM)
    analytic, hessian = fisher_of_gaussian(agent.policy, obs), hessian_of_kl(m, agent.policy, obs)
    torch.testing.assert_close(analytic, hessian, rtol=1e-9, atol=1e-11)
    assert analytic.abs().max() > 0.1 and analytic.count_nonzero() > 100
    product = fisher_by_products(m, agent.policy, obs)
    torch.testing.assert_close(product, analytic, rtol=1e-9, atol=1e-11)
    vector = torch.randn(len(analytic))
    damped = m.fisher_vector_product(m.Args(cg_damping=0.1), agent.policy, obs)(vector)
    torch.testing.assert_close(damped, analytic @ vector + 0.1 * vector, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("seed", [1, 2])
def test_fisher_matrix_is_symmetric_and_positive_semidefinite(m, seed):
    _, agent = small_agent(m, seed)
    matrix = fisher_by_products(m, agent.policy, torch.randn(5, OBS_DIM))
    torch.testing.assert_close(matrix, matrix.T, rtol=1e-9, atol=1e-12)
    eigenvalues = torch.linalg.eigvalsh(matrix)
    assert eigenvalues.min() > -1e-10 and eigenvalues.max() > 0.1
    assert eigenvalues.min() < 1e-10  # 5 states do not determine all parameters: semi-definite it is


def test_fisher_vector_product_leaves_no_gradient(m):
    args, agent = small_agent(m)
    before = parameters(agent.policy)
    product = m.fisher_vector_product(args, agent.policy, torch.randn(5, OBS_DIM))
    assert product(torch.ones(sum(p.numel() for p in before))).any()
    assert same_bits(before, agent.policy) and all(p.grad is None for p in agent.policy.parameters())


@settings(SLOW, max_examples=60)
@given(seed=seeds, size=st.integers(1, 12))
def test_conjugate_gradient_solves_positive_definite_systems(seed, size):
    """In exact arithmetic after `size` steps; twice as many here. The residual is |b - A x| / |b|."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=generator, dtype=torch.float64)
    matrix = root @ root.T + torch.eye(size, dtype=torch.float64)
    b = torch.randn(size, generator=generator, dtype=torch.float64)
    for name in TRPO:
        conjugate_gradient = load(name).conjugate_gradient
        x, residual = conjugate_gradient(lambda v: matrix @ v, b, 2 * size)
        torch.testing.assert_close(x, torch.linalg.solve(matrix, b), rtol=1e-7, atol=1e-9)
        assert 0 <= residual < 1e-8
        x, residual = conjugate_gradient(lambda v: matrix @ v, b, 1)  # one step: steepest descent, exactly
        torch.testing.assert_close(x, (b @ b) / (b @ matrix @ b) * b)
        assert residual == pytest.approx(((b - matrix @ x).norm() / b.norm()).item(), abs=1e-12)


def test_conjugate_gradient_with_zero_right_side(m):
    x, residual = m.conjugate_gradient(lambda v: v, torch.zeros(4), 10)
    assert torch.equal(x, torch.zeros(4))
    assert residual == 0  # not 0 / 0


def test_conjugate_gradient_stops_when_solved(m):
    """The first step solves A = 2 I exactly; going on would divide 0 by 0."""
    b = torch.tensor([1.0, 2.0, 4.0])
    x, residual = m.conjugate_gradient(lambda v: 2 * v, b, 10)
    assert torch.equal(x, b / 2) and residual == 0


@pytest.mark.parametrize("diagonal", [(-1.0, -1.0), (0.0, 0.0), (math.nan, 1.0)])
def test_conjugate_gradient_without_positive_curvature(m, diagonal):
    """Nowhere to go: x = 0 and nothing solved."""
    x, residual = m.conjugate_gradient(lambda v: torch.tensor(diagonal) * v, torch.ones(2), 10)
    assert torch.equal(x, torch.zeros(2)) and residual == 1


@pytest.mark.parametrize("second", [-3.0, 0.0])
def test_conjugate_gradient_keeps_what_it_has(m, second):
    """Where the second direction's curvature is not positive, the first step's x stays."""
    matrix = torch.tensor([[2.0, 0.0], [0.0, second]])
    b = torch.tensor([2.0, 1.0])
    assert b @ matrix @ b > 0
    x, _ = m.conjugate_gradient(lambda v: matrix @ v, b, 10)
    first = (b @ b) / (b @ matrix @ b) * b
    if second < 0:
        torch.testing.assert_close(x, first)
    else:
        assert x.isfinite().all()


@SLOW
@given(seed=seeds, max_kl=st.floats(1e-4, 1.0), fraction=st.sampled_from([0.1, 0.5, 1.0]), norm_adv=st.booleans())
def test_the_step_never_exceeds_the_bound(seed, max_kl, fraction, norm_adv):
    """On the whole batch, whatever part of it the Fisher products saw; measured with torch.distributions."""
    for name in TRPO:
        m = load(name)
        args, agent = small_agent(m, seed, max_kl=max_kl, fisher_fraction=fraction, norm_adv=norm_adv)
        batch, before = make_batch(m, agent, 64, seed), parameters(agent.policy)
        with torch.no_grad():
            old = agent.policy(batch.obs)
        row = m.trpo_step(args, agent, batch)
        with torch.no_grad():
            new = agent.policy(batch.obs)
        old, new = (torch.distributions.Normal(pi.mean, pi.log_std.exp()) for pi in (old, new))
        mean_kl = torch.distributions.kl_divergence(old, new).sum(-1).mean()
        assert mean_kl <= max_kl * (1 + 1e-5)
        assert row["trust_region/max_kl"] == max_kl
        if row["trust_region/step_fraction"]:
            assert mean_kl > 0 and not same_bits(before, agent.policy)
            assert row["trust_region/improvement"] > 0.1 * row["trust_region/expected_improvement"] > 0
            assert math.log2(row["trust_region/step_fraction"]) in range(-args.max_backtracks + 1, 1)
        else:
            assert same_bits(before, agent.policy)


@pytest.mark.parametrize("norm_adv", [False, True])
def test_a_full_step_reaches_the_bound_to_second_order(m, norm_adv):
    """A tiny bound, the whole batch in the Fisher products, no damping: KL is the bound within 5%."""
    args, agent = small_agent(m, 3, max_kl=1e-6, fisher_fraction=1.0, cg_damping=0.0, cg_steps=5, norm_adv=norm_adv)
    batch = make_batch(m, agent, 200)
    old = copy.deepcopy(agent.policy)
    row = m.trpo_step(args, agent, batch)
    mean_kl = old(batch.obs).kl(agent.policy(batch.obs)).mean().item()
    assert row["trust_region/step_fraction"] in (1.0, 0.5)
    assert mean_kl == pytest.approx(row["trust_region/step_fraction"] ** 2 * 1e-6, rel=0.05)
    assert row["trust_region/improvement"] == pytest.approx(row["trust_region/expected_improvement"], rel=0.05)


def measured_surrogate(m, policy, batch, norm_adv):
    """mean ratio A by a plain loop over torch.distributions."""
    advantages = batch.advantages.tolist()
    if norm_adv:
        mean, std = np.mean(advantages), np.std(advantages, ddof=1)
        advantages = [(a - mean) / (std + 1e-8) for a in advantages]
    total = 0.0
    with torch.no_grad():
        for obs, action, log_prob, advantage in zip(batch.obs, batch.actions, batch.log_probs, advantages):
            new = torch.distributions.Normal(policy.mean_net(obs), policy.log_std.exp()).log_prob(action).sum()
            total += math.exp(new - log_prob) * advantage
    return total / len(batch.obs)


@pytest.mark.parametrize("norm_adv", [False, True])
@pytest.mark.parametrize("max_kl", [0.01, 2.0])
def test_expected_and_measured_improvement(m, norm_adv, max_kl):
    """Expected: gradient' (what the parameters moved by). Improvement and loss: the surrogate, measured."""
    args, agent = small_agent(m, 5, max_kl=max_kl, norm_adv=norm_adv, fisher_fraction=0.5)
    batch, before = make_batch(m, agent), torch.cat([p.flatten() for p in parameters(agent.policy)])
    normalized = batch._replace(advantages=m.normalize(batch.advantages)) if norm_adv else batch
    ratio = (agent.policy(batch.obs).log_prob(batch.actions) - batch.log_probs).exp()
    objective = (ratio * normalized.advantages).mean()
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(objective, agent.policy.parameters())])
    start = measured_surrogate(m, agent.policy, batch, norm_adv)
    row = m.trpo_step(args, agent, batch)
    moved = torch.cat([p.flatten() for p in parameters(agent.policy)]) - before
    assert row["trust_region/step_fraction"] > 0
    assert row["trust_region/expected_improvement"] == pytest.approx((gradient @ moved).item(), rel=1e-9)
    gain = measured_surrogate(m, agent.policy, batch, norm_adv) - start
    assert row["trust_region/improvement"] == pytest.approx(gain, rel=1e-9)
    assert row["losses/policy_loss"] == pytest.approx(-start - gain, rel=1e-9, abs=1e-12)
    assert row["trust_region/improvement"] != row["trust_region/expected_improvement"]


def test_backtracking_halves(m, monkeypatch):
    """The line search tries 1, 1/2, 1/4 ...; the first that is good enough counts; max_backtracks at most."""
    args, agent = small_agent(m, 1, max_backtracks=6, max_kl=1.0)
    batch, before = make_batch(m, agent), torch.cat([p.flatten() for p in parameters(agent.policy)])
    row = m.trpo_step(args, agent, batch)
    step = (torch.cat([p.flatten() for p in parameters(agent.policy)]) - before) / row["trust_region/step_fraction"]
    m.set_parameters(agent.policy, before)
    tried, original = [], m.set_parameters

    def spy(policy, vector):
        tried.append(((vector - before) @ step / (step @ step)).item())
        original(policy, vector)

    monkeypatch.setattr(m, "set_parameters", spy)
    assert m.line_search(args, agent, batch, step, expected=1e9) == (0.0, 0.0)
    assert tried == pytest.approx([1, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0])
    tried.clear()
    fraction, gain = m.line_search(args, agent, batch, step, expected=1e-9)
    assert fraction == tried[-1] and tried == pytest.approx([0.5**i for i in range(len(tried))]) and gain > 0


@pytest.mark.parametrize("reason", ["kl", "gain"])
def test_each_condition_of_the_line_search_counts(m, reason):
    """The whole step is turned down for its KL alone, then for gaining too little alone."""
    args, agent = small_agent(m, 1, max_backtracks=1)
    batch, before = make_batch(m, agent), parameters(agent.policy)
    gradient = m.flatten(
        torch.autograd.grad(m.surrogate(agent.policy(batch.obs), batch), list(agent.policy.parameters()))
    )
    step = 1e-3 * gradient / gradient.norm()
    agent.max_kl = 1.0
    fraction, gain = m.line_search(args, agent, batch, step, (gradient @ step).item())
    assert fraction == 1.0
    m.set_parameters(agent.policy, torch.cat([p.flatten() for p in before]))
    expected = gain / 0.105  # the authors' bound is 0.1
    assert m.line_search(args, agent, batch, step, expected) == (1.0, gain)
    m.set_parameters(agent.policy, torch.cat([p.flatten() for p in before]))
    if reason == "kl":
        agent.max_kl = 1e-12
    else:
        expected = gain / 0.095
    assert m.line_search(args, agent, batch, step, expected) == (0.0, 0.0)
    assert same_bits(before, agent.policy)


def assert_no_step(m, args, agent, batch, capsys, reason):
    """Parameters as before, bit for bit; the row without a NaN; one line on stderr says why."""
    before = parameters(agent.policy)
    capsys.readouterr()
    row = m.trpo_step(args, agent, batch)
    assert same_bits(before, agent.policy)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("no TRPO step: ") and reason in lines[0]
    assert row["trust_region/step_fraction"] == 0
    assert row["trust_region/improvement"] == 0
    assert row["trust_region/expected_improvement"] == 0
    bad = {name: value for name, value in row.items() if not math.isfinite(value)}
    assert not bad, f"logged: {bad}"
    return row


def test_zero_advantages(m, capsys):
    args, agent = small_agent(m, norm_adv=False)
    assert_no_step(m, args, agent, make_batch(m, agent, advantages=torch.zeros(40)), capsys, "gradient is zero")


@pytest.mark.parametrize("constant", [0.0, 1.0, -0.25, 1e4])
def test_constant_advantages(m, capsys, constant):
    """Normalized they are zero, in the float32 of training too, and there is no step."""
    torch.set_default_dtype(torch.float32)
    args, agent = small_agent(m)
    batch = make_batch(m, agent, 64, advantages=torch.full((64,), constant))
    assert_no_step(m, args, agent, batch, capsys, "gradient is zero")


def test_zero_gradient(m, capsys, monkeypatch):
    """Advantages that are not zero, a surrogate that does not depend on the policy."""
    args, agent = small_agent(m)
    monkeypatch.setattr(m.Gaussian, "log_prob", lambda pi, actions: 0 * (pi.mean + pi.log_std).sum(-1))
    assert_no_step(m, args, agent, make_batch(m, agent), capsys, "gradient is zero")


@pytest.mark.parametrize("factor", [-1.0, 0.0])
def test_no_positive_curvature(m, capsys, monkeypatch, factor):
    args, agent = small_agent(m)
    monkeypatch.setattr(m, "fisher_vector_product", lambda *_: lambda vector: factor * vector)
    row = assert_no_step(m, args, agent, make_batch(m, agent), capsys, "curvature")
    assert row["trust_region/cg_residual"] == 1


def test_curvature_turns_negative(m, capsys, monkeypatch):
    """Conjugate gradient ends with a direction, along which the product then has negative curvature."""
    args, agent = small_agent(m, cg_steps=1)
    calls = []

    def product(vector):
        calls.append(vector)
        return vector if len(calls) == 1 else -vector

    monkeypatch.setattr(m, "fisher_vector_product", lambda *_: product)
    assert_no_step(m, args, agent, make_batch(m, agent), capsys, "curvature")
    assert len(calls) == 2


def test_step_that_is_not_finite(m, capsys, monkeypatch):
    """A curvature so small, and positive, that the step overflows."""
    torch.set_default_dtype(torch.float32)
    args, agent = small_agent(m)
    monkeypatch.setattr(m, "conjugate_gradient", lambda product, b, steps: (torch.full_like(b, 3e38), 1.0))
    monkeypatch.setattr(m, "fisher_vector_product", lambda *_: lambda v: 1e-44 * torch.ones_like(v))
    assert_no_step(m, args, agent, make_batch(m, agent), capsys, "line search accepted no step")


@pytest.mark.parametrize("what", ["product", "residual"])
def test_fisher_products_that_are_nan(m, capsys, monkeypatch, what):
    args, agent = small_agent(m)
    bad = math.nan if what == "product" else math.inf
    monkeypatch.setattr(m, "fisher_vector_product", lambda *_: lambda vector: bad * vector)
    before = parameters(agent.policy)
    row = m.trpo_step(args, agent, make_batch(m, agent))
    assert same_bits(before, agent.policy)
    assert row["trust_region/step_fraction"] == 0 and math.isfinite(row["losses/policy_loss"])
    assert "no TRPO step: " in capsys.readouterr().err


def test_line_search_that_accepts_none(m, capsys, monkeypatch):
    """KL is too large wherever it looks; the parameters come back bit for bit."""
    args, agent = small_agent(m, 2, max_kl=0.05, max_backtracks=3)
    batch, kl = make_batch(m, agent), m.Gaussian.kl
    monkeypatch.setattr(m.Gaussian, "kl", lambda p, q: kl(p, q) + (0.0 if q.mean.requires_grad else 10.0))
    assert_no_step(m, args, agent, batch, capsys, "line search accepted no step")


def test_set_parameters_in_place(m):
    """The memory stays where it is, so NumPy views of it, which the rollout acts with, stay current."""
    args, agent = small_agent(m)
    forward = m.numpy_forward(args, agent.policy.mean_net)
    pointers = [p.data_ptr() for p in agent.policy.parameters()]
    vector = torch.randn(sum(p.numel() for p in agent.policy.parameters()))
    m.set_parameters(agent.policy, vector)
    assert [p.data_ptr() for p in agent.policy.parameters()] == pointers
    assert torch.equal(m.flatten(agent.policy.parameters()), vector)
    obs = torch.randn(1, OBS_DIM)
    np.testing.assert_allclose(forward(obs.numpy()), agent.policy(obs).mean.detach().numpy(), rtol=1e-12)
    assert all(p.requires_grad and p.grad is None for p in agent.policy.parameters())


def test_a_step_stays_in_place(m):
    args, agent = small_agent(m)
    pointers = [p.data_ptr() for p in agent.policy.parameters()]
    assert m.trpo_step(args, agent, make_batch(m, agent))["trust_region/step_fraction"] > 0
    assert [p.data_ptr() for p in agent.policy.parameters()] == pointers


@pytest.mark.parametrize("fraction, rows", [(1.0, 40), (0.5, 20), (0.11, 4), (0.001, 1)])
def test_fisher_fraction(m, monkeypatch, fraction, rows):
    """All products of a step see one random part of the batch, at least one state, none twice."""
    args, agent = small_agent(m, fisher_fraction=fraction)
    batch, seen, original = make_batch(m, agent), [], m.fisher_vector_product

    def spy(args, policy, obs):
        seen.append(obs)
        return original(args, policy, obs)

    monkeypatch.setattr(m, "fisher_vector_product", spy)
    m.trpo_step(args, agent, batch)
    assert len(seen) == 1 and len(seen[0]) == rows == len(torch.unique(seen[0], dim=0))
    assert all(any(torch.equal(row, state) for state in batch.obs) for row in seen[0])
    if 1 < rows < 40:
        assert not torch.equal(seen[0], batch.obs[:rows])


def test_update_fits_values_then_steps(m):
    """The TRPO step leaves the value network alone, Adam the policy: its gradients stay empty."""
    args, agent = small_agent(m, num_minibatches=4, update_epochs=2)
    batch = make_batch(m, agent)
    value, policy = parameters(agent.value), parameters(agent.policy)
    m.trpo_step(args, agent, batch)
    assert same_bits(value, agent.value) and not same_bits(policy, agent.policy)
    optimized = {id(p) for group in agent.optimizer.param_groups for p in group["params"]}
    assert optimized == {id(p) for p in agent.value.parameters()}
    row = m.update(args, agent, batch)
    assert not same_bits(value, agent.value)
    assert all(p.grad is None for p in agent.policy.parameters())
    assert {name for name in row if name.startswith("losses/")} == {"losses/policy_loss", "losses/value_loss"}
