"""benchmark/run.py: against a stub of a training script, in a copy of the folder, and against the real four."""

import dataclasses
import errno
import fcntl
import importlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from math import inf
from pathlib import Path

import pytest
import tyro

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ("ppo_continuous", "ppo_m", "trpo_continuous", "trpo_plus")
sys.path[:0] = [str(ROOT), str(ROOT / "benchmark")]

import records  # noqa: E402
import run as runner  # noqa: E402
import suites  # noqa: E402

# A training script in miniature: same folder, checkpoint, flags and exit statuses, with numbers that depend on the seed
# and the iteration alone. It writes what PyTorch can load without importing PyTorch, says when it starts, complains if
# it is not alone on its run, and crashes while there is a file `broken`. TORCH stands in for PyTorch in the runner, to
# save the seconds of its import; the smoke suite is run with the real one.
STUB = """
import fcntl, hashlib, json, os, pickle, signal, sys, time, zipfile
from pathlib import Path

def stop(number, frame):
    raise KeyboardInterrupt(number)

signal.signal(signal.SIGTERM, stop)
words = [word for word in sys.argv[1:] if word != "--no-progress"]
flags = {k[2:].replace("-", "_"): v for k, v in zip(words[::2], words[1::2])}
if Path("broken").exists():
    print("first line\\nall is broken")
    sys.exit(2)
if "resume" in flags:
    run = Path(flags["resume"])
    with zipfile.ZipFile(run / "checkpoint.pt") as file:
        saved = pickle.loads(file.read("checkpoint/data.pkl"))
    args, history = saved["args"], saved["history"]
else:
    run = Path(flags.pop("runs_dir"), flags.pop("run_name"))
    args = {k: v if k in ("env_id", "kind") else float(v) if k == "delay" else int(v) for k, v in flags.items()}
    history = []
    if run.exists():
        sys.exit(2)
    run.mkdir(parents=True)
    sha256 = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    (run / "args.json").write_text(json.dumps({"script": "stub", "sha256": sha256, "versions": {"stub": "1"}}))
guard = open(str(run) + ".guard", "w")
with open("starts", "a") as file:
    file.write(f"{os.getpid()} {run.name} {len(history)}\\n")
try:
    fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    Path("two_at_once").write_text(run.name)

def save():
    with zipfile.ZipFile(run / "checkpoint.tmp", "w") as file:
        file.writestr("checkpoint/data.pkl", pickle.dumps({"script": "stub", "args": args, "history": history}, 2))
        file.writestr("checkpoint/version", "3\\n")
    os.replace(run / "checkpoint.tmp", run / "checkpoint.pt")

try:
    save()
    for i in range(len(history) + 1, args["total_timesteps"] // args["num_steps"] + 1):
        time.sleep(args["delay"])
        if args["kind"] == "crash" and i == 3:
            raise SystemExit("stub.py: error: iteration 3: loss is not finite")
        row = {"iteration": i, "global_step": i * args["num_steps"], "trust_region/mean_kl": 1 / (i + args["seed"])}
        row |= {"trust_region/max_ratio": 1.5, "charts/SPS": 100.0}
        if i % 2 == 0:
            row["charts/episodic_return"] = float(i * args["seed"])
        history.append(row)
        save()
except KeyboardInterrupt as error:
    sys.exit(128 + error.args[0])
"""
TORCH = """
import pickle, zipfile

def load(path, weights_only):
    with zipfile.ZipFile(path) as file:
        return pickle.loads(file.read("checkpoint/data.pkl"))
"""
STUB_SUITE = """
FLAGS = {"script": "stub", "total_timesteps": 100, "num_envs": 1, "num_steps": 10, "heldout_every": 0, "delay": %s}
SUITES = {
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


@pytest.fixture
def project(tmp_path):
    """A folder with benchmark/, the stub and its suites."""
    return make_project(tmp_path)


def make_project(path: Path, delay=0.02) -> Path:
    path.mkdir(exist_ok=True)
    (path / "benchmark").mkdir()
    for file in (ROOT / "benchmark").glob("*.py"):
        shutil.copy(file, path / "benchmark")
    (path / "stub.py").write_text(STUB)
    (path / "benchmark" / "torch.py").write_text(TORCH)
    with open(path / "benchmark" / "suites.py", "a") as file:
        file.write(STUB_SUITE % delay)
    return path


def start(project: Path, *words) -> subprocess.Popen:
    command = [sys.executable, str(project / "benchmark" / "run.py"), *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=project)


def call(project: Path, *words) -> tuple[int, str]:
    """Runs the runner to its end: exit status and all it printed."""
    process = start(project, *words)
    output, _ = process.communicate(timeout=1200)
    return process.returncode, output


def results(project: Path, suite="stub") -> dict[str, str]:
    return {path.name: path.read_text() for path in (project / "benchmark/results" / suite).iterdir()}


def starts(project: Path) -> list[list[str]]:
    return [line.split() for line in (project / "starts").read_text().splitlines()]


def wait_for(condition, process: subprocess.Popen, seconds=600) -> None:
    """Waits until something holds while a runner works on it."""
    deadline = time.time() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.time() < deadline, "waited in vain"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, str]:
    """The CSVs of the stub suite when nothing happens to it."""
    project = make_project(tmp_path_factory.mktemp("undisturbed") / "p")
    assert call(project, "stub", "--workers", 3)[0] == 0
    return results(project)


# ---- suites


def test_every_training_flag_of_every_run_is_explicit_and_read_back_by_its_script():
    not_training = {"env_id", "seed", "runs_dir", "run_name", "resume", "evaluate", "episodes", "stochastic", "video"}
    parsed = set()
    for suite in suites.SUITES:
        for run in suites.select(suite, seeds=[7]):
            module = importlib.import_module(run.script)
            fields = {field.name for field in dataclasses.fields(module.Args)} - not_training - {"progress"}
            assert set(run.flags) == fields, run.name
            if suite != "figure1" or (run.script, suite) not in parsed:  # parsing 128 variants would take too long
                parsed.add((run.script, suite))
                args = tyro.cli(module.Args, args=records.command(run)[2:])
                assert (args.env_id, args.seed) == (run.env_id, 7)
                assert {name: getattr(args, name) for name in run.flags} == run.flags


# The released configurations, as the paper's reproduction notes tabulate them
TABLE = """
| Hopper | PPO | 3e-4 | 2.5e-4 | | returns | orthogonal | yes | no | 10 | 10 | - | 0.95 | 0 |
| Hopper | PPO-M | 1.7e-4 | 4e-4 | | none | xavier | no | no | - | - | - | 0.95 | 0 |
| Hopper | PPO-NoClip | 6e-5 | 4e-4 | | rewards | orthogonal | yes | no | 2.5 | 10 | 4 | 0.925 | -0.005 |
| Hopper | TRPO | | 2e-4 | 0.13 -> 0.13 | none | xavier | | no | - | - | - | 0.95 | 0 |
| Hopper | TRPO+ | | 2e-4 | 0.04 -> 0.07 | returns | orthogonal | | no | 10 | 10 | (1) | 0.95 | 0 |
| Walker2d | PPO | 4e-4 | 3e-4 | | returns | orthogonal | yes | yes | 10 | 10 | - | 0.95 | 0 |
| Walker2d | PPO-M | 1e-4 | 2e-4 | | none | xavier | no | no | - | - | - | 0.95 | 0 |
| Walker2d | PPO-NoClip | 7.25e-5 | 6e-4 | | rewards | orthogonal | yes | no | 30 | - | 0.1 | 0.85 | -0.01 |
| Walker2d | TRPO | | 3e-4 | 0.04 -> 0.04 | none | xavier | | no | - | - | - | 0.95 | 0 |
| Walker2d | TRPO+ | | 1e-4 | 0.07 -> 0.04 | returns | orthogonal | | no | 10 | 10 | (1) | 0.95 | 0 |
| Humanoid | PPO | 1.5e-4 | 1e-4 | | returns | orthogonal | yes | yes | 10 | 10 | - | 0.95 | 0 |
| Humanoid | PPO-M | 9e-5 | 4e-4 | | none | xavier | no | no | - | - | - | 0.95 | 0 |
| Humanoid | PPO-NoClip | 2e-5 | 5e-5 | | returns | xavier | no | yes | 10 | 10 | 0.5 | 0.85 | 0.005 |
| Humanoid | TRPO | | 3e-4 | 0.07 -> 0.07 | none | xavier | | no | - | - | - | 0.95 | 0 |
| Humanoid | TRPO+ | | 5e-5 | 0.1 -> 0.05 | returns | xavier | | yes | 10 | 10 | (0.5) | 0.85 | 0 |
"""


@pytest.mark.parametrize("line", TABLE.strip().splitlines())
def test_table2_has_the_released_hyperparameters(line):
    task, name, lr, value_lr, kl, scaling, init, anneal, v_clip, r_clip, o_clip, g_clip, lam, entropy = (
        cell.strip() for cell in line.strip("|").split("|")
    )
    (variant,) = [key for key, label in suites.LABELS.items() if label == name]
    (run,) = suites.select("table2", [f"{task}-v5"], [variant], [1])
    bound = lambda cell: float(cell) if cell[0] not in "-(" else inf  # noqa: E731
    assert run.flags["value_lr"] == float(value_lr) and run.flags["gae_lambda"] == float(lam)
    assert run.flags["total_timesteps"] == 488 * 2048 and run.flags["heldout_every"] == 5
    if name.startswith("PPO"):
        assert run.flags["policy_lr"] == float(lr) and run.flags["ent_coef"] == float(entropy)
        assert run.flags["clip_coef"] == (inf if name == "PPO-NoClip" else 0.2)
    else:
        assert run.flags["max_kl"] == float(kl.split()[0])
    minimal = name in ("PPO-M", "TRPO")
    assert run.script == {"PPO-M": "ppo_m", "TRPO": "trpo_continuous", "TRPO+": "trpo_plus"}.get(name, "ppo_continuous")
    if not minimal:
        assert run.flags["reward_scaling"] == scaling and run.flags["init"] == init
        assert run.flags["anneal_lr"] == (anneal == "yes")
        assert run.flags["vf_clip_coef"] == (0.2 if v_clip == "yes" else inf)
        names = ("clip_reward", "clip_obs", "max_grad_norm")
        assert [run.flags[flag] for flag in names] == [bound(cell) for cell in (r_clip, o_clip, g_clip)]
        assert run.flags.get("max_kl_final") is None


def test_sizes_of_the_suites():
    assert len(suites.select("table2", seeds=range(80))) == 1200
    assert len(suites.select("figure1")) == 640
    assert len(suites.select("leave_one_out")) == 3 * 10 * 3
    for run in suites.select("figure1"):  # as released, rewards are clipped inside the scaling
        assert (run.flags["reward_scaling"] == "none") == (run.flags["clip_reward"] == inf)
    for env_id in suites.PAPER_ROWS:
        all_on, *without = suites.select("leave_one_out", [env_id], seeds=[1])
        changed = [[name for name in run.flags if run.flags[name] != all_on.flags[name]] for run in without]
        assert sorted(sum(changed, [])) == sorted(
            ["vf_clip_coef", "reward_scaling", "init", "anneal_lr", "clip_reward"]
            + ["norm_obs", "clip_obs", "activation", "max_grad_norm"]
        )


def test_dry_run_prints_one_pasteable_command_a_line(project):
    status, output = call(project, "stub", "--dry-run", "--seeds", "2-3", "--variants", "trpo")
    assert status == 0 and len(output.splitlines()) == 2
    subprocess.run(output.splitlines()[0].replace("python", sys.executable, 1), shell=True, cwd=project, check=True)
    assert call(project, "stub", "--seeds", 2, "--variants", "trpo")[0] == 0  # what was pasted counts
    assert [line[1:] for line in starts(project)] == [["Stub-v0__trpo__2", "0"]]


@pytest.mark.parametrize(
    "words, message",
    [
        (["tabel2"], "unknown suite tabel2; there are stub, crashing"),
        (["stub", "--variants", "ppp"], "unknown variant ppp; there are ppo, trpo"),
        (["stub", "--envs", "Stub-v1"], "unknown environment Stub-v1; there are Stub-v0"),
        (["stub", "--seeds", "one"], "--seeds: one is neither a seed nor a range such as 1-3"),
        (["stub", "--seeds", "3-1"], "--seeds names no seed"),
        (["stub", "--timesteps", "5"], "--timesteps must be at least one iteration, 10"),
        (["stub", "--workers", "0"], "--workers must be at least 1"),
        pytest.param(
            ["stub", "--engine", "slurm"],
            "--engine slurm: there is no sbatch on this machine",
            marks=pytest.mark.skipif(shutil.which("sbatch") is not None, reason="there is a Slurm"),
        ),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(project, words, message):
    assert call(project, *words) == (2, f"run.py: error: {message}\n")
    assert not (project / "benchmark/runs").exists() and not (project / "benchmark/results").exists()


# ---- the local engine


def test_runs_all_then_nothing(project, undisturbed):
    status, output = call(project, "stub", "--workers", 3)
    assert status == 0 and "6 of 6 runs done" in output
    assert len(starts(project)) == 6
    assert results(project) == undisturbed
    status, output = call(project, "stub")
    assert (status, output) == (0, "6 of 6 runs done\n") and len(starts(project)) == 6
    assert call(project, "stub", "--status") == (0, "6 runs: 6 done\n")
    assert call(project, "stub", "--timesteps", 20, "--seeds", 1)[0] == 0  # goes to a folder of its own
    assert sorted(results(project, "stub-20")) == ["Stub-v0__ppo__1.csv", "Stub-v0__trpo__1.csv"]
    assert results(project) == undisturbed


def test_csv_tells_where_it_comes_from(undisturbed):
    text = undisturbed["Stub-v0__trpo__3.csv"]
    lines = text.splitlines()
    header = json.loads("".join(line[2:] for line in lines if line.startswith("#")))
    assert header["command"].startswith("python stub.py --env-id Stub-v0 --seed 3 --total-timesteps 100 ")
    assert header["suite"] == "stub" and header["variant"] == "trpo" and header["seed"] == 3
    assert header["iterations"] == 10 and header["wall_seconds"] == 1.0 and header["cpu"]
    assert re.fullmatch("[0-9a-f]{64}", header["sha256"]) and header["versions"]["stub"] == "1"
    rows = [line for line in lines if not line.startswith("#")]
    assert rows[0] == (
        "iteration,global_step,trust_region/mean_kl,trust_region/max_ratio,charts/SPS,charts/episodic_return"
    )
    assert rows[1:3] == ["1,10,0.25,1.5,100,", "2,20,0.2,1.5,100,6"]  # no episode ended in the first
    assert len(rows) == 11 and str(Path.home()) not in text and "/tmp" not in text


def test_failed_runs_are_reported_with_their_log_and_retried_on_request(project):
    status, output = call(project, "crashing")
    assert status == 1 and "2 of 4 runs done, 2 failed" in output
    assert sorted(results(project, "crashing")) == ["Stub-v0__ppo__1.csv", "Stub-v0__ppo__2.csv"]
    assert output.count("stub.py: error: iteration 3: loss is not finite") == 2
    before = len(starts(project))
    status, output = call(project, "crashing")
    assert status == 1 and output.count("loss is not finite") == 2 and len(starts(project)) == before
    assert "4 runs: 2 done, 2 failed" in call(project, "crashing", "--status")[1]
    status, output = call(project, "crashing", "--retry-failed", "--seeds", 1)
    assert status == 1 and starts(project)[before:] == [[starts(project)[-1][0], "Stub-v0__trpo__1", "2"]]


def test_a_script_that_crashes_at_once(project, undisturbed):
    (project / "broken").touch()
    status, output = call(project, "stub", "--workers", 3)
    assert status == 1 and "0 of 6 runs done, 6 failed" in output and output.count("    all is broken") == 6
    (project / "broken").unlink()
    assert call(project, "stub")[0] == 1
    assert call(project, "stub", "--workers", 3, "--retry-failed")[0] == 0
    assert results(project) == undisturbed


@pytest.mark.parametrize("damage", ["truncated checkpoint", "no checkpoint", "no args.json", "other script"])
def test_what_cannot_be_resumed_starts_anew(tmp_path, undisturbed, damage):
    project = make_project(tmp_path, delay=0.1)
    words = ["stub", "--seeds", 1, "--variants", "ppo"]
    process = start(project, *words)
    path = project / "benchmark/runs/stub/Stub-v0__ppo__1"
    wait_for((path / "checkpoint.pt").exists, process)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130 and "interrupted" in call(project, *words, "--status")[1]
    if damage == "truncated checkpoint":
        with open(path / "checkpoint.pt", "r+b") as file:
            file.truncate(100)
    elif damage == "other script":
        with open(project / "stub.py", "a") as file:
            file.write("# another version\n")
    else:
        (path / {"no checkpoint": "checkpoint.pt", "no args.json": "args.json"}[damage]).unlink()
    status, output = call(project, *words)
    assert status == 0 and "starts anew" in output
    assert [line[2] for line in starts(project)] == ["0", "0"]
    assert values(results(project)).items() <= values(undisturbed).items()


def test_waits_for_a_run_that_somebody_else_trains(project):
    words = ["stub", "--seeds", 1]
    (project / "benchmark/runs/stub").mkdir(parents=True)
    with open(project / "benchmark/runs/stub/Stub-v0__ppo__1.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = start(project, *words, "--workers", 1)
        wait_for((project / "benchmark/results/stub/Stub-v0__trpo__1.csv").exists, process)  # takes another meanwhile
        assert "Stub-v0__ppo__1: running, 0 of 100 steps" in call(project, *words, "--status")[1]
        assert process.poll() is None and len(starts(project)) == 1
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0 and "Stub-v0__ppo__1: another process trains it" in output
    assert len(starts(project)) == 2


def test_two_runners_share_the_work(project, undisturbed):
    processes = [start(project, "stub", "--workers", 2) for _ in range(2)]
    assert [process.wait(timeout=600) for process in processes] == [0, 0]
    assert results(project) == undisturbed
    assert len(starts(project)) == 6 and not (project / "two_at_once").exists()


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupting_stops_children_and_the_same_command_goes_on(tmp_path, undisturbed, number, status):
    project = make_project(tmp_path, delay=0.2)
    process = start(project, "stub", "--workers", 2)
    wait_for(lambda: len(list(project.glob("benchmark/runs/stub/*/checkpoint.pt"))) == 2, process)
    time.sleep(0.5)
    process.send_signal(number)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == status
    assert f"interrupted; to go on: python {project}/benchmark/run.py stub --workers 2" in output
    children = [int(pid) for pid, *_ in starts(project)]
    assert len(children) == 2 and not any(is_alive(pid) for pid in children)
    assert call(project, "stub", "--workers", 6)[0] == 0
    assert sum(int(done) > 0 for _, _, done in starts(project)[2:]) == 2  # both resumed
    assert values(results(project)) == values(undisturbed)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def values(csvs: dict[str, str]) -> dict[str, list[str]]:
    """The rows alone: the header names the stub's delay."""
    return {name: [line for line in text.splitlines() if not line.startswith("#")] for name, text in csvs.items()}


@pytest.mark.parametrize("luck", range(3))
def test_killing_the_runner_at_random_moments_changes_nothing(tmp_path, undisturbed, luck):
    project, chance = make_project(tmp_path, delay=0.15), random.Random(luck)
    for _ in range(4):
        process = start(project, "stub", "--workers", 2)
        time.sleep(chance.uniform(0.3, 2.5))
        process.kill()
        process.wait()
        if chance.random() < 0.5 and (project / "starts").exists():  # else the children live on
            for pid, *_ in starts(project):
                if is_alive(int(pid)) and b"stub.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(int(pid), signal.SIGKILL)
    assert call(project, "stub", "--workers", 3)[0] == 0
    assert values(results(project)) == values(undisturbed)
    assert not (project / "two_at_once").exists()


def test_a_child_killed_by_a_signal_is_resumed_by_the_next_call(tmp_path, undisturbed):
    project = make_project(tmp_path, delay=0.15)
    words = ["stub", "--seeds", 1, "--variants", "ppo"]
    process = start(project, *words)
    wait_for((project / "starts").exists, process)
    time.sleep(0.5)
    os.kill(int(starts(project)[0][0]), signal.SIGKILL)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 1 and "0 of 1 runs done, 1 stopped" in output
    assert call(project, *words)[0] == 0 and int(starts(project)[1][2]) > 0
    assert values(results(project)).items() <= values(undisturbed).items()


@pytest.fixture
def here(project, monkeypatch):
    """The stub project, for calls within this process."""
    exec(STUB_SUITE % 0.0, namespace := {})
    monkeypatch.setattr(records, "ROOT", project)
    monkeypatch.setattr(suites, "SUITES", namespace["SUITES"])
    return project


def test_a_full_disk_while_exporting_loses_nothing(here, monkeypatch, capsys):
    runs = suites.select("stub", seeds=[1])

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert runner.run_local(runs, 2, False) == 1
    assert capsys.readouterr().out.count("No space left on device; nothing is lost") == 2
    assert not list((here / "benchmark/results/stub").iterdir())
    assert runner.run_local(runs, 2, False) == 0
    assert len(starts(here)) == 2 and len(results(here)) == 2


def test_a_csv_that_is_not_whole_or_not_the_suites_is_refused(project):
    assert call(project, "stub", "--seeds", 1)[0] == 0
    path = project / "benchmark/results/stub/Stub-v0__ppo__1.csv"
    text = path.read_text()
    path.write_text(text[:-20])
    status, output = call(project, "stub", "--seeds", 1)
    assert status == 2 and "Stub-v0__ppo__1.csv is truncated" in output and len(output.splitlines()) == 1
    path.write_text(text.replace('"num_steps": 10', '"num_steps": 20'))
    status, output = call(project, "stub", "--seeds", 1)
    assert status == 2 and "was made with other arguments: --num-steps 20 (suite: 10)" in output


# ---- the real scripts


def test_smoke_suite_from_run_to_report(tmp_path):
    """Every variant, really trained; the runner is interrupted once and killed once on the way."""
    make_project(tmp_path)
    shutil.copy(ROOT / "benchmark" / "suites.py", tmp_path / "benchmark")
    (tmp_path / "benchmark" / "torch.py").unlink()
    for script in SCRIPTS:
        shutil.copy(ROOT / f"{script}.py", tmp_path)
    words = ["smoke", "--seeds", 1, "--timesteps", 4096, "--workers", 2]
    process = start(tmp_path, *words)
    wait_for(lambda: list(tmp_path.glob("benchmark/runs/smoke-4096/*/checkpoint.pt")), process)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=600) == 130
    process = start(tmp_path, *words)
    wait_for(lambda: list(tmp_path.glob("benchmark/results/smoke-4096/*.csv")), process)
    process.kill()
    process.wait()
    status, output = call(tmp_path, *words)
    assert status == 0 and "5 of 5 runs done" in output, output
    assert len(results(tmp_path, "smoke-4096")) == 5
    # one of them without any runner, by the command in its header
    record = records.read_csv(tmp_path / "benchmark/results/smoke-4096/Hopper-v5__trpo_plus__1.csv", "smoke-4096")
    command = [sys.executable, *shlex.split(record.about["command"])[1:], "--run-name", "alone", "--no-progress"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (run,) = suites.select("smoke", None, ["trpo_plus"], [1], 4096)
    import torch

    history = torch.load(tmp_path / "runs/alone/checkpoint.pt", weights_only=True)["history"]
    assert len(history) == records.num_iterations(run) == 2
    for i, row in enumerate(history):
        assert set(row) <= set(record.history)
        for name in set(row) - {"charts/SPS"}:
            assert record.history[name][i] == pytest.approx(row[name], rel=1e-5), name
    report = [sys.executable, str(tmp_path / "benchmark/report.py"), "smoke", "--timesteps", "4096"]
    subprocess.run(report, check=True, capture_output=True)
    text = (tmp_path / "benchmark/results/smoke-4096.md").read_text()
    for label in suites.LABELS.values():
        assert re.search(rf"^\| {re.escape(label)} \| 1 \| [\d.]+ \(no interval\)", text, re.M), label
    for figure in re.findall(r"\]\((.*?\.png)\)", text):
        assert (tmp_path / "benchmark/results" / figure).stat().st_size > 10_000
