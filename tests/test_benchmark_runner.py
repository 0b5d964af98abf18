"""benchmark/run.py: against a stub of a training script, in a copy of the folder, and against the real four."""

import contextlib
import dataclasses
import errno
import fcntl
import importlib
import json
import os
import pty
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import time
from math import inf
from pathlib import Path

import pandas as pd
import pytest
import tyro
from conftest import ROOT, SCRIPTS, STUB_SUITES, call_runner, make_project, results, start_runner, starts

sys.path.insert(0, str(ROOT / "benchmark"))

import records  # noqa: E402
import run as runner  # noqa: E402
import suites  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture
def project(tmp_path):
    return make_project(tmp_path)


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
    assert call_runner(project, "stub", "--workers", 3)[0] == 0
    return results(project)


# ---- suites


def test_every_training_flag_of_every_run_is_explicit_and_read_back_by_its_script():
    not_training = {"env_id", "seed", "runs_dir", "run_name", "resume", "progress"}
    not_training |= {"evaluate", "episodes", "stochastic", "video", "max_episode_steps"}
    parsed = set()
    for suite in suites.SUITES:
        for run in suites.select(suite, seeds=[7]):
            module = importlib.import_module(run.script)
            fields = {field.name for field in dataclasses.fields(module.Args)} - not_training
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


ALL_ON = ("figure1", "v1r1i1a1_1.5e-4"), ("table2", "ppo")


def test_sizes_of_the_suites():
    assert len(suites.select("table2")) == 150
    assert len(suites.select("table2", seeds=range(80))) == 1200
    assert len(suites.select("figure1")) == 640
    assert len(suites.select("leave_one_out")) == 3 * 10 * 3
    for run in suites.select("figure1"):  # as released, rewards are clipped inside the scaling
        assert (run.flags["reward_scaling"] == "none") == (run.flags["clip_reward"] == inf)
    # with all four on, at Humanoid's rate, it is table2's PPO: figure1 is about that very agent
    (all_on,), (ppo,) = (suites.select(s, ["Humanoid-v5"], [v], [1]) for s, v in ALL_ON)
    assert all_on.flags | {"heldout_every": 5} == ppo.flags and all_on.script == ppo.script
    for env_id in suites.PAPER_ROWS:
        all_on, *without = suites.select("leave_one_out", [env_id], seeds=[1])
        changed = [[name for name in run.flags if run.flags[name] != all_on.flags[name]] for run in without]
        assert sorted(sum(changed, [])) == sorted(
            ["vf_clip_coef", "reward_scaling", "init", "anneal_lr", "clip_reward"]
            + ["norm_obs", "clip_obs", "activation", "max_grad_norm"]
        )


def test_dry_run_prints_one_pasteable_command_a_line(project):
    status, output = call_runner(project, "stub", "--dry-run", "--seeds", "2-3", "--variants", "trpo")
    assert status == 0 and len(output.splitlines()) == 2
    line = output.splitlines()[0]
    assert line == (
        "python stub.py --env-id Stub-v0 --seed 2 --total-timesteps 100 --num-envs 1 --num-steps 10 --heldout-every 0 "
        "--delay 0.02 --kind ok"
    )
    subprocess.run(line.replace("python", sys.executable, 1), shell=True, cwd=project, check=True)
    assert (project / "runs/unnamed/history.jsonl").exists() and not (project / "benchmark/runs").exists()


def test_dry_run_and_status_end_silently_in_head(project):
    for words in ("--dry-run --seeds 1-5000", "--status --seeds 1-5000"):
        command = f"{sys.executable} benchmark/run.py stub {words} | head -n 1"
        done = subprocess.run(command, shell=True, cwd=project, capture_output=True, text=True)
        assert len(done.stdout.splitlines()) == 1 and done.stderr == "", words


OWN = """
SUITES["mine"] = {
    "seeds": [4],
    "cells": {
        "my_package.envs:Mine-v0": {
            "changed": FLAGS | {"kind": "ok", "script": "mine/my_stub"},
            "slower": FLAGS | {"kind": "ok", "delay": 0.03},
        },
    },
}
"""


def test_a_users_own_variant_script_and_environment_are_one_entry(project):
    with open(project / "benchmark/suites.py", "a") as file:
        file.write(OWN)
    (project / "mine").mkdir()
    (project / "mine/my_stub.py").write_text((project / "stub.py").read_text().replace("10 == 0", "2 == 0"))
    assert call_runner(project, "mine", "--status") == (0, "2 runs: 2 not started\n")
    output = call_runner(project, "mine", "--dry-run", "--variants", "changed")[1]
    assert output.startswith("python mine/my_stub.py --env-id my_package.envs:Mine-v0 --seed 4 --total-timesteps 100 ")
    assert call_runner(project, "mine")[0] == 0
    assert call_runner(project, "mine", "--status") == (0, "2 runs: 2 done\n")
    path = project / "benchmark/results/mine/my_package.envs_Mine-v0__changed__4.csv"
    record = records.read_csv(path, "mine")
    assert record[:3] == ("my_package.envs:Mine-v0", "changed", 4) and record.about["script"] == "my_stub"
    assert len(record.history["iteration"]) == 10


@pytest.mark.parametrize(
    "old, new, message",
    [
        (
            '"mine/my_stub"',
            '"my_stubb"',
            "changed on my_package.envs:Mine-v0: there is no script {project}/my_stubb.py",
        ),
        ('"delay": 0.03', '"delai": 0.03', "slower on my_package.envs:Mine-v0: stub.py has no argument delai"),
        (
            'FLAGS | {"kind": "ok", "delay": 0.03}',
            '{"script": "stub", "num_envs": 1}',
            "slower on my_package.envs:Mine-v0 in mine lacks total_timesteps, num_steps",
        ),
    ],
)
def test_a_wrong_entry_is_one_line(project, old, new, message):
    (project / "mine").mkdir()
    shutil.copy(project / "stub.py", project / "mine/my_stub.py")
    with open(project / "benchmark/suites.py", "a") as file:
        file.write(OWN.replace(old, new))
    assert call_runner(project, "mine") == (2, f"run.py: error: suites.py: {message.format(project=project)}\n")


@pytest.mark.parametrize(
    "words, message",
    [
        (["tabel2"], "unknown suite tabel2; there are table2, figure1, leave_one_out, swapped, smoke, stub, crashing"),
        (["stub", "--variants", "ppp"], "unknown variant ppp; there are ppo, trpo"),
        (["stub", "--envs", "Stub-v1"], "unknown environment Stub-v1; there are Stub-v0"),
        (["stub", "--seeds", "one"], "--seeds: one is neither a seed nor a range such as 1-3"),
        (["stub", "--seeds", "3-1"], "--seeds names no seed"),
        (["stub", "--timesteps", "5"], "--timesteps must be at least one iteration, 10"),
        (["stub", "--workers", "0"], "--workers must be at least 1"),
        (["stub", "--slurm-options", "a=1", "account"], "--slurm-options: account is not of the form NAME=VALUE"),
        pytest.param(
            ["stub", "--engine", "slurm"],
            "--engine slurm: there is no sbatch on this machine",
            marks=pytest.mark.skipif(shutil.which("sbatch") is not None, reason="there is a Slurm"),
        ),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(project, words, message):
    assert call_runner(project, *words) == (2, f"run.py: error: {message}\n")
    assert not (project / "benchmark/runs").exists() and not (project / "benchmark/results").exists()


def test_what_slurm_refuses_is_one_line(project):
    refusal = "sbatch: error: invalid partition specified: nope\\nsbatch: error: Batch job submission failed"
    for name, line in {"sbatch": f"printf '{refusal}\\n' >&2; exit 1", "srun": "exit 1"}.items():
        (project / name).write_text(f"#!/bin/sh\n{line}\n")
        (project / name).chmod(0o755)
    path = {"env": os.environ | {"PATH": f"{project}:{os.environ['PATH']}"}}
    status, output = call_runner(project, "stub", "--engine", "slurm", "--partition", "nope", **path)
    assert status == 2 and len(output.splitlines()) == 1
    assert "--engine slurm: " in output and "invalid partition specified: nope sbatch: error: Batch job" in output


def test_what_smoke_leaves_is_ignored_by_git(tmp_path):
    shutil.copy(ROOT / ".gitignore", tmp_path)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    left = ["runs/smoke/x.log", "results/smoke/x.csv", "results/smoke-4096/x.csv", "results/smoke.md"]
    left = [f"benchmark/{path}" for path in [*left, "results/smoke_curves.png", "results/smoke_curves.svg"]]
    kept = ["benchmark/results/table2/x.csv", "benchmark/results/table2.md", "benchmark/results/speed.csv"]
    asked = ["git", "-C", str(tmp_path), "check-ignore", *left, *kept]
    assert subprocess.run(asked, capture_output=True, text=True).stdout.split() == left


# ---- the local engine


def test_runs_all_then_nothing(project, undisturbed):
    status, output = call_runner(project, "stub", "--workers", 3)
    assert status == 0 and "6 of 6 runs done" in output
    assert len(starts(project)) == 6
    assert results(project) == undisturbed
    status, output = call_runner(project, "stub")
    assert status == 0 and len(starts(project)) == 6
    said, anew = output.splitlines()
    assert said.startswith(
        "6 of 6 runs are done already, their results are in benchmark/results/stub (in a fresh clone"
    )
    subprocess.run(anew.partition(": ")[2], shell=True, check=True)  # the command that it gives
    assert call_runner(project, "stub")[0] == 0 and len(starts(project)) == 7
    assert results(project) == undisturbed
    assert call_runner(project, "stub", "--status") == (0, "6 runs: 6 done\n")
    assert call_runner(project, "stub", "--timesteps", 20, "--seeds", 1)[0] == 0  # goes to a folder of its own
    assert sorted(results(project, "stub-20")) == ["Stub-v0__ppo__1.csv", "Stub-v0__trpo__1.csv"]
    assert results(project) == undisturbed


def test_csv_tells_where_it_comes_from(undisturbed, tmp_path):
    text = undisturbed["Stub-v0__trpo__3.csv"]
    lines = text.splitlines()
    header = json.loads("".join(line[2:] for line in lines if line.startswith("#")))
    assert header["command"].startswith("python stub.py --env-id Stub-v0 --seed 3 --total-timesteps 100 ")
    assert header["suite"] == "stub" and header["variant"] == "trpo" and header["seed"] == 3
    assert header["iterations"] == 10 and header["wall_seconds"] == 1.0 and header["cpu"]
    assert re.fullmatch("[0-9a-f]{64}", header["sha256"]) and header["versions"] == {"python": "3", "stub": "1"}
    assert re.fullmatch("[0-9a-f]{64}", header["algorithm_sha256"]) and header["algorithm_sha256"] != header["sha256"]
    rows = [line for line in lines if not line.startswith("#")]
    assert rows[0] == (
        "iteration,global_step,trust_region/mean_kl,trust_region/max_ratio,charts/SPS,charts/episodic_return"
    )
    assert rows[1:3] == ["1,10,0.25,1.5,100,", "2,20,0.2,1.5,100,6"]  # no episode ended in the first
    assert len(rows) == 11 and str(Path.home()) not in text and "/tmp" not in text
    (tmp_path / "x.csv").write_text(text)
    frame = pd.read_csv(tmp_path / "x.csv", comment="#")
    assert len(frame) == 10 and frame["trust_region/max_ratio"][4] == inf


def test_failed_runs_are_reported_with_their_log_and_retried_on_request(project):
    status, output = call_runner(project, "crashing")
    assert status == 1 and "2 of 4 runs done, 2 failed" in output
    assert sorted(results(project, "crashing")) == ["Stub-v0__ppo__1.csv", "Stub-v0__ppo__2.csv"]
    assert output.count("stub.py: error: iteration 3: loss is not finite") == 2
    before = len(starts(project))
    status, output = call_runner(project, "crashing")
    assert status == 1 and output.count("loss is not finite") == 2 and len(starts(project)) == before
    assert "4 runs: 2 done, 2 failed" in call_runner(project, "crashing", "--status")[1]
    status, output = call_runner(project, "crashing", "--retry-failed", "--seeds", 1)
    assert status == 1 and starts(project)[before:] == [[starts(project)[-1][0], "Stub-v0__trpo__1", "2"]]


def test_a_script_that_crashes_at_once(project, undisturbed):
    (project / "broken").touch()
    status, output = call_runner(project, "stub", "--workers", 3)
    assert status == 1 and "0 of 6 runs done, 6 failed" in output and output.count("    all is broken") == 6
    (project / "broken").unlink()
    assert call_runner(project, "stub")[0] == 1
    assert call_runner(project, "stub", "--workers", 3, "--retry-failed")[0] == 0
    assert results(project) == undisturbed


def test_a_script_that_ends_early_is_no_finished_run(project):
    path = project / "benchmark/suites.py"
    path.write_text(path.read_text().replace('"kind": "crash"', '"kind": "short"'))
    status, output = call_runner(project, "crashing", "--seeds", 1)
    assert status == 1 and "1 of 2 runs done, 1 failed" in output
    assert "failed, exit status 0, but ValueError: history.jsonl holds 2 of 10 iterations" in output


ONE_RUN = ["stub", "--seeds", 1, "--variants", "ppo"]


def half_a_run(tmp_path: Path) -> tuple[Path, Path]:
    """A project and the folder of a run whose runner was interrupted after the first checkpoint."""
    project = make_project(tmp_path, delay=0.1)
    process = start_runner(project, *ONE_RUN)
    path = project / "benchmark/runs/stub/Stub-v0__ppo__1"
    history = path / "history.jsonl"  # two lines: the first iteration's checkpoint is written, too
    wait_for(lambda: history.exists() and history.read_text().count("\n") > 1, process)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    return project, path


DAMAGE = ["truncated checkpoint", "no checkpoint", "no args.json", "other algorithm", "other arguments"]


@pytest.mark.parametrize("damage", [*DAMAGE, "other lower floor", "half a line of history"])
def test_what_cannot_be_resumed_starts_anew(tmp_path, undisturbed, damage):
    project, path = half_a_run(tmp_path)
    assert "interrupted" in call_runner(project, *ONE_RUN, "--status")[1]
    text = (project / "stub.py").read_text()
    if damage == "truncated checkpoint":
        with open(path / "checkpoint.pt", "r+b") as file:
            file.truncate(100)
    elif damage == "other algorithm":
        (project / "stub.py").write_text(text.replace("class Args:", "class Args:  # another"))
    elif damage == "other lower floor":
        (project / "stub.py").write_text(text + "# another\n")
    elif damage == "other arguments":
        (path / "args.json").write_text((path / "args.json").read_text().replace('"num_steps": 10', '"num_steps": 9'))
    elif damage == "half a line of history":
        with open(path / "history.jsonl", "a") as file:
            file.write('{"iteration": 1')
    else:
        (path / {"no checkpoint": "checkpoint.pt", "no args.json": "args.json"}[damage]).unlink()
    status, output = call_runner(project, *ONE_RUN)
    assert status == 0 and ("starts anew" in output) == (damage in DAMAGE)
    first, second = (int(line[2]) for line in starts(project))
    assert first == 0 and (second == 0) == (damage in DAMAGE)
    assert values(results(project)).items() <= values(undisturbed).items()


@pytest.mark.parametrize("changed", ["", "# another version\n"])
def test_half_a_run_of_before_there_was_a_hash_of_the_algorithm_needs_the_same_script(tmp_path, changed):
    project, path = half_a_run(tmp_path)
    about = json.loads((path / "args.json").read_text())
    del about["algorithm_sha256"]
    (path / "args.json").write_text(json.dumps(about))
    with open(project / "stub.py", "a") as file:
        file.write(changed)
    status, output = call_runner(project, *ONE_RUN)
    assert status == 0 and ("starts anew" in output) == (starts(project)[1][2] == "0") == bool(changed)


def test_waits_for_a_run_that_somebody_else_trains(project):
    words = ["stub", "--seeds", 1]
    (project / "benchmark/runs/stub").mkdir(parents=True)
    with open(project / "benchmark/runs/stub/Stub-v0__ppo__1.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = start_runner(project, *words, "--workers", 1)
        wait_for((project / "benchmark/results/stub/Stub-v0__trpo__1.csv").exists, process)  # takes another meanwhile
        assert "Stub-v0__ppo__1: running, 0 of 100 steps" in call_runner(project, *words, "--status")[1]
        assert process.poll() is None and len(starts(project)) == 1
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0 and "Stub-v0__ppo__1: another process trains it" in output
    assert len(starts(project)) == 2


def test_leaves_alone_what_somebody_started_without_a_runner(tmp_path, undisturbed):
    project = make_project(tmp_path, delay=0.2)
    words = ["stub", "--seeds", 1, "--variants", "ppo"]
    command = call_runner(project, *words, "--dry-run")[1].strip().replace("python", sys.executable, 1)
    where = " --runs-dir benchmark/runs/stub --run-name Stub-v0__ppo__1"
    child = subprocess.Popen(shlex.split(command + where), cwd=project)
    wait_for((project / "starts").exists, child)
    assert "Stub-v0__ppo__1: running" in call_runner(project, *words, "--status")[1]
    status, output = call_runner(project, *words)
    assert child.wait() == 0 and status == 0 and "another process trains it" in output
    assert [line[2] for line in starts(project)] == ["0", "10"]  # the second only says that it is finished
    assert values(results(project)).items() <= values(undisturbed).items()


def test_the_bar_ends_at_100_percent(project):
    reader, writer = pty.openpty()
    termios.tcsetwinsize(writer, (24, 100))
    process = start_runner(project, "stub", "--seeds", 1, stderr=writer)
    os.close(writer)
    shown = b""
    with contextlib.suppress(OSError):  # a terminal's way to say that the other side has closed it
        while True:
            shown += os.read(reader, 4096)
    os.close(reader)
    assert process.wait() == 0 and re.findall(rb"(\d+)%", shown)[-1] == b"100"


def test_two_runners_share_the_work(project, undisturbed):
    processes = [start_runner(project, "stub", "--workers", 2) for _ in range(2)]
    assert [process.wait(timeout=600) for process in processes] == [0, 0]
    assert results(project) == undisturbed
    assert len(starts(project)) == 6 and not (project / "two_at_once").exists()


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupting_stops_children_and_the_same_command_goes_on(tmp_path, undisturbed, number, status):
    project = make_project(tmp_path, delay=0.2)
    process = start_runner(project, "stub", "--workers", 2)
    wait_for(lambda: len(list(project.glob("benchmark/runs/stub/*/checkpoint.pt"))) == 2, process)
    time.sleep(0.5)
    process.send_signal(number)
    process.send_signal(number)  # as the impatient do
    output, _ = process.communicate(timeout=600)
    assert process.returncode == status
    assert f"interrupted; to go on: python {project}/benchmark/run.py stub --workers 2" in output
    children = [int(pid) for pid, *_ in starts(project)]
    assert len(children) == 2 and not any(is_alive(pid) for pid in children)
    assert call_runner(project, "stub", "--workers", 6)[0] == 0
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
        process = start_runner(project, "stub", "--workers", 2)
        time.sleep(chance.uniform(0.3, 2.5))
        process.kill()
        process.wait()
        if chance.random() < 0.5 and (project / "starts").exists():  # else the children live on
            for pid, *_ in starts(project):
                if is_alive(int(pid)) and b"stub.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(int(pid), signal.SIGKILL)
    assert call_runner(project, "stub", "--workers", 3)[0] == 0
    assert values(results(project)) == values(undisturbed)
    assert not (project / "two_at_once").exists()


def test_a_child_keeps_its_run_locked_from_its_very_start(project):
    """The runner is killed while the script still imports, so that neither its folder nor its own lock is there."""
    words = ["stub", "--seeds", 1, "--variants", "ppo"]
    process = start_runner(project, *words, env=os.environ | {"STUB_IMPORTS": "3"})
    wait_for((project / "benchmark/runs/stub/Stub-v0__ppo__1.log").exists, process)
    time.sleep(0.3)
    process.kill()
    status, output = call_runner(project, *words)
    assert status == 0 and "Stub-v0__ppo__1: another process trains it" in output
    assert [line[2] for line in starts(project)] == ["0", "10"]  # the second only finds that it is finished


def test_a_child_killed_by_a_signal_is_resumed_by_the_next_call(tmp_path, undisturbed):
    project = make_project(tmp_path, delay=0.15)
    words = ["stub", "--seeds", 1, "--variants", "ppo"]
    process = start_runner(project, *words)
    wait_for((project / "starts").exists, process)
    time.sleep(0.5)
    os.kill(int(starts(project)[0][0]), signal.SIGKILL)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 1 and "0 of 1 runs done, 1 stopped" in output
    assert call_runner(project, *words)[0] == 0 and int(starts(project)[1][2]) > 0
    assert values(results(project)).items() <= values(undisturbed).items()


@pytest.fixture
def here(project, monkeypatch):
    """The stub project, for calls within this process."""
    exec(STUB_SUITES % 0.0, namespace := {"SUITES": {}})
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
    assert [line[2] for line in starts(here)[2:]] == ["10", "10"] and len(results(here)) == 2  # nothing trained twice


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda text: text[:-20], "is truncated"),
        (
            lambda text: text.replace('"num_steps": 10', '"num_steps": 20'),
            "with other arguments: --num-steps 20 (suite: 10)",
        ),
        (lambda text: "", "is not a results file"),
    ],
)
def test_a_damaged_csv_is_named_and_blocks_no_other_run(project, spoil, message):
    assert call_runner(project, "stub", "--seeds", 1)[0] == 0
    path = project / "benchmark/results/stub/Stub-v0__ppo__1.csv"
    whole = path.read_text()
    path.write_text(spoil(whole))
    status, output = call_runner(project, "stub", "--seeds", 1, "--status")
    named, counts = output.splitlines()
    assert status == 0 and str(path) in named and message in named and counts == "2 runs: 1 damaged, 1 done"
    status, output = call_runner(project, "stub", "--seeds", 1, "--dry-run", stderr=subprocess.DEVNULL)
    assert status == 0 and len(output.splitlines()) == 2
    assert named in call_runner(project, "stub", "--seeds", 1, "--dry-run")[1]
    status, output = call_runner(project, "stub", "--seeds", "1-2")
    assert status == 1 and named in output and "3 of 4 runs done, 1 damaged" in output and len(starts(project)) == 4
    subprocess.run(named.rpartition(": ")[2], shell=True, check=True)  # the command that it gives
    assert call_runner(project, "stub", "--seeds", 1)[0] == 0 and path.read_text() == whole


def test_results_of_before_a_flag_count_as_made_without_it(here):
    (run,) = suites.select("stub", None, ["ppo"], [1])
    record = suites_record = records.Record("Stub-v0", "ppo", 1, {"args": records.plain(run.flags)}, {})
    assert "compile" not in run.flags and not records.difference(run, record)
    for asked, difference in ((False, ""), (True, "--compile False (suite: True)")):
        assert records.difference(run._replace(flags=run.flags | {"compile": asked}), suites_record) == difference


# ---- the real scripts


def test_smoke_suite_from_run_to_report(tmp_path):
    """Every variant, really trained; the runner is interrupted once and killed once on the way."""
    make_project(tmp_path)
    for script in SCRIPTS:
        shutil.copy(ROOT / f"{script}.py", tmp_path)
    words = ["smoke", "--seeds", 1, "--timesteps", 4096, "--workers", 2]
    process = start_runner(tmp_path, *words)
    wait_for(lambda: list(tmp_path.glob("benchmark/runs/smoke-4096/*/checkpoint.pt")), process)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=600) == 130
    process = start_runner(tmp_path, *words)
    wait_for(lambda: list(tmp_path.glob("benchmark/results/smoke-4096/*.csv")), process)
    process.kill()
    process.wait()
    status, output = call_runner(tmp_path, *words)
    assert status == 0 and "5 of 5 runs done" in output, output
    assert len(results(tmp_path, "smoke-4096")) == 5
    # one of them without any runner, by the command in its header
    record = records.read_csv(tmp_path / "benchmark/results/smoke-4096/Hopper-v5__trpo_plus__1.csv", "smoke-4096")
    command = [sys.executable, *shlex.split(record.about["command"])[1:], "--run-name", "alone", "--no-progress"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (run,) = suites.select("smoke", None, ["trpo_plus"], [1], 4096)
    history = [json.loads(line) for line in (tmp_path / "runs/alone/history.jsonl").read_text().splitlines()]
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
