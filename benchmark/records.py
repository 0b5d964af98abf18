"""Where runs and results lie, and the CSV of one finished run: written whole, read with suspicion.

One file is the mark that a run is done, its numbers and where they come from, so none of the three can lack the others:
lines of JSON behind `#`, then a row an iteration. `pandas.read_csv(path, comment="#")` reads the rows.
"""

import csv
import hashlib
import json
import os
import platform
import shlex
from collections import defaultdict
from math import inf
from pathlib import Path
from typing import NamedTuple

from suites import InputError, Run

ROOT = Path(__file__).resolve().parents[1]
RUNS, RESULTS = "benchmark/runs", "benchmark/results"  # under ROOT
# sha256 of earlier scripts (before there were floors) and upper floors that committed results are of: today's repeat
# their training (tests/test_results.py)
REPEATED = {
    "17d27401f09a4d50cc681538fee26dc591245e04d31e04cde85175b538468dd1",
    "da2a51d8855c0c1aa6497f5f8a1daddf71da8a9d10eac1af7505a486944e649d",
    "739a8fe996c9416cd292284345148b1745e399fc1bcc1ea3ac64dd6f9cfe0dcd",
    "7af3f4f1732444f91c7e61f7a4e9222766472c1a70d761c43c578081201763bf",
    "9ff4b72afa816d01c3598e965d85b0d0c60f3fa6c5597e7c4bd7d2655e849f22",
}
ADDED = {"compile": False}  # flags that came after the first results, and what these were made with


def folder(run: Run) -> Path:
    """The run's own folder, as the training script makes it."""
    return ROOT / RUNS / run.suite / run.name


def beside(run: Run, ending: str) -> Path:
    """A file beside the run's folder: .log, .lock, .failed."""
    return ROOT / RUNS / run.suite / f"{run.name}{ending}"


def csv_path(run: Run) -> Path:
    """Where the finished run's results lie."""
    return ROOT / RESULTS / run.suite / f"{run.name}.csv"


def script_path(run: Run) -> Path:
    """The run's script: a name in the project's folder, or a path."""
    return ROOT / f"{run.script.removesuffix('.py')}.py"


def hashes(run: Run) -> dict[str, str]:
    """sha256 of its script and of what stands above the line RUNNING IT, as the script's own args.json has them."""
    text = script_path(run).read_bytes()
    parts = {"sha256": text, "algorithm_sha256": text.partition(b"\n# RUNNING IT")[0]}
    return {name: hashlib.sha256(part).hexdigest() for name, part in parts.items()}


def command(run: Run) -> list[str]:
    """The training command, every training flag spelled out."""
    words = ["python", f"{run.script.removesuffix('.py')}.py", "--env-id", run.env_id, "--seed", str(run.seed)]
    for name, value in run.flags.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, tuple):
            words += [f"--{flag}", *map(str, value)]
        else:
            words += [f"--{flag}", str(value)]
    return words


def plain(flags: dict) -> dict:
    """Flags as strict JSON has them: lists, and "inf" where a bound is off."""
    return {k: "inf" if v == inf else list(v) if isinstance(v, (tuple, list)) else v for k, v in flags.items()}


def batch_size(run: Run) -> int:
    """How many steps an iteration of the run takes."""
    return run.flags["num_envs"] * run.flags["num_steps"]


def num_iterations(run: Run) -> int:
    """How many iterations the finished run has."""
    return run.flags["total_timesteps"] // batch_size(run)


def read_run(run: Run) -> tuple[dict, list[dict]]:
    """A trained run's args.json and history.jsonl. Raises OSError, ValueError or KeyError where they are not whole."""
    about = json.loads((folder(run) / "args.json").read_text())
    about["script"], about["sha256"], about["versions"]  # noqa: B018
    history = [json.loads(line) for line in (folder(run) / "history.jsonl").read_text().splitlines()]
    if len(history) != num_iterations(run):
        raise ValueError(f"history.jsonl holds {len(history)} of {num_iterations(run)} iterations")
    return about, history


def cpu_model() -> str:
    """The processor, as far as the system tells: its name, and what sets it apart from others of that name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    found = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "model name" not in found:
        return platform.processor() or platform.machine()
    return "{model name} (family {cpu family}, model {model})".format_map(defaultdict(lambda: "?", found))


def write_csv(run: Run, about: dict, history: list[dict]) -> None:
    """Writes a finished run's CSV: `#` lines of JSON on where it comes from, then a row an iteration.

    `about` is the run's args.json. Whole or not at all: a temporary file is renamed, and removed if that fails.
    """
    header = {
        "suite": run.suite,
        "run": run.name,
        "env_id": run.env_id,
        "variant": run.variant,
        "seed": run.seed,
        "iterations": len(history),
        "command": shlex.join(command(run)),
        **{name: about[name] for name in ("script", "sha256", "algorithm_sha256", "versions") if name in about},
        "cpu": cpu_model(),
        # training and measuring; a run that was interrupted counts only what it kept
        "wall_seconds": round(sum(batch_size(run) / row["charts/SPS"] for row in history if "charts/SPS" in row), 1),
        "args": plain(run.flags),
    }
    columns = list(dict.fromkeys(name for row in history for name in row))
    path = csv_path(run)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".csv.tmp")
    try:
        with open(temporary, "w", newline="") as file:
            file.writelines(f"# {line}\n" for line in json.dumps(header, indent=2).splitlines())
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            for row in history:
                writer.writerow(
                    [f"{row[name]:.6g}" if isinstance(row.get(name), float) else row.get(name, "") for name in columns]
                )
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


class Record(NamedTuple):
    """One finished run as read back from its CSV."""

    env_id: str
    variant: str
    seed: int
    about: dict  # the header
    history: dict[str, list[float]]  # what was recorded, a number an iteration; NaN where nothing was


def read_csv(path: Path, suite: str) -> Record:
    """Reads a run's CSV. Raises InputError where it is not whole, or not of this suite."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    lines = text.splitlines()
    header = [line[2:] for line in lines if line.startswith("#")]
    try:
        about = json.loads("\n".join(header))
        found, iterations = about["suite"], about["iterations"]
        key = about["env_id"], about["variant"], about["seed"]
        about["args"], about["sha256"], about["script"]  # noqa: B018
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a results file: its header is not whole") from error
    if found != suite:
        raise InputError(f"{path} is of the suite {found}, not {suite}")
    if about.get("run") != path.stem:
        raise InputError(f"{path} holds another run, {about.get('run')}")
    rows = list(csv.reader(lines[len(header) :]))
    if not text.endswith("\n") or len(rows) != iterations + 1 or len({len(row) for row in rows}) != 1:
        raise InputError(f"{path} is truncated: {max(len(rows) - 1, 0)} rows, its header says {iterations}")
    try:
        values = [[float(cell) if cell else float("nan") for cell in row] for row in rows[1:]]
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}") from error
    return Record(*key, about, {name: list(column) for name, column in zip(rows[0], zip(*values))})


def difference(run: Run, record: Record) -> str:
    """How the training arguments of a run's CSV differ from the suite's, "" where they do not."""
    wanted, found = ADDED | plain(run.flags), ADDED | record.about["args"]
    names = [name for name in wanted | found if wanted.get(name) != found.get(name)]
    return ", ".join(f"--{name.replace('_', '-')} {found.get(name)} (suite: {wanted.get(name)})" for name in names)
