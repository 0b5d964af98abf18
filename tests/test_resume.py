"""An interrupted run that is resumed ends as an undisturbed one: kill -9 of real processes, signals, half-written
files, and what --resume refuses."""

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from conftest import FULL, ROOT, SCRIPTS, assert_equal, files, lines, saved, trained
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

pytestmark = pytest.mark.slow

ITERATIONS = 8
FLAGS = ("--num-steps", "512", "--num-minibatches", "8", "--hidden-sizes", "256", "256", "--seed", "3")
FLAGS += ("--total-timesteps", str(512 * ITERATIONS), "--no-progress")
# what befalls the processes of one run, one after the other; what saves and resumes is the same text in both scripts
TROUBLES = {"ppo_continuous": ("checkpoint-0", "SIGTERM", "in-a-checkpoint"), "trpo_plus": ("random", "SIGINT")}


def start(name, folder, *flags):
    command = [sys.executable, str(ROOT / f"{name}.py"), *flags]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(process, happened, pause):
    deadline = time.monotonic() + 120
    while not happened():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(pause)


def interrupt(process, run, trouble, chance):
    """Ends the process at a moment that depends on the trouble; returns exit status, stdout, stderr."""
    checkpoint, temporary = run / "checkpoint.pt", run / "checkpoint.tmp"
    wait_for(process, checkpoint.exists, 0.001)
    if trouble != "checkpoint-0":
        written = checkpoint.stat().st_mtime_ns
        wait_for(process, lambda: checkpoint.stat().st_mtime_ns != written, 0.001)  # it is at work
        if trouble == "in-a-checkpoint":
            wait_for(process, temporary.exists, 0)
            time.sleep(chance.uniform(0, 0.002))
        else:
            time.sleep(chance.uniform(0, 0.3))
    process.send_signal(getattr(signal, trouble, signal.SIGKILL))
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def interrupted_run(name, folder):
    """A run through all troubles, to its end; returns what the processes said and the iterations reached."""
    chance, run, said, reached = random.Random(f"{name} 1"), folder / "runs" / "run", [], []
    process = start(name, folder, *FLAGS, "--run-name", "run")
    for trouble in TROUBLES[name]:
        said.append((trouble, *interrupt(process, run, trouble, chance)))
        if len(said) == 1:
            (run / "checkpoint.tmp").write_bytes(b"half a checkpoint")
        reached.append(saved(run)["iteration"])
        process = start(name, folder, "--resume", "runs/run", "--no-progress")
    out, err = process.communicate(timeout=120)
    return [*said, ("finished", process.returncode, out, err)], reached


def undisturbed_run(name, folder):
    out, err = (process := start(name, folder, *FLAGS, "--run-name", "undisturbed")).communicate(timeout=120)
    assert process.returncode == 0, err
    return out


@pytest.fixture(scope="module")
def stories(tmp_path_factory):
    """Script -> (folder, what the processes said, iterations reached); both scripts' processes run at the same time."""
    folders = {name: tmp_path_factory.mktemp(name) for name in FULL}
    with ThreadPoolExecutor(2) as pool:
        whole = [pool.submit(undisturbed_run, name, folder) for name, folder in folders.items()]
        told = {name: pool.submit(interrupted_run, name, folder) for name, folder in folders.items()}
        assert all("finished" in done.result() for done in whole)
        return {name: (folders[name], *told[name].result()) for name in FULL}


def last(run):
    return saved(run)


@pytest.mark.parametrize("name", FULL)
def test_killed_run_ends_as_undisturbed(stories, name):
    """Weights, optimizer, running statistics, generator and history; the kills came at different iterations."""
    folder, said, reached = stories[name]
    assert [status for _, status, _, _ in said if status not in (-9, 130, 143)] == [0], said
    assert reached == sorted(set(reached)) and reached[-1] < ITERATIONS
    killed = last(folder / "runs" / "run")
    assert len(killed["history"]) == ITERATIONS
    assert {"obs_filter", "reward_filter", "policy", "value", "optimizer"} == killed["agent"].keys()
    assert_equal(trained(folder / "runs" / "run"), trained(folder / "runs" / "undisturbed"))


def assert_curve(run, history):
    """The event files hold exactly one point per iteration and tag, with the history's values."""
    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    expected = {}
    for row in history:
        for tag in row.keys() - {"iteration", "global_step"}:
            expected.setdefault(tag, {})[row["global_step"]] = row[tag]
    assert set(events.Tags()["scalars"]) == expected.keys()
    for tag, values in expected.items():
        points = events.Scalars(tag)
        assert [point.step for point in points] == list(values), tag
        assert [point.value for point in points] == pytest.approx(list(values.values()), rel=1e-5, nan_ok=True), tag


@pytest.mark.parametrize("run", ["run", "undisturbed"])
@pytest.mark.parametrize("name", FULL)
def test_curve_has_every_point_once(stories, name, run):
    folder = stories[name][0] / "runs" / run
    assert run == "undisturbed" or len(list(folder.glob("events.*"))) >= len(TROUBLES[name])
    assert_curve(folder, last(folder)["history"])


@pytest.mark.parametrize("name, trouble, status", [("ppo_continuous", "SIGTERM", 143), ("trpo_plus", "SIGINT", 130)])
def test_signal(stories, name, trouble, status):
    """The status a shell would give, and the line with which to go on, which the next process of the story took."""
    [(_, returned, out, err)] = [part for part in stories[name][1] if part[0] == trouble]
    assert returned == status and "Traceback" not in err
    assert f"{name}.py --resume runs/run" in err and "finished" not in out


@pytest.mark.parametrize("name", FULL)
def test_closing_line(stories, name):
    trouble, status, out, err = stories[name][1][-1]
    assert trouble == "finished" and status == 0 and len(out.splitlines()) == 2
    assert out.startswith(
        "runs/run: training; to watch: tensorboard --logdir runs/run\nruns/run: finished, 4,096 steps (8"
    )
    assert lines(err) == [] or name == "trpo_plus"


SIZES = {"num_steps": 32, "num_minibatches": 4, "total_timesteps": 96, "env_id": "envs:Toy-v0", "progress": False}


def train(m, **changed):
    return m.train(m.Args(**{**SIZES, "run_name": "run", "seed": 5, **changed}))


def fail_at(monkeypatch, m, name, call, error):
    """The call-th call of the script's function raises."""
    real, calls = getattr(m, name), []

    def function(*args, **kwargs):
        calls.append(name)
        if len(calls) == call:
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(m, name, function)


@pytest.mark.parametrize("call", [1, 3])
@pytest.mark.parametrize("function", ["rollout", "update", "save_checkpoint"])
def test_interrupted_anywhere(script, cli, monkeypatch, function, call):
    """Also before the first iteration is done, from checkpoint 0, and between two parts of one iteration."""
    whole = train(script, run_name="whole").run
    call += function == "save_checkpoint"  # its first is checkpoint 0
    with monkeypatch.context() as patch:
        fail_at(patch, script, function, call, KeyboardInterrupt(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            train(script)
    done = call - 1 - (function == "save_checkpoint")
    assert len(last(Path("runs/run"))["history"]) == done
    assert cli(script, "--resume", "runs/run", "--no-progress")[0] == 0
    assert_equal(trained(Path("runs/run")), trained(whole))
    assert_curve("runs/run", last(Path("runs/run"))["history"])


def test_interrupted_while_checkpoint_0_is_written(script, cli, monkeypatch):
    """Nothing can be resumed, so no resume line; the signal's exit status all the same."""
    monkeypatch.setattr(script, "save_checkpoint", lambda *_: signal.raise_signal(signal.SIGTERM))
    status, out, err = cli(script, "--env-id", "envs:Toy-v0", "--num-steps", "64", "--total-timesteps", "64")
    assert status == 143 and "Traceback" not in err and "--resume" not in err


def test_from_a_checkpoint_of_several_iterations_before(script, cli, monkeypatch):
    whole = train(script, run_name="whole", total_timesteps=224).run
    with monkeypatch.context() as patch:
        fail_at(patch, script, "update", 6, KeyboardInterrupt(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            train(script, total_timesteps=224, checkpoint_every=3)
    assert len(last(Path("runs/run"))["history"]) == 3
    assert cli(script, "--resume", "runs/run", "--no-progress")[0] == 0
    assert_equal(trained(Path("runs/run")), trained(whole))
    assert_curve("runs/run", last(Path("runs/run"))["history"])


def test_half_written_checkpoint_is_harmless(script, cli, monkeypatch):
    whole = train(script, run_name="whole").run
    with monkeypatch.context() as patch:
        fail_at(patch, script, "rollout", 2, KeyboardInterrupt(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            train(script)
    Path("runs/run/checkpoint.tmp").write_bytes(b"PK\x03\x04 half")
    assert cli(script, "--evaluate", "runs/run", "--episodes", "1")[0] == 0
    assert cli(script, "--resume", "runs/run", "--no-progress")[0] == 0
    assert_equal(trained(Path("runs/run")), trained(whole))
    assert not Path("runs/run/checkpoint.tmp").exists()


def test_finished_run(script, cli):
    """Says that it is finished, exits 0, leaves checkpoint and curve as they were."""
    result = train(script)
    checkpoint = Path("runs/run/checkpoint.pt").read_bytes()
    status, out, err = cli(script, "--resume", "runs/run")
    assert status == 0 and "Traceback" not in err
    assert out.startswith("runs/run: finished, 96 steps (3 iterations") and len(out.splitlines()) == 1
    assert Path("runs/run/checkpoint.pt").read_bytes() == checkpoint
    assert_curve("runs/run", result.history)


# changes to a run saved with SIZES, seed 5 and, where the script has it, the other value of a flag
CHANGES = [
    ("--num-steps", "2048"),  # the class default, where 32 was saved
    ("--num-steps", "16"),
    ("--env-id", "Hopper-v5"),  # the class default
    ("--seed", "1"),  # the class default
    ("--total-timesteps", "64"),
    ("--hidden-sizes", "64", "64"),  # the class default
    ("--hidden-sizes", "8"),
    ("--value-lr", "0.1"),
    ("--reset-each-iteration",),  # the class default
    ("--clip-actions",),
    ("--no-norm-obs",),
    ("--heldout-every", "2"),
    ("--checkpoint-every", "1"),  # the class default
    ("--env-kwargs", '{"length": 3}'),
    ("--run-name", "new"),
    ("--runs-dir", "elsewhere"),
    ("--activation", "tanh"),  # the class default
]


def test_another_training_argument_is_refused(script, cli):
    other = {"hidden_sizes": (8, 8), "reset_each_iteration": False, "checkpoint_every": 2, "activation": "relu"}
    train(script, **other)
    before, content = files(), Path("runs/run/checkpoint.pt").read_bytes()
    for flag, *value in CHANGES:
        status, out, err = cli(script, "--resume", "runs/run", flag, *value)
        named = "--" + flag.removeprefix("--").removeprefix("no-")
        assert status == 2 and "Traceback" not in err and len(lines(err)) == 1, (flag, out, err)
        assert f"error: {named} cannot change" in err, (flag, err)
        assert files() == before and Path("runs/run/checkpoint.pt").read_bytes() == content, flag
    # the saved values may be named, and the progress bar is no training argument
    same = ("--num-steps", "32", "--seed", "5", "--no-reset-each-iteration", "--hidden-sizes", "8", "8", "--progress")
    assert cli(script, "--resume", "runs/run", *same)[0] == 0


def test_back_to_the_class_defaults_is_refused(script, cli, monkeypatch):
    """One argument differs from the class's default; the flag that names that default would make all of them equal."""
    run = train(script).run
    arguments = script.asdict(script.Args(run_name="run", seed=5))
    torch.save({**last(run), "args": arguments}, run / "checkpoint.pt")
    fail_at(monkeypatch, script, "make_env", 1, script.InputError("it went on"))
    status, _, err = cli(script, "--resume", "runs/run", "--seed", "1")
    assert status == 2 and "--seed cannot change" in err, err


@pytest.mark.parametrize("name", SCRIPTS)
def test_resumed_from_python(name, tmp_path, monkeypatch):
    m = importlib.import_module(name)
    monkeypatch.chdir(tmp_path)
    whole = train(m, run_name="whole").run
    with monkeypatch.context() as patch:
        fail_at(patch, m, "rollout", 3, KeyboardInterrupt(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            train(m)
    result = m.train(m.Args(resume="runs/run", progress=False))
    assert os.fspath(result.run) == "runs/run" and len(result.history) == 3
    assert_equal(trained(result.run), trained(whole))
    with pytest.raises(m.InputError, match="cannot change"):
        m.train(m.Args(resume="runs/run", seed=6))


def interrupt_in_iteration(monkeypatch, m, number, **changed):
    """A run that is interrupted within an iteration, the ones before it saved."""
    with monkeypatch.context() as patch:
        fail_at(patch, m, "rollout", number, KeyboardInterrupt(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            train(m, **changed)


def test_history_ahead_of_the_checkpoint(script, cli, monkeypatch):
    """Killed between the two writes, or in the midst of a line: what the checkpoint does not count is dropped."""
    whole = train(script, run_name="whole").run
    for run_name, rest in (("line", '{"iteration": 3}\n'), ("half", '{"iteration": 3, "loss'), ("more", "{}\n{}\n{")):
        interrupt_in_iteration(monkeypatch, script, 3, run_name=run_name)
        with open(f"runs/{run_name}/history.jsonl", "a") as file:
            file.write(rest)
        assert cli(script, "--resume", f"runs/{run_name}", "--no-progress")[0] == 0
        assert_equal(trained(Path(f"runs/{run_name}")), trained(whole))
        assert (Path("runs") / run_name / "history.jsonl").read_text().count("\n") == 3


@pytest.mark.parametrize("left", ["", '{"iteration": 1}\n', '{"iteration": 1}\n{"iteration"'])
def test_history_shorter_than_the_checkpoint_counts(script, cli, monkeypatch, left):
    interrupt_in_iteration(monkeypatch, script, 3)
    Path("runs/run/history.jsonl").write_text(left)
    status, out, err = cli(script, "--resume", "runs/run", "--no-progress")
    assert status == 2 and len(lines(err)) == 1 and "history.jsonl holds less than the 2 iterations" in err
    assert Path("runs/run/history.jsonl").read_text() == left


def test_a_finished_run_is_prolonged(script, cli):
    """Without annealing bit for bit the run that had so many steps from the start; with it, a line says so."""
    fixed = {"anneal_lr": False} if hasattr(script.Args(), "anneal_lr") else {}
    whole = train(script, run_name="whole", total_timesteps=160, **fixed).run
    train(script, **fixed)
    status, out, err = cli(script, "--resume", "runs/run", "--total-timesteps", "160", "--no-progress")
    assert status == 0 and "160 steps (5 iterations)" in out and "annealed" not in err
    assert_equal(trained(Path("runs/run")), trained(whole))
    assert last(Path("runs/run"))["args"]["total_timesteps"] == 160
    assert json.loads(Path("runs/run/args.json").read_text())["args"]["total_timesteps"] == 160
    assert_curve("runs/run", last(Path("runs/run"))["history"])
    result = script.train(script.Args(resume="runs/run", total_timesteps=192, progress=False))
    assert len(result.history) == 6
    if fixed:
        train(script, run_name="annealed")
        assert "annealed follows" in cli(script, "--resume", "runs/annealed", "--total-timesteps", "160")[2]


def test_two_processes_on_one_run(script, cli, monkeypatch):
    """While one trains, a second resume is refused in one line, and the first goes on untouched."""
    interrupt_in_iteration(monkeypatch, script, 2)
    with script.filelock.FileLock("runs/run/run.lock").acquire(timeout=0):
        status, out, err = cli(script, "--resume", "runs/run", "--no-progress")
    assert status == 2 and len(lines(err)) == 1 and "is being trained by another process" in err
    assert cli(script, "--resume", "runs/run", "--no-progress")[0] == 0


COPY = "    norm_adv: bool = True"


@pytest.mark.parametrize("name", FULL)
def test_a_copy_with_one_flag_more(name, cli, monkeypatch, tmp_path):
    """It resumes and evaluates older runs, the new argument at its default; the original refuses the copy's runs."""
    m = importlib.import_module(name)
    interrupt_in_iteration(monkeypatch, m, 3)
    source = (ROOT / f"{name}.py").read_text()
    assert source.count(COPY) == 1
    (tmp_path / f"{name}.py").write_text(source.replace(COPY, f"    kl_penalty: float = 0.5  # new\n{COPY}"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    for flags in (["--resume", "runs/run", "--no-progress"], ["--evaluate", "runs/run", "--episodes", "1"]):
        command = [sys.executable, str(tmp_path / f"{name}.py"), *flags]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
    assert last(Path("runs/run"))["args"]["kl_penalty"] == 0.5
    status, _, err = cli(m, "--evaluate", "runs/run")
    assert status == 2 and "does not know: --kl-penalty" in err
    status, _, err = cli(importlib.import_module("ppo_m"), "--evaluate", "runs/run")
    assert status == 2 and f"was written by {name}.py; this is ppo_m.py" in err
