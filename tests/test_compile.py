"""--compile: the same training to rounding, and bit for bit the same again."""

import shutil

import pytest
import torch
from conftest import SCRIPTS, assert_equal, load, read_history, small_agent, trained, weights

needs_compiler = pytest.mark.skipif(not (shutil.which("c++") or shutil.which("g++")), reason="no C++ compiler")
SIZES = {"num_steps": 256, "total_timesteps": 512, "num_minibatches": 8, "progress": False}


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", ["ppo_continuous", "trpo_plus"])
def test_compiled_training(name, tmp_path):
    m = load(name)
    eager, once, again = (
        m.train(m.Args(**SIZES, compile=compile, runs_dir=str(tmp_path), run_name=run)).run
        for run, compile in (("eager", False), ("once", True), ("again", True))
    )
    assert_equal(trained(again), trained(once))
    for ours, theirs in zip(read_history(once), read_history(eager)):
        drop = ("charts/SPS", "trust_region/cg_residual")
        expected = {name: value for name, value in theirs.items() if name not in drop}
        assert {name: ours[name] for name in expected} == pytest.approx(expected, rel=1e-2, abs=1e-4)
    for network, state in weights(eager).items():
        for key, value in state.items():
            torch.testing.assert_close(weights(once)[network][key], value, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_compiled_function_is_used(name, monkeypatch):
    """With the flag every minibatch goes through it, without none does."""
    m, calls = load(name), []
    monkeypatch.setattr(m, "compiled", lambda function: lambda *args: (calls.append(1), function(*args))[1])
    for compile, expected in ((False, 0), (True, 6)):
        args, agent = small_agent(m, num_minibatches=2, update_epochs=3, compile=compile)
        m.update(args, agent, m.Batch(torch.randn(8, 3), torch.randn(8, 2), *torch.randn(4, 8)))
        assert len(calls) == expected
