"""Tables and figures of a suite, from the CSVs in benchmark/results alone: redone in seconds, by anyone.

    python benchmark/report.py table2

writes benchmark/results/table2.md and, beside it, its figures. It takes what the suite in suites.py holds. Runs of one
cell whose algorithm or training arguments differ are refused.
"""

import argparse
import sys
from pathlib import Path

import pandas as pd
import records
from ablations import report_factorial, report_leave_one_out
from comparisons import report_table
from figures import WINDOW, label
from records import REPEATED, Record
from stats import ENOUGH
from suites import SUITES, InputError, Run, choose, select
from tables import Cells

REPORTS = {"table": report_table, "factorial": report_factorial, "leave_one_out": report_leave_one_out}


def load(suite: str, timesteps: int | None) -> Cells:
    """All finished runs of a suite, their histories as data frames, those that it has beside them first.

    Raises InputError where one is not whole, where what differs would be mixed, or where there are none.
    """
    choose("suite", [suite], list(SUITES))
    cells = read(suite, timesteps)
    if not every(cells):
        narrowed = f" --timesteps {timesteps}" if timesteps else ""
        made = f"python benchmark/run.py {suite}{narrowed} makes them"
        raise InputError(f"there are no results in {results(suite, timesteps)}; {made}")
    for other, variants in SUITES[suite].get("beside", {}).items():
        found = read(other, timesteps)
        cells = {env: {v: found[env][v] for v in variants} | rows for env, rows in cells.items()}
    return {env_id: sorted_by_seed(rows) for env_id, rows in cells.items()}


def results(suite: str, timesteps: int | None) -> Path:
    """The folder of a suite's CSVs; its report is named like it."""
    return records.ROOT / records.RESULTS / select(suite, timesteps=timesteps)[0].suite


def read(suite: str, timesteps: int | None) -> Cells:
    """The runs in a suite's own folder."""
    cells = {env_id: {variant: [] for variant in rows} for env_id, rows in SUITES[suite]["cells"].items()}
    folder = results(suite, timesteps)
    for path in sorted(folder.glob("*.csv")):
        record = records.read_csv(path, folder.name)
        if record.variant not in cells.get(record.env_id, ()):
            raise InputError(f"{path}: {suite} has no {record.variant} on {record.env_id}")
        (run,) = select(suite, [record.env_id], [record.variant], [record.seed], timesteps)
        if path.stem != run.name:
            raise InputError(f"{path} holds another run, {run.name}")
        if changed := records.difference(run, record):
            raise InputError(f"{path} was made with other arguments: {changed}")
        cell = cells[record.env_id][record.variant]
        for other in cell:
            check_same_algorithm(path, run, record, other)
        cell.append(record._replace(history=pd.DataFrame(record.history)))
    return cells


def sorted_by_seed(rows: dict[str, list[Record]]) -> dict[str, list[Record]]:
    """The agents of each variant, seed 2 before seed 10."""
    return {variant: sorted(agents, key=lambda agent: agent.seed) for variant, agents in rows.items()}


def version(record: Record, other: Record) -> tuple[str, str]:
    """What made a run, as far as both runs' headers tell: the script, and its upper floor's sha256 or its own."""
    key = "algorithm_sha256" if "algorithm_sha256" in record.about and "algorithm_sha256" in other.about else "sha256"
    return f"{record.about['script']}.py", record.about[key][:12]


def is_repeated(run: Run, old: Record, new: Record) -> bool:
    """Whether one is of an earlier script, the other of today's, which repeats its training."""
    if not {old.about["sha256"], old.about.get("algorithm_sha256")} & REPEATED or "algorithm_sha256" not in new.about:
        return False
    return new.about["algorithm_sha256"] == records.hashes(run)["algorithm_sha256"]


def check_same_algorithm(path: Path, run: Run, record: Record, other: Record) -> None:
    """Raises InputError where two runs of a cell were trained by different versions of an algorithm."""
    here, there = version(record, other), version(other, record)
    if here != there and not is_repeated(run, record, other) and not is_repeated(run, other, record):
        raise InputError(
            f"{path} was made by {' '.join(here)}, {other.about['run']} by {' '.join(there)}: not one cell"
        )


def every(cells: Cells) -> list[Record]:
    """All agents."""
    return [record for rows in cells.values() for agents in rows.values() for record in agents]


def ranges(seeds) -> str:
    """[1, 2, 3, 7] -> "1-3, 7"."""
    spans = []
    for seed in sorted(seeds):
        if spans and seed == spans[-1][1] + 1:
            spans[-1][1] = seed
        else:
            spans.append([seed, seed])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def agents_lines(cells: Cells) -> list[str]:
    """A line a task on how many agents its variants have."""
    lines = []
    for env_id, rows in cells.items():
        groups = {}  # seeds -> variants
        for variant, agents in rows.items():
            groups.setdefault(ranges(agent.seed for agent in agents), []).append(variant)
        said = []
        for seeds, variants in groups.items():
            names = ", ".join(map(label, variants)) if len(variants) <= 6 else f"{len(variants)} variants"
            names = "every variant" if len(groups) == 1 else names
            n = len(rows[variants[0]])
            said.append(f"{names}: n = {n} (seed{'s' * (n > 1)} {seeds})" if n else f"{names}: no runs yet")
        lines.append(f"- {env_id}: {'; '.join(said)}.")
    return lines


def provenance(cells: Cells) -> str:
    """What there is, and what made it."""
    found = every(cells)
    versions = {}  # script and hash -> environments
    for record in found:
        versions.setdefault(version(record, record), set()).add(record.env_id)
    mixed = len(versions) > len({script for script, _ in versions})
    names = [" ".join(key) + f" ({', '.join(sorted(e))})" * mixed for key, e in sorted(versions.items())]
    packages = {f"{name} {number}" for record in found for name, number in record.about["versions"].items()}
    cpus = {record.about["cpu"] for record in found}
    hours = sum(record.about["wall_seconds"] for record in found) / 3600
    lines = [f"{len(found)} runs.\n", *agents_lines(cells), f"\nMade by {', '.join(names)} (sha256), with"]
    lines.append(f"{', '.join(sorted(packages))}; on {', '.join(sorted(cpus))}; {hours:.1f} hours of one core.")
    if mixed:
        lines.append("\n**More than one version of a script made these runs**, though never within one cell.")
    return "\n".join(lines) + "\n"


LEGEND = """
*Best iteration* is the maximum over iterations of the mean return of the episodes that ended in one, *last five* the \
mean over the last five; an iteration in which no episode ended has no return and is left out. Intervals are 95%: \
Student's of a mean, Welch's of a difference (both take the agents' scores as normal)"""
COMPARED = f""", the percentile bootstrap over agents (10,000 resamples) of interquartile means, probabilities and \
ACLI - AAI. Those, of fewer than {ENOUGH} agents a cell, stand without an interval or not at all: the bootstrap's \
would be too narrow (of 3 agents the lowest and the highest). AAI and ACLI are absolute values, which chance alone \
makes greater than 0; *by chance alone* is their mean if no two variants differed. A range in round brackets is from \
the lowest to the highest agent. p values are corrected by Holm's method for all differences of the report.

In the figures, returns and what is measured on the training batch are moving averages of {WINDOW} iterations (the \
maximum ratio: moving medians), what is measured on held-out batches single iterations. Lines are means over agents \
(the maximum ratio: medians). Bands are the lowest to the highest of fewer than {ENOUGH} agents; from {ENOUGH} on 95% \
intervals of the mean (the maximum ratio: quartiles).
"""


def main() -> int:
    """The command line. Exit status 0: written; 2: bad input, nothing written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", help=", ".join(SUITES))
    parser.add_argument("--timesteps", type=int, help="the results that run.py --timesteps made")
    options = parser.parse_args()
    try:
        cells = load(options.suite, options.timesteps)
        name = results(options.suite, options.timesteps).name
        out = records.ROOT / records.RESULTS
        kind = SUITES[options.suite].get("report", "table")
        legend = LEGEND + (COMPARED if kind == "table" else ".\n")
        body = REPORTS[kind](cells, name, out)
        path = out / f"{name}.md"
        path.write_text(f"# {name}\n\n{provenance(cells)}{legend}\n{body}")
    except InputError as error:
        print(f"report.py: error: {error}", file=sys.stderr)
        return 2
    print(f"{path.relative_to(records.ROOT)} and its figures: {len(every(cells))} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
