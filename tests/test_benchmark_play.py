"""benchmark/play.py: trained agents of a suite play with mean and with sampled actions; the report's table of it."""

import contextlib
import importlib
import io
import json
import sys

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmark"))

import comparisons  # noqa: E402
import play  # noqa: E402
import records  # noqa: E402
import stats  # noqa: E402
import suites  # noqa: E402

pytestmark = pytest.mark.slow

TINY = {"total_timesteps": 256, "num_envs": 1, "num_steps": 128, "num_minibatches": 2, "update_epochs": 1}
ROWS = {"ppo": {"script": "ppo_continuous", **TINY}, "ppo_m": {"script": "ppo_m", **TINY}}


def train(run: suites.Run, **changed) -> None:
    """Trains as run.py would, into the run's folder."""
    script, folder = importlib.import_module(run.script), records.folder(run)
    where = {"runs_dir": str(folder.parent), "run_name": folder.name, "progress": False}
    args = script.Args(env_id=run.env_id, seed=run.seed, **{**run.flags, **where, **changed})
    with contextlib.redirect_stdout(io.StringIO()):
        script.train(args)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty project with the scripts, and a suite of two variants."""
    for name in ("ppo_continuous.py", "ppo_m.py"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    monkeypatch.setattr(records, "ROOT", tmp_path)
    monkeypatch.setitem(suites.SUITES, "two", {"seeds": (1, 2), "cells": {"InvertedPendulum-v5": ROWS}})
    return tmp_path


def run_play(monkeypatch, *words) -> int:
    monkeypatch.setattr(sys, "argv", ["play.py", *map(str, words)])
    return play.main()


def test_agents_play_as_evaluate_does(project, monkeypatch, capsys):
    """What is written is what --evaluate gives, for the finished runs; the others are named."""
    *whole, short = suites.select("two")
    for run in whole:
        train(run)
    train(short, total_timesteps=128)  # half of its steps
    assert run_play(monkeypatch, "two", "--episodes", 3) == 0
    said = capsys.readouterr()
    assert f"{short.name}: no finished run" in said.err and said.err.count("left out") == 1
    assert said.out == "benchmark/results/two_played.csv: 3 agents\n"
    path = project / "benchmark/results/two_played.csv"
    rows = pd.read_csv(path, comment="#")
    assert list(rows.columns) == list(play.COLUMNS) and len(rows) == 3 * 2 * 3
    for run in whole:
        script = importlib.import_module(run.script)
        for kind in play.KINDS:
            mine = rows[(rows.variant == run.variant) & (rows.seed == run.seed) & (rows.actions == kind)]
            expected = script.evaluate(records.folder(run), episodes=3, stochastic=kind == "sampled")
            np.testing.assert_allclose(mine["return"], expected, rtol=1e-5)
            assert list(mine.episode) == [1, 2, 3]
    header = json.loads("\n".join(line[2:] for line in path.read_text().splitlines() if line.startswith("#")))
    assert header["command"] == "python benchmark/play.py two --episodes 3"
    hashes = {run.script: records.hashes(run)["algorithm_sha256"] for run in whole}
    assert header["algorithms"] == hashes and {"torch", "mujoco"} < set(header["versions"])
    assert run_play(monkeypatch, "two", "--variants", "ppo", "--seeds", 2, "--episodes", 1) == 0  # anew
    assert set(pd.read_csv(path, comment="#").seed) == {2}


def test_what_cannot_be_played_is_one_line(project, monkeypatch, capsys):
    assert run_play(monkeypatch, "two") == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("play.py: error: nothing to play; python benchmark/run")
    (run, *_) = suites.select("two")
    train(run)
    for words, message in (
        (("three",), "unknown suite three"),
        (("two", "--variants", "trpo"), "unknown variant trpo"),
        (("two", "--seeds", "x"), "--seeds: x is neither"),
        (("two", "--episodes", 0), "--episodes takes"),
    ):
        assert run_play(monkeypatch, *words) == 2
        assert message in capsys.readouterr().err.splitlines()[-1]
    (project / "ppo_continuous.py").write_text("Args = None\n")
    play.sys.modules.pop(str(project / "ppo_continuous.py"))
    assert run_play(monkeypatch, "two") == 2
    assert "has no function evaluate" in capsys.readouterr().err
    assert not (project / "benchmark/results").exists()


def test_the_reports_table_by_hand(tmp_path):
    """Two tasks; an agent counts once, however many episodes it played; p of the pairs that are there, together."""
    rng, rows = np.random.default_rng(0), []
    level = {("A-v1", "ppo"): 500, ("A-v1", "trpo"): 300, ("A-v1", "trpo_plus"): 480, ("B-v1", "ppo_m"): 100}
    for (env_id, variant), value in level.items():
        for seed in range(1, 7):
            for kind, less in (("mean", 0), ("sampled", 50)):
                for episode in range(1, 4):
                    noise = rng.normal(0, 9)
                    rows.append((env_id, variant, seed, kind, episode, value - less + 10 * seed + noise))
    path = tmp_path / "mine_played.csv"
    frame = pd.DataFrame(rows, columns=play.COLUMNS)
    path.write_text("# {}\n" + frame.to_csv(index=False))
    text = comparisons.played(path)
    mean = {
        (v, kind): frame[(frame.variant == v) & (frame.actions == kind)].groupby("seed")["return"].mean().to_numpy()
        for v in ("ppo", "trpo", "trpo_plus", "ppo_m")
        for kind in play.KINDS
    }
    x, y = mean["ppo", "mean"], mean["ppo", "sampled"]
    assert f"| A-v1 | PPO | 6 | {stats.mean(x)} | {stats.mean(y)} | {stats.mean(x - y)} |" in text
    assert "| B-v1 | PPO-M | 6 |" in text and text.count("| B-v1") == 1
    pairs = ("ppo", "trpo"), ("ppo", "trpo_plus"), ("trpo_plus", "trpo")
    found = [stats.difference(mean[a, "mean"], mean[b, "mean"]) for a, b in pairs]
    assert "p, of 3" in text and text.count("| A-v1") == 6
    for estimate, p in zip(found, stats.holm(np.array([estimate.p for estimate in found]))):
        assert f"| {estimate} | {comparisons.p_text(p)} |" in text
    assert comparisons.played(tmp_path / "other_played.csv") == ""
