"""benchmark/authors.py over a stand-in for the authors' checkout that asks of it what their code asks."""

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from conftest import ROOT

sys.path[:0] = [str(ROOT / "benchmark")]

import authors  # noqa: E402
import paper  # noqa: E402
import stats  # noqa: E402

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
        torch.optim.Adam(net.parameters())

    @staticmethod
    def agent_from_params(params, store=None):
        return Trainer(params, store)

    def train_step(self):
        print("Current mean reward")
        self.env.reset()
        total, done = 0.0, False
        while not done:
            noise = torch.randn(1).item()
            _, reward, done, info = self.env.step(scale(np.random.randn(3), self.params["rate"]))
            total += reward + noise
            info["done"] = done
        self.store.log_table_and_tb("optimization", {"mean_reward": total})
        self.store["optimization"].update_row({"mean_reward": total})
        self.store["optimization"].flush_row()
        return total
"""


@pytest.fixture
def clone(tmp_path):
    """A checkout laid out as theirs."""
    files = {
        "configs/hopper_ppom.py": CONFIG,
        "src/MuJoCo.json": '{"game": "Hopper-v2", "train_steps": 3}',
        "src/utils.py": "def times(value, n):\n    return [value] * n\n",
        "src/policy_gradients/agent.py": AGENT,
        "src/policy_gradients/steps.py": "def scale(x, rate):\n    return rate * x\n",
    }
    for name, text in files.items():
        path = tmp_path / "clone" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "clone"


def run(clone, config, seed, csv):
    command = [sys.executable, ROOT / "benchmark/authors.py", clone, config, "--seed", str(seed), "--csv", csv]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def expected(seed):
    """The same rollouts, by hand."""
    import torch

    np.random.seed(seed)
    torch.manual_seed(seed)
    env, returns = gym.make("Hopper-v5"), []
    env.reset(seed=seed)
    torch.nn.Linear(11, 3)
    for _ in range(3):
        env.reset()
        total, done = 0.0, False
        while not done:
            noise = torch.randn(1).item()
            _, reward, terminated, truncated, _ = env.step(0.5 * np.random.randn(3))
            total, done = total + reward + noise, terminated or truncated
        returns.append(total)
    return returns


def test_their_code_runs_and_its_returns_are_appended(clone, tmp_path):
    csv = tmp_path / "new.csv"
    before = {path: path.read_bytes() for path in clone.rglob("*") if path.is_file()}
    for seed in (4, 5):
        done = run(clone, "hopper_ppom", seed, csv)
        assert done.returncode == 0, done.stderr
        assert done.stdout == ""
    lines = csv.read_text().splitlines()
    assert lines[0] == "env_id,variant,seed,iteration,mean_episode_return"
    assert lines[1:] == [
        f"Hopper-v5,ppo_m,{seed},{i},{value:.1f}" for seed in (4, 5) for i, value in enumerate(expected(seed))
    ]
    assert before == {path: path.read_bytes() for path in clone.rglob("*") if path.is_file()}  # nothing left there

    done = run(clone, "hopper_ppom", 5, csv)
    assert done.returncode == 2 and "--seed 5 of ppo_m on Hopper-v5 is in" in done.stderr
    assert csv.read_text().splitlines() == lines


@pytest.mark.parametrize("config", ["hopper_ppo", "hopper_dqn", "ppom"])
def test_an_unknown_configuration_is_one_clear_line(clone, tmp_path, config, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["authors.py", str(clone), config, "--seed", "1", "--csv", str(tmp_path / "new")])
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
    path = tmp_path / "a.csv"
    rows = ["# a comment", ",".join(paper.COLUMNS), "Hopper-v5,ppo,2,0,-1", "Hopper-v5,ppo,2,1,7.5"]
    path.write_text("\n".join([*rows, "Hopper-v5,trpo,1,0,3"]))
    ((seed, history),) = paper.authors("Hopper-v5", "ppo", path)
    assert seed == 2 and history["global_step"].tolist() == [2048, 4096]
    assert np.isnan(history[stats.RETURN][0]) and history[stats.RETURN][1] == 7.5  # -1: no episode ended
    assert stats.scores(history) == {"best": 7.5, "last": 7.5}
    assert paper.authors("Walker2d-v5", "ppo", path) == paper.authors("Hopper-v5", "ppo", tmp_path / "b.csv") == []


def test_the_committed_runs_of_their_code_are_whole():
    for env_id in paper.PAPER:
        for variant in authors.VARIANTS.values():
            found = paper.authors(env_id, variant)
            assert found and all(len(history) == 488 and history[stats.RETURN].max() > 300 for _, history in found)
            assert len({seed for seed, _ in found}) == len(found)
