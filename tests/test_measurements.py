"""What is measured and logged of an iteration."""

import numpy as np
import pytest
import torch
from conftest import ACTION_DIM, OBS_DIM, SCRIPTS, TRPO, load, small_agent
from hypothesis import given, settings
from hypothesis import strategies as st

PENDULUM = {"env_id": "InvertedPendulum-v5", "num_steps": 40, "num_minibatches": 4, "update_epochs": 2}
PENDULUM |= {"hidden_sizes": (8,), "reset_each_iteration": False, "total_timesteps": 200, "progress": False}


@settings(deadline=None, max_examples=25, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 20))
def test_mean_kl_and_max_ratio(seed, size):
    """Mean KL(old || new), in this order, and the largest ratio new / old, by torch.distributions."""
    for m in map(load, SCRIPTS):
        policies = [small_agent(m, (seed + i) % 2**32)[1].policy.double() for i in range(2)]
        obs, actions = torch.randn(size, OBS_DIM).double(), torch.randn(size, ACTION_DIM).double()
        with torch.no_grad():
            p, q = (torch.distributions.Normal(policy.mean_net(obs), policy.log_std.exp()) for policy in policies)
            kl = torch.distributions.kl_divergence(p, q).sum(-1).mean().item()
            ratio = (q.log_prob(actions) - p.log_prob(actions)).sum(-1).exp().max().item()
        row = m.measure(*policies, obs, actions, "heldout_")
        expected = {"trust_region/heldout_mean_kl": kl, "trust_region/heldout_max_ratio": ratio}
        assert row == pytest.approx(expected, rel=1e-8)


def test_explained_variance_and_entropy(script, tmp_path, monkeypatch):
    """1 - Var(returns - V_old) / Var(returns) of the batch; the entropy of the policy after the update."""
    explained, agents, update = [], [], script.update

    def spy(args, agent, batch):
        values, returns = batch.values.double().numpy(), batch.returns.double().numpy()
        explained.append(1 - np.var(returns - values) / np.var(returns))
        agents.append(agent)
        return update(args, agent, batch)

    monkeypatch.setattr(script, "update", spy)
    history = script.train(script.Args(**PENDULUM, runs_dir=str(tmp_path))).history
    assert [row["losses/explained_variance"] for row in history] == pytest.approx(explained, rel=1e-3, abs=1e-5)
    entropy = torch.distributions.Normal(0.0, agents[-1].policy.log_std.detach().exp()).entropy().sum().item()
    assert history[-1]["losses/entropy"] == pytest.approx(entropy, rel=1e-6)
    assert history[0]["losses/entropy"] != history[-1]["losses/entropy"]


EPISODES = {"charts/episodic_return", "charts/episodic_length"}  # where one ended
CHARTS = {"charts/SPS", "charts/value_learning_rate", "iteration", "global_step"}
LOSSES = {"losses/policy_loss", "losses/value_loss", "losses/entropy", "losses/explained_variance"}
TRUST_REGION = {"trust_region/mean_kl", "trust_region/max_ratio"}
PPO_ALONE = {"losses/clipfrac", "charts/learning_rate"}
STEP = {"max_kl", "step_fraction", "cg_residual", "expected_improvement", "improvement"}
TRPO_ALONE = {f"trust_region/{name}" for name in STEP}


def test_what_is_logged(script, tmp_path):
    """The names that dashboards and committed results know, each a number, every iteration."""
    own = TRPO_ALONE if script.__name__ in TRPO else PPO_ALONE
    history = script.train(script.Args(**PENDULUM, runs_dir=str(tmp_path))).history
    for number, row in enumerate(history, 1):
        assert row.keys() - EPISODES == CHARTS | LOSSES | TRUST_REGION | own
        assert row.keys() & EPISODES in (EPISODES, set())
        assert (row["iteration"], row["global_step"]) == (number, 40 * number)
        assert all(isinstance(value, int | float) for value in row.values())
        if row.get("trust_region/step_fraction"):
            assert row["trust_region/improvement"] > 0.1 * row["trust_region/expected_improvement"] > 0
            assert row["trust_region/mean_kl"] > 0 and row["trust_region/max_ratio"] > 1
        assert 0 < row.get("trust_region/cg_residual", 0.5) < 1
    assert sum(row.keys() >= EPISODES for row in history) > 2
