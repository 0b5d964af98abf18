"""The paper authors' released code on a v5 environment, a row an iteration.

    git clone https://github.com/MadryLab/implementation-matters ../implementation-matters
    python benchmark/authors.py ../implementation-matters walker_trpo --seed 6

trains with the configuration configs/walker_trpo.py (17 minutes here, two at once; Humanoid's PPO 33) and leaves
benchmark/results/authors/Walker2d-v5__trpo__6.csv. While it trains, every row and a copy of the whole trainer lie in
benchmark/runs/authors: the same command goes on with an interrupted run, exactly, as long as that copy is of the same
library versions. Their trainer runs unchanged but for `--no-heldout`, and none of it is in this repository. Stand-ins
take the place of what it imports and requirements.txt does not bring: gym (the interface of that time over Gymnasium),
cox's store (forgets what it is given), dill and sklearn (imported there, never called). Their code seeds nothing; here
the seed goes to PyTorch, NumPy and the environment's first reset.
"""

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import cloudpickle
import gymnasium as gym
import numpy as np
import paper
import torch
from torch.distributions import Normal, kl_divergence
from tqdm import tqdm

VARIANTS = {"ppo": "ppo", "ppom": "ppo_m", "trpo": "trpo", "trpo_plus": "trpo_plus", "ppo_noclip": "ppo_noclip"}


class OldEnv:
    """Gym's interface before its version 0.26 over a Gymnasium environment."""

    def __init__(self, env: gym.Env, seed: int):
        self.env, self.seed = env, seed
        self.action_space, self.observation_space = env.action_space, env.observation_space

    def reset(self) -> np.ndarray:
        """The first observation; only the very first reset is seeded."""
        obs, _ = self.env.reset(seed=self.seed)
        self.seed = None
        return obs

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, dict]:
        """Observation, reward, done (terminated or truncated, not told apart), info."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated or truncated, info

    def __getstate__(self) -> dict:
        """Enough to go on from between two iterations: their trainer resets its environment at the start of each."""
        return {"id": self.env.spec.id, "np_random": self.env.unwrapped.np_random}

    def __setstate__(self, state: dict):
        self.__init__(gym.make(state["id"]), None)
        self.env.unwrapped.np_random = state["np_random"]


class Store:
    """cox's store, as far as their trainer calls it: forgets what it is given."""

    def __getitem__(self, table: str):
        return self

    def forget(self, *args):
        """Nothing."""

    add_table = log_table_and_tb = update_row = flush_row = forget


def configuration(clone: Path, name: str) -> dict:
    """What configs/NAME.py writes: it makes one file an agent, all alike."""
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "src").symlink_to(clone / "src")
        work = Path(scratch, "configs")
        work.mkdir()
        env = os.environ | {"PYTHONPATH": str(clone / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run([sys.executable, clone / "configs" / f"{name}.py"], cwd=work, env=env, check=True)
        return json.loads((work / "agent_configs/0.json").read_text())


def trainer_class(clone: Path, seed: int):
    """Their Trainer, its environments Gymnasium's; `measured` of an instance is what its last iteration came to."""
    spaces = {"discrete": SimpleNamespace(Discrete=gym.spaces.Discrete), "box": SimpleNamespace(Box=gym.spaces.Box)}
    stand_ins = {
        "gym": SimpleNamespace(make=lambda name: OldEnv(gym.make(name), seed)),
        "gym.spaces": SimpleNamespace(**spaces),
    }
    stand_ins |= {f"gym.spaces.{name}": module for name, module in spaces.items()}
    stand_ins |= {name: MagicMock() for name in ("dill", "sklearn", "sklearn.metrics", "sklearn.metrics.pairwise")}
    sys.path.insert(0, str(clone / "src"))
    sys.dont_write_bytecode = True
    sys.modules |= stand_ins
    from policy_gradients.agent import Trainer

    for name in stand_ins:  # PyTorch looks for some of these names later, and must not take a stand-in
        del sys.modules[name]
    Trainer.take_steps = measured(Trainer.take_steps)
    return Trainer


def measured(take_steps):
    """Their update, and beside it what our scripts log of one: mean KL, entropy after it, explained variance of V."""

    @torch.no_grad()
    def policy(agent, saps) -> Normal:
        return Normal(*agent.policy_model(saps.states))

    def take_steps_and_measure(agent, saps, *args, **kwargs):
        old, result = policy(agent, saps), take_steps(agent, saps, *args, **kwargs)
        new, target = policy(agent, saps), saps.values + saps.advantages
        kl, entropy = kl_divergence(old, new).sum(-1).mean(), new.entropy().sum(-1).mean()
        explained = 1 - saps.advantages.var(correction=0) / target.var(correction=0)
        agent.measured = [x.item() for x in (kl, entropy, explained)]
        return result

    return take_steps_and_measure


def write(path: Path, content: bytes) -> None:
    """Writes a file that is whole at every moment."""
    path.with_suffix(".tmp").write_bytes(content)
    path.with_suffix(".tmp").replace(path)


def save(path: Path, *state) -> None:
    """Writes the trainer and the generators it draws from."""
    write(path, cloudpickle.dumps((*state, np.random.get_state(), torch.get_rng_state())))


def load(path: Path):
    """What `save` was given; the generators go on where they were."""
    *state, numpy_state, torch_state = cloudpickle.loads(path.read_bytes())
    np.random.set_state(numpy_state)
    torch.set_rng_state(torch_state)
    return state


def train(trainer, params: dict, seed: int, about: str, path: Path) -> None:
    """Trains to the end, from where an earlier call stopped; rows go to `path`, the trainer to a file beside it."""
    torch.set_num_threads(1)  # as their configurations do, but only where a run starts
    path.parent.mkdir(parents=True, exist_ok=True)
    head = [f"# {about}", ",".join(["iteration", *paper.COLUMNS])]
    if path.with_suffix(".pickle").exists():
        agent, done = load(path.with_suffix(".pickle"))
        head = path.read_text().splitlines()[: len(head) + done]  # a row that the copy does not know of is made again
    else:
        np.random.seed(seed)
        torch.manual_seed(seed)
        agent, done = trainer.agent_from_params(params, store=Store()), 0
    write(path, "".join(f"{line}\n" for line in head).encode())
    with open(path, "a") as file, tqdm(total=params["train_steps"], initial=done, desc=path.stem) as bar:
        for i in range(done, params["train_steps"]):
            with contextlib.redirect_stdout(io.StringIO()):  # it prints five lines an iteration
                mean_return = agent.train_step()
            row = [f"{mean_return:.1f}", *(f"{x:.5g}" for x in agent.measured)]
            file.write(",".join([str(i), *row]) + "\n")
            file.flush()
            save(path.with_suffix(".pickle"), agent, i + 1)
            bar.set_postfix_str(f"return {mean_return:.0f}", refresh=False)
            bar.update()


def main() -> int:
    """The command line. Exit status 0: the run's CSV lies among the results; 2: bad input; 130: Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path, help="a checkout of MadryLab/implementation-matters")
    parser.add_argument("config", help="one of its configs/, without .py")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--no-heldout", action="store_true", help="without its measurements on fresh batches")
    parser.add_argument("--results", type=Path, default=paper.RESULTS, help="where authors/ lies (default %(default)s)")
    options = parser.parse_args()
    clone = options.clone.resolve()
    variant = VARIANTS.get(options.config.partition("_")[2])
    if variant is None or not (clone / "configs" / f"{options.config}.py").is_file():
        parser.error(f"there is no configuration {options.config} in {clone / 'configs'}")
    params = configuration(clone, options.config)
    params["game"] = env_id = params["game"].replace("-v2", "-v5")
    params["advanced_logging"] &= not options.no_heldout
    if any(
        run[:2] == (options.seed, not options.no_heldout) for run in paper.authors(env_id, variant, options.results)
    ):
        parser.error(f"--seed {options.seed} of {variant} on {env_id} is in {options.results} already")

    name = f"{env_id}__{variant}__{options.seed}" + "_no_heldout" * options.no_heldout + ".csv"
    versions = ", ".join(f"{package} {version(package)}" for package in ("torch", "gymnasium", "mujoco"))
    about = f"MadryLab/implementation-matters, configs/{options.config}.py on {env_id}, seed {options.seed}; {versions}"
    path = options.results.parent / "runs/authors" / name
    try:
        train(trainer_class(clone, options.seed), params, options.seed, about, path)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130
    (options.results / "authors").mkdir(exist_ok=True)
    path.rename(options.results / "authors" / name)
    path.with_suffix(".pickle").unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
