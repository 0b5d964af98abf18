"""Trained agents play with mean and with sampled actions: a suite's scores are of sampled ones, while training.

    python benchmark/play.py table2 --envs Humanoid-v5 --seeds 5-10

plays 20 episodes of either kind with every finished run that lies in benchmark/runs, statistics frozen, all agents from
the same seeds, and writes benchmark/results/SUITE_played.csv anew, a row an episode. report.py shows what is in it.
"""

import argparse
import contextlib
import csv
import importlib.util
import io
import json
import shlex
import sys
from pathlib import Path

import records
from run import parse_seeds
from suites import SUITES, InputError, Run, select
from tqdm import tqdm

KINDS = ("mean", "sampled")
COLUMNS = ("env_id", "variant", "seed", "actions", "episode", "return")


def load(path: Path):
    """A training script as a module. Raises InputError where it cannot play."""
    if str(path) not in sys.modules:
        spec = importlib.util.spec_from_file_location(str(path), path)
        sys.modules[str(path)] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    if not hasattr(sys.modules[str(path)], "evaluate"):
        raise InputError(f"{path} has no function evaluate(run, episodes, stochastic)")
    return sys.modules[str(path)]


def play(run: Run, episodes: int) -> list[tuple]:
    """The rows of one agent."""
    script, rows = load(records.script_path(run)), []
    for kind in KINDS:
        with contextlib.redirect_stdout(io.StringIO()):
            returns = script.evaluate(records.folder(run), episodes=episodes, stochastic=kind == "sampled")
        rows += [(run.env_id, run.variant, run.seed, kind, i, f"{x:.6g}") for i, x in enumerate(returns, 1)]
    return rows


def main() -> int:
    """The command line. Exit status 0: written; 2: bad input, nothing written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", help=", ".join(SUITES))
    parser.add_argument("--envs", nargs="+", help="only these environments")
    parser.add_argument("--variants", nargs="+", help="only these variants")
    parser.add_argument("--seeds", nargs="+", help="these seeds instead of the suite's: 1-3, or 1 2 5")
    parser.add_argument("--timesteps", type=int, help="the runs that run.py --timesteps made")
    parser.add_argument("--episodes", type=int, default=20, help="of either kind (default %(default)s)")
    options = parser.parse_args()
    try:
        seeds = parse_seeds(options.seeds) if options.seeds else None
        runs = select(options.suite, options.envs, options.variants, seeds, options.timesteps)
        found, rows = [], []
        for run in runs:
            try:
                found.append((run, records.read_run(run)[0]))
            except (OSError, ValueError, KeyError):
                print(f"{run.name}: no finished run in {records.folder(run).parent}, left out", file=sys.stderr)
        if not found:
            raise InputError(f"nothing to play; python benchmark/run.py {options.suite} trains it")
        for run, _ in tqdm(found, unit="agent", disable=None):
            rows += play(run, options.episodes)
    except ValueError as error:  # InputError, and what a script says of a run that it cannot play
        print(f"play.py: error: {error}", file=sys.stderr)
        return 2
    header = {
        "command": shlex.join(["python", "benchmark/play.py", *sys.argv[1:]]),
        "algorithms": {about["script"]: about["algorithm_sha256"] for _, about in found},
        "versions": found[0][1]["versions"],
        "cpu": records.cpu_model(),
    }
    path = records.ROOT / records.RESULTS / f"{runs[0].suite}_played.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        file.writelines(f"# {line}\n" for line in json.dumps(header, indent=2).splitlines())
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    print(f"{path.relative_to(records.ROOT)}: {len(found)} agents")
    return 0


if __name__ == "__main__":
    sys.exit(main())
