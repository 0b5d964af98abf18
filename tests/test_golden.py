"""The scripts' functions against what the authors' released functions return on fixed inputs (golden.json), in float64.

golden.json was made by running MadryLab/implementation-matters 5ee6ecb.
"""

import copy
import json
import shutil
from math import inf
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import FULL, PPO, SCRIPTS, TRPO, load, parameters, same_bits

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())
SPACES = (gym.spaces.Box(-np.inf, np.inf, (5,), np.float64), gym.spaces.Box(-1, 1, (2,), np.float64))
pytestmark = pytest.mark.usefixtures("float64")


def close(actual, expected, atol=1e-9):
    actual = actual.detach().numpy() if isinstance(actual, torch.Tensor) else actual
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=atol)


def tensors(case, *names):
    return [torch.tensor(case[name]) for name in names]


@pytest.mark.parametrize("name", FULL)
@pytest.mark.parametrize("case", [case for case in GOLDEN if case.startswith("reward_")])
def test_reward_filter(name, case):
    """All modes, bound or not; the discounted sum restarts with the episode. Printed with 10 digits: atol 1e-9."""
    m, golden = load(name), GOLDEN[case]
    mode = "rewards" if case.startswith("reward_rewards") else "returns"
    args = m.Args(reward_scaling=mode, gamma=golden["gamma"], clip_reward=golden["clip"] or inf)
    reward_filter = m.RewardFilter(args)
    reward_filter.discounted_sums[0] = 0.0
    scaled = []
    for t, reward in enumerate(golden["rewards"]):
        scaled.append(reward_filter(reward, 0))
        if t in golden["episode_ends_after"]:
            reward_filter.discounted_sums[0] = 0.0
    close(scaled, golden["scaled"])


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("case", ["obs_noclip", "obs_clip10", "obs_clip1.5"])
def test_observation_filter(name, case):
    m, golden = load(name), GOLDEN[case]
    if golden["clip"] and name not in FULL:
        pytest.skip("the minimal scripts do not clip observations")
    args = m.Args(clip_obs=golden["clip"] or inf) if name in FULL else m.Args()
    obs_filter = m.ObservationFilter(args, gym.spaces.Box(-np.inf, np.inf, (4,), np.float64))
    close([obs_filter(np.array(obs)) for obs in golden["obs"]], golden["normalized"])


def test_gae(script):
    """The authors bootstrap a batch's last step with V(s_{T-1}); given that value, the advantages are theirs."""
    golden = GOLDEN["gae"]
    rewards, values = np.array(golden["rewards"]), np.array(golden["values"])
    terminated = np.array(golden["terminated"]).astype(bool)
    next_values = np.append(values[1:], values[-1])
    args = script.Args(gamma=golden["gamma"], gae_lambda=golden["gae_lambda"])
    close(script.gae(args, rewards, values, next_values, terminated, terminated), golden["advantages"])


def test_gaussian(script):
    golden = GOLDEN["gaussian"]
    mean, std, actions, q_mean, q_std = tensors(golden, "mean", "std", "actions", "q_mean", "q_std")
    p, q = script.Gaussian(mean, std.log()), script.Gaussian(q_mean, q_std.log())
    close(p.log_prob(actions), golden["log_prob"])
    close(p.entropy(), golden["entropy"])
    close(p.kl(q), golden["kl_p_q"])


def make_batch(m, **parts):
    size = len(next(iter(parts.values())))
    zeros = {field: torch.zeros(size) for field in m.Batch._fields}
    return m.Batch(**{**zeros, **{name: torch.as_tensor(value) for name, value in parts.items()}})


def test_value_loss(script):
    golden = GOLDEN["value_loss_plain"]
    batch = make_batch(script, returns=golden["targets"])
    close(script.value_loss(torch.tensor(golden["values"]), batch), golden["loss"])


@pytest.mark.parametrize("name", FULL)
def test_clipped_value_loss(name):
    m, golden = load(name), GOLDEN["value_loss_clipped"]
    batch = make_batch(m, values=golden["old_values"], returns=golden["targets"])
    args = m.Args(vf_clip_coef=golden["clip_eps"])
    close(m.clipped_value_loss(args, torch.tensor(golden["values"]), batch), golden["loss"])


class LogProbs:
    """Stands for a distribution whose log-probabilities of the batch's actions are given."""

    def __init__(self, log_probs):
        self.log_probs = torch.tensor(log_probs, requires_grad=True)

    def log_prob(self, actions):
        return self.log_probs


@pytest.mark.parametrize("name", PPO)
def test_ppo_surrogate(name):
    m, golden = load(name), GOLDEN["ppo_surrogate"]
    pi = LogProbs(golden["new_log_prob"])
    batch = make_batch(m, log_probs=golden["old_log_prob"], advantages=golden["advantages"])
    loss, clipfrac = m.policy_loss(m.Args(clip_coef=golden["clip_eps"]), pi, batch)
    close(loss, golden["loss"])
    close(torch.autograd.grad(loss, pi.log_probs)[0], golden["grad_new_log_prob"])
    ratio = np.exp(np.array(golden["new_log_prob"]) - golden["old_log_prob"])
    assert clipfrac.item() == pytest.approx(np.mean(np.abs(ratio - 1) > golden["clip_eps"]))
    unclipped, _ = m.policy_loss(m.Args(clip_coef=inf), pi, batch)
    close(unclipped, golden["unclipped_loss"])


def layer_names(prefix, output):
    """Our name of each parameter of a network of two hidden layers -> the authors'."""
    layers = ((0, "affine_layers.0"), (2, "affine_layers.1"), (4, output))
    return {f"{prefix}{index}.{part}": f"{layer}.{part}" for index, layer in layers for part in ("weight", "bias")}


POLICY = {"log_std": "log_stdev", **layer_names("mean_net.", "final_mean")}
VALUE = layer_names("", "final")


def set_initial(network, names, golden):
    network.load_state_dict({ours: torch.tensor(golden["initial"][theirs]) for ours, theirs in names.items()})


def assert_final(network, names, golden):
    for ours, theirs in names.items():
        close(network.state_dict()[ours], golden["final"][theirs])


needs_compiler = pytest.mark.skipif(not (shutil.which("c++") or shutil.which("g++")), reason="no C++ compiler")
COMPILE = [False, pytest.param(True, marks=[pytest.mark.slow, needs_compiler])]
COMPILED = {  # every script and every case once: a compilation takes seconds
    "ppo_continuous": ["ppo_step_clip", "ppo_step_noclip"],
    "ppo_m": ["ppo_step_clip"],
    "trpo_continuous": ["value_step_plain"],
    "trpo_plus": ["value_step_clipped"],
}


@pytest.mark.parametrize("compile", COMPILE)
@pytest.mark.parametrize("name", PPO)
@pytest.mark.parametrize("case", ["ppo_step_clip", "ppo_step_noclip"])
def test_ppo_step(name, case, compile):
    """Several epochs of `update`; the value network trains beside the policy and must not disturb it."""
    m, golden = load(name), GOLDEN[case]
    max_grad_norm = float(golden["max_grad_norm"])
    if max_grad_norm < inf and name not in FULL:
        pytest.skip("ppo_m.py does not clip gradients")
    if compile and case not in COMPILED[name]:
        pytest.skip("compiled on another script")
    args = m.Args(
        hidden_sizes=(8, 8),
        clip_coef=float(golden["clip_coef"]),
        ent_coef=golden["entropy_coef"],
        policy_lr=golden["learning_rate"],
        adam_eps=golden["adam_eps"],
        update_epochs=golden["epochs"],
        num_minibatches=golden["minibatches"],
        compile=compile,
        **({"max_grad_norm": max_grad_norm} if name in FULL else {}),
    )
    agent = m.Agent(args, *SPACES)
    set_initial(agent.policy, POLICY, golden)
    obs, actions, log_probs, advantages = tensors(golden, "states", "actions", "old_log_prob", "advantages")
    m.update(args, agent, make_batch(m, obs=obs, actions=actions, log_probs=log_probs, advantages=advantages))
    assert_final(agent.policy, POLICY, golden)


@pytest.mark.parametrize("compile", COMPILE)
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("case", ["value_step_plain", "value_step_clipped"])
def test_value_step(name, case, compile):
    m, golden = load(name), GOLDEN[case]
    clipped = case == "value_step_clipped"
    if clipped and name not in FULL:
        pytest.skip("the minimal scripts do not clip the value function")
    if compile and case not in COMPILED[name]:
        pytest.skip("compiled on another script")
    full = {"vf_clip_coef": golden["clip_coef"] if clipped else inf, "max_grad_norm": inf} if name in FULL else {}
    args = m.Args(
        hidden_sizes=(8, 8),
        value_lr=golden["learning_rate"],
        adam_eps=golden["adam_eps"],
        update_epochs=golden["epochs"],
        num_minibatches=golden["minibatches"],
        compile=compile,
        **full,
    )
    agent = m.Agent(args, *SPACES)
    set_initial(agent.value, VALUE, golden)
    obs, values, returns = tensors(golden, "states", "old_values", "targets")
    m.update(args, agent, make_batch(m, obs=obs, actions=torch.zeros(len(obs), 2), values=values, returns=returns))
    assert_final(agent.value, VALUE, golden)


@pytest.mark.parametrize("name", TRPO)
def test_conjugate_gradient(name):
    m, golden = load(name), GOLDEN["conjugate_gradient"]
    matrix, b = tensors(golden, "matrix", "b")
    close(m.conjugate_gradient(lambda v: matrix @ v, b, golden["steps"])[0], golden["x"])
    x10, residual = m.conjugate_gradient(lambda v: matrix @ v, b, 10)
    close(x10, golden["x10"])
    assert residual == pytest.approx(((b - matrix @ x10).norm() / b.norm()).item(), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("name", TRPO)
@pytest.mark.parametrize("case", [case for case in GOLDEN if case.startswith("trpo_step")])
def test_trpo_step(name, case):
    """The full step accepted, a step accepted after backtracking, and none accepted."""
    m, golden = load(name), GOLDEN[case]
    args = m.Args(
        hidden_sizes=(8, 8),
        max_kl=golden["target_kl"],
        cg_steps=golden["cg_steps"],
        cg_damping=golden["damping"],
        max_backtracks=golden["max_backtracks"],
        fisher_fraction=golden["fisher_fraction"],
    )
    agent = m.Agent(args, *SPACES)
    set_initial(agent.policy, POLICY, golden)
    obs, actions, log_probs, advantages = tensors(golden, "states", "actions", "old_log_prob", "advantages")
    batch = make_batch(m, obs=obs, actions=actions, log_probs=log_probs, advantages=advantages)
    old = copy.deepcopy(agent.policy)
    row = m.trpo_step(args, agent, batch)
    assert_final(agent.policy, POLICY, golden)
    accepted = golden["line_search"].removeprefix("We good! ")
    assert row["trust_region/step_fraction"] == float(accepted or 0)
    if not accepted:
        assert same_bits(parameters(old), agent.policy)
    mean_kl = old(obs).kl(agent.policy(obs)).mean().item()
    assert mean_kl == pytest.approx(golden["final_mean_kl"], rel=1e-6, abs=1e-12)
