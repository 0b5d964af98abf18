"""What happens around a run: its name, its lock, its progress, films, Ctrl-C, words that do not go together."""

import contextlib
import io
import itertools
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import termios
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import filelock
import gymnasium as gym
import pytest
from conftest import ROOT, SCRIPTS, files, lines, load, read_checkpoint, read_history

pytestmark = pytest.mark.slow

SIZES = {"num_steps": 8, "num_minibatches": 1, "update_epochs": 1, "total_timesteps": 32, "hidden_sizes": (4,)}
RUN = ROOT / "benchmark/agents/Hopper-v5__ppo_m__4"
SIZES |= {"env_id": "envs:Toy-v0", "env_kwargs": '{"length": 4, "reward": 1.0}'}
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


@pytest.fixture
def m():
    return load("ppo_continuous")


def train(m, **changed):
    return m.train(m.Args(**{**SIZES, "run_name": "run", "progress": False, **changed}))


def frozen_clock(monkeypatch, m, **functions):
    """The script's `time`, at a standstill; with `functions` of its own."""
    still = dict.fromkeys(("time", "monotonic"), lambda: 1_700_000_000.0)
    monkeypatch.setattr(m, "time", types.SimpleNamespace(**{"perf_counter": time.perf_counter, **still, **functions}))


def test_runs_of_one_second_get_different_names(m, cli, monkeypatch):
    """Four after each other in one process, as a notebook does."""
    frozen_clock(monkeypatch, m)
    runs = [train(m, run_name=None, policy_lr=lr).run for lr in (1e-4, 2e-4, 3e-4, 4e-4)]
    name = "runs/envs_Toy-v0__ppo_continuous__1__1700000000"
    assert [str(run) for run in runs] == [name, f"{name}-2", f"{name}-3", f"{name}-4"]
    for run, lr in zip(runs, (1e-4, 2e-4, 3e-4, 4e-4)):
        assert read_checkpoint(run)["args"]["policy_lr"] == lr and read_checkpoint(run)["iteration"] == 4
        assert json.loads((run / "args.json").read_text())["args"]["run_name"] == run.name


def test_many_runs_started_at_once(m, cli, monkeypatch):
    """Sixteen at the same moment: as many folders, each with its own arguments."""
    frozen_clock(monkeypatch, m)
    args = m.plain(m.Args(**SIZES))
    agent, barrier = m.make_agent(args, m.make_env(args, contextlib.ExitStack()), None), threading.Barrier(16)

    def start(seed):
        barrier.wait()
        with contextlib.ExitStack() as stack:
            return m.start_run(m.replace(args, policy_lr=seed / 100), agent, stack)

    with ThreadPoolExecutor(16) as pool:
        started = list(pool.map(start, range(1, 17)))
    assert len({run for run, _ in started}) == len(list(Path("runs").iterdir())) == 16
    for seed, (run, own) in enumerate(started, 1):
        assert own.run_name == run.name and read_checkpoint(run)["args"]["policy_lr"] == seed / 100


def test_a_name_that_was_asked_for_is_refused(m, cli):
    """Also when the run came from another call in the same process; that run stays as it was."""
    content = (train(m).run / "checkpoint.pt").read_bytes()
    with pytest.raises(m.InputError, match="File exists"):
        train(m, seed=2)
    assert Path("runs/run/checkpoint.pt").read_bytes() == content and len(list(Path("runs").iterdir())) == 1


WORDS = ("--resume", "--evaluate", "--run-name", "--runs-dir", "--env-id", "--env-kwargs")


@pytest.mark.parametrize("word", WORDS)
def test_empty_word(script, cli, word):
    """What an unset variable of the shell leaves is refused, not taken for no word at all."""
    status, out, err = cli(script, word, "", "--total-timesteps", 2048)
    assert (status, out) == (2, "") and len(lines(err)) == 1 and f"error: {word} takes" in err and files() == []


TRAINING = [("--num-steps", 16), ("--policy-lr", 1e-3), ("--env-id", "Pendulum-v1"), ("--resume", "runs/run")]
TRAINING += [("--run-name", "x"), ("--no-norm-obs",), ("--progress",), ("--clip-actions",), ("--heldout-every", 1)]


def test_settings_of_training_with_evaluation(m, cli):
    """Refused where they are not the run's own, however they compare with the script's defaults."""
    train(m)
    before = files()
    for flag, *value in [*TRAINING, ("--env-id", "Hopper-v5")]:
        status, out, err = cli(m, "--evaluate", "runs/run", flag, *value)
        named = f"error: {flag.replace('--no-', '--')} does not go with --evaluate; the run has "
        assert (status, out, err.count("\n")) == (2, "", 1) and err.startswith(f"ppo_continuous.py: {named}")
    assert files() == before
    assert cli(m, "--evaluate", "runs/run", "--env-id", "envs:Toy-v0", "--num-steps", 8)[0] == 0


@pytest.mark.parametrize("flag", ["--episodes 5", "--stochastic", "--video", "--max-episode-steps 9"])
def test_settings_of_evaluation_in_training(script, cli, flag):
    status, out, err = cli(script, "--env-id", "envs:Toy-v0", "--total-timesteps", 2048, *flag.split())
    assert (status, out) == (2, "") and files() == []
    assert err == f"{script.__name__}.py: error: {flag.split()[0]} goes with --evaluate, not with training\n"
    train(script)
    status, out, err = cli(script, "--resume", "runs/run", "--total-timesteps", 64, *flag.split())
    assert status == 2 and "goes with --evaluate" in err and read_checkpoint("runs/run")["iteration"] == 4


def test_evaluation_adds_to_the_environments_arguments(m, cli):
    """--env-kwargs replaces one of the run's own and keeps the other."""
    train(m)
    out = cli(m, "--evaluate", "runs/run", "--env-kwargs", '{"reward": 2.5}', "--episodes", 3)[1]
    assert "mean return 10.0, standard deviation 0.0, 3 episodes" in out
    assert m.evaluate("runs/run", 1, env_kwargs={"length": 7, "reward": 1.5}) == [10.5]
    assert m.evaluate("runs/run", 1) == [4.0]
    for kwargs in ("{length: 3}", "[3]", '{"no_such_keyword": 3}'):
        status, out, err = cli(m, "--evaluate", "runs/run", "--env-kwargs", kwargs)
        assert (status, out) == (2, "") and len(lines(err)) == 1 and "--env-kwargs" in err


def test_first_line_and_how_to_go_on(m, cli, monkeypatch):
    """Both can be pasted into a shell, whatever the run is called; the script is named, not the program that called."""
    monkeypatch.setattr(sys, "argv", ["sweep.py"])
    with monkeypatch.context() as patch, contextlib.redirect_stderr(err := io.StringIO()):
        patch.setattr(m, "update", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        with contextlib.redirect_stdout(out := io.StringIO()), pytest.raises(KeyboardInterrupt):
            train(m, runs_dir="my runs", run_name="it's $one")
    run = "my runs/it's $one"
    assert out.getvalue().startswith(f"{run}: training; to watch: ")
    assert shlex.split(out.getvalue().partition("watch: ")[2]) == ["tensorboard", "--logdir", run]
    python, path, *rest = shlex.split(err.getvalue().strip().removeprefix("interrupted; to go on: "))
    assert python == "python" and Path(path).resolve() == ROOT / "ppo_continuous.py" and rest == ["--resume", run]
    assert cli(m, *rest, "--no-progress")[0] == 0


def test_help_has_groups(script, cli):
    """A box for each, with what it says of itself."""
    status, out, _ = cli(script, "--help")
    boxes = re.findall(r"^\W*(\w+) options\W*\n(?:\W*\n)?\W*(\w.*?)\W*$", out, re.M)
    groups = (script.Run, script.Algorithm, script.Optimizations, script.Details, script.Evaluation)
    assert status == 0 and len(boxes) == 5, boxes
    for (name, said), group in zip(boxes, groups):
        assert name == group.__name__.lower() and group.__doc__.startswith(said)


# ---- progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_a_bar(m, cli, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    train(m, progress=True)
    assert "\r" in sys.stderr.getvalue() and "KL=" in sys.stderr.getvalue()


def test_a_log_file_gets_no_control_characters(m, cli):
    """And no line at all of a run of less than a minute."""
    status, out, err = cli(m, "--env-id", "envs:Toy-v0", "--total-timesteps", 4096, "--update-epochs", 1)
    assert (status, err) == (0, "") and not CONTROL.search(out)


@pytest.mark.parametrize("progress, told", [(True, ["2 of 4", "4 of 4"]), (False, [])])
def test_a_log_file_gets_a_line_a_minute(m, cli, monkeypatch, capsys, progress, told):
    """By a clock on which an iteration takes forty seconds, so that a line comes after every other one."""
    frozen_clock(monkeypatch, m, perf_counter=map(float, itertools.count(0, 40)).__next__)
    train(m, progress=progress)
    said = capsys.readouterr().err
    assert [line.partition(":")[0] for line in said.splitlines()] == [f"iteration {numbers}" for numbers in told]
    assert not CONTROL.search(said)
    if told:
        assert "return 4, KL " in said and " 0 steps/s, 0:01:20 left\n" in said and said.endswith("0:00:00 left\n")


def test_speed_is_of_everything(m, cli, monkeypatch):
    """A slow disk and slow held-out rollouts show; only the first iteration has no checkpoint before it."""
    real = m.save_checkpoint, m.heldout_pairs
    monkeypatch.setattr(m, "save_checkpoint", lambda *args: (time.sleep(0.2), real[0](*args)))
    history = train(m).history
    assert all(row["charts/SPS"] < 8 / 0.2 for row in history[1:])
    monkeypatch.setattr(m, "save_checkpoint", real[0])
    monkeypatch.setattr(m, "heldout_pairs", lambda *args: (time.sleep(0.2), real[1](*args))[1])
    history = train(m, run_name="heldout", heldout_every=3).history
    assert history[0]["charts/SPS"] < 8 / 0.2 and history[3]["charts/SPS"] < 8 / 0.2


# ---- two processes on one run


@pytest.mark.parametrize("resumed", [False, True])
def test_a_run_is_locked_while_it_trains(m, cli, monkeypatch, resumed):
    """No other may resume it then, in this process or another; all may evaluate it. Afterwards it is free."""
    update, refused = m.update, []

    def spy(*args):
        if Path("runs/run/checkpoint.pt").stat().st_size and read_checkpoint("runs/run")["iteration"] == 3:
            with pytest.raises(filelock.Timeout):
                filelock.FileLock("runs/run/run.lock").acquire(timeout=0)
            before = {path: Path(path).read_bytes() for path in files("runs/run") if not path.endswith(".lock")}
            with pytest.raises(m.InputError, match="^runs/run is being trained by another process$"):
                m.train(m.Args(resume="runs/run"))
            assert all(Path(path).read_bytes() == content for path, content in before.items())
            refused.append(len(m.evaluate("runs/run", episodes=1)))
        return update(*args)

    if resumed:
        train(m, total_timesteps=16)
    monkeypatch.setattr(m, "update", spy)
    result = m.train(m.Args(resume="runs/run", total_timesteps=32)) if resumed else train(m)
    assert refused == [1] and len(result.history) == 4
    assert len(m.train(m.Args(resume="runs/run", total_timesteps=40)).history) == 5


HOLD = """
import sys, time
sys.path[:0] = sys.argv[1:3]
import ppo_continuous as m
m.update = lambda *args: (print("at work", flush=True), time.sleep(60))
m.train(m.Args(resume="runs/run", total_timesteps=64, progress=False))
"""


def test_lock_of_a_process_that_was_killed(m, cli):
    """While it lives the run is refused in one line; kill -9 frees it."""
    train(m)
    command = [sys.executable, "-c", HOLD, str(ROOT), str(ROOT / "tests")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert "training" in process.stdout.readline() and process.stdout.readline() == "at work\n"
            status, out, err = cli(m, "--resume", "runs/run", "--no-progress")
            said = "ppo_continuous.py: error: runs/run is being trained by another process\n"
            assert (status, out, err) == (2, "", said)
        finally:
            process.kill()
    assert cli(m, "--resume", "runs/run", "--no-progress")[0] == 0
    assert [row["iteration"] for row in read_history("runs/run")] == list(range(1, 9))


# ---- Ctrl-C


@pytest.mark.parametrize("name, loaded", [("ppo_continuous", "_multiarray_umath"), ("trpo_plus", "libtorch_python")])
def test_ctrl_c_while_the_imports_run(name, loaded, tmp_path):
    """As soon as NumPy or PyTorch begins to load: the end that the signal brings, without a word."""
    command = [sys.executable, str(ROOT / f"{name}.py")]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while loaded not in Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGINT, 130) and (out, err) == ("", "") and files(tmp_path) == []


@pytest.mark.parametrize("words", [["--total-timesteps", 2048, "--no-progress"], ["--evaluate", RUN, "--episodes", 1]])
def test_nobody_reads_what_is_said(words, tmp_path):
    """`python ppo_m.py ... | head -0`: no traceback, and the run goes on to its end."""
    command = [sys.executable, str(ROOT / "ppo_m.py"), *map(str, words)]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.wait(timeout=120) == 0 and process.stderr.read() == ""
    process.stderr.close()
    assert "--evaluate" in words or len(read_history(next((tmp_path / "runs").iterdir()))) == 1


def test_what_is_said_meanwhile_stands_above_the_bar(tmp_path):
    """In a terminal a TRPO step that fails has a line of its own."""
    reader, writer = pty.openpty()
    termios.tcsetwinsize(writer, (24, 100))
    sizes = ["--num-steps", 16, "--num-minibatches", 1, "--total-timesteps", 48, "--max-backtracks", 1, "--max-kl", 1e9]
    words = ["--env-id", "Pendulum-v1", *sizes, "--cg-steps", 1]
    command = [sys.executable, str(ROOT / "trpo_continuous.py"), *map(str, words)]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=writer)
    os.close(writer)
    shown = b""
    with contextlib.suppress(OSError):  # a terminal's way to say that the other side has closed it
        while True:
            shown += os.read(reader, 4096)
    os.close(reader)
    said = [line.rpartition("\r")[2] for line in shown.decode().split("\r\n") if "no TRPO step" in line]
    assert process.wait() == 0 and said and set(said) == {"no TRPO step: the line search accepted no step"}, shown


# ---- films


FILMED = {"env_id": "envs:Filmed-v0", "env_kwargs": '{"length": 4, "render_mode": "rgb_array"}'}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_each_film_is_named_and_stays(m, cli):
    """Though the run's own arguments name the render_mode; a later film gets another name."""
    train(m, **FILMED)
    told = []
    for _ in range(2):
        status, out, err = cli(m, "--evaluate", "runs/run", "--video", "--episodes", 2)
        assert status == 0, err
        told += re.findall(r"^video: (.*)$", out, re.M)
    assert told == ["runs/run/video-1-episode-0.mp4", "runs/run/video-2-episode-0.mp4"]
    assert sorted(map(str, Path("runs/run").glob("*.mp4"))) == told
    assert all(Path(path).read_bytes()[4:8] == b"ftyp" for path in told)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_film_that_was_not_written_is_no_success(m, cli, monkeypatch):
    """As on a full disk, where the file stays empty, or a read-only one, where there is none."""
    train(m, **FILMED)
    for spoil in (lambda path: path.write_bytes(b""), lambda path: path.unlink()):
        close = m.gym.wrappers.RecordVideo.stop_recording

        def stop(self, close=close, spoil=spoil):
            close(self)
            for path in Path("runs/run").glob("*.mp4"):
                spoil(path)

        with monkeypatch.context() as patch:
            patch.setattr(m.gym.wrappers.RecordVideo, "stop_recording", stop)
            status, out, err = cli(m, "--evaluate", "runs/run", "--video", "--episodes", 2)
        assert (status, out) == (1, "") and "--video: none could be written into runs/run" in lines(err)[-1]


@pytest.mark.parametrize("env_id", ["Hopper-v5", "Humanoid-v5", "InvertedPendulum-v5"])
def test_the_camera_follows_the_agent(m, tmp_path, env_id):
    """In MuJoCo's tasks, but where a camera was asked for."""
    with contextlib.closing(gym.make(env_id, render_mode="rgb_array")) as env:
        m.film(env, tmp_path / "first")
        renderer = env.unwrapped.mujoco_renderer
        config = renderer.default_cam_config
        assert renderer.camera_id is None and config["type"] == 1 and config["trackbodyid"] >= 0
    with contextlib.closing(gym.make(env_id, render_mode="rgb_array", camera_id=0)) as env:
        m.film(env, tmp_path / "second")
        assert env.unwrapped.mujoco_renderer.camera_id == 0


@pytest.mark.parametrize("name", SCRIPTS)
def test_nothing_is_left_of_a_start_that_is_interrupted(name, cli, monkeypatch):
    """Ctrl-C, or any error, while args.json and checkpoint 0 are written."""
    m = load(name)
    for error in (KeyboardInterrupt, RuntimeError, OSError(28, "No space left on device")):
        for step in ("write_args", "save_checkpoint", "lock"):
            with monkeypatch.context() as patch:
                patch.setattr(m, step, lambda *args, error=error: (_ for _ in ()).throw(error))
                with pytest.raises(m.InputError if isinstance(error, OSError) else error):
                    train(m)
            assert files() in ([], ["./runs"])
    assert len(train(m).history) == 4


def test_full_disk_before_the_first_iteration(m, cli, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(m, "SummaryWriter", full)
    status, _, err = cli(m, "--env-id", "envs:Toy-v0", "--run-name", "run", "--total-timesteps", 2048)
    assert status == 1 and len(lines(err)) == 1 and "runs/run" in err and "No space left" in err


def test_a_folder_of_runs_that_leads_nowhere(m, cli):
    """A link to a disk that is not mounted: an end at once, in one line."""
    Path("link").symlink_to("/nonexistent/folder")
    status, _, err = cli(m, "--env-id", "envs:Toy-v0", "--total-timesteps", 2048, "--runs-dir", "link")
    assert status == 2 and len(lines(err)) == 1 and "link" in err


def test_without_standard_error(m, cli, monkeypatch):
    """Closed, as some daemons have it: no bar."""
    monkeypatch.setattr(sys, "stderr", None)
    assert len(train(m, progress=True).history) == 4


def test_an_interrupt_that_an_import_makes_its_own_error_of(m, cli, monkeypatch):
    """C extensions turn it into ImportError: the exit status is still the signal's."""

    def make(*args, **kwargs):
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt as error:
            raise ImportError("initialization failed") from error

    monkeypatch.setattr(gym, "make", make)
    status, _, err = cli(m, "--env-id", "envs:Toy-v0")
    assert status == 143 and "error" not in err
