# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.4",
#     "gymnasium[mujoco]>=1.0",
#     "mujoco>=3.1",
#     "numpy>=1.26",
#     "tensorboard>=2.15",
#     "tyro>=0.9.1",
#     "tqdm>=4.66",
#     "filelock>=3.12",
#     "threadpoolctl>=3.1",
#     "moviepy>=2.0",
# ]
# ///
r"""TRPO for continuous actions: the core algorithm and nothing else.

Paper: "Implementation Matters in Deep Policy Gradients: A Case Study on PPO and TRPO"
(Engstrom et al., ICLR 2020, arXiv 2005.12729). This is the paper's TRPO (Schulman et al., arXiv 1502.05477): of the
nine code-level optimizations only [6] and [8] stand here, as in the authors' code;
`diff trpo_continuous.py trpo_plus.py` shows the other seven, `diff ppo_m.py trpo_continuous.py` the step from PPO.

    python trpo_continuous.py --env-id Hopper-v5 --seed 1     # train
    python trpo_continuous.py --resume runs/RUN               # go on after an interruption
    python trpo_continuous.py --evaluate runs/RUN --episodes 10

`grep -n '# \[' trpo_continuous.py` finds where the two act:

    [6] observation normalization      --no-norm-obs                 turns it off
    [8] hyperbolic tangent             --activation relu             replaces it

This file has two floors. Above the line RUNNING IT: the algorithm, from the whole (`learn`) to its parts.
Below it: command line, checkpoints, logs and evaluation, letter for letter the same in all four scripts.
"As released" means: as in the authors' own code, github.com/MadryLab/implementation-matters.
"""

from __future__ import annotations

if __name__ == "__main__":  # Ctrl-C while the imports run: an end without a traceback
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)

import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import inf, log, prod
from typing import Annotated, Literal, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import nn

# types with the interval they allow; `train` looks at it when it starts, `learn` does not
Count = Annotated[int, "[1, inf)"]
Fraction = Annotated[float, "[0, 1]"]
Positive = Annotated[float, "(0, inf)"]
Bound = Annotated[float, "(0, inf]"]  # inf: off


@dataclass
class Algorithm:
    """the algorithm; its defaults are the paper's on Hopper"""

    seed: Annotated[int, "[0, 4294967295]"] = 1  # seeds networks, noise, minibatches, resets, random, numpy.random
    total_timesteps: Count = 1_000_000  # environment steps, all environments together; rounded down to whole iterations
    num_envs: Count = 1  # number of environments, stepped in turn
    num_steps: Count = 2048  # steps in each environment per iteration
    num_minibatches: Count = 32  # minibatches per epoch of the value function; must divide num_envs * num_steps
    update_epochs: Count = 10  # passes over the batch per iteration, to fit the value function
    gamma: Fraction = 0.99  # discount factor; usual: 0.99 to 0.999
    gae_lambda: Fraction = 0.95  # lambda of generalized advantage estimation; usual: 0.85 to 0.97
    max_kl: Positive = 0.13  # bound on mean KL(pi_old || pi) of a step, delta; usual: 0.01 to 0.13
    fisher_fraction: Annotated[float, "(0, 1]"] = 0.1  # fraction of the batch for Fisher-vector products, random
    cg_steps: Count = 10  # steps of conjugate gradient
    cg_damping: Annotated[float, "[0, inf)"] = 0.1  # multiple of the identity added to the Fisher matrix
    max_backtracks: Count = 10  # step lengths that the line search tries: 1, 1/2, 1/4 ...
    value_lr: Positive = 2e-4  # Adam's learning rate for the value function; usual: 1e-5 to 1e-3
    hidden_sizes: tuple[Count, ...] = (64, 64)  # sizes of the hidden layers, policy and value network each


@dataclass
class Optimizations:
    """the code-level optimizations, numbered as in the paper"""

    norm_obs: bool = True  # [6] normalize observations by their running mean and standard deviation
    activation: Literal["tanh", "relu"] = "tanh"  # [8] activation between layers


@dataclass
class Details:
    """details that the paper does not list"""

    norm_adv: bool = True  # normalize the advantages of each batch
    adam_eps: Positive = 1e-5  # Adam's epsilon
    reset_each_iteration: bool = True  # begin new episodes, as released; off: they go on, and a resume is not exact
    bootstrap_truncated: bool = False  # at a time limit bootstrap with V(final observation); off: it counts as an end
    clip_actions: bool = False  # clip what the environment gets; log-probabilities are of the unclipped action
    compile: bool = False  # torch.compile for a minibatch's gradients: needs a C++ compiler, pays in long runs


@dataclass
class Hyperparameters(Details, Optimizations, Algorithm):
    """All that the algorithm depends on; bases last to first, which is how a dataclass orders its fields."""

    @property
    def batch_size(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def num_iterations(self) -> int:
        return self.total_timesteps // self.batch_size


class Agent:
    """All that training changes: running statistics, networks, optimizer."""

    def __init__(self, args: Hyperparameters, observation_space: gym.Space, action_space: gym.spaces.Box):
        obs_dim, action_dim = gym.spaces.flatdim(observation_space), prod(action_space.shape)
        self.obs_filter = ObservationFilter(args, observation_space)
        self.policy = Policy(args, obs_dim, action_dim)
        self.value = mlp(args, obs_dim, 1)
        self.max_kl = args.max_kl  # of the next step
        groups = [
            {"params": list(self.value.parameters()), "lr": args.value_lr},
        ]
        self.optimizer = Adam(groups, args.adam_eps)

    def parts(self) -> dict:
        """What is to be saved, by name; each part has state_dict and load_state_dict."""
        return {
            "obs_filter": self.obs_filter,
            "policy": self.policy,
            "value": self.value,
            "optimizer": self.optimizer,
        }


class Iteration(NamedTuple):
    """What one iteration of `learn` gave."""

    number: int  # from 1
    episodes: list[tuple[float, int]]  # raw return and length of every episode that ended
    batch: Batch
    scalars: dict[str, float]


def learn(args: Hyperparameters, agent: Agent, envs: list[gym.Env], first: int = 0) -> Iterator[Iteration]:
    """The whole algorithm, from iteration `first` (0 is a new run) to the last; yields after each.

    By hand, where nothing is checked (num_minibatches must divide the batch, total_timesteps hold at least one):

        args = Hyperparameters(total_timesteps=20_480)
        torch.manual_seed(args.seed)
        envs = [gym.make("Hopper-v5") for _ in range(args.num_envs)]
        for it in learn(args, Agent(args, envs[0].observation_space, envs[0].action_space), envs):
            print(it.number, it.episodes, it.scalars)
    """
    for iteration in range(first, args.num_iterations):
        if iteration == first or args.reset_each_iteration:
            state = reset(args, agent, envs, iteration)
        data = rollout(args, agent, envs, state)  # which moves `state` along, in place
        batch = make_batch(args, agent, data)
        scalars = update(args, agent, batch)
        yield Iteration(iteration + 1, data.episodes, batch, scalars)


class EnvState(NamedTuple):
    """Where N environments stand; a rollout changes the arrays in place."""

    obs: np.ndarray  # (N, obs_dim), filtered, float32
    returns: np.ndarray  # (N,), raw reward since the reset
    lengths: np.ndarray  # (N,), steps since the reset


def seed_for(*key: int) -> int:
    """A seed from whole numbers, such as (seed, iteration, environment)."""
    return int(np.random.SeedSequence(key).generate_state(1)[0])


def reset(args: Hyperparameters, agent: Agent, envs: list[gym.Env], iteration: int, *purpose: int) -> EnvState:
    """Begins an episode in every environment, seeded by (seed, iteration, index) and, for measurement, `purpose`."""
    seeds = [seed_for(args.seed, iteration, i, *purpose) for i in range(len(envs))]
    obs = np.stack([agent.obs_filter(env.reset(seed=seed)[0]) for env, seed in zip(envs, seeds)], dtype=np.float32)
    return EnvState(obs, np.zeros(len(envs)), np.zeros(len(envs), int))


class Rollout(NamedTuple):
    """What T = num_steps steps in each of N environments gave. Arrays are (T, N, ...), float32 or bool."""

    obs: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_obs: np.ndarray  # after the last step of an episode: its final observation, not the next one's first
    terminated: np.ndarray
    truncated: np.ndarray
    episodes: list[tuple[float, int]]  # raw return and length of every episode that ended


def rollout(args: Hyperparameters, agent: Agent, envs: list[gym.Env], state: EnvState, generator=None) -> Rollout:
    """Acts for num_steps steps in every environment, from `state` on; `generator` draws the noise (None: torch's)."""
    action_space, shape = envs[0].action_space, (args.num_steps, len(envs))
    policy_mean, std = numpy_forward(args, agent.policy.mean_net), agent.policy.log_std.detach().exp()
    noise = (torch.randn(*shape, len(std), generator=generator) * std).numpy()  # of the whole rollout at once
    obs, actions = np.empty((*shape, state.obs.shape[1]), np.float32), np.empty_like(noise)
    rewards, next_obs = np.empty(shape, np.float32), np.empty_like(obs)
    terminated, truncated, episodes = np.empty(shape, bool), np.empty(shape, bool), []
    for t in range(args.num_steps):
        obs[t] = state.obs
        actions[t] = policy_mean(state.obs) + noise[t]
        for i, env in enumerate(envs):
            action = to_env(args, action_space, actions[t, i])
            raw_obs, reward, terminated[t, i], truncated[t, i], _ = env.step(action)
            state.returns[i] += reward
            state.lengths[i] += 1
            rewards[t, i] = reward
            next_obs[t, i] = state.obs[i] = agent.obs_filter(raw_obs)
            if terminated[t, i] or truncated[t, i]:
                episodes.append((float(state.returns[i]), int(state.lengths[i])))
                state.obs[i], state.returns[i], state.lengths[i] = agent.obs_filter(env.reset()[0]), 0.0, 0
    return Rollout(obs, actions, rewards, next_obs, terminated, truncated, episodes)


def to_env(args: Hyperparameters, space: gym.spaces.Box, action: np.ndarray) -> np.ndarray:
    """(action_dim,) float32 -> an action of the space's shape and dtype."""
    action = action.reshape(space.shape).astype(space.dtype)
    return action.clip(space.low, space.high, out=action) if args.clip_actions else action


class Batch(NamedTuple):
    """A rollout, or a minibatch of one, as (B, ...) tensors."""

    obs: torch.Tensor
    actions: torch.Tensor
    log_probs: torch.Tensor  # log pi_old(a|s)
    values: torch.Tensor  # V_old(s)
    advantages: torch.Tensor
    returns: torch.Tensor  # V_targ = V_old + advantage, the value function's target


@torch.no_grad()
def make_batch(args: Hyperparameters, agent: Agent, data: Rollout) -> Batch:
    """Values, log-probabilities and advantages of a whole rollout at once, then flattened: B = T * N."""
    obs, next_obs, actions = map(torch.from_numpy, (data.obs, data.next_obs, data.actions))
    values, next_values = agent.value(obs).squeeze(-1), agent.value(next_obs).squeeze(-1)
    done = data.terminated | data.truncated
    terminal = data.terminated if args.bootstrap_truncated else done
    advantages = torch.from_numpy(gae(args, data.rewards, values.numpy(), next_values.numpy(), terminal, done))
    log_probs = agent.policy(obs).log_prob(actions)
    return Batch(*(x.flatten(0, 1) for x in (obs, actions, log_probs, values, advantages, values + advantages)))


def gae(args: Hyperparameters, rewards, values, next_values, terminal, done) -> np.ndarray:
    """Generalized advantage estimation over float32 and bool arrays (T, N): A_t = delta_t + gamma lambda A_{t+1}.

    delta_t = r_t + gamma V(s_{t+1}) - V(s_t), with V(s_{t+1}) = 0 where `terminal`. A_{t+1} = 0 where `done`, and after
    the rollout's last step, which is bootstrapped with V(s_T).
    """
    advantages, last = np.empty_like(rewards), 0.0
    deltas = rewards + args.gamma * next_values * ~terminal - values
    decay = args.gamma * args.gae_lambda * ~done
    for t in reversed(range(len(rewards))):
        advantages[t] = last = deltas[t] + decay[t] * last
    return advantages


def update(args: Hyperparameters, agent: Agent, batch: Batch) -> dict[str, float]:
    """Epochs of minibatch steps of Adam on the value loss, then one TRPO step of the policy."""
    minibatch_gradients = compiled(gradients) if args.compile else gradients
    minibatch_size = len(batch.obs) // args.num_minibatches
    losses = []
    for _ in range(args.update_epochs):
        order = torch.randperm(len(batch.obs))
        shuffled = [x[order].split(minibatch_size) for x in batch]
        for parts in zip(*shuffled):
            minibatch = Batch(*parts)
            grads, minibatch_losses = minibatch_gradients(args, agent.value, minibatch)
            agent.optimizer.step(grads)
            losses.append(minibatch_losses)
    return {"losses/value_loss": torch.stack(losses).mean().item(), **trpo_step(args, agent, batch)}


def gradients(args: Hyperparameters, value: nn.Module, batch: Batch) -> tuple[list, torch.Tensor]:
    """[Value gradients], a tensor for each parameter, as Adam takes them; and the value loss."""
    values = value(batch.obs).squeeze(-1)
    v_loss = value_loss(values, batch)
    value_grads = torch.autograd.grad(v_loss, list(value.parameters()))
    return [value_grads], v_loss.detach()


def value_loss(values: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Mean squared error of V(s), (B,), to its target."""
    return ((values - batch.returns) ** 2).mean()


def trpo_step(args: Hyperparameters, agent: Agent, batch: Batch) -> dict[str, float]:
    """One natural-gradient step: maximizes L to first order subject to mean KL(pi_old || pi) <= delta to second order.

    g is the gradient of L, F the Fisher matrix (of part of the batch, and damped), x = F^-1 g by conjugate gradient.
    The whole step, sqrt(2 delta / (x' F x)) x, reaches the bound by that F; the line search, with the KL of the whole
    batch, shortens it. Without a step the policy stays, and a line on stderr says why. Returns what is logged:
    policy_loss is -L after the step, step_fraction the part of it that was taken (0: none), cg_residual
    |g - F x| / |g|, expected_improvement what g promised of that part.
    """
    if args.norm_adv:
        batch = batch._replace(advantages=normalize(batch.advantages))
    objective = surrogate(agent.policy(batch.obs), batch)
    gradient = flatten(torch.autograd.grad(objective, list(agent.policy.parameters())))
    sample = torch.randperm(len(batch.obs))[: max(1, int(args.fisher_fraction * len(batch.obs)))]
    product = fisher_vector_product(args, agent.policy, batch.obs[sample])
    direction, residual = conjugate_gradient(product, gradient, args.cg_steps)
    curvature = direction @ product(direction)
    fraction, gain, expected = 0.0, 0.0, 0.0
    if not gradient.any():
        problem = "the gradient is zero"
    elif not 0 < curvature < inf:  # NaN is not, either
        problem = f"the curvature x' F x is {curvature:g}, not positive and finite"
    else:
        step = (2 * agent.max_kl / curvature).sqrt() * direction
        expected = (gradient @ step).item()
        fraction, gain = line_search(args, agent, batch, step, expected)
        problem = "" if fraction else "the line search accepted no step"
    if problem:
        print(f"no TRPO step: {problem}", file=sys.stderr)
    return {
        "losses/policy_loss": -objective.item() - gain,
        "trust_region/max_kl": agent.max_kl,
        "trust_region/step_fraction": fraction,
        "trust_region/cg_residual": residual,
        "trust_region/expected_improvement": fraction * expected if fraction else 0.0,  # `expected` may not be finite
        "trust_region/improvement": gain,
    }


def surrogate(pi: Gaussian, batch: Batch) -> torch.Tensor:
    """L = mean ratio * A with ratio = pi(a|s) / pi_old(a|s); what the policy gains is, to first order, its change."""
    ratio = (pi.log_prob(batch.actions) - batch.log_probs).exp()
    return (ratio * batch.advantages).mean()


def fisher_vector_product(args: Hyperparameters, policy: Policy, obs: torch.Tensor) -> Callable:
    """The function v -> (F + damping I) v, (P,) -> (P,), P the number of the policy's parameters.

    F, which is never formed, is the Hessian of mean KL(pi_old || pi) at pi = pi_old. F v is the gradient of (gradient
    of KL)' v: a second backward pass, through the first, which all v share.
    """
    parameters, pi = list(policy.parameters()), policy(obs)
    mean_kl = Gaussian(pi.mean.detach(), pi.log_std.detach()).kl(pi).mean()
    gradient = flatten(torch.autograd.grad(mean_kl, parameters, create_graph=True))
    return lambda v: flatten(torch.autograd.grad(gradient @ v, parameters, retain_graph=True)) + args.cg_damping * v


def conjugate_gradient(product: Callable, b: torch.Tensor, steps: int) -> tuple[torch.Tensor, float]:
    """Solves A x = b, A positive definite and known by v -> A v alone; gives x and the residual |b - A x| / |b|."""
    x, residual, direction = torch.zeros_like(b), b.clone(), b.clone()
    squared = residual @ residual
    for _ in range(steps):
        a_direction = product(direction)
        curvature = direction @ a_direction
        if squared == 0 or not curvature > 0:  # solved exactly; or A is not positive definite, or NaN
            break
        alpha = squared / curvature
        x, residual = x + alpha * direction, residual - alpha * a_direction
        last_squared, squared = squared, residual @ residual
        direction = residual + squared / last_squared * direction
    return x, ((residual.norm() / b.norm()).item() if b.any() else 0.0)


ACCEPT_RATIO = 0.1  # the least gain that the line search accepts, as a part of what the gradient promised


@torch.no_grad()
def line_search(
    args: Hyperparameters, agent: Agent, batch: Batch, step: torch.Tensor, expected: float
) -> tuple[float, float]:
    """Tries the step whole, halved, quartered ...; moves the policy by the first that is good enough, else not at all.

    Good enough: the surrogate gains more than ACCEPT_RATIO of what its gradient promised, and mean KL <= max_kl.
    Returns the accepted fraction of the step, 0 if none, and the gain.
    """
    start, old_pi = flatten(agent.policy.parameters()), agent.policy(batch.obs)
    before = surrogate(old_pi, batch)
    for fraction in (0.5**i for i in range(args.max_backtracks)):
        set_parameters(agent.policy, start + fraction * step)
        pi = agent.policy(batch.obs)
        gain, mean_kl = (surrogate(pi, batch) - before).item(), old_pi.kl(pi).mean()
        if gain > ACCEPT_RATIO * fraction * expected and gain > 0 and mean_kl <= agent.max_kl:
            return fraction, gain
    set_parameters(agent.policy, start)
    return 0.0, 0.0


def flatten(tensors) -> torch.Tensor:
    """Parameters or gradients as one vector (P,)."""
    return torch.cat([tensor.flatten() for tensor in tensors])


@torch.no_grad()
def set_parameters(policy: Policy, vector: torch.Tensor) -> None:
    """Copies a vector (P,) into the policy's parameters."""
    for parameter, values in zip(policy.parameters(), vector.split([p.numel() for p in policy.parameters()])):
        parameter.copy_(values.view_as(parameter))


def normalize(advantages: torch.Tensor) -> torch.Tensor:
    """Mean 0, standard deviation 1; a single advantage stays as it is."""
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8) if len(advantages) > 1 else advantages


@functools.cache
def compiled(function: Callable) -> Callable:
    """The same function, its hundred tiny operations compiled into one call (--compile)."""
    torch._dynamo.config.trace_autograd_ops = True  # torch.autograd.grad within it, too
    return torch.compile(function, fullgraph=True, dynamic=False, options={"cpp_wrapper": True})  # no Python in between


class Gaussian(NamedTuple):
    """N(mean, diag(std^2))."""

    mean: torch.Tensor  # (..., action_dim)
    log_std: torch.Tensor  # (action_dim,)

    def log_prob(self, actions: torch.Tensor) -> torch.Tensor:
        """-sum_j (z_j^2 / 2 + log std_j + log(2 pi) / 2), z = (a - mean) / std: (..., action_dim) -> (...)."""
        z = (actions - self.mean) / self.log_std.exp()
        return -(0.5 * z * z + self.log_std + 0.5 * log(2 * np.pi)).sum(-1)

    def entropy(self) -> torch.Tensor:
        """In nats; one number, for it is the same at every mean."""
        return (self.log_std + 0.5 + 0.5 * log(2 * np.pi)).sum()

    def kl(self, other: Gaussian) -> torch.Tensor:
        """KL(self || other) in nats: (...)."""
        distance = ((self.mean - other.mean) ** 2 + (2 * self.log_std).exp()) / (2 * other.log_std).exp()
        return (other.log_std - self.log_std + 0.5 * distance - 0.5).sum(-1)


class Policy(nn.Module):
    """pi(a|s) = N(mean(s), diag(std^2)): the mean is a network, the standard deviation the same in every state."""

    def __init__(self, args: Hyperparameters, obs_dim: int, action_dim: int):
        super().__init__()
        self.mean_net = mlp(args, obs_dim, action_dim)
        self.log_std = nn.Parameter(torch.zeros(action_dim))

    def forward(self, obs: torch.Tensor) -> Gaussian:
        """(..., obs_dim) -> the distribution of actions; safe to keep: log_std is a copy, which no update reaches."""
        return Gaussian(self.mean_net(obs), self.log_std.clone())


# each as a PyTorch layer and as a NumPy function
ACTIVATIONS = {"tanh": (nn.Tanh, np.tanh), "relu": (nn.ReLU, lambda x: np.maximum(x, 0))}


def mlp(args: Hyperparameters, inputs: int, outputs: int) -> nn.Sequential:
    """Fully connected network, Xavier-uniform weights and zero biases."""
    layers = []
    for fan_in, fan_out in pairwise((inputs, *args.hidden_sizes, outputs)):
        linear = nn.Linear(fan_in, fan_out)
        nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
        layers += [linear, ACTIVATIONS[args.activation][0]()]  # [8] hyperbolic tangent activations
    return nn.Sequential(*layers[:-1])


def numpy_forward(args: Hyperparameters, network: nn.Sequential) -> Callable[[np.ndarray], np.ndarray]:
    """The network as a NumPy function, (B, inputs) -> (B, outputs), faster on few rows; it sees later updates.

    It uses .dot and biases of shape (1, n) because on one row @ and (n,) are slower.
    """
    layers = [(m.weight.detach().numpy().T, m.bias.detach().numpy()[None]) for m in network if isinstance(m, nn.Linear)]
    *hidden, (output_weight, output_bias) = layers
    activation = ACTIVATIONS[args.activation][1]

    def forward(x: np.ndarray) -> np.ndarray:
        for weight, bias in hidden:
            x = activation(x.dot(weight) + bias)
        return x.dot(output_weight) + output_bias

    return forward


class Adam:
    """p -= lr m / (sqrt(v) + eps); m, v: moving averages (betas 0.9, 0.999) of g and g^2, their bias corrected.

    Bit for bit torch.optim.Adam(fused=True), whose import takes a second, a step four times as long.
    """

    def __init__(self, groups: list[dict], eps: float):
        self.param_groups, self.eps, self.count = groups, eps, torch.zeros((), dtype=torch.float32)
        for group in groups:
            group["m"] = [torch.zeros_like(p) for p in group["params"]]
            group["v"] = [torch.zeros_like(p) for p in group["params"]]

    @torch.no_grad()
    def step(self, grads: list[list[torch.Tensor]]) -> None:
        """One step; `grads`: for each group a gradient for each of its parameters."""
        self.count += 1
        off = {"weight_decay": 0.0, "amsgrad": False, "maximize": False}  # [] below: no amsgrad tensors
        for group, g in zip(self.param_groups, grads):
            rates = {"lr": group["lr"], "beta1": 0.9, "beta2": 0.999, "eps": self.eps}
            torch._fused_adam_(group["params"], g, group["m"], group["v"], [], [self.count] * len(g), **rates, **off)

    def state_dict(self) -> dict:
        """What torch.optim.Adam has under "state"; the rates are not saved."""
        moments = [pair for group in self.param_groups for pair in zip(group["m"], group["v"])]
        return {"state": {i: {"step": self.count, "exp_avg": m, "exp_avg_sq": v} for i, (m, v) in enumerate(moments)}}

    def load_state_dict(self, state: dict) -> None:
        saved, own = state["state"], self.state_dict()["state"]
        if saved:  # torch.optim.Adam has none before its first step
            for i in own:
                for name, tensor in own[i].items():
                    tensor.copy_(saved[i][name].view_as(tensor))


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
        """As released, |mean| while there is only one sample."""
        return np.sqrt(self.m2 / (self.count - 1)) if self.count > 1 else np.abs(self.mean)

    def state_dict(self) -> dict:
        return {"count": self.count, "mean": torch.tensor(self.mean), "m2": torch.tensor(self.m2)}

    def load_state_dict(self, state: dict) -> None:
        self.count, self.mean, self.m2 = state["count"], state["mean"].numpy(), state["m2"].numpy()


class ObservationFilter(RunningStatistics):
    """Flattens an observation to (obs_dim,) and normalizes it. Frozen, it leaves its statistics alone."""

    def __init__(self, args: Hyperparameters, space: gym.Space):
        super().__init__((gym.spaces.flatdim(space),))
        self.args, self.space, self.frozen = args, space, False

    def __call__(self, obs) -> np.ndarray:
        """An observation of the space -> (obs_dim,), float64."""
        obs = gym.spaces.flatten(self.space, obs).astype(np.float64, copy=False)
        if self.args.norm_obs:  # [6] observation normalization
            if not self.frozen:
                self.push(obs)
            obs = (obs - self.mean) / (self.std + 1e-8)
        return obs


# RUNNING IT: from here on letter for letter the same in all four scripts; nothing above needs it ----------------------

import contextlib
import copy
import hashlib
import io
import itertools
import json
import math
import os
import platform
import random
import re
import shlex
import shutil
import signal
import sys  # noqa: F811
import time
import traceback
import typing
import warnings
from dataclasses import asdict, fields, make_dataclass, replace
from datetime import timedelta
from pathlib import Path

import filelock
import tyro
from threadpoolctl import threadpool_limits
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm
from tqdm.contrib import DummyTqdmFile

SCRIPT, SOURCE = Path(__file__).stem, Path(__file__).read_bytes()  # now: the file may change while a notebook runs


@dataclass
class Run:
    """what is run, and where it is kept"""

    env_id: str = "Hopper-v5"  # Gymnasium environment, floating Box actions; `module:Env-v0` imports the module first
    env_kwargs: str = "{}"  # keyword arguments of the environment, as JSON; with --evaluate: added to the run's own
    runs_dir: str = "runs"  # folder of all runs
    run_name: str | None = None  # the run lies at RUNS-DIR/RUN-NAME; None: <env>__<script>__<seed>__<time>
    resume: str | None = None  # a run's folder: go on, with its own arguments; a larger --total-timesteps prolongs it
    checkpoint_every: Count = 1  # iterations between two checkpoints; the last iteration always writes one
    heldout_every: Annotated[int, "[0, inf)"] = 0  # iterations between measurements on a fresh batch; 0: none
    progress: bool = True  # a progress bar; where there is no terminal, a line a minute


@dataclass
class Evaluation:
    """playing with a trained policy; --seed and --env-kwargs go with it, too"""

    evaluate: str | None = None  # a run's folder: play episodes with its policy, statistics frozen
    episodes: Count | None = None  # episodes to play; None: 10
    stochastic: bool = False  # sample actions instead of taking the mean
    video: bool = False  # write an mp4 of the first episode into the run's folder
    max_episode_steps: Count | None = None  # end an episode that is as long as this; None: never


@dataclass
class Args(Evaluation, Run, Hyperparameters):
    """All arguments: train(Args(env_id="Walker2d-v5", seed=2))."""


class InputError(ValueError):
    """What was asked for cannot be done; the message says why, in one line."""


class Fault(RuntimeError):
    """Training cannot go on: the environment breaks its interface, a number is not finite, a file cannot be written."""


def reason(error: BaseException) -> str:
    """An exception in one line: its name and the first line of its message that is not empty."""
    return ": ".join([type(error).__name__, *[line.strip() for line in str(error).splitlines() if line.strip()][:1]])


def say(line: str) -> None:
    """Prints a line; that nobody reads it (`| head -1`) ends nothing."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def convert(value, hint):
    """`value` as the plain Python type that a field is annotated with. Raises ValueError or TypeError if it is none."""
    kind, options = typing.get_origin(hint), typing.get_args(hint)
    if kind is Annotated:
        value, ends = convert(value, options[0]), options[1]
        low, high = map(float, ends[1:-1].split(","))
        fits = low < value < high or value == low and ends[0] == "[" or value == high and ends[-1] == "]"
    elif type(None) in options:
        value, fits = None if value is None else convert(value, options[0]), True
    elif kind is tuple:
        value = tuple(convert(x, options[0]) for x in value)
        fits = value != ()
    elif kind is Literal or hint is str:
        is_dict = isinstance(value, dict)  # of NumPy's or PyTorch's numbers, too
        value = json.dumps(value, default=lambda x: x.tolist()) if is_dict else os.fspath(value)
        value = str.__str__(value)  # also of a subclass such as NumPy's, which a checkpoint cannot hold
        fits = value in options if options else value.encode() != b""  # ValueError at bytes that are no text
    elif hint is bool:
        value, fits = bool(value), isinstance(value, bool | np.bool_)
    else:  # a number, of NumPy or PyTorch, too; "inf" as args.json has it
        fits = value == "inf" or not isinstance(value, str | bytes | bool) and (hint is float or hint(value) == value)
        value = hint(value)
    if not fits:
        raise ValueError
    return value


def plain(args: Args) -> Args:
    """The arguments as plain Python values, whatever kind of number or path they were. Raises InputError."""
    values, default = {}, Args()
    if {f.name for f in fields(args)} != {f.name for f in fields(Args)}:
        raise InputError(f"arguments must be {SCRIPT}.Args, not {type(args).__module__}.{type(args).__name__}")
    for name, hint in typing.get_type_hints(Args, include_extras=True).items():
        values[name] = value = getattr(args, name)
        try:
            if (type(value), value) != (type(getattr(default, name)), getattr(default, name)):  # a default is right
                values[name] = convert(value, hint)
        except (AttributeError, TypeError, ValueError, OverflowError, RuntimeError) as error:
            takes = re.sub(r"\bstr\b", "a word", re.sub(r"typing\.|<class '(\w+)'>", r"\1", str(hint)))
            takes = re.sub(r"Annotated\[(\w+), '(.*?)'\]", r"\1 in \2", takes)
            takes = re.sub(r"^Optional\[(.*)\]$", r"\1", re.sub(r"^tuple\[(.*), \.\.\.\]$", r"one or more \1", takes))
            raise InputError(f"{flag(name)} takes {takes}, not {value!r}".replace("\n", " ")) from error
    return Args(**values)


def check(args: Args, env: gym.Env) -> None:
    """Raises InputError at what cannot be used: arguments that do not fit together, a space of the environment."""
    batch_size, name = args.batch_size, f"--env-id {args.env_id}"
    obs_space, action_space = (getattr(env, kind, None) for kind in ("observation_space", "action_space"))
    for space in (obs_space, action_space):
        if not isinstance(space, gym.Space):
            raise InputError(f"{name}: needs gymnasium's spaces, not {type(space).__module__}.{type(space).__name__}")
    is_float_box = isinstance(action_space, gym.spaces.Box) and np.issubdtype(action_space.dtype, np.floating)
    rules = [
        (args.total_timesteps >= batch_size, f"--total-timesteps must be at least one batch, {batch_size} steps"),
        (batch_size % args.num_minibatches == 0, f"--num-minibatches must divide the batch, {batch_size} steps"),
        (obs_space.is_np_flattenable, f"{name}: cannot flatten observations {obs_space}"),
        (is_float_box, f"{name}: actions must be a Box of floating numbers, not {action_space}"),
    ]
    for holds, message in rules:
        if not holds:
            raise InputError(message)


def check_obs(space: gym.Space, obs) -> None:
    """Raises Fault where an observation, or a part of one, is not of its space's shape or not finite."""
    is_box = isinstance(space, gym.spaces.Box)
    if isinstance(space, gym.spaces.Dict) and isinstance(obs, dict):
        for name in space.keys() & obs.keys():
            check_obs(space[name], obs[name])
    elif isinstance(space, gym.spaces.Tuple) and isinstance(obs, tuple | list):
        for part, value in zip(space.spaces, obs):
            check_obs(part, value)
    try:
        numbers = np.asarray(obs if is_box else gym.spaces.flatten(space, obs), np.float64)
    except Exception as error:  # whatever flattening meets in a thing that is not of the space
        raise Fault(f"an observation is not one of {space} ({reason(error)})") from error
    expected = space.shape if is_box else (gym.spaces.flatdim(space),)
    if numbers.shape != expected:
        raise Fault(f"an observation has the shape {numbers.shape}, its space {expected}")
    if not np.isfinite(numbers).all():
        raise Fault("observation is not finite")
    if is_box and space.dtype.kind in "biu" and (np.asarray(obs).astype(space.dtype) != obs).any():  # else changed
        raise Fault(f"an observation has values that its space's {space.dtype} does not hold")
    if not is_box and isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        index, size = np.asarray(obs) - space.start, getattr(space, "n", None) or space.nvec
        if ((index < 0) | (index >= size)).any():  # else counted from the end, or among the next one's
            raise Fault(f"an observation is not one of {space}: {obs}")


class Guarded(gym.Wrapper):
    """Holds an environment to Gymnasium's interface. Raises Fault where it breaks it; its own exceptions pass."""

    def call(self, name: str, returns: str, *args, **kwargs) -> tuple:
        """What reset or step returns: a tuple of the values named, the first an observation of the space."""
        try:
            answer = getattr(self.env, name)(*args, **kwargs)
        except SystemExit as error:
            raise Fault(f"{name} ended with {reason(error)}") from error
        if not isinstance(answer, tuple) or len(answer) != returns.count(",") + 1:
            found = f"{len(answer)} values" if isinstance(answer, tuple) else f"a {type(answer).__name__}"
            raise Fault(f"{name} must return ({returns}), not {found}")
        check_obs(self.observation_space, answer[0])
        return answer

    def reset(self, **kwargs):
        return self.call("reset", "observation, info", **kwargs)

    def step(self, action):
        try:
            answer = self.call("step", "observation, reward, terminated, truncated, info", action)
        except (AssertionError, ValueError, gym.error.Error) as error:
            if not self.action_space.contains(action):
                error.add_note("The action lay outside the action space, as released; --clip-actions keeps it inside.")
            raise
        obs, reward, terminated, truncated, info = answer
        if not (isinstance(reward, float) and type(terminated) is type(truncated) is bool):  # as nearly always
            kinds = "???"
            with contextlib.suppress(Exception):  # whatever NumPy raises at what is no array
                kinds = [x.dtype.kind if x.ndim == 0 else "?" for x in map(np.asarray, (reward, terminated, truncated))]
            if kinds[0] not in "biuf" or kinds[1] not in "bi" or kinds[2] not in "bi":
                said = " ".join(str(answer[1:4]).split())[:200]
                raise Fault(f"step must return a number as reward and two booleans, not {said}")
        if not math.isfinite(reward):
            raise Fault("reward is not finite")
        return obs, float(reward), bool(terminated), bool(truncated), info


def make_env(args: Args, stack: contextlib.ExitStack, **kwargs) -> gym.Env:
    """One environment, guarded below what gymnasium.make wraps it in; `stack` closes it. Raises InputError."""
    try:
        env = gym.make(args.env_id, disable_env_checker=True, **{**json.loads(args.env_kwargs), **kwargs})
    except (Exception, SystemExit) as error:  # whatever an environment's own constructor may raise
        asked = f"--env-id {args.env_id} --env-kwargs {args.env_kwargs}".replace("\n", " ")
        raise InputError(f"{asked}: {reason(error)}") from error
    stack.callback(close, env)
    outer, inner = None, env
    while isinstance(inner, gym.wrappers.TimeLimit | gym.wrappers.OrderEnforcing):
        outer, inner = inner, inner.env
    if outer is None:
        return Guarded(inner)
    outer.env = Guarded(inner)
    return env


def close(env: gym.Env) -> None:
    """Closes an environment; what that raises is shown and stops nothing."""
    try:
        env.close()
    except (Exception, SystemExit):
        traceback.print_exc()
        print("warning: an environment could not be closed", file=sys.stderr)


def try_env(args: Args, stack: contextlib.ExitStack) -> None:
    """Makes an environment, resets it, steps once. Raises InputError where it, or an argument, cannot be used."""
    env = make_env(args, stack)
    check(args, env)
    try:
        env.reset(seed=args.seed)
        action = np.zeros(prod(env.action_space.shape), np.float32)
        env.step(to_env(replace(args, clip_actions=True), env.action_space, action))
    except Exception as error:
        if isinstance(error, Fault) or "got an unexpected keyword argument" in str(error):
            raise InputError(f"--env-id {args.env_id}: {error}") from error
        error.add_note(f"--env-id {args.env_id}: its first reset or step failed; nothing was written.")
        raise
    limit = env.spec.max_episode_steps if env.spec else None
    if args.reset_each_iteration and limit and args.num_steps < limit:
        cut = f"--num-steps {args.num_steps} cuts episodes short of their {limit} steps"
        print(f"warning: {cut}; --no-reset-each-iteration carries them on", file=sys.stderr)
    low, high = env.action_space.low.astype(float), env.action_space.high.astype(float)
    half, bounded = high / 2 - low / 2, np.isfinite(low) & np.isfinite(high)
    odd = (half < 0.25) | (half > 4) | (low > -half / 2) | (high < half / 2)
    if (odd & bounded).any():
        said = f"actions lie in [{low.min():g}, {high.max():g}], the policy begins at 0 +- 1 and is not scaled to them"
        print(f"warning: {said}; gymnasium.wrappers.RescaleAction(env, -1, 1) does it", file=sys.stderr)


def try_compiler(args: Args, agent: Agent) -> None:
    """Compiles (--compile) on a batch of zeros and a copy of the agent. Raises InputError where that cannot be done."""
    rows, obs_dim = args.batch_size // args.num_minibatches, len(agent.obs_filter.mean)
    batch = Batch(torch.zeros(rows, obs_dim), torch.zeros(rows, len(agent.policy.log_std)), *torch.zeros(4, rows))
    try:
        torch._dynamo.reset()  # of an earlier run's arguments
        with torch.random.fork_rng([]), contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            update(replace(args, num_minibatches=1, update_epochs=1), copy.deepcopy(agent), batch)
    except Exception as error:  # no C++ compiler, a torch too old, and what else a compiler may raise
        while error.__cause__ is not None:
            error = error.__cause__
        raise InputError(f"--compile: torch.compile fails here ({reason(error)})") from error


@torch.no_grad()
def measure(old: Policy, new: Policy, obs: torch.Tensor, actions: torch.Tensor, prefix: str = "") -> dict:
    """Mean KL(pi_old || pi) and maximum ratio pi(a|s) / pi_old(a|s) over state-action pairs (the paper's Figure 2)."""
    old_pi, pi = old(obs), new(obs)
    log_ratio = pi.log_prob(actions) - old_pi.log_prob(actions)
    return {
        f"trust_region/{prefix}mean_kl": old_pi.kl(pi).mean().item(),
        f"trust_region/{prefix}max_ratio": log_ratio.max().exp().item(),
    }


def heldout_pairs(args: Args, agent: Agent, old: Policy, envs: list, iteration: int) -> tuple:
    """Fresh states and actions of the old policy, from seeds and a generator of their own: training never notices."""
    frozen = copy.deepcopy(agent)
    frozen.policy, frozen.obs_filter.frozen = old, True
    generator = torch.Generator().manual_seed(seed_for(args.seed, iteration, 0, 1))
    data = rollout(args, frozen, envs, reset(args, frozen, envs, iteration, 1), generator)
    return torch.from_numpy(data.obs).flatten(0, 1), torch.from_numpy(data.actions).flatten(0, 1)


def scalars(args: Args, agent: Agent, old: Policy, it: Iteration, heldout_envs: list[gym.Env]) -> dict[str, float]:
    """All that is logged of an iteration but its speed. Raises Fault where a loss or a parameter is not finite."""
    row = dict(it.scalars)
    if not all(math.isfinite(value) for name, value in row.items() if name.startswith("losses/")):
        raise Fault("loss is not finite")
    if not all(p.isfinite().all() for network in (agent.policy, agent.value) for p in network.parameters()):
        raise Fault("parameter is not finite")
    row["losses/entropy"] = agent.policy(it.batch.obs[:1]).entropy().item()
    variance = it.batch.returns.var(correction=0)
    if variance > 0:
        residual = (it.batch.returns - it.batch.values).var(correction=0)
        row["losses/explained_variance"] = 1 - (residual / variance).item()
    if it.episodes:
        returns, lengths = zip(*it.episodes)
        row["charts/episodic_return"], row["charts/episodic_length"] = float(np.mean(returns)), float(np.mean(lengths))
    row |= measure(old, agent.policy, it.batch.obs, it.batch.actions)
    if args.heldout_every and (it.number - 1) % args.heldout_every == 0:
        pairs = heldout_pairs(args, agent, old, heldout_envs, it.number - 1)
        row |= measure(old, agent.policy, *pairs, "heldout_")
    rates = [group["lr"] for group in reversed(agent.optimizer.param_groups)]  # TRPO's policy has none
    return row | dict(zip(("charts/value_learning_rate", "charts/learning_rate"), rates))


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file beside `path`, then renames it: at every moment one whole file is there."""
    with open(path.with_suffix(".tmp"), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path.with_suffix(".tmp"), path)


def write_args(run: Path, args: Args) -> None:
    """Writes args.json, strict JSON (inf is a word): arguments, versions, hashes of the script and its upper floor."""
    versions = {m: sys.modules[m].__version__ for m in ("gymnasium", "mujoco", "numpy", "torch") if m in sys.modules}
    about = {
        "script": SCRIPT,
        "sha256": hashlib.sha256(SOURCE).hexdigest(),
        "algorithm_sha256": hashlib.sha256(SOURCE.partition(b"\n# RUNNING IT")[0]).hexdigest(),
        "versions": {"python": platform.python_version(), **versions},
        "args": {name: str(value) if value == math.inf else value for name, value in asdict(args).items()},
    }
    write_whole(run / "args.json", (json.dumps(about, indent=2) + "\n").encode())


def save_checkpoint(run: Path, args: Args, agent: Agent, iteration: int) -> None:
    """Writes checkpoint.pt: all that `iteration` finished iterations have left, but for what they logged."""
    state = {name: part.state_dict() for name, part in agent.parts().items()}
    content = {"script": SCRIPT, "args": asdict(args), "iteration": iteration, "agent": state}
    buffer = io.BytesIO()  # on a full disk torch.save itself would raise no OSError
    torch.save(content | {"torch_rng": torch.get_rng_state()}, buffer)
    write_whole(run / "checkpoint.pt", buffer.getvalue())


def load_checkpoint(run: str | Path) -> tuple[dict, Args]:
    """What `save_checkpoint` wrote, and the run's arguments; one that the script has since gained takes its default."""
    path = Path(run) / "checkpoint.pt"
    try:
        checkpoint = torch.load(path, weights_only=True)
        script, saved, *_ = (checkpoint[key] for key in ("script", "args", "iteration", "agent", "torch_rng"))
        unknown = ", ".join(flag(name) for name in saved.keys() - asdict(Args()).keys())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"--resume, --evaluate: {run} is not a run's folder, it has no checkpoint.pt") from error
    except Exception as error:  # truncated, or another file: torch.load raises many kinds
        raise InputError(f"--resume, --evaluate: cannot read {path} as a checkpoint ({reason(error)})") from error
    if script != SCRIPT:
        raise InputError(f"{path} was written by {script}.py; this is {SCRIPT}.py")
    if unknown:
        raise InputError(f"{path} has arguments that this script does not know: {unknown}")
    return checkpoint, plain(Args(**saved))


def make_agent(args: Args, env: gym.Env, checkpoint: dict | None) -> Agent:
    """A new agent, or the one of a checkpoint. Raises InputError where that is not of this environment."""
    if torch.get_default_dtype() != torch.float32:
        raise InputError(f"torch.set_default_dtype: needs torch.float32, not {torch.get_default_dtype()}")
    agent = Agent(args, env.observation_space, env.action_space)
    try:
        for name, part in agent.parts().items() if checkpoint else ():
            part.load_state_dict(checkpoint["agent"][name])
    except Exception as error:  # each part raises its own kind
        raise InputError(f"the checkpoint does not fit {args.env_id} as it is now ({reason(error)})") from error
    return agent


def load_policy(run: str | Path, stochastic: bool = False) -> Callable:
    """A run's policy, statistics frozen, as a function from one raw observation to one action for the environment."""
    checkpoint, args = load_checkpoint(run)
    if not checkpoint["iteration"]:
        raise InputError(f"{run} has no finished iteration yet, so no policy to play")
    with contextlib.ExitStack() as stack:  # only its spaces are of interest
        env = make_env(args, stack)
        agent, obs_space, action_space = make_agent(args, env, checkpoint), env.observation_space, env.action_space
    agent.obs_filter.frozen = True
    mean, std = numpy_forward(args, agent.policy.mean_net), agent.policy.log_std.detach().exp()

    def act(obs) -> np.ndarray:
        check_obs(obs_space, obs)
        noise = (torch.randn(len(std)) * std).numpy() if stochastic else 0
        return to_env(args, action_space, mean(agent.obs_filter(obs).astype(np.float32)) + noise)

    return act


def film(env: gym.Env, run: Path) -> gym.Env:
    """Records the first episode as RUN/video-N-episode-0.mp4; in MuJoCo's tasks the camera follows the agent."""
    renderer = getattr(env.unwrapped, "mujoco_renderer", None)
    if getattr(renderer, "camera_id", None) == -1:  # no other camera was asked for
        tracking = {"trackbodyid": 1} | (renderer.default_cam_config or {}) | {"type": 1}  # mjCAMERA_TRACKING
        renderer.camera_id, renderer.default_cam_config = None, tracking
    prefix = next(f"video-{n}" for n in itertools.count(1) if not any(run.glob(f"video-{n}-*")))
    return gym.wrappers.RecordVideo(env, str(run), name_prefix=prefix, episode_trigger=lambda n: n == 0)


def seed_everything(seed: int) -> None:
    for generator in (random.seed, np.random.seed, torch.manual_seed):
        generator(seed)


@threadpool_limits.wrap(limits=1)
def evaluate(
    run: str | Path, episodes=None, stochastic=False, video=False, seed=1, env_kwargs="{}", max_episode_steps=None
) -> list[float]:
    """Plays episodes with a run's policy, statistics frozen; prints and returns their raw returns."""
    own = {"evaluate": run, "episodes": episodes, "stochastic": stochastic, "video": video, "seed": seed}
    asked = plain(Args(**own, env_kwargs=env_kwargs, max_episode_steps=max_episode_steps))
    policy, (_, args), returns = load_policy(run, asked.stochastic), load_checkpoint(run), []
    try:
        args = replace(args, env_kwargs=json.dumps(json.loads(args.env_kwargs) | json.loads(asked.env_kwargs)))
    except (TypeError, ValueError) as error:
        raise InputError(f"--env-kwargs {asked.env_kwargs}: {reason(error)}") from error
    seed_everything(asked.seed)
    with contextlib.ExitStack() as stack:
        try:
            with warnings.catch_warnings(action="ignore"):  # the error below says it in one line
                env = make_env(args, stack, **({"render_mode": "rgb_array"} if asked.video else {}))
                env = film(env, Path(run)) if asked.video else env
                obs, _ = env.reset(seed=seed_for(asked.seed, 0, 0, 2))
        except Exception as error:  # each rendering backend raises its own kind
            if not asked.video or isinstance(error, Fault):
                raise
            hint = "without a screen, set MUJOCO_GL=egl or MUJOCO_GL=osmesa"
            raise InputError(f"--video: cannot render ({reason(error)}); {hint}") from error
        total, steps, told = 0.0, 0, time.monotonic()
        while len(returns) < (asked.episodes or 10):
            obs, reward, terminated, truncated, _ = env.step(policy(obs))
            total, steps = total + reward, steps + 1
            if terminated or truncated or steps == asked.max_episode_steps:
                returns.append(total)
                obs, _ = env.reset(seed=seed_for(asked.seed, len(returns), 0, 2))
                total, steps, told = 0.0, 0, time.monotonic()
            elif time.monotonic() - told > 15:
                told = time.monotonic()
                print(f"episode {len(returns) + 1}: {steps:,} steps; --max-episode-steps can end it", file=sys.stderr)
    if asked.video:
        videos = [path for path in Path(run).glob(f"{env.name_prefix}-*.mp4") if path.stat().st_size]
        if not videos:
            raise Fault(f"--video: none could be written into {run}")
        say(f"video: {videos[0]}")
    say(f"{run}: mean return {np.mean(returns):.1f}, standard deviation {np.std(returns):.1f}, {len(returns)} episodes")
    return returns


@contextlib.contextmanager
def own_files(run: Path, error_class: type[Exception]):
    """What our own reading and writing raises, in one line; an OSError of the environment stays what it is."""
    try:
        yield
    except filelock.Timeout as error:
        raise InputError(f"{run} is being trained by another process") from error
    except OSError as error:
        said = f"{error.filename or run} (--runs-dir, --run-name): {error.strerror or reason(error)}"
        raise error_class(said) from error


def start_run(args: Args, agent: Agent, stack: contextlib.ExitStack) -> tuple[Path, Args]:
    """A new run: its folder, lock, args.json, checkpoint 0; nothing stays where that fails. Raises InputError."""
    name = args.run_name or re.sub(r"[^\w.-]", "_", f"{args.env_id}__{SCRIPT}__{args.seed}__{int(time.time())}")
    for attempt in itertools.count(1):
        run = Path(args.runs_dir, name if attempt == 1 else f"{name}-{attempt}")
        with own_files(run, InputError):
            try:
                run.mkdir(parents=True)
                break
            except FileExistsError:
                if args.run_name is not None or not os.path.lexists(run):
                    raise  # an automatic name gets a number instead
    args = replace(args, run_name=os.path.relpath(run, args.runs_dir))
    with contextlib.ExitStack() as undo, own_files(run, InputError):
        undo.callback(shutil.rmtree, run)
        lock(run, stack)
        (run / "history.jsonl").touch()
        write_args(run, args)
        save_checkpoint(run, args, agent, 0)
        undo.pop_all()  # all is there: it stays
    return run, args


def resume_run(args: Args, unasked: Args, stack: contextlib.ExitStack) -> tuple[Path, Args, dict]:
    """A run that goes on: its folder, arguments, checkpoint. Raises InputError if `args` ask for other ones."""
    run = Path(args.resume)
    load_checkpoint(run)  # before the lock, which would leave its file in a folder that is no run's
    lock(run, stack)
    checkpoint, saved = load_checkpoint(run)
    asked = {name: value for name, value in asdict(args).items() if value != getattr(unasked, name)}
    for name, value in asked.items():
        longer = name == "total_timesteps" and value > saved.total_timesteps
        if value != getattr(saved, name) and name not in ("resume", "progress") and not longer:
            raise InputError(f"{flag(name)} cannot change when a run is resumed: it was {getattr(saved, name)}")
    args = replace(saved, **(asked | {"resume": None, "progress": args.progress}))
    with own_files(run, InputError), open(run / "history.jsonl", "r+b") as file:
        kept = [file.readline() for _ in range(checkpoint["iteration"])]
        if not all(line.endswith(b"\n") for line in kept):
            raise InputError(f"{run}/history.jsonl holds less than the {len(kept)} iterations of the checkpoint")
        file.truncate(sum(map(len, kept)))  # what was logged after the checkpoint
    return run, args, checkpoint


def lock(run: Path, stack: contextlib.ExitStack) -> None:
    """Locks a run's folder until `stack` closes or the process ends. Raises InputError if another process has it."""
    with own_files(run, InputError):
        stack.enter_context(filelock.FileLock(run / "run.lock").acquire(timeout=0))


class Result(NamedTuple):
    """What `train` returns."""

    run: Path
    history: list[dict[str, float]]  # one dict an iteration: all that was logged
    final_return: float  # mean over the last 5 iterations in which an episode ended; NaN without any


def finish(run: Path) -> Result:
    """Prints the closing line of a run that is finished."""
    history = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    returns = [row["charts/episodic_return"] for row in history if "charts/episodic_return" in row][-5:]
    final = float(np.mean(returns)) if returns else math.nan
    said = f"return {final:.1f} (mean of the last {len(returns)} iterations)" if returns else "no episode ended"
    say(f"{run}: finished, {history[-1]['global_step']:,} steps ({len(history)} iterations); {said}")
    return Result(run, history, final)


@threadpool_limits.wrap(limits=1)
def train(args: Args, unasked: Args | None = None) -> Result:
    """Trains a run to its end. Raises InputError, nothing being trained then, and Fault, the last checkpoint whole.

    A run that is resumed has its own arguments: of `args` only what differs from `unasked` (None: from the defaults) is
    looked at. One at a time in a process, for it seeds the global generators.
    """
    args = plain(args)
    for option in fields(Evaluation):
        if getattr(args, option.name) != option.default:
            raise InputError(f"{flag(option.name)} goes with --evaluate, not with training")
    with contextlib.ExitStack() as stack:
        torch.set_num_threads(1)  # networks this small are fastest on one thread, in NumPy, too
        checkpoint, done = None, 0
        if args.resume is not None:
            run, args, checkpoint = resume_run(args, unasked or Args(), stack)
            done = checkpoint["iteration"]
            if done == args.num_iterations:
                if args.total_timesteps > checkpoint["args"]["total_timesteps"]:
                    more = f"--total-timesteps {args.total_timesteps} adds no whole iteration"
                    print(f"note: {more} of {args.batch_size} steps", file=sys.stderr)
                return finish(run)
        with contextlib.ExitStack() as trial:
            try_env(args, trial)
        seed_everything(args.seed)
        envs = [make_env(args, stack) for _ in range(args.num_envs)]
        heldout_envs = [make_env(args, stack) for _ in range(args.num_envs if args.heldout_every else 0)]
        agent = make_agent(args, envs[0], checkpoint)
        if args.compile:
            try_compiler(args, agent)
        if checkpoint:
            torch.set_rng_state(checkpoint["torch_rng"])
            if args.total_timesteps > checkpoint["args"]["total_timesteps"]:
                if getattr(args, "anneal_lr", False) or getattr(args, "max_kl_final", None):
                    print("note: what is annealed follows the longer schedule from here on", file=sys.stderr)
                with own_files(run, Fault):
                    write_args(run, args)  # first: where this is interrupted, the same command begins again
                    save_checkpoint(run, args, agent, done)
        else:
            run, args = start_run(args, agent, stack)
        say(f"{run}: training; to watch: tensorboard --logdir {shlex.quote(str(run))}")
        return run_iterations(run, args, agent, envs, heldout_envs, done)


def run_iterations(run: Path, args: Args, agent: Agent, envs: list, heldout_envs: list, first: int) -> Result:
    """Learns on after `first` iterations; logs and saves each. A fault names the iteration and how to go on."""
    batch_size, num_iterations = args.batch_size, args.num_iterations
    go_on = f"to go on: {shlex.join(['python', os.path.relpath(__file__), '--resume', str(run)])}"
    # after a resume TensorBoard drops what was logged later than the checkpoint
    with own_files(run, Fault):
        writer = SummaryWriter(str(run), purge_step=first * batch_size + 1 if first else 0)
        history = open(run / "history.jsonl", "a")  # noqa: SIM115
    if not first:
        rows = "".join(f"|{name}|{value}|\n" for name, value in asdict(args).items())
        writer.add_text("hyperparameters", f"|argument|value|\n|-|-|\n{rows}")
    sizes = {"total": num_iterations * batch_size, "initial": first * batch_size, "unit": "step", "unit_scale": True}
    bar, done = tqdm(**sizes, disable=None if args.progress and sys.stderr else True), first
    started = logged = told = time.perf_counter()
    old_policy = copy.deepcopy(agent.policy)
    above = sys.stderr if bar.disable else DummyTqdmFile(sys.stderr)  # what is said meanwhile stands above the bar
    try:
        with contextlib.redirect_stderr(above):
            for it in learn(args, agent, envs, first):
                row = scalars(args, agent, old_policy, it, heldout_envs)
                now = time.perf_counter()
                row["charts/SPS"] = batch_size / (now - logged)  # of everything: held-out rollout, log, last checkpoint
                logged = now
                with own_files(run, Fault):
                    for name, value in row.items():
                        writer.add_scalar(name, value, it.number * batch_size)
                    line = {"iteration": it.number, "global_step": it.number * batch_size, **row}
                    history.write(json.dumps(line) + "\n")
                    if it.number % args.checkpoint_every == 0 or it.number == num_iterations:
                        writer.flush()  # first: what the checkpoint counts is in the event file and the history, too
                        history.flush()
                        os.fsync(history.fileno())
                        save_checkpoint(run, args, agent, it.number)
                done, old_policy = it.number, copy.deepcopy(agent.policy)
                shown = {"return": row.get("charts/episodic_return", math.nan), "KL": row["trust_region/mean_kl"]}
                bar.set_postfix(shown, refresh=False)
                bar.update(batch_size)
                if args.progress and bar.disable and logged - told > 60:
                    told, left = logged, (logged - started) / (done - first) * (num_iterations - done)
                    said = ", ".join(f"{name} {value:.4g}" for name, value in shown.items())
                    said += f", {row['charts/SPS']:,.0f} steps/s, {timedelta(seconds=round(left))} left"
                    print(f"iteration {done} of {num_iterations}: {said}", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"\ninterrupted; {go_on}", file=sys.stderr)
        raise
    except Fault as fault:
        raise Fault(f"iteration {done + 1}: {fault}; {run} keeps its last checkpoint; {go_on}") from fault
    except BaseException as error:  # the environment's own: its traceback, then this
        error.add_note(f"iteration {done + 1}: {run} keeps its last checkpoint; {go_on}")
        raise
    finally:
        bar.close()
        with contextlib.suppress(OSError):  # of a full disk, which was told above
            history.close()
            writer.close()
    return finish(run)


def command_line(default: Args) -> Args:
    """The arguments of the command line, in groups; what is not named is as in `default`."""
    groups = (Run, Algorithm, Optimizations, Details, Evaluation)
    parts = [group(**{f.name: getattr(default, f.name) for f in fields(group)}) for group in groups]
    kinds = make_dataclass("Arguments", [(group.__name__.lower(), group) for group in groups])
    answer = tyro.cli(tyro.conf.OmitArgPrefixes[kinds], default=kinds(*parts), description=__doc__)
    return Args(**{name: value for part in vars(answer).values() for name, value in vars(part).items()})


def main() -> None:
    """The command line. Exit status 2: bad input; 1: a fault while running; 130, 143: SIGINT, SIGTERM."""

    stopped = []

    def stop(signal_number, frame):
        stopped.append(signal_number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    try:
        args = command_line(Args())
        if args.evaluate is not None:
            args = plain(args)
            own = {option.name: getattr(args, option.name) for option in fields(Evaluation)}
            _, saved = load_checkpoint(args.evaluate)
            for name, value in asdict(command_line(replace(saved, **own))).items():  # what differs was asked for
                if name not in ("seed", "env_kwargs", *own) and value != getattr(saved, name):
                    raise InputError(f"{flag(name)} does not go with --evaluate; the run has {getattr(saved, name)}")
            evaluate(own.pop("evaluate"), seed=args.seed, env_kwargs=args.env_kwargs, **own)
        elif args.resume:  # with the run's own arguments as defaults, what differs was asked for
            _, saved = load_checkpoint(args.resume)
            saved = replace(saved, resume=args.resume, progress=True)
            train(command_line(saved), unasked=saved)
        else:
            train(args)
    except InputError as error:
        if not stopped:  # else it is what an import made of the interrupt
            print(f"{SCRIPT}.py: error: {error}", file=sys.stderr)
            sys.exit(2)
    except Fault as error:
        sys.exit(f"{SCRIPT}.py: error: {error}")
    except KeyboardInterrupt:
        stopped.append(signal.SIGINT)
    if stopped:
        sys.exit(128 + stopped[0])


if __name__ == "__main__":
    main()
