"""Shared by all tests: the four scripts as modules, and their command lines in a subprocess."""

import importlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ("ppo_continuous", "ppo_m", "trpo_continuous", "trpo_plus")
PPO, TRPO = SCRIPTS[:2], SCRIPTS[2:]
FULL, MINIMAL = ("ppo_continuous", "trpo_plus"), ("ppo_m", "trpo_continuous")
sys.path.insert(0, str(ROOT))


@pytest.fixture(params=SCRIPTS)
def script(request):
    """Each of the four scripts in turn, imported."""
    return importlib.import_module(request.param)


def run_script(name: str, *flags, cwd=None, timeout=300, **env) -> subprocess.CompletedProcess:
    """Runs a script's command line as a user would and waits for its end."""
    command = [sys.executable, str(ROOT / f"{name}.py"), *map(str, flags)]
    environment = {**os.environ, **{key: str(value) for key, value in env.items()}}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=timeout, env=environment)


def saved(run) -> dict:
    """A run's checkpoint, and as "history" the iterations that it counts."""
    checkpoint = torch.load(Path(run) / "checkpoint.pt", weights_only=True)
    lines = (Path(run) / "history.jsonl").read_text().splitlines()
    return checkpoint | {"history": [json.loads(line) for line in lines[: checkpoint["iteration"]]]}


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


def trained(checkpoint, drop=()):
    """All that training left behind, but for speed, the arguments and the `drop`ped scalars."""
    history = [
        {name: value for name, value in row.items() if name != "charts/SPS" and not any(d in name for d in drop)}
        for row in checkpoint["history"]
    ]
    return {"agent": checkpoint["agent"], "torch_rng": checkpoint["torch_rng"], "history": history}


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


def files(folder="."):
    return sorted(os.path.join(path, name) for path, dirs, names in os.walk(folder) for name in dirs + names)


def lines(err):
    """The lines of stderr, but for the warning that episodes are cut."""
    return [line for line in err.splitlines() if line.strip() and not line.startswith("warning: --num-steps")]


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
