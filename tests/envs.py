"""Small environments for the tests; importing this module registers them, so that `envs:Toy-v0` names one."""

import random

import gymnasium as gym
import numpy as np
import threadpoolctl
import torch
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiDiscrete, Sequence, Tuple

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


class Awkward(Toy):
    """A Toy that breaks something, from its `at`-th step, reset or close on; each instance counts anew.

    how   what it breaks: a name in RESETS, STEPS or ERRORS, these in `where`
    """

    RESETS = {
        "no info": lambda obs, info: obs,
        "a list": lambda obs, info: [obs, info],
        "one value": lambda obs, info: (obs,),
        "three values": lambda obs, info: (obs, 0.0, info),
        "nothing": lambda obs, info: None,
        "a longer observation": lambda obs, info: (np.zeros(5), info),
        "a shorter observation": lambda obs, info: (np.zeros(1), info),
    }
    STEPS = {
        "four values": lambda obs, reward, ends, cut, info: (obs, reward, ends or cut, info),
        "six values": lambda obs, reward, ends, cut, info: (obs, reward, ends, cut, info, 0),
        "a list": lambda *answer: list(answer),
        "nothing": lambda *answer: None,
        "observation longer": lambda obs, *rest: (np.zeros(5), *rest),
        "observation of one": lambda obs, *rest: (obs[:1], *rest),
        "observation a number": lambda obs, *rest: (0.5, *rest),
        "observation a column": lambda obs, *rest: (obs[:, None], *rest),
        "observation None": lambda obs, *rest: (None, *rest),
        "observation a word": lambda obs, *rest: ("left", *rest),
        "observation a dict": lambda obs, *rest: ({"x": obs}, *rest),
        "observation ragged": lambda obs, *rest: ([1.0, [2.0, 3.0]], *rest),
        "reward None": lambda obs, reward, *rest: (obs, None, *rest),
        "reward a word": lambda obs, reward, *rest: (obs, "1.0", *rest),
        "reward of one": lambda obs, reward, *rest: (obs, np.array([reward]), *rest),
        "reward of two": lambda obs, reward, *rest: (obs, np.array([reward, reward]), *rest),
        "reward a matrix": lambda obs, reward, *rest: (obs, np.full((9, 9), reward), *rest),
        "reward complex": lambda obs, reward, *rest: (obs, 1j, *rest),
        "reward a dict": lambda obs, reward, *rest: (obs, {"agent": reward}, *rest),
        "end None": lambda obs, reward, ends, *rest: (obs, reward, None, *rest),
        "end a word": lambda obs, reward, ends, *rest: (obs, reward, "no", *rest),
        "cut of one": lambda obs, reward, ends, cut, info: (obs, reward, ends, [cut], info),
    }
    ERRORS = {
        "bare": lambda: AssertionError(),
        "newline": lambda: ValueError("\n\n   the bridge is out  \nand more"),
        "time-out": lambda: TimeoutError(),
        "refused": lambda: ConnectionRefusedError(111, "Connection refused"),
        "no file": lambda: FileNotFoundError(2, "No such file or directory", "level.json"),
        "stop": lambda: StopIteration("the bridge is out"),
    }

    def __init__(self, how="", where="step", at=1, **kwargs):
        super().__init__(**kwargs)
        self.how, self.where, self.at, self.calls = how, where, at, {"step": 0, "reset": 0, "close": 0}
        if where == "constructor":
            raise self.ERRORS[how]()

    def now(self, where):
        self.calls[where] += 1
        if self.how and self.where == where and self.calls[where] >= self.at:
            if self.how in self.ERRORS:
                raise self.ERRORS[self.how]()
            return True
        return False

    def reset(self, *, seed=None, options=None):
        answer = super().reset(seed=seed)
        return self.RESETS[self.how](*answer) if self.now("reset") else answer

    def step(self, action):
        answer = super().step(action)
        return self.STEPS[self.how](*answer) if self.now("step") else answer

    def close(self):
        self.now("close")


class SeedlessReset(Toy):
    def reset(self):
        return super().reset(seed=1)


class Loud(Toy):
    """Its rewards have a `kind`: a dtype of NumPy, "python bool" or "torch"; info has an "episode" of its own."""

    def __init__(self, kind="float16", **kwargs):
        super().__init__(**kwargs)
        self.kind = kind

    def step(self, action):
        obs, reward, ends, cut, info = super().step(action)
        if self.kind == "torch":
            reward, ends = torch.tensor(reward), torch.tensor(ends)
        else:
            reward = bool(reward) if self.kind == "python bool" else np.dtype(self.kind).type(reward)
        return obs, reward, ends, np.bool_(cut), {"episode": {"r": 0.0, "l": 0, "t": 0.0}}


def counted_toy(**kwargs):
    return gym.wrappers.RecordEpisodeStatistics(Toy(**kwargs))


class UncloseableBeforeReset(Toy):
    def close(self):
        assert self.steps >= 0  # there since reset


class Single(Toy):
    """Of which only one may be open."""

    is_open = False

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        if Single.is_open:
            raise RuntimeError("the port is in use")
        Single.is_open = True

    def close(self):
        Single.is_open = False


class Shifted(Toy):
    """Actions from `low` to `high`."""

    def __init__(self, low=(-1, -1), high=(1, 1), **kwargs):
        super().__init__(**kwargs)
        self.action_space = Box(*(np.array(bound, np.float32) for bound in (low, high)))


class Spaces(Toy):
    """One space is from another package, or missing."""

    def __init__(self, which="action_space", kind="Box", **kwargs):
        super().__init__(**kwargs)
        if kind:
            setattr(self, which, type(kind, (), {"__module__": "gym.spaces.box", "shape": (2,)})())
        else:
            delattr(self, which)


class OtherPackage:
    """What inherits from no Env of Gymnasium's."""

    observation_space, action_space = Box(-1, 1, (3,)), Box(-1, 1, (2,))


class Global(Toy):
    """Draws from the generators of Python and NumPy that all share."""

    def observe(self):
        return np.array([random.random(), *np.random.normal(size=2)])


class Threads(Toy):
    """Notes the threads that NumPy and the others may use."""

    seen = []

    def step(self, action):
        Threads.seen += [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]
        return super().step(action)


class Filmed(Toy):
    """Has a picture of its own."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def render(self):
        return np.full((32, 32, 3), 8 * self.steps, np.uint8)


class OddReward(Toy):
    """Rewards that NumPy cannot hold."""

    def __init__(self, kind, **kwargs):
        super().__init__(**kwargs)
        self.odd = torch.ones((), requires_grad=True) if kind == "grad" else [1.0, [2.0, 3.0]]

    def step(self, action):
        obs, _, *ends = super().step(action)
        return obs, self.odd, *ends


class Limits(Toy):
    """Actions as wide as float64 goes."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        limits = np.finfo(np.float64)
        self.action_space = Box(limits.min, limits.max, (2,), np.float64)


class Parts(Toy):
    """A nested observation, one part of another shape than its space's."""

    def __init__(self, kind, **kwargs):
        super().__init__(**kwargs)
        image, one = Box(-9, 9, (2, 3)), Box(-9, 9, (1,))
        self.kind = kind
        self.observation_space = Dict(a=image, b=one) if kind == "dict" else Tuple((one, Dict(a=image)))

    def observe(self):
        a, b = np.zeros((3, 2)), np.zeros(1)
        return {"a": a, "b": b} if self.kind == "dict" else (b, {"a": a})


class Beyond(Toy):
    """Observations that their space does not hold, from the n-th step on: flattening would make others of them."""

    def __init__(self, kind, at=1, **kwargs):
        super().__init__(**kwargs)
        self.at = at
        spaces = {"discrete": Discrete(3), "multi": MultiDiscrete([3, 4]), "integer": Box(0, 255, (2,), np.uint8)}
        self.observation_space = Dict(a=spaces[kind.removeprefix("nested_")]) if "nested" in kind else spaces[kind]
        self.within, self.beyond = {
            "discrete": (2, -1),
            "multi": ([2, 3], [3, 1]),
            "integer": ([3, 255], [0.5, 0.2]),
        }[kind.removeprefix("nested_")]

    def observe(self):
        self.at -= 1
        obs = np.array(self.beyond if self.at < 0 else self.within)
        return {"a": obs} if isinstance(self.observation_space, Dict) else obs


class Exits(Toy):
    """Ends the process itself at its n-th step, as one with a window does; or raises what is no Exception."""

    def __init__(self, how="exit", at=20, where="step", **kwargs):
        super().__init__(**kwargs)
        self.how, self.at, self.where = how, at, where
        if where == "constructor":
            raise SystemExit(3)

    def reset(self, **kwargs):
        if self.where == "reset":
            raise SystemExit(3)
        return super().reset(**kwargs)

    def close(self):
        if self.where == "close":
            raise SystemExit(3)

    def step(self, action):
        self.at -= self.where == "step"
        if not self.at:
            raise SystemExit if self.how == "exit" else GeneratorExit("of its own")
        return super().step(action)


class Worker(Toy):
    """Holds something open until it is closed."""

    OPEN = 0

    def __init__(self, reward_kind="number", **kwargs):
        super().__init__(**kwargs)
        self.reward_kind = reward_kind
        Worker.OPEN += 1

    def step(self, action):
        obs, reward, *ends = super().step(action)
        return obs, None if self.reward_kind == "none" else reward, *ends

    def close(self):
        Worker.OPEN -= 1


class NoOptions(Toy):
    """A reset that knows a seed and nothing else."""

    def reset(self, *, seed=None):
        return super().reset(seed=seed)


NAMES = "Toy DictObs SequenceObs GraphObs IntegerActions Awkward SeedlessReset Loud UncloseableBeforeReset Single "
NAMES += "Shifted Spaces OtherPackage Global Threads Filmed OddReward Limits Parts Beyond Exits Worker NoOptions"
for name in NAMES.split():
    gym.register(f"{name}-v0", f"envs:{name}")
gym.register("Counted-v0", "envs:counted_toy")
gym.register("Recorded-v0", "envs:Toy", additional_wrappers=(gym.wrappers.RecordEpisodeStatistics.wrapper_spec(),))
