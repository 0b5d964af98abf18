"""Shared by all tests: the four scripts as modules, and their command lines in a subprocess."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
