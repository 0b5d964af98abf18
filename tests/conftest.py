"""Shared by all tests: the four scripts as modules and as command lines, and what a run left behind."""

import importlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ("ppo_continuous", "ppo_m", "trpo_continuous", "trpo_plus")
PPO, TRPO = SCRIPTS[:2], SCRIPTS[2:]
FULL, MINIMAL = ("ppo_continuous", "trpo_plus"), ("ppo_m", "trpo_continuous")
NAMES = {  # of the nine, as the paper calls them
    1: "value function clipping",
    2: "reward scaling",
    3: "orthogonal initialization and layer scaling",
    4: "Adam learning-rate annealing",
    5: "reward clipping",
    6: "observation normalization",
    7: "observation clipping",
    8: "hyperbolic tangent activations",
    9: "global gradient clipping",
}
sys.path.insert(0, str(ROOT))
torch.set_num_threads(1)  # as training does


def load(name: str):
    """A script as a module."""
    return importlib.import_module(name)


@pytest.fixture(params=SCRIPTS)
def script(request):
    """Each of the four scripts in turn, imported."""
    return load(request.param)


@pytest.fixture
def float64():
    """New tensors are float64, so that a comparison can be close."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def run_script(name: str, *flags, cwd=None, timeout=300, **env) -> subprocess.CompletedProcess:
    """Runs a script's command line as a user would and waits for its end."""
    command = [sys.executable, str(ROOT / f"{name}.py"), *map(str, flags)]
    environment = {**os.environ, **{key: str(value) for key, value in env.items()}}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=timeout, env=environment)


@pytest.fixture
def cli(monkeypatch, tmp_path, capsys):
    """Calls a script's main() as its command line would, in an empty directory; returns exit status, stdout, stderr."""
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    monkeypatch.chdir(cwd)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def call(m, *flags):
        monkeypatch.setattr(sys, "argv", [f"{m.__name__}.py", *map(str, flags)])
        capsys.readouterr()
        status = 0
        try:
            m.main()
        except SystemExit as exit:
            status = exit.code or 0
            if isinstance(status, str):  # what the interpreter makes of it
                print(status, file=sys.stderr)
                status = 1
        return status, *capsys.readouterr()

    yield call
    for number, handler in handlers.items():
        signal.signal(number, handler)


def files(folder=".") -> list[str]:
    """All that lies below a folder."""
    return sorted(os.path.join(path, name) for path, dirs, names in os.walk(folder) for name in dirs + names)


def lines(err: str) -> list[str]:
    """The lines of stderr, but for the warning that episodes are cut."""
    return [line for line in err.splitlines() if line.strip() and not line.startswith("warning: --num-steps")]


def saved(run) -> dict:
    """A run's checkpoint, and as "history" the iterations that it counts."""
    checkpoint = torch.load(Path(run) / "checkpoint.pt", weights_only=True)
    lines = (Path(run) / "history.jsonl").read_text().splitlines()
    return checkpoint | {"history": [json.loads(line) for line in lines[: checkpoint["iteration"]]]}


def read_checkpoint(run) -> dict:
    return torch.load(Path(run) / "checkpoint.pt", weights_only=True)


def read_history(run) -> list[dict]:
    return [json.loads(line) for line in (Path(run) / "history.jsonl").read_text().splitlines()]


def trained(run, drop=()) -> dict:
    """All that training left in a run's folder, but for speed, the arguments and the `drop`ped scalars."""
    checkpoint, dropped = read_checkpoint(run), ("charts/SPS", *drop)
    history = [{k: v for k, v in row.items() if not any(d in k for d in dropped)} for row in read_history(run)]
    return {"history": history, **{name: checkpoint[name] for name in ("iteration", "agent", "torch_rng")}}


def weights(run) -> dict:
    """The two networks a run ended with."""
    return {name: read_checkpoint(run)["agent"][name] for name in ("policy", "value")}


def assert_equal(a, b, path=""):
    """Nested dicts, lists and tensors, bit for bit; NaN equals NaN."""
    assert type(a) is type(b), path
    if isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            assert_equal(a[key], b[key], f"{path}/{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b)):
            assert_equal(x, y, f"{path}/{i}")
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b), path
    else:
        assert a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b)), f"{path}: {a} {b}"


OBS_DIM, ACTION_DIM = 3, 2
SPACES = (gym.spaces.Box(-np.inf, np.inf, (OBS_DIM,), np.float64), gym.spaces.Box(-1, 1, (ACTION_DIM,), np.float64))


def small_agent(m, seed=0, **changes):
    """Arguments and an agent on small networks, away from their initial values: biases and log_std are not zero."""
    torch.manual_seed(seed)
    args = m.Args(**{"hidden_sizes": (4, 5), **changes})
    agent = m.Agent(args, *SPACES)
    with torch.no_grad():
        for p in [*agent.policy.parameters(), *agent.value.parameters()]:
            p.add_(0.3 * torch.randn_like(p))
    return args, agent


def parameters(network) -> list[torch.Tensor]:
    return [p.detach().clone() for p in network.parameters()]


def same_bits(before: list[torch.Tensor], network) -> bool:
    return all(torch.equal(old, new) for old, new in zip(before, network.parameters()))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With -n, the tests of one file stay in one process: what they share is made once."""
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log)


# ---- the benchmark's runner on stub.py, in a copy of benchmark/

STUB_SUITES = """
FLAGS = {"script": "stub", "total_timesteps": 100, "num_envs": 1, "num_steps": 10, "heldout_every": 0, "delay": %s}
SUITES |= {
    "stub": {
        "report": "table",
        "seeds": (1, 2, 3),
        "cells": {"Stub-v0": {"ppo": FLAGS | {"kind": "ok"}, "trpo": FLAGS | {"kind": "ok"}}},
    },
    "crashing": {
        "report": "table",
        "seeds": (1, 2),
        "cells": {"Stub-v0": {"ppo": FLAGS | {"kind": "ok"}, "trpo": FLAGS | {"kind": "crash"}}},
    },
}
"""


def make_project(path: Path, delay=0.02) -> Path:
    """A folder with benchmark/, the stub and its suites `stub` and `crashing`."""
    (path / "benchmark").mkdir(parents=True)
    for file in (ROOT / "benchmark").glob("*.py"):
        shutil.copy(file, path / "benchmark")
    shutil.copy(ROOT / "tests" / "stub.py", path)
    with open(path / "benchmark" / "suites.py", "a") as file:
        file.write(STUB_SUITES % delay)
    return path


def start_runner(project: Path, *words, **options) -> subprocess.Popen:
    """Starts benchmark/run.py of a project."""
    command = [sys.executable, str(project / "benchmark" / "run.py"), *map(str, words)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": project} | options
    return subprocess.Popen(command, **options)


def call_runner(project: Path, *words, **options) -> tuple[int, str]:
    """Runs it to its end: exit status and all it printed."""
    process = start_runner(project, *words, **options)
    output, _ = process.communicate(timeout=1200)
    return process.returncode, output


def results(project: Path, suite="stub") -> dict[str, str]:
    """The CSVs of a suite, as text."""
    return {path.name: path.read_text() for path in (project / "benchmark/results" / suite).iterdir()}


def starts(project: Path) -> list[list[str]]:
    """Process id, run and finished iterations of every start of the stub."""
    return [line.split() for line in (project / "starts").read_text().splitlines()]
