"""Runs a suite: every variant x environment x seed as a process of its own, here or on a Slurm cluster.

    python benchmark/run.py smoke                                    # minutes: every variant, small
    python benchmark/run.py table2 --envs Hopper-v5 --seeds 1-3      # part of a suite
    python benchmark/run.py table2 --status                          # how far it is
    python benchmark/run.py table2 --dry-run                         # one command a line
    python benchmark/run.py table2 --seeds 1-80 --engine slurm --partition cpu --time 60

The same command goes on where it stopped: a run with its CSV in benchmark/results is skipped, one with a checkpoint in
benchmark/runs is resumed, a failed one is reported with the end of its log and tried again with --retry-failed.
"""

import argparse
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from datetime import timedelta
from typing import NamedTuple

import records
from records import beside, csv_path, folder, num_iterations
from suites import InputError, Run, select
from tqdm import tqdm

STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # exit statuses of a script that was asked to stop
LARGEST_ARRAY = 1000  # jobs; Slurm's own default limit is 1001


def take_lock(run: Run) -> int | None:
    """A file descriptor that holds the run's lock until it and its copies in children close; None: somebody has it."""
    path = beside(run, ".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except BaseException:
        os.close(lock)
        raise
    return lock


def is_locked(run: Run) -> bool:
    """Whether some process trains the run."""
    if not beside(run, ".lock").exists():
        return False
    lock = take_lock(run)
    if lock is not None:
        os.close(lock)
    return lock is None


def read_saved(run: Run) -> tuple[dict, list[dict]] | None:
    """The run's args.json and its checkpoint's history; None if there is no checkpoint, or one of other arguments."""
    try:
        about = json.loads((folder(run) / "args.json").read_text())
        import torch  # slow to import, and not needed while there is nothing to read

        checkpoint = torch.load(folder(run) / "checkpoint.pt", weights_only=True)
        saved, history = checkpoint["args"], checkpoint["history"]
        same = all(records.plain(saved)[name] == value for name, value in records.plain(run.flags).items())
        if same and (run.env_id, run.seed, run.script) == (saved["env_id"], saved["seed"], checkpoint["script"]):
            return about, history
    except Exception:  # missing, truncated, or another file: torch.load raises many kinds
        pass
    return None


def first_command(run: Run) -> list[str]:
    """The command that starts the run, to be called in the project's folder."""
    where = ["--runs-dir", f"{records.RUNS}/{run.suite}", "--run-name", run.name]
    return [*records.command(run), *where, "--no-progress"]


def export_trained(run: Run) -> bool:
    """Writes the CSV of a run that is trained to the end; False where it is not."""
    saved = read_saved(run)
    if not saved or len(saved[1]) != num_iterations(run):
        return False
    records.write_csv(run, *saved)
    return True


def next_command(run: Run) -> list[str]:
    """The command that starts or resumes the run. Needs the run's lock.

    What cannot be resumed is removed: a folder without a whole checkpoint, or half a run of another version.
    """
    saved = read_saved(run)
    if saved:
        about, _ = saved
        if about["sha256"] == hashlib.sha256((records.ROOT / f"{run.script}.py").read_bytes()).hexdigest():
            resume = f"{records.RUNS}/{run.suite}/{run.name}"
            return ["python", f"{run.script}.py", "--resume", resume, "--no-progress"]
    if folder(run).exists():
        say(f"{run.name}: cannot be resumed (no whole checkpoint of this script and these arguments), starts anew")
        shutil.rmtree(folder(run))
    return first_command(run)


class Child(NamedTuple):
    """A training process and the lock it shares with this one."""

    process: subprocess.Popen
    lock: int


def begin(run: Run) -> Child | str:
    """Starts or resumes the run's process; where there is nothing to start, "held" (by another process) or "done"."""
    lock = take_lock(run)
    if lock is None:
        return "held"
    try:
        if csv_path(run).exists() or export_trained(run):
            os.close(lock)
            return "done"
        words = next_command(run)
        beside(run, ".failed").unlink(missing_ok=True)
        with open(beside(run, ".log"), "ab") as log:
            log.write(f"$ {shlex.join(words)}\n".encode())
            log.flush()
            process = subprocess.Popen(
                [sys.executable, *words[1:]],
                cwd=records.ROOT,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # NumPy's part of acting stays on one core, too
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[lock],  # a child that outlives this process keeps the run locked
                start_new_session=True,  # Ctrl-C reaches this process, which then stops its children
            )
    except BaseException:
        os.close(lock)
        raise
    return Child(process, lock)


def finish(run: Run, child: Child) -> str:
    """After the child's end: exports the run. Returns "done", "stopped" (to be resumed) or "failed" (marked so)."""
    status = child.process.returncode
    try:
        if status == 0 and export_trained(run):
            return "done"
        if status < 0 or status in STOPPED:
            say(f"{run.name}: stopped by a signal (exit status {status}); the same command resumes it")
            return "stopped"
        beside(run, ".failed").write_text(f"exit status {status}\n")
        say(failure(run))
        return "failed"
    finally:
        os.close(child.lock)


def failure(run: Run, lines: int = 8) -> str:
    """A line on a failed run, and the end of its log."""
    log = beside(run, ".log")
    status = beside(run, ".failed").read_text().strip()
    tail = log.read_text(errors="replace").splitlines()[-lines:] if log.exists() else []
    shown = "\n".join(f"    {line}" for line in tail)
    return f"{run.name}: failed, {status}; --retry-failed tries again; end of {log.relative_to(records.ROOT)}:\n{shown}"


def say(line: str) -> None:
    """Prints a line above the progress bar."""
    tqdm.write(line)
    sys.stdout.flush()


def steps_done(run: Run) -> int:
    """How many steps of the run are saved."""
    if csv_path(run).exists():
        return run.flags["total_timesteps"]
    saved = read_saved(run)
    return saved[1][-1]["global_step"] if saved and saved[1] else 0


def run_local(runs: list[Run], workers: int, retry_failed: bool) -> int:
    """Runs processes on this machine, `workers` at once. Returns the exit status."""
    outcome = {}  # run's name -> done, failed, stopped
    waiting, active, held = deque(), {}, {}
    for run in runs:
        if csv_path(run).exists():
            outcome[run.name] = "done"
        elif beside(run, ".failed").exists() and not retry_failed:
            outcome[run.name] = "failed"
            say(failure(run))
        else:
            waiting.append(run)
    received = []  # signals
    handlers = {s: signal.signal(s, lambda s, _: received.append(s)) for s in (signal.SIGINT, signal.SIGTERM)}
    steps = {run.name: steps_done(run) for run in runs}
    total, first, started, looked = (
        sum(run.flags["total_timesteps"] for run in runs),
        sum(steps.values()),
        time.time(),
        0,
    )
    bar = tqdm(total=total, initial=first, unit="step", unit_scale=True, disable=None, smoothing=0.05)

    def settle(run: Run, result: str) -> None:
        """Notes how a run ended."""
        outcome[run.name] = result
        steps[run.name] = steps_done(run)
        if result == "done":
            done, gained = list(outcome.values()).count("done"), sum(steps.values()) - first
            left = (time.time() - started) * (total - sum(steps.values())) / max(gained, 1)
            left = f", about {timedelta(seconds=round(left))} left" if gained > 0 and done < len(runs) else ""
            say(f"{run.name}: done, {done} of {len(runs)}{left}")

    def attempt(run: Run, action, *args):
        """Calls begin or finish; a full disk and the like is reported, and the run left for the next call."""
        try:
            return action(run, *args)
        except OSError as error:
            say(f"{run.name}: error: {error}; nothing is lost, the same command tries again")
            return "failed"

    def end_finished() -> None:
        for name, (run, child) in list(active.items()):
            if child.process.poll() is not None:
                del active[name]
                settle(run, attempt(run, finish, child))

    while (waiting or active) and not received:
        for _ in range(len(waiting)):
            if len(active) >= workers or received:
                break
            run = waiting.popleft()
            child = attempt(run, begin)
            if isinstance(child, Child):
                active[run.name] = run, child
                held.pop(run.name, None)
            elif child == "held":
                if run.name not in held:
                    say(f"{run.name}: another process trains it; waiting for its end")
                held[run.name] = run
                waiting.append(run)
            else:
                held.pop(run.name, None)
                settle(run, child)
        end_finished()
        if time.time() - looked > 5:
            for run in [run for run, _ in active.values()] + list(held.values()):
                steps[run.name] = steps_done(run)
            bar.set_postfix_str("  ".join(active), refresh=False)
            bar.update(sum(steps.values()) - bar.n)
            looked = time.time()
        time.sleep(0.2)

    if received:
        for _, child in active.values():
            child.process.terminate()
        deadline = time.time() + 30
        while active:
            if time.time() > deadline:
                for _, child in active.values():
                    child.process.kill()
            end_finished()
            time.sleep(0.1)
    bar.close()
    for number, handler in handlers.items():
        signal.signal(number, handler)
    counts = Counter(outcome.values())
    others = "".join(f", {counts[name]} {name}" for name in ("failed", "stopped") if counts[name])
    say(f"{counts['done']} of {len(runs)} runs done{others}")
    if received:
        say(f"interrupted; to go on: {shlex.join(['python', *sys.argv])}")
        return 128 + received[0]
    return 0 if counts["done"] == len(runs) else 1


def job_list(suite: str):
    """The file of submitted jobs: lines of a Slurm job id and a run's name."""
    return records.ROOT / records.RUNS / suite / "slurm" / "jobs.txt"


def queued(suite: str) -> dict[str, str]:
    """The suite's runs now in Slurm's queue, with their state there."""
    if not job_list(suite).exists() or not shutil.which("squeue"):
        return {}
    asked = ["squeue", "--me", "--noheader", "--array", "--format=%i %T"]
    answer = subprocess.run(asked, capture_output=True, text=True)
    if answer.returncode:
        raise OSError(f"squeue: {answer.stderr.strip()}")
    states = dict(line.split() for line in answer.stdout.splitlines())
    jobs = dict(line.split()[::-1] for line in job_list(suite).read_text().splitlines())
    return {name: states[job].lower() for name, job in jobs.items() if job in states}


def run_slurm(runs: list[Run], options: argparse.Namespace) -> int:
    """Submits what is not done, queued or failed as job arrays; each job is this runner, narrowed to one run."""
    if not shutil.which("sbatch"):
        raise InputError("--engine slurm: there is no sbatch on this machine")
    import submitit
    from submitit.helpers import CommandFunction

    suite, there, wanted = runs[0].suite, queued(runs[0].suite), []
    for run in runs:
        failed = beside(run, ".failed").exists() and not options.retry_failed
        if failed:
            say(failure(run))
        elif not csv_path(run).exists() and run.name not in there:
            wanted.append(run)
    executor = submitit.AutoExecutor(folder=job_list(suite).parent, cluster="slurm")
    executor.update_parameters(
        name=suite,
        timeout_min=options.time,
        mem_gb=options.mem,
        cpus_per_task=1,
        slurm_array_parallelism=options.parallel,
        slurm_additional_parameters=dict(option.split("=", 1) for option in options.slurm_options),
    )
    if options.partition:
        executor.update_parameters(slurm_partition=options.partition)
    for start in range(0, len(wanted), LARGEST_ARRAY):
        chunk = wanted[start : start + LARGEST_ARRAY]
        with executor.batch():
            jobs = [executor.submit(CommandFunction([sys.executable, *one_run(run, options)])) for run in chunk]
        with open(job_list(suite), "a") as file:
            file.writelines(f"{job.job_id} {run.name}\n" for job, run in zip(jobs, chunk))
    say(f"{len(wanted)} runs submitted, {len(there)} were in the queue; --status tells how they stand")
    return 0


def one_run(run: Run, options: argparse.Namespace) -> list[str]:
    """This runner's arguments for one run alone."""
    words = [str(records.ROOT / "benchmark" / "run.py"), options.suite, "--workers", "1"]
    words += ["--envs", run.env_id, "--variants", run.variant, "--seeds", str(run.seed)]
    words += ["--timesteps", str(options.timesteps)] if options.timesteps else []
    return words + ["--retry-failed"] * options.retry_failed


def print_status(runs: list[Run]) -> None:
    """A line on every run that is not done, and the counts."""
    there, counts = queued(runs[0].suite), Counter()
    for run in runs:
        if csv_path(run).exists():
            state = "done"
        elif is_locked(run):
            state = "running"
        elif run.name in there:
            state = f"{there[run.name]} in Slurm"
        elif beside(run, ".failed").exists():
            state = "failed"
        else:
            state = "interrupted" if folder(run).exists() else "not started"
        counts[state] += 1
        if state == "failed":
            print(failure(run))
        elif state not in ("done", "not started"):
            print(f"{run.name}: {state}, {steps_done(run)} of {run.flags['total_timesteps']} steps")
    print(f"{len(runs)} runs: " + ", ".join(f"{count} {state}" for state, count in counts.items()))


def parse_seeds(words: list[str]) -> list[int]:
    """["1-3", "7"] -> [1, 2, 3, 7]."""
    seeds = []
    for word in words:
        first, _, last = word.partition("-")
        try:
            seeds += range(int(first), int(last or first) + 1)
        except ValueError:
            raise InputError(f"--seeds: {word} is neither a seed nor a range such as 1-3") from None
    if not seeds:
        raise InputError("--seeds names no seed")
    return list(dict.fromkeys(seeds))


def check_existing(runs: list[Run]) -> None:
    """Raises InputError at a CSV that is not whole, or was made with other arguments than the suite's."""
    for run in runs:
        if csv_path(run).exists():
            record = records.read_csv(csv_path(run), run.suite)
            if changed := records.difference(run, record):
                raise InputError(f"{csv_path(run)} was made with other arguments: {changed}; remove it to run it again")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", help="table2, figure1, leave_one_out or smoke")
    parser.add_argument("--envs", nargs="+", help="only these environments")
    parser.add_argument("--variants", nargs="+", help="only these variants")
    parser.add_argument("--seeds", nargs="+", help="these seeds instead of the suite's: 1-3, or 1 2 5")
    parser.add_argument("--timesteps", type=int, help="steps of every run; results go to SUITE-TIMESTEPS")
    parser.add_argument("--workers", type=int, default=cores, help="processes at once (default: cores, %(default)s)")
    parser.add_argument("--retry-failed", action="store_true", help="try failed runs again")
    parser.add_argument("--dry-run", "--commands", action="store_true", help="print the commands, run nothing")
    parser.add_argument("--status", action="store_true", help="say how far every run is")
    parser.add_argument("--engine", choices=("local", "slurm"), default="local")
    slurm = parser.add_argument_group("with --engine slurm")
    slurm.add_argument("--partition", help="default: the cluster's")
    slurm.add_argument("--time", type=int, default=120, help="minutes a run may take (default %(default)s)")
    slurm.add_argument("--mem", type=float, default=2, help="GB a run (default %(default)s)")
    slurm.add_argument("--parallel", type=int, default=100, help="jobs of an array at once (default %(default)s)")
    slurm.add_argument("--slurm-options", nargs="+", default=[], help="more of sbatch's, such as account=NAME")
    return parser


def main() -> int:
    """The command line. Exit status 0: all runs done; 1: not all; 2: bad input; 130, 143: SIGINT, SIGTERM."""
    options = parser().parse_args()
    try:
        if options.workers < 1:
            raise InputError("--workers must be at least 1")
        seeds = parse_seeds(options.seeds) if options.seeds else None
        runs = select(options.suite, options.envs, options.variants, seeds, options.timesteps)
        if options.dry_run:
            print("\n".join(shlex.join(first_command(run)) for run in runs))
            return 0
        check_existing(runs)
        if options.status:
            print_status(runs)
            return 0
        if options.engine == "slurm":
            return run_slurm(runs, options)
        return run_local(runs, options.workers, options.retry_failed)
    except InputError as error:
        print(f"run.py: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"run.py: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
