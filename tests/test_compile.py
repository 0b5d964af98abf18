"""--compile: the same update to rounding, the same bits again, compiled once; one line where it cannot be done."""

import copy
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from conftest import (
    ROOT,
    SCRIPTS,
    assert_equal,
    files,
    load,
    parameters,
    read_history,
    run_script,
    small_agent,
    trained,
)
from test_learning import FLAGS, OWN_FLAGS

needs_compiler = pytest.mark.skipif(not (shutil.which("c++") or shutil.which("g++")), reason="no C++ compiler")
slow = [pytest.mark.slow, needs_compiler]
SIZES = ["--num-steps", "256", "--total-timesteps", "1536", "--num-minibatches", "4", "--no-progress"]


def updated(m, compile, calls=1):
    """An agent after `calls` updates of ten epochs on one batch, its rates annealed in between."""
    args, agent = small_agent(m, num_minibatches=4, compile=compile, hidden_sizes=(64, 64))
    obs, actions = torch.randn(128, 3), torch.randn(128, 2)
    log_probs = agent.policy(obs).log_prob(actions).detach()
    batch = m.Batch(obs, actions, log_probs, *torch.randn(3, 128))
    for call in range(calls):
        for group in agent.optimizer.param_groups:
            group["lr"] *= 1 - call / calls
        scalars = m.update(args, agent, batch)
    return [*parameters(agent.policy), *parameters(agent.value)], scalars


@pytest.mark.parametrize("name", [pytest.param(name, marks=slow) for name in SCRIPTS])
def test_one_update(name):
    """Ten epochs of four minibatches: to 1e-5 the eager ones in float32; bit for bit themselves the second time."""
    m = load(name)
    (eager, scalars), (once, compiled_scalars), (again, _) = (updated(m, compile) for compile in (False, True, True))
    for ours, theirs, repeated in zip(once, eager, again):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        assert torch.equal(ours, repeated)
    losses = [key for key in scalars if key.startswith("losses/")]
    assert {key: compiled_scalars[key] for key in losses} == pytest.approx({key: scalars[key] for key in losses}, 1e-3)
    with torch._dynamo.config.patch(error_on_recompile=True):  # other rates, the same code
        updated(m, True, calls=3)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_compiled_function_is_used(name, monkeypatch):
    """With the flag every minibatch goes through it, without none does."""
    m, calls = load(name), []
    monkeypatch.setattr(m, "compiled", lambda function: lambda *args: (calls.append(1), function(*args))[1])
    for compile, expected in ((False, 0), (True, 6)):
        args, agent = small_agent(m, num_minibatches=2, update_epochs=3, compile=compile)
        m.update(args, agent, m.Batch(torch.randn(8, 3), torch.randn(8, 2), *torch.randn(4, 8)))
        assert len(calls) == expected


@pytest.mark.slow
@needs_compiler
def test_a_run_from_the_command_line(tmp_path):
    """Killed and resumed it ends with the bits of one that was not; nothing of the compiler reaches the terminal; a
    resume without the flag is refused."""
    whole = run_script("ppo_continuous", *SIZES, "--compile", "--run-name", "whole", cwd=tmp_path)
    assert whole.returncode == 0
    assert [line for line in whole.stderr.splitlines() if not line.startswith("warning: --num-steps 256 cuts")] == []

    command = [sys.executable, str(ROOT / "ppo_continuous.py"), *SIZES, "--compile", "--run-name", "killed"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    history, deadline = tmp_path / "runs/killed/history.jsonl", time.monotonic() + 120
    while not history.exists() or history.read_text().count("\n") < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(read_history(tmp_path / "runs/killed")) < 6

    refused = run_script("ppo_continuous", "--resume", "runs/killed", "--no-compile", cwd=tmp_path)
    assert refused.returncode == 2 and "--compile cannot change when a run is resumed" in refused.stderr
    assert run_script("ppo_continuous", "--resume", "runs/killed", "--no-progress", cwd=tmp_path).returncode == 0
    assert_equal(trained(tmp_path / "runs/killed"), trained(tmp_path / "runs/whole"))


@pytest.mark.slow
def test_no_compiler(tmp_path):
    """One line with the flag and the reason, status 2, nothing written."""
    nowhere = {"CXX": "no-such-compiler", "PATH": "/nonexistent", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    (tmp_path / "cwd").mkdir()
    done = run_script("ppo_m", *SIZES, "--compile", cwd=tmp_path / "cwd", **nowhere)
    *_, line = done.stderr.splitlines()
    assert done.returncode == 2 and line.startswith("ppo_m.py: error: --compile: torch.compile fails here (")
    assert "compiler" in line and "Traceback" not in done.stderr and files(tmp_path / "cwd") == []


@pytest.mark.parametrize("error", [RuntimeError("\n\nno such thing\nmore"), AssertionError(), ImportError("no triton")])
def test_a_compilation_that_fails(error, cli, monkeypatch):
    """Whatever a torch that cannot do it raises."""
    m = load("trpo_continuous")

    def fails(*args):
        raise error

    monkeypatch.setattr(m, "compiled", lambda function: fails)
    status, out, err = cli(m, *SIZES, "--compile")
    assert status == 2 and err.splitlines()[-1].startswith("trpo_continuous.py: error: --compile: ")
    assert type(error).__name__ in err.splitlines()[-1] and "Traceback" not in err and not os.path.exists("runs")


def test_trying_the_compiler_changes_nothing(monkeypatch):
    """The batch of zeros moves neither the agent nor the generator."""
    m = load("ppo_continuous")
    monkeypatch.setattr(m, "compiled", lambda function: function)
    args, agent = small_agent(m, compile=True, num_steps=64, num_minibatches=4)
    before = copy.deepcopy([agent.parts()[name].state_dict() for name in agent.parts()]), torch.get_rng_state()
    m.try_compiler(args, agent)
    assert_equal([agent.parts()[name].state_dict() for name in agent.parts()], before[0])
    assert torch.equal(torch.get_rng_state(), before[1])


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", SCRIPTS)
def test_learns(name, tmp_path):
    """As tests/test_learning.py has it: InvertedPendulum-v5 from tens of steps to hundreds."""
    flags = [*FLAGS, *OWN_FLAGS[name], "--compile", "--run-name", name]
    assert run_script(name, *flags, cwd=tmp_path).returncode == 0
    returns = [row["charts/episodic_return"] for row in read_history(tmp_path / "runs" / name)]
    assert returns[0] < 30 and max(returns[-5:]) > 200
