"""benchmark/authors.py over a stand-in for the authors' checkout that asks of it what their code asks."""

import signal
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROOT

sys.path[:0] = [str(ROOT / "benchmark")]

import authors  # noqa: E402
import paper  # noqa: E402
import stats  # noqa: E402

pytestmark = pytest.mark.slow

CONFIG = """
import json, os
from utils import times
with open("../src/MuJoCo.json") as f:
    base = json.load(f)
os.makedirs("agent_configs/")
for i, rate in enumerate(times(0.5, 40)):
    with open(f"agent_configs/{i}.json", "w") as f:
        json.dump({**base, "game": "Hopper-v2", "rate": rate}, f)
"""
AGENT = """
import time
from types import SimpleNamespace
import dill, gym, numpy as np, torch
from gym.spaces.box import Box
from gym.spaces.discrete import Discrete
from sklearn.metrics import pairwise_distances
from sklearn.metrics.pairwise import cosine_similarity
from .steps import scale

class Trainer:
    def __init__(self, params, store):
        self.env, self.params, self.store = gym.make(params["game"]), params, store
        assert type(self.env.action_space) == Box and type(self.env.action_space) != Discrete
        self.store.add_table("optimization", {"mean_reward": float})
        net = torch.nn.Linear(self.env.reset().shape[0], self.env.action_space.shape[0])
        self.log_std = torch.nn.Parameter(torch.zeros(3))
        self.policy_model = lambda obs: (net(obs), torch.exp(self.log_std))
        optimizer = torch.optim.Adam([*net.parameters(), self.log_std])
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda=lambda i: 1 - i / params["train_steps"])

    @staticmethod
    def agent_from_params(params, store=None):
        return Trainer(params, store)

    def take_steps(self, saps, logging=True):
        with torch.no_grad():
            self.log_std += 0.1 * self.scheduler.get_last_lr()[0] / 0.001  # 0.1, less every iteration
        self.scheduler.optimizer.step()
        self.scheduler.step()
        if self.params["advanced_logging"]:
            self.env.reset()

    def train_step(self):
        print("Current mean reward")
        state, states = self.env.reset(), []
        total, done = 0.0, False
        while not done:
            noise = torch.randn(1).item()
            states.append(state)
            state, reward, done, info = self.env.step(scale(np.random.randn(3), self.params["rate"]))
            total += reward + noise
            info["done"] = done
        n = len(states)
        saps = SimpleNamespace(states=torch.tensor(np.array(states)).float())
        saps.values, saps.advantages = torch.arange(n).float(), torch.arange(n).float() / 2
        self.take_steps(saps)
        self.store.log_table_and_tb("optimization", {"mean_reward": total})
        self.store["optimization"].update_row({"mean_reward": total})
        self.store["optimization"].flush_row()
        time.sleep(self.params["pause"])
        return total
"""


@pytest.fixture
def clone(tmp_path):
    """A checkout laid out as theirs."""
    files = {
        "configs/hopper_ppom.py": CONFIG,
        "src/MuJoCo.json": '{"game": "Hopper-v2", "train_steps": 3, "advanced_logging": true, "pause": 0}',
        "src/utils.py": "def times(value, n):\n    return [value] * n\n",
        "src/policy_gradients/agent.py": AGENT,
        "src/policy_gradients/steps.py": "def scale(x, rate):\n    return rate * x\n",
    }
    for name, text in files.items():
        path = tmp_path / "clone" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "clone"


def command(clone, config, seed, results, *flags):
    words = [sys.executable, ROOT / "benchmark/authors.py", clone, config, "--seed", seed, "--results", results, *flags]
    return [str(word) for word in words]


def run(*words):
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=120)


def expected(seed, iterations=3, heldout=True):
    """The same rollouts, by hand."""
    np.random.seed(seed)
    torch.manual_seed(seed)
    env, rows = gym.make("Hopper-v5"), []
    env.reset(seed=seed)
    torch.nn.Linear(11, 3)
    log_std = 0
    for i in range(iterations):
        env.reset()
        total, done = 0.0, False
        while not done:
            noise = torch.randn(1).item()
            _, reward, terminated, truncated, _ = env.step(0.5 * np.random.randn(3))
            total, done = total + reward + noise, terminated or truncated
        if heldout:
            env.reset()
        step = 0.1 * (1 - i / iterations)
        log_std += step
        kl = 3 * (step + np.exp(-2 * step) / 2 - 0.5)
        rows.append((i, total, kl, 3 * (log_std + 0.5 * np.log(2 * np.pi * np.e)), 1 - 1 / 9))  # var(A) / var(3 A)
    return rows


def rows(path):
    lines = path.read_text().splitlines()
    assert lines[0].startswith("# MadryLab/implementation-matters, configs/hopper_ppom.py on Hopper-v5, seed ")
    assert "torch 2" in lines[0] and lines[1] == "iteration,mean_episode_return,mean_kl,entropy,explained_variance"
    return [tuple(map(float, line.split(","))) for line in lines[2:]]


def same(found, wanted):
    assert [row[0] for row in found] == [row[0] for row in wanted]
    for here, there in zip(found, wanted):
        assert here[1] == pytest.approx(there[1], abs=0.06) and here[2:] == pytest.approx(there[2:], rel=1e-3)


def test_their_code_runs_and_every_run_has_its_csv(clone, tmp_path):
    before = {path: path.read_bytes() for path in clone.rglob("*") if path.is_file()}
    results = tmp_path / "results"
    results.mkdir()
    for seed, *flags in ((4,), (5, "--no-heldout")):
        done = run(clone, "hopper_ppom", seed, results, *flags)
        assert done.returncode == 0, done.stderr
        assert done.stdout == ""
    same(rows(results / "authors/Hopper-v5__ppo_m__4.csv"), expected(4))
    same(rows(results / "authors/Hopper-v5__ppo_m__5_no_heldout.csv"), expected(5, heldout=False))
    assert before == {path: path.read_bytes() for path in clone.rglob("*") if path.is_file()}  # nothing left there
    assert not any((tmp_path / "runs/authors").iterdir())

    done = run(clone, "hopper_ppom", 5, results, "--no-heldout")
    assert done.returncode == 2 and "--seed 5 of ppo_m on Hopper-v5 is in" in done.stderr
    found = paper.authors("Hopper-v5", "ppo_m", results)
    assert [(run.seed, run.heldout, len(run.history)) for run in found] == [(4, True, 3), (5, False, 3)]


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_an_interrupted_run_keeps_its_rows_and_goes_on_exactly(clone, tmp_path, number, status):
    settings = clone / "src/MuJoCo.json"
    settings.write_text(settings.read_text().replace("3", "8").replace('"pause": 0', '"pause": 0.3'))
    (results := tmp_path / "results").mkdir()
    path = tmp_path / "runs/authors/Hopper-v5__ppo_m__4.csv"
    process = subprocess.Popen(command(clone, "hopper_ppom", 4, results), stderr=subprocess.PIPE, text=True)
    deadline = time.time() + 60
    while not (path.exists() and len(path.read_text().splitlines()) >= 5) and time.time() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == status and ("the same command goes on" in error) == (number == signal.SIGINT)
    kept = path.read_text()
    assert not (results / "authors").exists() and 5 <= len(kept.splitlines()) < 10
    with open(path, "a") as file:  # rows that the trainer's copy does not know of are made again, half a one included
        file.write("6,1,2,3,4\n7,99")
    settings.write_text(settings.read_text().replace('"pause": 0.3', '"pause": 0'))
    done = run(clone, "hopper_ppom", 4, results)
    assert done.returncode == 0, done.stderr
    same(rows(results / "authors/Hopper-v5__ppo_m__4.csv"), expected(4, 8))
    assert (results / "authors/Hopper-v5__ppo_m__4.csv").read_text().startswith(kept)


@pytest.mark.parametrize("config", ["hopper_ppo", "hopper_dqn", "ppom"])
def test_an_unknown_configuration_is_one_clear_line(clone, tmp_path, config, monkeypatch, capsys):
    results = str(tmp_path / "new")
    monkeypatch.setattr(sys, "argv", ["authors.py", str(clone), config, "--seed", "1", "--results", results])
    with pytest.raises(SystemExit) as stop:
        authors.main()
    assert stop.value.code == 2 and f"error: there is no configuration {config} in" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_time_limit_is_done():
    env = authors.OldEnv(gym.make("Pendulum-v1", max_episode_steps=3), 7)
    first, second = env.reset(), env.reset()
    assert (first == gym.make("Pendulum-v1").reset(seed=7)[0]).all() and (first != second).any()
    assert [env.step(np.zeros(1, np.float32))[2] for _ in range(3)] == [False, False, True]


def test_histories_of_their_code(tmp_path):
    head = "env_id,variant,seed,iteration,mean_episode_return"
    lines = ["# a comment", head, "Hopper-v5,ppo,2,0,-1", "Hopper-v5,ppo,2,1,7.5", "Hopper-v5,trpo,1,0,3"]
    (tmp_path / "authors_on_v5.csv").write_text("\n".join(lines))
    (tmp_path / "authors").mkdir()
    for name, text in (
        ("Hopper-v5__ppo__3", "# one\niteration,mean_episode_return,entropy,reward_std\n0,5,1.5,2\n"),
        ("Hopper-v5__ppo__1_no_heldout", "iteration,mean_episode_return\n0,-1\n"),
        ("Hopper-v5__ppo_m__1", "iteration,mean_episode_return\n0,6\n"),
    ):
        (tmp_path / f"authors/{name}.csv").write_text(text)
    found = paper.authors("Hopper-v5", "ppo", tmp_path)
    assert [run[:2] for run in found] == [(2, True), (3, True), (1, False)]
    first, second, third = (run.history for run in found)
    assert first["global_step"].tolist() == [2048, 4096]
    assert np.isnan(first[stats.RETURN][0]) and first[stats.RETURN][1] == 7.5  # -1: no episode ended
    assert stats.scores(first) == {"best": 7.5, "last": 7.5, "last50": 7.5, "all": 7.5}
    assert second.to_dict("list") == {"global_step": [2048], stats.RETURN: [5], "losses/entropy": [1.5]}
    assert np.isnan(third[stats.RETURN][0])
    assert paper.authors("Walker2d-v5", "ppo", tmp_path) == paper.authors("Hopper-v5", "ppo", tmp_path / "x") == []


def test_the_committed_runs_of_their_code_are_whole():
    for env_id in paper.PAPER:
        for variant in authors.VARIANTS.values():
            found = paper.authors(env_id, variant)
            assert found and all(len(run.history) == 488 and run.history[stats.RETURN].max() > 300 for run in found)
            assert len({run[:2] for run in found}) == len(found)
    found = paper.authors("Humanoid-v5", "ppo")
    assert [run[:2] for run in found] == [(1, True), (2, True), (3, True), (2, False), (3, False), (4, False)]
    assert found[-1].history["losses/entropy"].iloc[-1] == pytest.approx(13.05, abs=0.01)
