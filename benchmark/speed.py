"""Training speed and memory against Stable-Baselines3 PPO, sb3-contrib TRPO and bare environment stepping.

    python benchmark/speed.py                                   # a few minutes; prints Markdown tables
    python benchmark/speed.py --envs Hopper-v5 --rounds 5 --steps 20480

Every measurement is a process of its own on one thread; all contenders take turns within a round. Timed is training
alone, without imports and set-up: the scripts from their first rollout to the end of train(), logs and checkpoints
written; the libraries' learn(), which writes neither. Same batch, minibatches, epochs and network everywhere. Run it
on a machine that does nothing else.
"""

import argparse
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ("ppo_continuous", "ppo_m", "trpo_continuous", "trpo_plus")
# contender -> what its speed is compared with
RIVALS = {
    "ppo_continuous": "sb3 PPO",
    "ppo_m": "sb3 PPO",
    "trpo_continuous": "sb3-contrib TRPO",
    "trpo_plus": "sb3-contrib TRPO",
    "sb3 PPO": "",
    "sb3-contrib TRPO": "",
    "env stepping": "",
}


def train_ours(script: str, env_id: str, steps: int) -> tuple[int, float]:
    """One of the four scripts with its defaults: steps taken and seconds."""
    sys.path.insert(0, str(ROOT))
    module = importlib.import_module(script)
    rollout, started = module.rollout, []

    def timed_rollout(*args, **kwargs):
        started.append(time.perf_counter())  # the first is the start: like learn(), without making environments
        return rollout(*args, **kwargs)

    module.rollout = timed_rollout
    with tempfile.TemporaryDirectory() as runs_dir:
        args = module.Args(env_id=env_id, total_timesteps=steps, runs_dir=runs_dir, progress=False)
        history = module.train(args).history
        return history[-1]["global_step"], time.perf_counter() - started[0]


def train_sb3(algorithm: str, env_id: str, steps: int) -> tuple[int, float]:
    """PPO or TRPO of Stable-Baselines3 with normalized observations and rewards, and our batch, epochs and network."""
    import gymnasium as gym
    import torch
    from sb3_contrib import TRPO
    from stable_baselines3 import PPO
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    torch.set_num_threads(1)
    env = VecNormalize(DummyVecEnv([lambda: Monitor(gym.make(env_id))]))
    network = {"net_arch": [64, 64], "activation_fn": torch.nn.Tanh}
    shared = {"n_steps": 2048, "batch_size": 64, "policy_kwargs": network, "device": "cpu", "seed": 1}
    if algorithm == "sb3 PPO":
        model = PPO("MlpPolicy", env, n_epochs=10, **shared)
    else:
        conjugate_gradient = {"cg_max_steps": 10, "cg_damping": 0.1, "sub_sampling_factor": 10}
        model = TRPO("MlpPolicy", env, n_critic_updates=10, **conjugate_gradient, **shared)
    started = time.perf_counter()
    model.learn(steps)
    return model.num_timesteps, time.perf_counter() - started


def step_env(env_id: str, steps: int) -> tuple[int, float]:
    """The environment alone, under random actions."""
    import gymnasium as gym

    env = gym.make(env_id)
    env.action_space.seed(1)
    actions = [env.action_space.sample() for _ in range(steps)]
    env.reset(seed=1)
    started = time.perf_counter()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return steps, time.perf_counter() - started


def measure(contender: str, env_id: str, steps: int) -> None:
    """In a child process: prints steps per second and peak memory as JSON, on the last line."""
    if contender in SCRIPTS:
        steps, seconds = train_ours(contender, env_id, steps)
    elif contender == "env stepping":
        steps, seconds = step_env(env_id, steps)
    else:
        steps, seconds = train_sb3(contender, env_id, steps)
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
    print(json.dumps({"sps": steps / seconds, "mb": peak}))


def start(contender: str, env_id: str, steps: int) -> subprocess.Popen:
    """A child that measures."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    words = [sys.executable, __file__, "--measure", contender, "--envs", env_id, "--steps", str(steps)]
    return subprocess.Popen(words, env=os.environ | one_thread, stdout=subprocess.PIPE, text=True)


def result(child: subprocess.Popen) -> dict:
    """What the child measured."""
    output, _ = child.communicate()
    if child.returncode:
        sys.exit(f"speed.py: error: {child.args[3]} failed, exit status {child.returncode}")
    return json.loads(output.splitlines()[-1])


def spread(values: list[float]) -> str:
    """Median, and the range."""
    return f"{median(values):,.0f} ({min(values):,.0f}-{max(values):,.0f})"


def progress(text: str) -> None:
    """Says on the terminal what is measured now."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def compare(envs: list[str], rounds: int, steps: int) -> None:
    """Part one: every contender on every task."""
    for env_id in envs:
        found = {contender: [] for contender in RIVALS}
        for n in range(rounds):
            for contender in RIVALS:
                progress(f"{env_id}, round {n + 1} of {rounds}: {contender}")
                found[contender].append(result(start(contender, env_id, steps)))
        progress("")
        print(f"\n| {env_id} | steps/s, median (range) | ratio | peak memory, MB |\n| --- | --- | --- | --- |")
        speed = {contender: median(run["sps"] for run in runs) for contender, runs in found.items()}
        for contender, runs in found.items():
            rival = RIVALS[contender]
            ratio = f"{speed[contender] / speed[rival]:.2f} x {rival}" if rival else "-"
            memory = f"{median(run['mb'] for run in runs):,.0f}"
            print(f"| {contender} | {spread([run['sps'] for run in runs])} | {ratio} | {memory} |", flush=True)


def scale(env_id: str, rounds: int, steps: int) -> None:
    """Part two: one process alone, and two at once."""
    totals = {1: [], 2: []}
    for n in range(rounds):
        for count, sums in totals.items():
            progress(f"scaling, round {n + 1} of {rounds}: {count} at once")
            children = [start("ppo_continuous", env_id, steps) for _ in range(count)]
            sums.append(sum(result(child)["sps"] for child in children))
    progress("")
    print(f"\n| ppo_continuous on {env_id} | steps/s together | scaling |\n| --- | --- | --- |")
    for count, sums in totals.items():
        print(f"| {count} at once | {spread(sums)} | {median(sums) / median(totals[1]):.2f} |", flush=True)


def start_up(rounds: int) -> None:
    """Part three: seconds until a script's help is there, next to the import of Stable-Baselines3."""
    commands = {f"{script}.py --help": [str(ROOT / f"{script}.py"), "--help"] for script in SCRIPTS}
    commands["import stable_baselines3"] = ["-c", "import stable_baselines3"]
    found = {name: [] for name in commands}
    for _ in range(rounds):
        for name, words in commands.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
            found[name].append(time.perf_counter() - started)
    print("\n| start | seconds, median (range) |\n| --- | --- |")
    for name, values in found.items():
        print(f"| {name} | {median(values):.1f} ({min(values):.1f}-{max(values):.1f}) |")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", default=["Hopper-v5", "Walker2d-v5", "Humanoid-v5"])
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each (default %(default)s)")
    parser.add_argument("--steps", type=int, default=4096, help="steps of each, at least 2048 (default %(default)s)")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rounds < 1 or options.steps < 2048:
        parser.error("--rounds must be at least 1, --steps at least 2048")
    if options.measure:
        measure(options.measure, options.envs[0], options.steps)
        return 0
    import gymnasium as gym
    from records import cpu_model

    for env_id in options.envs:
        try:
            gym.spec(env_id)
        except gym.error.Error as error:
            parser.error(f"--envs: {error}")

    packages = ("torch", "gymnasium", "mujoco", "stable-baselines3", "sb3-contrib")
    print(f"{cpu_model()}, {os.cpu_count()} cores; " + ", ".join(f"{name} {version(name)}" for name in packages))
    compare(options.envs, options.rounds, options.steps)
    scale(options.envs[0], options.rounds, options.steps)
    start_up(options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
