"""The paper authors' released code on a v5 environment: a row an iteration into benchmark/authors_on_v5.csv.

    git clone https://github.com/MadryLab/implementation-matters ../implementation-matters
    python benchmark/authors.py ../implementation-matters walker_trpo --seed 6

trains with the configuration configs/walker_trpo.py (17 minutes here, two at once; Humanoid's PPO 33). Their trainer
runs unchanged, and none of it is in this repository. Stand-ins take the place of what it imports and requirements.txt
does not bring: gym (the interface of that time over Gymnasium), cox's store (forgets what it is given), dill and
sklearn (imported there, never called). Their code seeds nothing; here the seed goes to PyTorch, NumPy and the
environment's first reset.
"""

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import gymnasium as gym
import numpy as np
import torch
from paper import AUTHORS_ON_V5, COLUMNS
from paper import authors as histories
from tqdm import trange

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


def trainer(clone: Path, params: dict, seed: int):
    """Their Trainer."""
    np.random.seed(seed)
    torch.manual_seed(seed)
    spaces = {"discrete": SimpleNamespace(Discrete=gym.spaces.Discrete), "box": SimpleNamespace(Box=gym.spaces.Box)}
    stand_ins = {"gym": SimpleNamespace(make=lambda name: OldEnv(gym.make(name), seed))}
    stand_ins |= {"gym.spaces": SimpleNamespace(**spaces)}
    stand_ins |= {f"gym.spaces.{name}": module for name, module in spaces.items()}
    stand_ins |= {name: MagicMock() for name in ("dill", "sklearn", "sklearn.metrics", "sklearn.metrics.pairwise")}
    sys.path.insert(0, str(clone / "src"))
    sys.dont_write_bytecode = True
    sys.modules |= stand_ins
    from policy_gradients.agent import Trainer

    for name in stand_ins:  # PyTorch looks for some of these names later, and must not take a stand-in
        del sys.modules[name]
    return Trainer.agent_from_params(params, store=Store())


def main() -> int:
    """The command line. Exit status 0: the run's rows are in the CSV; 2: bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path, help="a checkout of MadryLab/implementation-matters")
    parser.add_argument("config", help="one of its configs/, without .py")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--csv", type=Path, default=AUTHORS_ON_V5, help="what the rows are appended to")
    options = parser.parse_args()
    clone = options.clone.resolve()
    variant = VARIANTS.get(options.config.partition("_")[2])
    if variant is None or not (clone / "configs" / f"{options.config}.py").is_file():
        parser.error(f"there is no configuration {options.config} in {clone / 'configs'}")
    params = configuration(clone, options.config)
    params["game"] = env_id = params["game"].replace("-v2", "-v5")
    if any(seed == options.seed for seed, _ in histories(env_id, variant, options.csv)):
        parser.error(f"--seed {options.seed} of {variant} on {env_id} is in {options.csv} already")

    agent, rows = trainer(clone, params, options.seed), []
    with trange(params["train_steps"], desc=f"{options.config} {options.seed}") as iterations:
        for i in iterations:
            with contextlib.redirect_stdout(io.StringIO()):  # it prints five lines an iteration
                mean_return = agent.train_step()
            rows.append(f"{env_id},{variant},{options.seed},{i},{mean_return:.1f}\n")
            iterations.set_postfix_str(f"return {mean_return:.0f}", refresh=False)
    with open(options.csv, "a") as file:
        if not file.tell():
            file.write(",".join(COLUMNS) + "\n")
        file.write("".join(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
