# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.4",
#     "gymnasium[mujoco]>=1.0",
#     "mujoco>=3.1",
#     "numpy>=1.26",
#     "tensorboard>=2.15",
#     "tyro>=0.9",
#     "tqdm>=4.66",
#     "moviepy>=2.0",
# ]
# ///
"""PPO for continuous actions, with all nine code-level optimizations, a flag for each.

Paper: "Implementation Matters in Deep Policy Gradients: A Case Study on PPO and TRPO"
(Engstrom et al., ICLR 2020, arXiv 2005.12729). This is the paper's PPO; the algorithm alone, without
[1]-[5], [7] and [9], is ppo_m.py, and `diff ppo_m.py ppo_continuous.py` shows what they are.

    python ppo_continuous.py --env-id Hopper-v5 --seed 1      # train
    python ppo_continuous.py --clip-coef inf                  # PPO-NoClip
    python ppo_continuous.py --resume runs/RUN                # go on after an interruption
    python ppo_continuous.py --evaluate runs/RUN --episodes 10

The nine, numbered as in the paper; `grep -n '# \\[' ppo_continuous.py` finds where each acts:

    [1] value function clipping        --vf-clip-coef inf            turns it off
    [2] reward scaling                 --reward-scaling none         turns it off
    [3] orthogonal initialization      --init xavier                 turns it off
    [4] Adam learning-rate annealing   --no-anneal-lr                turns it off
    [5] reward clipping                --clip-reward inf             turns it off
    [6] observation normalization      --no-norm-obs                 turns it off
    [7] observation clipping           --clip-obs inf                turns it off
    [8] hyperbolic tangent             --activation relu             replaces it
    [9] global gradient clipping       --max-grad-norm inf           turns it off
"""

import copy
import hashlib
import importlib.metadata
import io
import itertools
import json
import os
import re
import shutil
import signal
import sys
import time
import warnings
from dataclasses import asdict, dataclass, replace
from math import inf, log, nan, pi, prod
from pathlib import Path
from typing import Literal, NamedTuple

import gymnasium as gym
import numpy as np
import torch
import tyro
from torch import nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

SCRIPT = Path(__file__).stem


@dataclass
class Args:
    # run
    env_id: str = "Hopper-v5"
    """Gymnasium environment with floating Box actions; `module:Env-v0` imports the module first"""
    seed: int = 1
    """seed of everything random"""
    total_timesteps: int = 1_000_000
    """environment steps, all environments together; rounded down to whole iterations"""
    runs_dir: str = "runs"
    """folder of all runs"""
    run_name: str = ""
    """the run lies at RUNS-DIR/RUN-NAME; empty: <env>__<script>__<seed>__<time>"""
    checkpoint_every: int = 1
    """iterations between two checkpoints; the last iteration always writes one"""
    resume: str = ""
    """a run's folder: continue that run, with its own arguments"""
    evaluate: str = ""
    """a run's folder: play episodes with its policy and frozen statistics instead of training"""
    episodes: int = 10
    """with --evaluate: number of episodes"""
    stochastic: bool = False
    """with --evaluate: sample actions instead of taking the mean"""
    video: bool = False
    """with --evaluate: write an mp4 of the first episode into the run's folder"""
    progress: bool = True
    """show a progress bar"""
    env_kwargs: str = "{}"
    """keyword arguments of the environment, as JSON"""

    # algorithm
    num_envs: int = 1
    """number of environments, stepped in turn"""
    num_steps: int = 2048
    """steps in each environment per iteration"""
    num_minibatches: int = 32
    """minibatches per epoch; must divide num_envs * num_steps"""
    update_epochs: int = 10
    """passes over the batch per iteration"""
    gamma: float = 0.99
    """discount factor"""
    gae_lambda: float = 0.95
    """lambda of generalized advantage estimation"""
    clip_coef: float = 0.2
    """PPO's clip, epsilon; inf: no clipping (PPO-NoClip)"""
    ent_coef: float = 0.0
    """coefficient of the entropy bonus; negative: a penalty"""
    policy_lr: float = 3e-4
    """Adam's learning rate for the policy"""
    value_lr: float = 2.5e-4
    """Adam's learning rate for the value function"""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """sizes of the hidden layers, policy and value network each"""

    # code-level optimizations
    vf_clip_coef: float = 0.2
    """[1] clip of the value function's change, epsilon; inf: off"""
    reward_scaling: Literal["returns", "rewards", "none"] = "returns"
    """[2] divide by the deviation of the discounted reward sum; `rewards`: standardize the reward, keep its mean"""
    init: Literal["orthogonal", "xavier"] = "orthogonal"
    """[3] initialization of the weights; orthogonal comes with a gain for each layer"""
    anneal_lr: bool = True
    """[4] anneal both learning rates linearly to 0"""
    clip_reward: float = 10.0
    """[5] clip the (scaled) reward to +- this; inf: off"""
    norm_obs: bool = True
    """[6] normalize observations by their running mean and standard deviation"""
    clip_obs: float = 10.0
    """[7] clip the (normalized) observation to +- this; inf: off"""
    activation: Literal["tanh", "relu"] = "tanh"
    """[8] activation between layers"""
    max_grad_norm: float = 0.5
    """[9] clip each network's gradient to this l2 norm; inf: off"""

    # details the paper does not list
    norm_adv: bool = True
    """normalize the advantages of each minibatch"""
    adam_eps: float = 1e-5
    """Adam's epsilon"""
    reset_each_iteration: bool = True
    """start every iteration with a fresh episode in every environment, as released; off: a resumed run is not exact"""
    bootstrap_truncated: bool = False
    """bootstrap with V(final observation) where a time limit cuts an episode; off: a truncation counts as an end"""
    clip_actions: bool = False
    """clip actions to the action space before the environment sees them; log-probabilities are of the raw action"""

    # measurement
    heldout_every: int = 0
    """every this many iterations measure KL and ratio on a fresh batch too; 0: never; training stays the same"""


class InputError(ValueError):
    """What was asked for cannot be done; the message says why, in one line."""


def check(args: Args, env: gym.Env) -> None:
    """Raises InputError at the first argument, or space of `env`, that cannot be used."""
    batch_size = args.num_envs * args.num_steps
    divides = args.num_minibatches >= 1 and batch_size % args.num_minibatches == 0
    is_float_box = isinstance(env.action_space, gym.spaces.Box) and np.issubdtype(env.action_space.dtype, np.floating)
    rules = [
        (0 <= args.seed < 2**32, "--seed must lie in [0, 2**32)"),
        (args.checkpoint_every >= 1, "--checkpoint-every must be at least 1"),
        (not (args.video or args.stochastic), "--video and --stochastic go with --evaluate"),
        (args.num_envs >= 1, "--num-envs must be at least 1"),
        (args.num_steps >= 1, "--num-steps must be at least 1"),
        (args.total_timesteps >= batch_size, f"--total-timesteps must be at least one batch, {batch_size} steps"),
        (divides, f"--num-minibatches must divide the batch, --num-envs * --num-steps = {batch_size} steps"),
        (args.update_epochs >= 1, "--update-epochs must be at least 1"),
        (0 <= args.gamma <= 1, "--gamma must lie in [0, 1]"),
        (0 <= args.gae_lambda <= 1, "--gae-lambda must lie in [0, 1]"),
        (args.clip_coef > 0, "--clip-coef must be above 0 (inf: off)"),
        (-inf < args.ent_coef < inf, "--ent-coef must be finite"),
        (0 < args.policy_lr < inf, "--policy-lr must be above 0 and finite"),
        (0 < args.value_lr < inf, "--value-lr must be above 0 and finite"),
        (min(args.hidden_sizes, default=0) >= 1, "--hidden-sizes must name one layer or more, of at least 1 unit each"),
        (args.vf_clip_coef > 0, "--vf-clip-coef must be above 0 (inf: off)"),
        (args.reward_scaling in ("returns", "rewards", "none"), "--reward-scaling must be returns, rewards or none"),
        (args.init in ("orthogonal", "xavier"), "--init must be orthogonal or xavier"),
        (args.clip_reward > 0, "--clip-reward must be above 0 (inf: off)"),
        (args.clip_obs > 0, "--clip-obs must be above 0 (inf: off)"),
        (args.activation in ACTIVATIONS, "--activation must be tanh or relu"),
        (args.max_grad_norm > 0, "--max-grad-norm must be above 0 (inf: off)"),
        (0 < args.adam_eps < inf, "--adam-eps must be above 0 and finite"),
        (args.heldout_every >= 0, "--heldout-every must be at least 0"),
        (env.observation_space.is_np_flattenable, f"--env-id: cannot flatten observations {env.observation_space}"),
        (is_float_box, f"--env-id: actions must be a Box of floating numbers, not {env.action_space}"),
    ]
    for holds, message in rules:
        if not holds:
            raise InputError(message)


def make_env(args: Args, **kwargs) -> gym.Env:
    """One environment; at an episode's end its raw return and length are in info["episode"]. Raises InputError."""
    try:
        env = gym.make(args.env_id, disable_env_checker=True, **json.loads(args.env_kwargs), **kwargs)
    except Exception as error:  # whatever an environment's own constructor may raise
        reason = str(error).partition("\n")[0]
        raise InputError(f"--env-id {args.env_id} --env-kwargs {args.env_kwargs}: {reason}") from error
    return gym.wrappers.RecordEpisodeStatistics(env)


def seed_for(*key: int) -> int:
    """A seed from (seed, iteration, environment) in training; a fourth number, 1 or 2, sets measurements apart."""
    return int(np.random.SeedSequence(key).generate_state(1)[0])


def require_finite(name: str, *values) -> None:
    """Raises FloatingPointError if a value holds an infinity or a NaN."""
    if not all(np.isfinite(x).all() for x in values):
        raise FloatingPointError(f"{name} is not finite")


class RunningStatistics:
    """Running mean and standard deviation (n - 1) of vectors or of scalars, by Welford's method, in float64."""

    def __init__(self, shape: tuple[int, ...]):
        self.count, self.mean, self.m2 = 0, np.zeros(shape), np.zeros(shape)

    def push(self, x: np.ndarray | float) -> None:
        self.count += 1
        delta = x - self.mean
        self.mean = self.mean + delta / self.count
        self.m2 = self.m2 + delta * (x - self.mean)

    @property
    def std(self) -> np.ndarray:
        """As in the authors' code, |mean| while there is only one sample."""
        return np.sqrt(self.m2 / (self.count - 1)) if self.count > 1 else np.abs(self.mean)

    def state_dict(self) -> dict:
        return {"count": self.count, "mean": torch.tensor(self.mean), "m2": torch.tensor(self.m2)}

    def load_state_dict(self, state: dict) -> None:
        self.count, self.mean, self.m2 = state["count"], state["mean"].numpy(), state["m2"].numpy()


class ObservationFilter(RunningStatistics):
    """Flattens an observation to (obs_dim,), normalizes it and clips it. Frozen, it leaves its statistics alone."""

    def __init__(self, space: gym.Space, args: Args):
        super().__init__((gym.spaces.flatdim(space),))
        self.space, self.args, self.frozen = space, args, False

    def __call__(self, obs) -> np.ndarray:
        obs = gym.spaces.flatten(self.space, obs).astype(np.float64)
        require_finite("observation", obs)
        if self.args.norm_obs:  # [6] observation normalization
            if not self.frozen:
                self.push(obs)
            obs = (obs - self.mean) / (self.std + 1e-8)
        if self.args.clip_obs < inf:  # [7] observation clipping
            obs = obs.clip(-self.args.clip_obs, self.args.clip_obs)
        return obs


class RewardFilter(RunningStatistics):
    """Scales and clips rewards ([2], [5]). R, the discounted reward sum, is kept for each environment, from its reset.

    `returns` is the paper's Algorithm 1: R_t = gamma R_{t-1} + r_t, and r_t / std(R) comes out.
    `rewards` standardizes r_t and adds its running mean back.
    """

    def __init__(self, args: Args):
        super().__init__(())
        self.args, self.discounted_sum = args, np.zeros(args.num_envs)

    def __call__(self, reward: float, i: int) -> float:
        if self.args.reward_scaling == "returns":  # [2] reward scaling
            self.discounted_sum[i] = self.args.gamma * self.discounted_sum[i] + reward
            self.push(self.discounted_sum[i])
            reward = reward / (self.std + 1e-8)
        elif self.args.reward_scaling == "rewards":  # [2] reward scaling
            self.push(reward)
            reward = (reward - self.mean) / (self.std + 1e-8) + self.mean
        return min(max(reward, -self.args.clip_reward), self.args.clip_reward)  # [5] reward clipping


# each as a PyTorch layer and as a NumPy function
ACTIVATIONS = {"tanh": (nn.Tanh, np.tanh), "relu": (nn.ReLU, lambda x: np.maximum(x, 0))}


def mlp(inputs: int, outputs: int, args: Args) -> nn.Sequential:
    """Fully connected network, Xavier-uniform weights and zero biases."""
    layers = []
    for fan_in, fan_out in itertools.pairwise((inputs, *args.hidden_sizes, outputs)):
        linear = nn.Linear(fan_in, fan_out)
        nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
        layers += [linear, ACTIVATIONS[args.activation][0]()]  # [8] hyperbolic tangent activations
    return nn.Sequential(*layers[:-1])


def orthogonal_init(network: nn.Sequential, output_gain: float) -> None:
    """Orthogonal weights, scaled by sqrt(2) in the hidden layers and by `output_gain` in the last."""
    *hidden, output = (layer for layer in network if isinstance(layer, nn.Linear))
    for linear in hidden:
        nn.init.orthogonal_(linear.weight, gain=2**0.5)  # [3] orthogonal initialization and layer scaling
    nn.init.orthogonal_(output.weight, gain=output_gain)  # [3] orthogonal initialization and layer scaling


class Policy(nn.Module):
    """pi(a|s) = N(mean(s), diag(std^2)): the mean is a network, the standard deviation the same in every state."""

    def __init__(self, obs_dim: int, action_dim: int, args: Args):
        super().__init__()
        self.mean = mlp(obs_dim, action_dim, args)
        self.log_std = nn.Parameter(torch.zeros(action_dim))

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, obs_dim) -> mean (B, action_dim), log standard deviation (action_dim,)."""
        return self.mean(obs), self.log_std


def gaussian_log_prob(mean: torch.Tensor, log_std: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """log N(a; mean, std^2) = -sum_j (z_j^2 / 2 + log std_j + log(2 pi) / 2): (B, action_dim) -> (B,)."""
    z = (actions - mean) / log_std.exp()
    return -(0.5 * z * z + log_std + 0.5 * log(2 * pi)).sum(-1)


def gaussian_entropy(log_std: torch.Tensor) -> torch.Tensor:
    """Entropy of the Gaussian in nats, the same at every mean."""
    return (log_std + 0.5 + 0.5 * log(2 * pi)).sum()


def gaussian_kl(mean_p, log_std_p, mean_q, log_std_q) -> torch.Tensor:
    """KL(p || q) in nats between Gaussians with means (B, action_dim): (B,)."""
    distance = ((mean_p - mean_q) ** 2 + (2 * log_std_p).exp()) / (2 * log_std_q).exp()
    return (log_std_q - log_std_p + 0.5 * distance - 0.5).sum(-1)


class Agent:
    """All that training changes: running statistics, networks, optimizer."""

    def __init__(self, args: Args, env: gym.Env):
        obs_dim, action_dim = gym.spaces.flatdim(env.observation_space), prod(env.action_space.shape)
        self.obs_filter = ObservationFilter(env.observation_space, args)
        self.reward_filter = RewardFilter(args)  # [2] reward scaling, [5] reward clipping
        self.policy = Policy(obs_dim, action_dim, args)
        self.value = mlp(obs_dim, 1, args)
        if args.init == "orthogonal":  # [3] orthogonal initialization and layer scaling
            orthogonal_init(self.policy.mean, output_gain=0.01)
            orthogonal_init(self.value, output_gain=1.0)
        groups = [
            {"params": self.policy.parameters(), "lr": args.policy_lr},
            {"params": self.value.parameters(), "lr": args.value_lr},
        ]
        self.optimizer = torch.optim.Adam(groups, eps=args.adam_eps, fused=True)  # one pass over all parameters

    def state_dict(self) -> dict:
        return {name: part.state_dict() for name, part in vars(self).items() if hasattr(part, "state_dict")}

    def load_state_dict(self, state: dict) -> None:
        for name, part_state in state.items():
            getattr(self, name).load_state_dict(part_state)


class Rollout(NamedTuple):
    """What T = num_steps steps in each of N = num_envs environments gave. Arrays are (T, N, ...), float32 or bool."""

    obs: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_obs: np.ndarray  # after the last step of an episode: its final observation, not the next one's first
    terminated: np.ndarray
    truncated: np.ndarray
    episodes: list[dict]  # raw return "r" and length "l" of every episode that ended
    last_obs: np.ndarray  # (N, obs_dim), where the next rollout may go on


class Batch(NamedTuple):
    """A rollout as (T * N, ...) tensors, ready to learn from."""

    obs: torch.Tensor
    actions: torch.Tensor
    log_probs: torch.Tensor  # log pi_old(a|s)
    values: torch.Tensor  # V_old(s)
    advantages: torch.Tensor
    returns: torch.Tensor  # V_targ = V_old + advantage, the value function's target


def numpy_forward(network: nn.Sequential, activation: str):
    """The network as a NumPy function, of views of its parameters: for a few rows five times as fast as PyTorch."""
    layers = [(m.weight.detach().numpy().T, m.bias.detach().numpy()) for m in network if isinstance(m, nn.Linear)]

    def forward(x: np.ndarray) -> np.ndarray:
        for weight, bias in layers[:-1]:
            x = ACTIVATIONS[activation][1](x @ weight + bias)
        weight, bias = layers[-1]
        return x @ weight + bias

    return forward


def to_env(action: np.ndarray, space: gym.spaces.Box, clip: bool) -> np.ndarray:
    """(action_dim,) float32 -> an action of the space's shape and dtype."""
    action = action.reshape(space.shape).astype(space.dtype)
    return action.clip(space.low, space.high, out=action) if clip else action


def rollout(args: Args, agent: Agent, envs: list[gym.Env], obs: np.ndarray, generator=None) -> Rollout:
    """Acts for num_steps steps in every environment, from the filtered observations `obs`, (N, obs_dim)."""
    num_envs, action_space = len(envs), envs[0].action_space
    mean, std = numpy_forward(agent.policy.mean, args.activation), agent.policy.log_std.detach().exp()
    # the noise of a whole rollout at once; the steps then only add their row
    actions = (torch.randn(args.num_steps, num_envs, len(std), generator=generator) * std).numpy()
    observations = np.empty((args.num_steps, *obs.shape), np.float32)
    next_obs = np.empty_like(observations)
    rewards = np.empty((args.num_steps, num_envs), np.float32)
    terminated, truncated = np.empty_like(rewards, bool), np.empty_like(rewards, bool)
    obs, episodes = obs.astype(np.float32), []
    for t in range(args.num_steps):
        observations[t] = obs
        actions[t] += mean(obs)
        for i, env in enumerate(envs):
            action = to_env(actions[t, i], action_space, args.clip_actions)
            raw_obs, reward, terminated[t, i], truncated[t, i], info = env.step(action)
            require_finite("reward", reward)
            reward = agent.reward_filter(float(reward), i)  # [2] reward scaling, [5] reward clipping
            rewards[t, i] = reward
            next_obs[t, i] = obs[i] = agent.obs_filter(raw_obs)
            if terminated[t, i] or truncated[t, i]:
                episodes.append(info["episode"])
                obs[i] = agent.obs_filter(env.reset()[0])
                agent.reward_filter.discounted_sum[i] = 0.0  # [2] reward scaling
    return Rollout(observations, actions, rewards, next_obs, terminated, truncated, episodes, obs)


def gae(rewards, values, next_values, terminated, done, gamma: float, gae_lambda: float) -> np.ndarray:
    """Generalized advantage estimation over arrays (T, ...): A_t = sum_l (gamma lambda)^l delta_{t+l}.

    delta_t = r_t + gamma V(s_{t+1}) - V(s_t), with V(s_{t+1}) = 0 after a termination; the sum ends where `done`.
    """
    advantages, last = np.empty_like(rewards), 0.0
    deltas = rewards + gamma * next_values * ~terminated - values
    decay = gamma * gae_lambda * ~done
    for t in reversed(range(len(rewards))):
        advantages[t] = last = deltas[t] + decay[t] * last
    return advantages


@torch.no_grad()
def make_batch(args: Args, agent: Agent, data: Rollout) -> Batch:
    """Values, log-probabilities and advantages of a whole rollout at once, then flattened."""
    values, next_values = (agent.value(torch.from_numpy(x)).squeeze(-1).numpy() for x in (data.obs, data.next_obs))
    done = data.terminated | data.truncated
    terminated = data.terminated if args.bootstrap_truncated else done
    advantages = gae(data.rewards, values, next_values, terminated, done, args.gamma, args.gae_lambda)
    obs, actions = torch.from_numpy(data.obs), torch.from_numpy(data.actions)
    log_probs = gaussian_log_prob(*agent.policy(obs), actions)
    values, advantages, returns = (torch.from_numpy(x) for x in (values, advantages, values + advantages))
    return Batch(*(x.flatten(0, 1) for x in (obs, actions, log_probs, values, advantages, returns)))


def normalize(advantages: torch.Tensor) -> torch.Tensor:
    """Mean 0, standard deviation 1; a single advantage stays as it is."""
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8) if len(advantages) > 1 else advantages


def policy_loss(policy: Policy, batch: Batch, args: Args) -> tuple[torch.Tensor, torch.Tensor]:
    """PPO's clipped surrogate, -mean min(ratio A, clip(ratio, 1 - eps, 1 + eps) A), less ent_coef * entropy.

    Returns the loss and the fraction of samples whose ratio pi(a|s) / pi_old(a|s) lies outside the clip.
    """
    mean, log_std = policy(batch.obs)
    ratio = (gaussian_log_prob(mean, log_std, batch.actions) - batch.log_probs).exp()
    advantages = normalize(batch.advantages) if args.norm_adv else batch.advantages
    loss = -torch.min(ratio * advantages, ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef) * advantages).mean()
    if args.ent_coef:
        loss = loss - args.ent_coef * gaussian_entropy(log_std)
    return loss, ((ratio - 1).abs() > args.clip_coef).float().mean()


def value_loss(value: nn.Sequential, batch: Batch, args: Args) -> torch.Tensor:
    """Mean squared error of V(s) to its target."""
    values = value(batch.obs).squeeze(-1)
    error = (values - batch.returns) ** 2
    if args.vf_clip_coef < inf:  # [1] value function clipping
        clipped = batch.values + (values - batch.values).clamp(-args.vf_clip_coef, args.vf_clip_coef)
        error = torch.max(error, (clipped - batch.returns) ** 2)
    return error.mean()


def clip_gradient(network: nn.Module, max_norm: float) -> None:
    """Scales a network's gradient, all of it as one vector, down to an l2 norm of `max_norm`."""
    gradients = [p.grad for p in network.parameters()]
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    if norm > max_norm:  # [9] global gradient clipping
        for gradient in gradients:
            gradient.mul_(max_norm / norm)


def update(args: Args, agent: Agent, batch: Batch) -> dict[str, float]:
    """Epochs of minibatch Adam steps on policy and value loss. Returns their means over all minibatches."""
    minibatch_size = len(batch.obs) // args.num_minibatches
    losses = []
    for _ in range(args.update_epochs):
        order = torch.randperm(len(batch.obs))
        shuffled = [x[order].split(minibatch_size) for x in batch]
        for minibatch in map(Batch._make, zip(*shuffled)):
            pg_loss, clipfrac = policy_loss(agent.policy, minibatch, args)
            v_loss = value_loss(agent.value, minibatch, args)
            agent.optimizer.zero_grad()
            (pg_loss + v_loss).backward()  # the networks share nothing: this equals two separate updates
            if args.max_grad_norm < inf:  # [9] global gradient clipping
                clip_gradient(agent.policy, args.max_grad_norm)
                clip_gradient(agent.value, args.max_grad_norm)
            agent.optimizer.step()
            losses.append(torch.stack([pg_loss.detach(), v_loss.detach(), clipfrac]))
    means = torch.stack(losses).mean(0).tolist()
    return dict(zip(("losses/policy_loss", "losses/value_loss", "losses/clipfrac"), means))


@torch.no_grad()
def trust_region(old: Policy, new: Policy, obs: torch.Tensor, actions: torch.Tensor, prefix: str) -> dict[str, float]:
    """Mean KL(pi_old || pi) and maximum ratio pi(a|s) / pi_old(a|s) over state-action pairs (the paper's Figure 2)."""
    before, after = old(obs), new(obs)
    log_ratio = gaussian_log_prob(*after, actions) - gaussian_log_prob(*before, actions)
    return {
        f"trust_region/{prefix}mean_kl": gaussian_kl(*before, *after).mean().item(),
        f"trust_region/{prefix}max_ratio": log_ratio.max().exp().item(),
    }


@torch.no_grad()
def diagnostics(agent: Agent, batch: Batch, episodes: list[dict]) -> dict[str, float]:
    """Entropy, how well V_old foresaw the returns, and what the episodes that ended came to, where there are any."""
    row = {"losses/entropy": gaussian_entropy(agent.policy.log_std).item()}
    variance = batch.returns.var(correction=0)
    if variance > 0:
        residual = (batch.returns - batch.values).var(correction=0)
        row["losses/explained_variance"] = 1 - (residual / variance).item()
    if episodes:
        row["charts/episodic_return"] = float(np.mean([episode["r"] for episode in episodes]))
        row["charts/episodic_length"] = float(np.mean([episode["l"] for episode in episodes]))
    return row


def save_checkpoint(run: Path, state: dict) -> None:
    """Writes a file beside checkpoint.pt, then renames it: at every moment one whole checkpoint is there."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    with open(run / "checkpoint.tmp", "wb") as file:
        file.write(buffer.getbuffer())  # unlike torch.save, this raises OSError on a full disk
        file.flush()
        os.fsync(file.fileno())
    os.replace(run / "checkpoint.tmp", run / "checkpoint.pt")


def load_checkpoint(run: str | Path) -> tuple[dict, Args]:
    """What `save_checkpoint` wrote into a run's folder, and the run's arguments. Raises InputError."""
    path = Path(run) / "checkpoint.pt"
    try:
        checkpoint = torch.load(path, weights_only=True)
        script, saved_args, *_ = (checkpoint[key] for key in ("script", "args", "agent", "torch_rng", "history"))
        is_ours = saved_args.keys() == asdict(Args()).keys()
    except Exception as error:  # missing, truncated, or another file: torch.load raises many kinds
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise InputError(f"--resume, --evaluate: cannot read {path} as a checkpoint ({reason})") from error
    if not is_ours:
        raise InputError(f"{path} was written by {script}.py, whose arguments are not those of this script")
    return checkpoint, Args(**saved_args)


def load_policy(run: str | Path, stochastic: bool = False):
    """A run's policy, statistics frozen, as a function from one raw observation to one action for the environment."""
    checkpoint, args = load_checkpoint(run)
    if not checkpoint["history"]:
        raise InputError(f"{run} has no finished iteration yet, so no policy to play")
    env = make_env(args)
    agent, action_space = Agent(args, env), env.action_space
    env.close()  # only its spaces were of interest
    agent.load_state_dict(checkpoint["agent"])
    agent.obs_filter.frozen = True
    mean, std = numpy_forward(agent.policy.mean, args.activation), agent.policy.log_std.detach().exp()

    def act(obs) -> np.ndarray:
        noise = (torch.randn(len(std)) * std).numpy() if stochastic else 0
        return to_env(mean(agent.obs_filter(obs).astype(np.float32)) + noise, action_space, args.clip_actions)

    return act


def evaluate(run: str | Path, episodes=10, stochastic=False, video=False, seed=1) -> list[float]:
    """Plays episodes with a run's policy, statistics frozen; prints and returns their raw returns."""
    if episodes < 1 or not 0 <= seed < 2**32:
        raise InputError("--episodes must be at least 1, --seed must lie in [0, 2**32)")
    policy = load_policy(run, stochastic)
    _, args = load_checkpoint(run)
    torch.manual_seed(seed)
    returns = []
    try:
        with warnings.catch_warnings(action="ignore"):  # the error below says it in one line
            env = make_env(args, **({"render_mode": "rgb_array"} if video else {}))
            if video:
                env = gym.wrappers.RecordVideo(env, str(run), name_prefix="video", episode_trigger=lambda n: n == 0)
            obs, _ = env.reset(seed=seed_for(seed, 0, 0, 2))
    except Exception as error:  # each rendering backend raises its own kind
        if not video:
            raise
        hint = "without a screen, set MUJOCO_GL=egl or MUJOCO_GL=osmesa"
        raise InputError(f"--video: cannot render ({type(error).__name__}: {error}); {hint}") from error
    while len(returns) < episodes:
        obs, _, terminated, truncated, info = env.step(policy(obs))
        if terminated or truncated:
            returns.append(float(info["episode"]["r"]))
            obs, _ = env.reset(seed=seed_for(seed, len(returns), 0, 2))
    env.close()
    print(f"{run}: mean return {np.mean(returns):.1f}, standard deviation {np.std(returns):.1f}, {episodes} episodes")
    return returns


def heldout_pairs(args: Args, agent: Agent, envs: list[gym.Env], iteration: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Fresh states and actions, from environments, seeds and a generator of their own: training never notices."""
    frozen = copy.deepcopy(agent)
    frozen.obs_filter.frozen = True
    generator = torch.Generator().manual_seed(seed_for(args.seed, iteration, 0, 1))
    seeds = [seed_for(args.seed, iteration, i, 1) for i in range(len(envs))]
    obs = np.stack([frozen.obs_filter(env.reset(seed=seed)[0]) for env, seed in zip(envs, seeds)])
    data = rollout(args, frozen, envs, obs, generator)
    return torch.from_numpy(data.obs).flatten(0, 1), torch.from_numpy(data.actions).flatten(0, 1)


def start_run(args: Args) -> tuple[Path, Args]:
    """Makes the folder of a new run and writes args.json into it. Raises InputError where that cannot be done."""
    default_name = f"{args.env_id}__{SCRIPT}__{args.seed}__{int(time.time())}"
    args = replace(args, run_name=args.run_name or re.sub(r"[^\w.-]", "_", default_name))
    run = Path(args.runs_dir) / args.run_name
    packages = ("torch", "gymnasium", "mujoco", "numpy")
    about = {
        "script": SCRIPT,
        "sha256": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "args": asdict(args),
    }
    try:
        run.mkdir(parents=True)
        try:
            (run / "args.json").write_text(json.dumps(about, indent=2) + "\n")
        except OSError:
            shutil.rmtree(run)  # made a moment ago: no half a run stays behind
            raise
    except OSError as error:
        raise InputError(f"--runs-dir, --run-name: cannot start a run in {run}: {error.strerror}") from error
    return run, args


def resume_run(args: Args) -> tuple[Path, Args, dict]:
    """The folder, arguments and checkpoint of the run to go on with. Raises InputError if `args` ask for other ones."""
    checkpoint, saved = load_checkpoint(args.resume)
    asked = replace(args, resume="", progress=saved.progress)
    if asked != Args(progress=saved.progress):  # more was named than the run
        asked = replace(asked, run_name=args.run_name or saved.run_name)
        for name, value in asdict(saved).items():
            if getattr(asked, name) != value:
                raise InputError(f"--{name.replace('_', '-')} cannot change when a run is resumed: it was {value}")
    return Path(args.resume), replace(saved, progress=args.progress), checkpoint


class Result(NamedTuple):
    """What `train` returns."""

    run: Path
    history: list[dict[str, float]]  # one dict an iteration: all that was logged
    final_return: float  # mean over the last 5 iterations in which an episode ended; NaN without any


def finish(run: Path, history: list[dict[str, float]]) -> Result:
    """Prints the closing line of a run that is finished."""
    returns = [row["charts/episodic_return"] for row in history if "charts/episodic_return" in row]
    result = Result(run, history, float(np.mean(returns[-5:])) if returns else nan)
    done = f"{history[-1]['global_step']:,} steps ({len(history)} iterations)"
    print(f"{run}: finished, {done}; return {result.final_return:.1f} (mean of the last 5 iterations)")
    return result


def train(args: Args) -> Result:
    """Trains a run, or the rest of one. Raises InputError (nothing is written then) and FloatingPointError."""
    torch.set_num_threads(1)  # networks this small are fastest on one thread
    checkpoint = None
    if args.resume:
        run, args, checkpoint = resume_run(args)
    envs = [make_env(args)]
    check(args, envs[0])
    envs += [make_env(args) for _ in range(args.num_envs - 1)]
    heldout_envs = [make_env(args) for _ in range(args.num_envs if args.heldout_every else 0)]
    batch_size = args.num_envs * args.num_steps
    num_iterations = args.total_timesteps // batch_size
    if args.reset_each_iteration and args.num_steps < (envs[0].spec.max_episode_steps or 0):
        cut = f"--num-steps {args.num_steps} cuts episodes short of their {envs[0].spec.max_episode_steps} steps"
        print(f"warning: {cut}; --no-reset-each-iteration carries them on", file=sys.stderr)
    torch.manual_seed(args.seed)
    agent, history, obs = Agent(args, envs[0]), [], None

    def save() -> None:
        state = {"agent": agent.state_dict(), "torch_rng": torch.get_rng_state(), "history": history}
        save_checkpoint(run, {"script": SCRIPT, "args": asdict(args), **state})

    if checkpoint:
        agent.load_state_dict(checkpoint["agent"])
        torch.set_rng_state(checkpoint["torch_rng"])
        history = checkpoint["history"]
    else:
        run, args = start_run(args)
        save()
    if len(history) == num_iterations:
        return finish(run, history)
    first_step, last_step = len(history) * batch_size, num_iterations * batch_size
    # after a resume TensorBoard drops what was logged later than the checkpoint
    writer = SummaryWriter(str(run), purge_step=first_step + 1 if history else 0)
    if not history:
        rows = "".join(f"|{name}|{value}|\n" for name, value in asdict(args).items())
        writer.add_text("hyperparameters", f"|argument|value|\n|-|-|\n{rows}")
    bar = tqdm(total=last_step, initial=first_step, unit="step", unit_scale=True, disable=not args.progress)
    try:
        for iteration in range(len(history), num_iterations):
            started = time.perf_counter()
            if args.anneal_lr:  # [4] Adam learning-rate annealing
                for group, lr in zip(agent.optimizer.param_groups, (args.policy_lr, args.value_lr)):
                    group["lr"] = lr * (1 - iteration / num_iterations)
            if obs is None or args.reset_each_iteration:
                seeds = [seed_for(args.seed, iteration, i) for i in range(args.num_envs)]
                obs = np.stack([agent.obs_filter(env.reset(seed=seed)[0]) for env, seed in zip(envs, seeds)])
                agent.reward_filter.discounted_sum[:] = 0.0  # [2] reward scaling
            data = rollout(args, agent, envs, obs)
            obs, batch = data.last_obs, make_batch(args, agent, data)
            pairs = {"": (batch.obs, batch.actions)}
            if args.heldout_every and iteration % args.heldout_every == 0:
                pairs["heldout_"] = heldout_pairs(args, agent, heldout_envs, iteration)
            old_policy = copy.deepcopy(agent.policy)

            row = update(args, agent, batch)
            require_finite("loss", *(value for name, value in row.items() if name.startswith("losses/")))
            for network in (agent.policy, agent.value):
                require_finite("parameter", *(p.detach().numpy() for p in network.parameters()))

            row |= diagnostics(agent, batch, data.episodes)
            for prefix, (states, actions) in pairs.items():
                row |= trust_region(old_policy, agent.policy, states, actions, prefix)
            row["charts/learning_rate"] = agent.optimizer.param_groups[0]["lr"]
            row["charts/SPS"] = batch_size / (time.perf_counter() - started)
            step = (iteration + 1) * batch_size
            for name, value in row.items():
                writer.add_scalar(name, value, step)
            history.append({"iteration": iteration + 1, "global_step": step, **row})
            if (iteration + 1) % args.checkpoint_every == 0 or iteration + 1 == num_iterations:
                writer.flush()  # first: an iteration that the checkpoint holds is in the event file, too
                save()
            shown = {"return": row.get("charts/episodic_return", nan), "KL": row["trust_region/mean_kl"]}
            bar.set_postfix(shown, refresh=False)
            bar.update(batch_size)
    except KeyboardInterrupt:
        print(f"\ninterrupted; to go on: python {sys.argv[0]} --resume {run}", file=sys.stderr)
        raise
    except FloatingPointError as error:
        raise FloatingPointError(f"iteration {iteration + 1}: {error}; {run} keeps its last checkpoint") from error
    finally:
        bar.close()
        writer.close()
        for env in envs + heldout_envs:
            env.close()
    return finish(run, history)


def main() -> None:
    """The command line. Exit status 2: bad input; 1: a fault while running; 130, 143: SIGINT, SIGTERM."""

    def stop(signal_number, frame):
        raise KeyboardInterrupt(signal_number)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    try:
        args = tyro.cli(Args, description=__doc__)
        if args.evaluate:
            if replace(args, evaluate="", seed=1, episodes=10, stochastic=False, video=False) != Args():
                raise InputError("--evaluate goes with --seed, --episodes, --stochastic and --video alone")
            evaluate(args.evaluate, args.episodes, args.stochastic, args.video, args.seed)
        else:
            if args.resume:  # with the run's own arguments as defaults, what still differs was asked for
                _, saved = load_checkpoint(args.resume)
                args = tyro.cli(Args, default=replace(saved, resume=args.resume))
            train(args)
    except InputError as error:
        print(f"{Path(__file__).name}: error: {error}", file=sys.stderr)
        sys.exit(2)
    except (FloatingPointError, OSError) as error:
        sys.exit(f"{Path(__file__).name}: error: {error}")
    except KeyboardInterrupt as interrupt:
        sys.exit(128 + (interrupt.args or (signal.SIGINT,))[0])


if __name__ == "__main__":
    main()
