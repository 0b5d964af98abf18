"""Training speed and memory against Stable-Baselines3 PPO, sb3-contrib TRPO and bare environment stepping.

    python benchmark/speed.py                     # three tasks; writes benchmark/results/speed.csv
    python benchmark/speed.py sizes               # more environments, wider networks and observations: speed_sizes.csv
    python benchmark/speed.py tasks --show        # the tables of what was measured, without measuring

Every measurement is a process of its own on one thread, and all contenders take turns within a round; a ratio is the
median of the rounds' ratios. Batch (2048), minibatches, epochs and network are the same everywhere. Timed is training
alone, from the second iteration on: the scripts to the end of train(), logs and checkpoints written; the libraries'
learn(), which writes neither. What compiling costs is the time until the second iteration begins, beyond that of the
same contender without: cold in the first round, with the compiler's cache in the others. Run it on a machine that does
nothing else.
"""

import argparse
import importlib
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median

import gymnasium as gym
import numpy as np
import pandas as pd
from records import RESULTS, ROOT, cpu_model
from tqdm import tqdm

BATCH = 2048
SB3_PPO, SB3_TRPO = "Stable-Baselines3 PPO", "sb3-contrib TRPO"
RIVALS = {"ppo_continuous": SB3_PPO, "ppo_m": SB3_PPO, "trpo_continuous": SB3_TRPO, "trpo_plus": SB3_TRPO}
CONTENDERS = [f"{script}.py{flag}" for script in RIVALS for flag in ("", " --compile")]
CONTENDERS += [SB3_PPO, f"{SB3_PPO} under torch.compile", SB3_TRPO, "the environment alone"]
MEASURED = ("steps_per_second", "first_seconds", "megabytes")
# table -> a row's name -> environment, number of environments, hidden sizes
TABLES = {
    "tasks": {env_id: (env_id, 1, (64, 64)) for env_id in ("Hopper-v5", "Walker2d-v5", "Humanoid-v5")},
    "sizes": {
        "4 environments": ("Hopper-v5", 4, (64, 64)),
        "16 environments": ("Hopper-v5", 16, (64, 64)),
        "hidden layers of 256": ("Hopper-v5", 1, (256, 256)),
        "1,000 observations": ("Wide-v0", 1, (64, 64)),
    },
}


class Wide(gym.Env):
    """Observations of 1,000 numbers at next to no cost: rows of a table of noise."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1000,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (3,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.noise, self.steps = np.random.default_rng(0).normal(size=(64, 1000)).astype(np.float32), 0
        return self.noise[0], {}

    def step(self, action):
        self.steps += 1
        return self.noise[self.steps % 64], -float(action @ action), False, False, {}


gym.register("Wide-v0", Wide, max_episode_steps=1000)


def eager(contender: str) -> str:
    """The same contender, not compiled."""
    return contender.removesuffix(" --compile").removesuffix(" under torch.compile")


def train_ours(script: str, compiled: bool, env_id: str, num_envs: int, hidden: tuple, steps: int, tick) -> None:
    """One of the four scripts with its defaults."""
    sys.path.insert(0, str(ROOT))
    module = importlib.import_module(script)
    rollout = module.rollout
    module.rollout = lambda *args, **kwargs: (tick(), rollout(*args, **kwargs))[1]
    sizes = {"num_envs": num_envs, "num_steps": BATCH // num_envs, "hidden_sizes": hidden, "total_timesteps": steps}
    more = {"reset_each_iteration": num_envs == 1} | ({"compile": True} if compiled else {})
    with tempfile.TemporaryDirectory() as runs_dir:
        module.train(module.Args(env_id=env_id, runs_dir=runs_dir, progress=False, **sizes, **more))


def train_sb3(name: str, compiled: bool, env_id: str, num_envs: int, hidden: tuple, steps: int, tick) -> None:
    """PPO or TRPO of Stable-Baselines3 with normalized observations and rewards, and our batch, epochs and network."""
    import torch
    from sb3_contrib import TRPO
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    class Tick(BaseCallback):
        def _on_rollout_start(self):
            tick()

        def _on_step(self):
            return True

    torch.set_num_threads(1)
    env = VecNormalize(DummyVecEnv([lambda: Monitor(gym.make(env_id))] * num_envs))
    network = {"net_arch": list(hidden), "activation_fn": torch.nn.Tanh}
    shared = {"n_steps": BATCH // num_envs, "batch_size": 64, "policy_kwargs": network, "device": "cpu", "seed": 1}
    if name == SB3_PPO:
        model = PPO("MlpPolicy", env, n_epochs=10, **shared)
    else:
        conjugate_gradient = {"cg_max_steps": 10, "cg_damping": 0.1, "sub_sampling_factor": 10}
        model = TRPO("MlpPolicy", env, n_critic_updates=10, **conjugate_gradient, **shared)
    if compiled:  # what acts, and what its loss calls
        model.policy.forward = torch.compile(model.policy.forward)
        model.policy.evaluate_actions = torch.compile(model.policy.evaluate_actions)
    model.learn(steps, callback=Tick())


def step_env(env_id: str, steps: int, tick) -> None:
    """The environment alone, under random actions."""
    env = gym.make(env_id)
    env.action_space.seed(1)
    actions = [env.action_space.sample() for _ in range(BATCH)]
    env.reset(seed=1)
    for _ in range(steps // BATCH):
        tick()
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()


def measure(contender: str, env_id: str, num_envs: int, hidden: tuple, steps: int) -> dict[str, float]:
    """In a process of its own: steps per second from the second iteration on, seconds until then, peak memory in MB."""
    name, compiled = eager(contender), eager(contender) != contender
    began, ticks = time.perf_counter(), []
    tick = lambda: ticks.append(time.perf_counter())  # noqa: E731 - at the start of every iteration
    if name.endswith(".py"):
        train_ours(name.removesuffix(".py"), compiled, env_id, num_envs, hidden, steps, tick)
    elif name in (SB3_PPO, SB3_TRPO):
        train_sb3(name, compiled, env_id, num_envs, hidden, steps, tick)
    else:
        step_env(env_id, steps, tick)
    seconds = time.perf_counter() - ticks[1]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
    return dict(zip(MEASURED, ((len(ticks) - 1) * BATCH / seconds, ticks[1] - began, memory)))


def in_a_process(contender: str, row: str, steps: int, cache: Path) -> dict[str, float]:
    """`measure` in a child on one thread, with its own cache of compiled code."""
    env = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    words = [sys.executable, __file__, "--steps", str(steps), "--measure", contender, row]
    child = subprocess.run(words, env=env | {"TORCHINDUCTOR_CACHE_DIR": str(cache)}, stdout=subprocess.PIPE, text=True)
    if child.returncode:
        sys.exit(f"speed.py: error: {contender}, {row}: failed, exit status {child.returncode}")
    return json.loads(child.stdout.splitlines()[-1])


def compare(table: str, rounds: int, steps: int, out: Path) -> None:
    """Measures a table and writes its CSV: lines of JSON behind `#` on what measured it, then a row a measurement."""
    lacks_it = {f"{script}.py --compile" for script in RIVALS if "compile:" not in (ROOT / f"{script}.py").read_text()}
    contenders = [name for name in CONTENDERS if name not in lacks_it]
    packages = ("torch", "gymnasium", "mujoco", "numpy", "stable-baselines3", "sb3-contrib")
    about = {
        "command": f"python benchmark/speed.py {table} --rounds {rounds} --steps {steps}",
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
    }
    found, bar = [], tqdm(total=len(TABLES[table]) * rounds * len(contenders), disable=None)
    with bar, tempfile.TemporaryDirectory() as scratch:
        for i, row in enumerate(TABLES[table]):
            for n in range(1, rounds + 1):
                for j, contender in enumerate(contenders):
                    bar.set_postfix_str(f"{row}, round {n}: {contender}")
                    result = in_a_process(contender, row, steps, Path(scratch, f"{i}-{j}"))
                    found.append({"row": row, "contender": contender, "round": n} | result)
                    bar.update()
    header = "".join(f"# {line}\n" for line in json.dumps(about, indent=2).splitlines())
    out.write_text(header + pd.DataFrame(found).to_csv(index=False, float_format="%.6g"))


def overview(frame: pd.DataFrame) -> str:
    """One table of all scripts and rows: steps/s, and how many times their library's that is."""
    rows = list(frame["row"].unique())
    lines = [f"| steps/s (ratio to its library) | {' | '.join(rows)} |", f"|{' --- |' * (len(rows) + 1)}"]
    for name in frame["contender"].unique():
        if rival := RIVALS.get(eager(name).removesuffix(".py")):
            cells = [f"`{name}`"]
            for row in rows:
                speed = frame[frame["row"] == row].pivot(index="round", columns="contender", values=MEASURED[0])
                ratio = (speed[name] / speed[rival]).median()
                cells.append(f"{speed[name].median():,.0f} ({ratio:.1f})")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def show(path: Path) -> None:
    """Prints a CSV's tables in Markdown: the overview, then one with everything for each row."""
    text, frame = path.read_text(), pd.read_csv(path, comment="#")
    about = json.loads("".join(line[1:] for line in text.splitlines() if line.startswith("#")))
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    print(overview(frame), end="\n\n")
    print(f"{about['cpu']}, {about['cores']} cores; {versions}; rounds: {frame['round'].max()}, medians (range)")
    head = ("steps/s", "ratio", "ratio to without", "compiling, s: cold, cached", "pays from, steps", "MB")
    for row, group in frame.groupby("row", sort=False):
        print(f"\n| {row} | {' | '.join(head)} |\n|{' --- |' * (len(head) + 1)}")
        speed, first, memory = (group.pivot(index="round", columns="contender", values=name) for name in MEASURED)
        for name in group["contender"].unique():
            same, values, cells = eager(name), speed[name], ["-"] * 4
            if rival := RIVALS.get(same.removesuffix(".py")):
                cells[0] = f"{(values / speed[rival]).median():.2f} x {rival}"
            if name != same:
                cells[1] = f"{(values / speed[same]).median():.2f}"
                cold, *cached = first[name] - first[same].median()
                costs = [cold, median(cached)] if cached else [cold]
                gain = max(1 / speed[same].median() - 1 / values.median(), 0)  # seconds a step
                cells[2] = ", ".join(f"{cost:.1f}" for cost in costs)
                cells[3] = ", ".join(f"{cost / gain:,.0f}" if gain else "never" for cost in costs)
            rate = f"{values.median():,.0f} ({values.min():,.0f}-{values.max():,.0f})"
            print(f"| {name} | {rate} | {' | '.join(cells)} | {memory[name].median():,.0f} |")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", choices=list(TABLES), default="tasks")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each (default %(default)s)")
    parser.add_argument("--steps", type=int, default=4 * BATCH, help="steps of each (default %(default)s)")
    parser.add_argument("--out", type=Path, help="the CSV (default: benchmark/results/speed.csv or speed_sizes.csv)")
    parser.add_argument("--show", action="store_true", help="print the tables of the CSV that is there")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rounds < 1 or options.steps < 2 * BATCH:
        parser.error(f"--rounds must be at least 1, --steps at least {2 * BATCH}")
    if options.measure:
        contender, row = options.measure
        print(json.dumps(measure(contender, *(TABLES["tasks"] | TABLES["sizes"])[row], options.steps)))
        return 0
    out = options.out or ROOT / RESULTS / ("speed.csv" if options.table == "tasks" else f"speed_{options.table}.csv")
    if not options.show:
        compare(options.table, options.rounds, options.steps, out)
    elif not out.exists():
        parser.error(f"--show: there is no {out}")
    show(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
