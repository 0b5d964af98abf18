"""Runs a suite: every variant x environment x seed as a process of its own, here or on a Slurm cluster.

    python benchmark/run.py smoke                                    # minutes: every variant, small
    python benchmark/run.py table2 --envs Hopper-v5 --seeds 11-13    # part of a suite, other seeds
    python benchmark/run.py table2 --status                          # how far it is
    python benchmark/run.py table2 --dry-run --envs Walker2d-v5 --variants ppo --seeds 1    # the paper's command
    python benchmark/run.py table2 --seeds 1-80 --engine slurm --partition cpu --time 60

The same command goes on where it stopped: a run with its CSV in benchmark/results is skipped, one with a checkpoint in
benchmark/runs is resumed, a failed one is reported with the end of its log and tried again with --retry-failed. Any
number of runners share the work.
"""

import argparse
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager, redirect_stderr
from datetime import timedelta
from io import StringIO
from pathlib import Path

import records
from records import beside, csv_path, folder
from suites import SUITES, InputError, Run, select
from tqdm import tqdm

STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # exit statuses of a script that was asked to stop
LARGEST_ARRAY = 1000  # jobs; Slurm's own default limit is 1001


def say(line: str) -> None:
    """Prints a line above the progress bar."""
    tqdm.write(line)
    sys.stdout.flush()


@contextmanager
def locked(path: Path):
    """The file, open and locked, or None where somebody has its lock.

    An flock by hand, not a library's, because a child can inherit it: a runner killed at any moment leaves no child
    whose run another runner would take for free.
    """
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file = None
        yield file


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock of this file."""
    if not path.exists():
        return False
    with locked(path) as file:
        return file is None


def trains_itself(run: Run) -> bool:
    """Whether a script holds the lock of the run's folder; somebody may have started it without a runner."""
    return any(map(is_locked, folder(run).glob("*.lock")))


def complaint(run: Run) -> str:
    """What is wrong with the run's CSV, "" where nothing is."""
    try:
        changed = records.difference(run, records.read_csv(csv_path(run), run.suite))
        wrong = f"{csv_path(run)} was made with other arguments: {changed}" if changed else ""
    except InputError as error:
        wrong = str(error)
    return wrong and f"{wrong}; to train the run again: rm {shlex.quote(str(csv_path(run)))}"


def failure(run: Run, lines: int = 8) -> str:
    """A line on a failed run, and the end of its log."""
    log = beside(run, ".log")
    status = beside(run, ".failed").read_text().strip()
    tail = log.read_text(errors="replace").splitlines()[-lines:] if log.exists() else []
    shown = "\n".join(f"    {line}" for line in tail)
    return f"{run.name}: failed, {status}; --retry-failed tries again; end of {log.relative_to(records.ROOT)}:\n{shown}"


TROUBLE = {"failed": failure, "damaged": complaint}  # state -> what there is to say of it


def state(run: Run) -> str:
    """done, damaged (its CSV), running, failed, interrupted or not started."""
    if csv_path(run).exists():
        return "damaged" if complaint(run) else "done"
    if is_locked(beside(run, ".lock")) or trains_itself(run):
        return "running"
    if beside(run, ".failed").exists():
        return "failed"
    return "interrupted" if folder(run).exists() else "not started"


def steps_done(run: Run) -> int:
    """How many steps of the run are saved."""
    if csv_path(run).exists():
        return run.flags["total_timesteps"]
    history = folder(run) / "history.jsonl"
    return history.read_bytes().count(b"\n") * records.batch_size(run) if history.exists() else 0


def split(runs: list[Run], retry_failed: bool) -> tuple[dict[str, str], list[Run]]:
    """What is settled, by name, said where it is not well; and what is to be trained."""
    settled, to_train = {}, []
    for run in runs:
        found = state(run)
        if found not in ("done", *TROUBLE) or (found == "failed" and retry_failed):
            to_train.append(run)
            continue
        settled[run.name] = found
        if found in TROUBLE:
            say(TROUBLE[found](run))
    return settled, to_train


def can_resume(run: Run) -> bool:
    """Whether its folder holds a whole checkpoint of these arguments, made by the same algorithm."""
    try:
        about = json.loads((folder(run) / "args.json").read_text())
        asked = records.plain(run.flags) | {"env_id": run.env_id, "seed": run.seed}
        kind = "algorithm_sha256" if "algorithm_sha256" in about else "sha256"
        same = about[kind] == records.hashes(run)[kind] and asked.items() <= about["args"].items()
    except (OSError, ValueError, KeyError):
        return False
    return same and zipfile.is_zipfile(folder(run) / "checkpoint.pt")  # torch.save's; a truncated one is none


def next_command(run: Run) -> list[str]:
    """The command that starts or resumes the run. Needs the run's lock. What cannot be resumed is removed."""
    python, script, *flags = records.command(run)
    if can_resume(run):
        return [python, script, "--resume", f"{records.RUNS}/{run.suite}/{run.name}"]
    if folder(run).exists():
        say(f"{run.name}: cannot be resumed (no whole checkpoint of this algorithm and these arguments), starts anew")
        shutil.rmtree(folder(run))
    return [python, script, *flags, "--runs-dir", f"{records.RUNS}/{run.suite}", "--run-name", run.name]


def finish(run: Run, status: int) -> str:
    """After its process has ended: exports the run, or marks it as failed. Returns how it ended."""
    if status < 0 or status in STOPPED:
        say(f"{run.name}: stopped by a signal (exit status {status}); the same command resumes it")
        return "stopped"
    reason = f"exit status {status}"
    if status == 0:
        try:
            about, history = records.read_run(run)
        except (OSError, ValueError, KeyError) as error:
            reason += f", but {type(error).__name__}: {error}"
        else:
            records.write_csv(run, about, history)
            return "done"
    beside(run, ".failed").write_text(f"{reason}\n")
    say(failure(run))
    return "failed"


class Children:
    """The training processes of this runner."""

    def __init__(self):
        self.processes = {}  # run's name -> process
        self.signal = None  # that asked them to stop

    def stop(self, number: int, frame=None) -> None:
        """A signal's handler: every child saves and stops; what has not within half a minute will be killed."""
        if not self.signal:
            self.signal, self.deadline = number, time.time() + 30
            self.send(signal.SIGTERM)

    def send(self, number: int) -> None:
        for process in list(self.processes.values()):
            process.send_signal(number)

    def train(self, run: Run) -> str:
        """Trains a run, in a thread. Returns done, failed, stopped (by a signal), held (by another process), or "" """
        if self.signal:
            return ""
        beside(run, ".lock").parent.mkdir(parents=True, exist_ok=True)
        with locked(beside(run, ".lock")) as lock:
            if lock is None or trains_itself(run):
                time.sleep(1)  # before it is tried again
                return "held"
            if csv_path(run).exists():
                return "done"  # by another runner
            words = next_command(run)
            beside(run, ".failed").unlink(missing_ok=True)
            with open(beside(run, ".log"), "ab") as log:
                log.write(f"$ {shlex.join(words)}\n".encode())
                log.flush()
                process = self.processes[run.name] = subprocess.Popen(
                    [sys.executable, *words[1:]],
                    cwd=records.ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=[lock.fileno()],  # a child that outlives this process keeps the run locked
                    start_new_session=True,  # Ctrl-C reaches this process, which then stops its children
                )
            if self.signal:  # since it was looked at
                process.terminate()
            process.wait()
            del self.processes[run.name]
            return finish(run, process.returncode)


def run_local(runs: list[Run], workers: int, retry_failed: bool) -> int:
    """Runs processes on this machine, `workers` at once. Returns the exit status."""
    outcome, to_train = split(runs, retry_failed)  # outcome: run's name -> done, damaged, failed, stopped
    count = lambda result: list(outcome.values()).count(result)  # noqa: E731
    if count("done") == len(runs):
        where = f"{records.RESULTS}/{runs[0].suite} (in a fresh clone those that were committed)"
        say(f"{len(runs)} of {len(runs)} runs are done already, their results are in {where}")
        anew = shlex.join(["rm", "-rf", str(csv_path(runs[0])), str(folder(runs[0]))])
        say(f"to train one anew, remove it and call this again: {anew}")
        return 0
    children, told, started = Children(), set(), time.time()
    handlers = {number: signal.signal(number, children.stop) for number in (signal.SIGINT, signal.SIGTERM)}
    total, first = sum(run.flags["total_timesteps"] for run in runs), sum(map(steps_done, runs))
    bar = tqdm(total=total, initial=first, unit="step", unit_scale=True, disable=None, smoothing=0.05)
    with bar, ThreadPoolExecutor(workers) as pool:
        pending = {pool.submit(children.train, run): run for run in to_train}
        try:
            while pending:
                ended = wait(pending, timeout=5, return_when=FIRST_COMPLETED).done
                steps = sum(map(steps_done, runs))
                bar.set_postfix_str("  ".join(children.processes), refresh=False)
                bar.update(steps - bar.n)
                for future in ended:
                    run = pending.pop(future)
                    try:
                        result = future.result()
                    except OSError as error:
                        say(f"{run.name}: error: {error}; nothing is lost, the same command tries again")
                        result = "failed"
                    if result == "held":
                        if run.name not in told:
                            say(f"{run.name}: another process trains it; waiting for its end")
                        told.add(run.name)
                        pending[pool.submit(children.train, run)] = run  # after all others
                        continue
                    outcome[run.name] = result
                    if result == "done":
                        left = (time.time() - started) * (total - steps) / max(steps - first, 1)
                        left = f", about {timedelta(seconds=round(left))} left" if pending else ""
                        say(f"{run.name}: done, {count('done')} of {len(runs)}{left}")
                if children.signal and time.time() > children.deadline:
                    children.send(signal.SIGKILL)
        except BaseException:
            children.stop(signal.SIGTERM)
            raise
    for number, handler in handlers.items():
        signal.signal(number, handler)
    others = "".join(f", {count(name)} {name}" for name in ("failed", "damaged", "stopped") if count(name))
    say(f"{count('done')} of {len(runs)} runs done{others}")
    if children.signal:
        say(f"interrupted; to go on: {shlex.join(['python', *sys.argv])}")
        return 128 + children.signal
    return 0 if count("done") == len(runs) else 1


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

    suite, there = runs[0].suite, queued(runs[0].suite)
    _, to_train = split(runs, options.retry_failed)
    wanted = [run for run in to_train if run.name not in there]
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
        try:
            with redirect_stderr(StringIO()), executor.batch():  # submitit prints what sbatch says, too
                jobs = [executor.submit(CommandFunction([sys.executable, *one_run(run, options)])) for run in chunk]
        except RuntimeError as error:  # submitit's kinds of a refusal, which end with sbatch's own words
            raise InputError(f"--engine slurm: {' '.join(str(error).split())}") from error
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
        found = state(run)
        if found not in ("done", "damaged", "running") and run.name in there:
            found = f"{there[run.name]} in Slurm"
        counts[found] += 1
        if found in TROUBLE:
            print(TROUBLE[found](run))
        elif found not in ("done", "not started"):
            print(f"{run.name}: {found}, {steps_done(run)} of {run.flags['total_timesteps']} steps")
    print(f"{len(runs)} runs: " + ", ".join(f"{count} {found}" for found, count in counts.items()))


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


def check_entries(runs: list[Run]) -> None:
    """Raises InputError where an entry of suites.py names a script that is not there, or a flag it does not have."""
    scripts = {records.script_path(run): run for run in runs}
    for path, run in scripts.items():
        if not path.is_file():
            raise InputError(f"suites.py: {run.variant} on {run.env_id}: there is no script {path}")
    texts = {path: path.read_text() for path in scripts}
    arguments = {
        path: set(re.findall(r"^ +(\w+):", text, re.M)) for path, text in texts.items() if "class Args" in text
    }
    for run in runs:
        path = records.script_path(run)
        if path in arguments and (unknown := run.flags.keys() - arguments[path]):
            raise InputError(
                f"suites.py: {run.variant} on {run.env_id}: {path.name} has no argument {', '.join(sorted(unknown))}"
            )


def parser() -> argparse.ArgumentParser:
    """The command line."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", help=", ".join(SUITES))
    parser.add_argument("--envs", nargs="+", help="only these environments")
    parser.add_argument("--variants", nargs="+", help="only these variants")
    parser.add_argument("--seeds", nargs="+", help="these seeds instead of the suite's: 1-3, or 1 2 5")
    parser.add_argument("--timesteps", type=int, help="steps of every run; results go to SUITE-TIMESTEPS")
    parser.add_argument("--workers", type=int, default=cores, help="processes at once (default: cores, %(default)s)")
    parser.add_argument("--retry-failed", action="store_true", help="try failed runs again")
    parser.add_argument("--dry-run", action="store_true", help="print each run's training command, run nothing")
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
        if wrong := [option for option in options.slurm_options if not re.fullmatch("[^=]+=.*", option)]:
            raise InputError(f"--slurm-options: {wrong[0]} is not of the form NAME=VALUE")
        seeds = parse_seeds(options.seeds) if options.seeds else None
        runs = select(options.suite, options.envs, options.variants, seeds, options.timesteps)
        check_entries(runs)
        if options.dry_run or options.status:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends this silently
        if options.dry_run:
            for run in runs:
                print(shlex.join(records.command(run)))
                if state(run) == "damaged":
                    print(f"run.py: {complaint(run)}", file=sys.stderr)
            return 0
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
