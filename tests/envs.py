"""Small environments for the tests; importing this module registers them, so that `envs:Toy-v0` names one."""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Graph, Sequence

ACTIONS = []  # every action a Toy saw in this process


class Toy(gym.Env):
    """Three-dimensional noise; its first component counts the steps of the episode.

    length     the episode ends after so many steps: terminated, or truncated if `truncate`
    reward     of every step; None: noise
    obs        the constant observation; None: the counter and noise
    bad_at     at this step of the instance's life (the first is 1) `bad_value` is the `bad` ("reward" or "obs")
    shape, dtype, bound   of the action space; actions of another shape or dtype are an error
    inside     actions outside the space are an error
    """

    metadata = {"render_modes": []}

    def __init__(
        self,
        length=10,
        truncate=False,
        reward=None,
        obs=None,
        bad_at=0,
        bad="reward",
        bad_value="nan",
        shape=(2,),
        dtype="float32",
        bound="1",
        inside=False,
        render_mode=None,
    ):
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = Box(-float(bound), float(bound), tuple(shape), np.dtype(dtype).type)
        self.length, self.truncate, self.reward, self.obs, self.inside = length, truncate, reward, obs, inside
        self.bad_at, self.bad, self.bad_value, self.render_mode = bad_at, bad, float(bad_value), render_mode
        self.life = 0

    def observe(self):
        if self.obs is not None:
            return np.full(3, float(self.obs))
        return np.concatenate([[self.steps], self.np_random.normal(size=2)])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        space = self.action_space
        assert isinstance(action, np.ndarray) and action.shape == space.shape and action.dtype == space.dtype, action
        assert not self.inside or space.contains(action), action
        ACTIONS.append(action.copy())
        self.steps, self.life = self.steps + 1, self.life + 1
        obs, reward = self.observe(), self.np_random.normal() if self.reward is None else self.reward
        if self.life == self.bad_at:
            obs, reward = (np.full(3, self.bad_value), reward) if self.bad == "obs" else (obs, self.bad_value)
        over = self.steps >= self.length
        return obs, reward, over and not self.truncate, over and self.truncate, {}


class DictObs(Toy):
    """Observations of several parts: flattened, keys in order, they are Toy's and a one-hot 2."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.observation_space = Dict(a=self.observation_space, b=Discrete(3))

    def observe(self):
        return {"a": super().observe(), "b": np.int64(2)}


class SequenceObs(Toy):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.observation_space = Sequence(Box(-1, 1, (2,)))


class GraphObs(Toy):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.observation_space = Dict(a=Box(-1, 1, (2,)), b=Graph(Box(-1, 1, (2,)), None))


class IntegerActions(Toy):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.action_space = Box(-3, 3, (2,), np.int64)


for name in ("Toy", "DictObs", "SequenceObs", "GraphObs", "IntegerActions"):
    gym.register(f"{name}-v0", f"envs:{name}")
