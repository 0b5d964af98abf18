"""A run of any length costs the same an iteration: nothing that grows with it is rewritten."""

import json
import os
import shutil
import time

import pytest
import torch
from conftest import load, read_checkpoint

SIZES = {"env_id": "envs:Toy-v0", "num_steps": 8, "num_minibatches": 1, "update_epochs": 1, "progress": False}


def go_on(m, monkeypatch, run, iterations):
    """Trains on; the least time that logging and saving an iteration took."""
    learn, seconds = m.learn, []

    def timed(*args):
        for iteration in learn(*args):
            start = time.perf_counter()
            yield iteration
            seconds.append(time.perf_counter() - start)

    with monkeypatch.context() as patch:
        patch.setattr(m, "learn", timed)
        patch.setattr(os, "fsync", lambda file: None)  # the disk's own time says nothing about what is written
        before = read_checkpoint(run)["iteration"]
        m.train(m.Args(resume=str(run), total_timesteps=8 * (before + iterations)))
    assert len(seconds) == iterations
    return min(seconds)


@pytest.mark.slow
def test_cost_of_an_iteration_does_not_grow(tmp_path, monkeypatch):
    """After 10 iterations and after 50,000, of a history that is made up; in turns, for the machine may be busy."""
    script = load("ppo_continuous")
    short = script.train(script.Args(**SIZES, total_timesteps=80, runs_dir=str(tmp_path), run_name="short")).run
    long = shutil.copytree(short, tmp_path / "long")
    checkpoint, row = read_checkpoint(long), json.loads((long / "history.jsonl").read_text().splitlines()[-1])
    with open(long / "history.jsonl", "w") as file:
        for iteration in range(1, 50_001):
            file.write(json.dumps({**row, "iteration": iteration, "global_step": 8 * iteration}) + "\n")
    checkpoint["args"] |= {"total_timesteps": 8 * 50_000, "run_name": "long"}
    torch.save({**checkpoint, "iteration": 50_000}, long / "checkpoint.pt")
    rounds = [[go_on(script, monkeypatch, run, 25) for run in (short, long)] for _ in range(3)]
    seconds = [min(times) for times in zip(*rounds)]
    sizes = [(run / "checkpoint.pt").stat().st_size for run in (short, long)]
    assert [read_checkpoint(run)["iteration"] for run in (short, long)] == [85, 50_075]
    said = f"{1000 * seconds[0]:.2f} ms, {sizes[0]} bytes; after 50,000 {1000 * seconds[1]:.2f} ms, {sizes[1]} bytes"
    print(said)
    assert seconds[1] < 1.5 * seconds[0] and sizes[1] < 1.5 * sizes[0], said
