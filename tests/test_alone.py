"""What can be taken away: an upper floor without its lower one, one script without the rest, an import."""

import dataclasses
import importlib
import random
import re
import shutil
import subprocess
import sys
import tomllib

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROOT, SCRIPTS, assert_equal, load, read_checkpoint

SIZES = {"seed": 5, "num_steps": 128, "num_minibatches": 4, "hidden_sizes": (32, 32)}
CASES = [
    {"num_envs": 1},
    {"num_envs": 2, "reset_each_iteration": False, "bootstrap_truncated": True, "clip_actions": True},
]


@pytest.fixture
def upper(script, tmp_path, monkeypatch):
    """The upper floor of a script, cut out into a file of its own and imported."""
    source = (ROOT / f"{script.__name__}.py").read_text()
    (tmp_path / f"only_{script.__name__}.py").write_text(source.partition("\n# RUNNING IT")[0])
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module(f"only_{script.__name__}")


@pytest.mark.parametrize("case", CASES)
def test_upper_floor_alone(script, upper, tmp_path, case):
    """Two iterations of `learn` by hand, environments by gymnasium.make, end as the script's own training does."""
    sizes = {**SIZES, **case, "total_timesteps": 256 * case["num_envs"]}
    own = {"runs_dir": str(tmp_path), "run_name": "run", "heldout_every": 1, "progress": False}
    result = script.train(script.Args(**sizes, **own))
    assert not hasattr(upper, "train")
    args = upper.Hyperparameters(**sizes)
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(args.seed)
    envs = [gym.make("Hopper-v5") for _ in range(args.num_envs)]
    agent = upper.Agent(args, envs[0].observation_space, envs[0].action_space)
    rows = []
    for iteration in upper.learn(args, agent, envs):
        mean_return = float(np.mean([episode_return for episode_return, _ in iteration.episodes]))
        rows.append({**iteration.scalars, "iteration": iteration.number, "charts/episodic_return": mean_return})
    assert len(rows) == len(result.history) == 2
    assert rows == [{name: full[name] for name in row} for row, full in zip(rows, result.history)]
    state = {name: part.state_dict() for name, part in agent.parts().items()}
    assert_equal(state, read_checkpoint(result.run)["agent"])


def test_learn_goes_on_where_it_stopped(script):
    """With the generator dropped after an iteration, a new one from there on does what the first would have done."""
    args, ends = script.Hyperparameters(**SIZES, total_timesteps=384), []
    for stop in (3, 1):
        torch.manual_seed(args.seed)
        envs = [gym.make("Hopper-v5")]
        agent = script.Agent(args, envs[0].observation_space, envs[0].action_space)
        done = next(it.number for it in script.learn(args, agent, envs) if it.number == stop)
        numbers = [it.number for it in script.learn(args, agent, envs, first=done)]
        assert numbers == list(range(stop + 1, 4))
        ends.append({name: part.state_dict() for name, part in agent.parts().items()})
    assert_equal(*ends)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_lone_copy(name, tmp_path):
    """A copy in an empty folder, nothing else of the project on the path: help, and a tiny training."""
    shutil.copy(ROOT / f"{name}.py", tmp_path)
    code = "import sys; sys.argv = sys.argv[1:]; import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"

    def run(*flags):
        command = [sys.executable, "-I", "-c", code, f"{name}.py", *flags]  # -I: no PYTHONPATH, no current folder
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    shown = run("--help")
    assert shown.returncode == 0 and shown.stderr == ""
    for field in dataclasses.fields(load(name).Args):
        assert f"--{field.name.replace('_', '-')}" in shown.stdout
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.py"]
    done = run("--num-steps", "64", "--num-minibatches", "4", "--total-timesteps", "128", "--no-progress")
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(rf"Hopper-v5__{name}__1__\d+", folder.name)
    found = {re.sub(r"^events.*", "events", path.name) for path in folder.iterdir()}
    assert found == {"args.json", "checkpoint.pt", "history.jsonl", "run.lock", "events"}
    first, last = done.stdout.splitlines()
    assert first == f"runs/{folder.name}: training; to watch: tensorboard --logdir runs/{folder.name}"
    assert last.startswith(f"runs/{folder.name}: finished, 128 steps (2 iterations)")


IMPORT = """
import os, sys, threading
import torch, numpy, random, signal, gymnasium
def state():
    return (torch.get_num_threads(), torch.get_rng_state().tolist(), torch.get_default_dtype(),
            str(numpy.random.get_state()), random.getstate(), signal.getsignal(signal.SIGINT),
            signal.getsignal(signal.SIGTERM), sorted(os.environ.items()), os.getcwd(), sorted(gymnasium.registry))
torch.set_num_threads(2)
import torch.utils.tensorboard, tqdm, tyro, threadpoolctl  # the last one sets a variable of its own
for name in sys.argv[1:]:
    before = state()
    __import__(name)
    assert all(a == b for a, b in zip(before, state())), [a == b for a, b in zip(before, state())]
    assert threading.active_count() == 1
"""


def test_import_has_no_side_effect(tmp_path):
    """No files, no output; threads, generators, signal handlers and the environment as before."""
    command = [sys.executable, "-B", "-c", IMPORT, *SCRIPTS]
    path = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_pep_723_header(name):
    """Parsed as the standard says; it lists the distributions of all third-party imports, each with a lower bound."""
    source = (ROOT / f"{name}.py").read_text()
    pattern = r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$"  # from PEP 723
    (block,) = re.finditer(pattern, source)
    assert block["type"] == "script" and block.start() == 0
    content = "".join(line[2:] if line.startswith("# ") else line[1:] for line in block["content"].splitlines(True))
    header = tomllib.loads(content)
    assert header.keys() == {"requires-python", "dependencies"} and header["requires-python"] == ">=3.11"
    listed = [re.fullmatch(r"([a-z]+)(\[mujoco\])?>=\d+(\.\d+)+", line) for line in header["dependencies"]]
    assert all(listed), header["dependencies"]
    modules = set(re.findall(r"^(?:import|from) (\w+)", source, re.M)) - sys.stdlib_module_names
    # tensorboard is what torch.utils.tensorboard imports; mujoco and moviepy what gymnasium does when asked for them
    assert {match[1] for match in listed} == modules | {"tensorboard", "mujoco", "moviepy"}
    assert [match[1] for match in listed if match[2]] == ["gymnasium"]
