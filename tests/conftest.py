"""Shared by all tests: the four scripts as modules, and their command lines in a subprocess."""

import importlib
import os
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
