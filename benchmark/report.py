"""Tables and figures of a suite, from the CSVs in benchmark/results alone: redone in seconds, by anyone.

    python benchmark/report.py table2

writes benchmark/results/table2.md and, beside it, its figures. Runs of one cell whose script or training arguments
differ are refused; what is missing is named.
"""

import argparse
import sys
from itertools import combinations
from pathlib import Path

import figures
import numpy as np
import pandas as pd
import records
import stats
from paper import PAPER, authors
from records import Record
from suites import FACTORS, LABELS, LEFT_OUT, RATES, SUITES, InputError, choose, select

SCORES = {"best": "best iteration", "last": "last five iterations"}
# what the paper compares: the optimizations on PPO and on TRPO, the algorithms with and without them, the clip
COMPARISONS = (
    ("ppo", "ppo_m"),
    ("trpo_plus", "trpo"),
    ("ppo", "trpo_plus"),
    ("ppo_m", "trpo"),
    ("ppo_noclip", "ppo_m"),
    ("ppo_noclip", "ppo"),
)
Cells = dict[str, dict[str, list[Record]]]  # environment -> variant -> agents


def load(suite: str, timesteps: int | None) -> Cells:
    """All finished runs of a suite, their histories as data frames.

    Raises InputError where one is not whole, or where what differs would be mixed.
    """
    choose("suite", [suite], list(SUITES))
    cells = {env_id: {variant: [] for variant in rows} for env_id, rows in SUITES[suite]["cells"].items()}
    folder = records.ROOT / records.RESULTS / select(suite, timesteps=timesteps)[0].suite
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
        for other in cell[:1]:
            if (other.about["script"], other.about["sha256"]) != (record.about["script"], record.about["sha256"]):
                raise InputError(
                    f"{path} was made by another version of {record.about['script']}.py (sha256 "
                    f"{record.about['sha256'][:12]}) than {other.about['run']} ({other.about['sha256'][:12]})"
                )
        cell.append(record._replace(history=pd.DataFrame(record.history)))
    if not any(agents for rows in cells.values() for agents in rows.values()):
        raise InputError(f"there are no results in {folder}; python benchmark/run.py {suite} makes them")
    return cells


def every(cells: Cells) -> list[Record]:
    """All agents."""
    return [record for rows in cells.values() for agents in rows.values() for record in agents]


def sample(agents: list[Record], score: str) -> np.ndarray:
    """The agents' scores, without those that have none."""
    values = np.array([stats.scores(record.history)[score] for record in agents], dtype=float)
    return values[~np.isnan(values)]


def mean_score(agents: list[Record], score: str) -> stats.Estimate | str:
    """The mean score with its interval; with its n where that is not the number of agents."""
    values = sample(agents, score)
    estimate = stats.bootstrap(stats.mean, values) if len(values) else "-"
    return estimate if len(values) == len(agents) else f"{estimate} (n = {len(values)})"


def table(head: list[str], rows: list[list]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def ranges(seeds) -> str:
    """[1, 2, 3, 7] -> "1-3, 7"."""
    spans = []
    for seed in sorted(seeds):
        if spans and seed == spans[-1][1] + 1:
            spans[-1][1] = seed
        else:
            spans.append([seed, seed])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def label(variant: str) -> str:
    """The name a reader knows a variant by."""
    return LABELS.get(variant, variant.replace("_", " "))


def provenance(suite: str, cells: Cells) -> str:
    """What there is, what is missing, and what made it."""
    found = every(cells)
    seeds = {record.seed for record in found} | set(SUITES[suite]["seeds"])
    missing = {}  # environment and seeds -> variants
    for env_id, rows in cells.items():
        for variant, agents in rows.items():
            if lacking := seeds - {record.seed for record in agents}:
                missing.setdefault((env_id, ranges(lacking)), []).append(label(variant))
    total = len(seeds) * sum(len(rows) for rows in cells.values())
    lines = [f"{len(found)} of {total} runs (seeds {ranges(seeds)})."]
    for (env_id, lacking), variants in missing.items():
        names = "all variants" if len(variants) == len(cells[env_id]) else ", ".join(variants)
        lines.append(f"- missing on {env_id}: {names}: seeds {lacking}")
    versions = {}  # script and its sha256 -> environments
    for record in found:
        versions.setdefault((record.about["script"], record.about["sha256"][:12]), set()).add(record.env_id)
    mixed = len(versions) > len({script for script, _ in versions})
    names = [
        f"{script}.py {sha}" + (f" ({', '.join(sorted(envs))})" if mixed else "")
        for (script, sha), envs in sorted(versions.items())
    ]
    lines.append("\nMade by " + ", ".join(names) + " (sha256), with")
    packages = {f"{name} {version}" for record in found for name, version in record.about["versions"].items()}
    cpus = {record.about["cpu"] for record in found}
    hours = sum(record.about["wall_seconds"] for record in found) / 3600
    lines.append(f"{', '.join(sorted(packages))}; on {', '.join(sorted(cpus))}; {hours:.1f} hours of one core.")
    if mixed:
        lines.append("\n**More than one version of a script made these runs**, though never within one cell.")
    lines.append(
        "\nIntervals are 95%, percentile bootstrap over agents, 10,000 resamples. *Best iteration* is the maximum over "
        "iterations of the mean return of the episodes that ended in one, *last five* the mean over the last five; an "
        "iteration in which no episode ended has no return and is left out."
    )
    sizes = {len(agents) for rows in cells.values() for agents in rows.values() if agents}
    if min(sizes) < 2:
        lines.append("\nWhere a cell has one agent there is no interval.")
    if min(sizes) < 5:
        lines.append(
            "\nWith fewer than 5 agents a cell such intervals under-cover: they are too narrow (of 3 agents the lowest "
            "and the highest). Welch's, of a difference of means, are not; they take the agents' scores as normal."
        )
    return "\n".join(lines) + "\n"


def authors_scores(env_id: str, variant: str, score: str) -> np.ndarray:
    """The score of each run of the authors' code on v5."""
    return np.array([stats.scores(history)[score] for _, history in authors(env_id, variant)])


def score_table(env_id: str, rows: dict[str, list[Record]], at_full_length: bool) -> str:
    """Both scores of every variant, with the paper's value and the authors' code on v5 beside them."""
    head = ["variant", "n", "best iteration", "authors' code on v5", "last five", "authors' code on v5", "paper (v2)"]
    lines = []
    for variant, agents in rows.items():
        line = [label(variant), len(agents)]
        for score in SCORES:
            theirs = authors_scores(env_id, variant, score) if at_full_length else []
            line += [mean_score(agents, score), f"{np.mean(theirs):.0f} (n = {len(theirs)})" if len(theirs) else "-"]
        paper = "{:.0f} [{:.0f}, {:.0f}]".format(*PAPER[env_id][variant]) if at_full_length else "-"
        lines.append([*line, paper])
    return table(head, lines)


def runs_table(env_id: str, rows: dict[str, list[Record]], at_full_length: bool) -> str:
    """Every run's scores, seed by seed, where no cell has more than ten."""
    head, lines = ["each run", "best iteration", "authors' code on v5", "last five", "authors' code on v5"], []
    for variant, agents in rows.items():
        if len(agents) > 10:
            return ""
        line = [label(variant)]
        for score in SCORES:
            ours = [stats.scores(agent.history)[score] for agent in sorted(agents, key=lambda agent: agent.seed)]
            theirs = authors_scores(env_id, variant, score) if at_full_length else []
            line += [", ".join(f"{value:.0f}" for value in values) or "-" for values in (ours, theirs)]
        lines.append(line)
    return table(head, lines)


def improvement_table(env_id: str, rows: dict[str, list[Record]], at_full_length: bool) -> str:
    """AAI, ACLI, and how sure it is that the second is greater."""
    lines = []
    for score, name in SCORES.items():
        samples = [sample(rows[variant], score) for variant in ("ppo", "ppo_m", "trpo", "trpo_plus")]
        if not all(len(values) for values in samples):
            return "AAI and ACLI need agents of PPO, PPO-M, TRPO and TRPO+.\n"
        aai, acli = stats.bootstrap(stats.aai, *samples), stats.bootstrap(stats.acli, *samples)
        chance = f"{np.mean(acli.distribution > aai.distribution):.2f}" if len(aai.distribution) else "(no interval)"
        lines.append([name, ", ".join(map(str, aai.n)), aai, acli, chance])
    if at_full_length:
        lines.append(["paper (v2)", "at least 80 each", PAPER[env_id]["AAI"], PAPER[env_id]["ACLI"], "-"])
    return table(["score", "n: PPO, PPO-M, TRPO, TRPO+", "AAI", "ACLI", "P(ACLI > AAI)"], lines)


def difference_table(env_id: str, rows: dict[str, list[Record]], at_full_length: bool) -> str:
    """How much more one variant reaches than another, and how much more ACLI is than AAI."""
    lines, four = [], ("ppo", "ppo_m", "trpo", "trpo_plus")
    estimators = dict.fromkeys(COMPARISONS, stats.welch)
    estimators[four] = lambda *samples: stats.bootstrap(stats.acli_less_aai, *samples)
    paper = {name: np.array([value[0]]) for name, value in PAPER[env_id].items() if name in rows}
    for names, estimate in estimators.items():
        samples = [[sample(rows[name], score) for name in names] for score in SCORES]
        if all(len(values) for each in samples for values in each):
            title = " - ".join(map(label, names)) if names != four else "ACLI - AAI (bootstrap)"
            expected = f"{estimate(*map(paper.get, names)).value:.0f}" if at_full_length else "-"
            lines.append([title, ", ".join(str(len(rows[name])) for name in names)])
            lines[-1] += [*(estimate(*each) for each in samples), expected]
    head = ["difference of means, Welch's interval", "n", *SCORES.values(), "paper (v2)"]
    return table(head, lines) if lines else ""


def many_differences(cells: Cells) -> str:
    """How many of all Welch intervals leave out 0, how many would by chance, and which stay after Holm's correction."""
    found = {}  # task, score and comparison -> p
    for env_id, rows in cells.items():
        for names in COMPARISONS:
            for score, name in SCORES.items():
                samples = [sample(rows[variant], score) for variant in names]
                if min(map(len, samples)) > 1:
                    found[f"{' - '.join(map(label, names))} on {env_id}, {name}"] = stats.welch(*samples).p
    if not found:
        return ""
    corrected = dict(zip(found, stats.holm(np.array(list(found.values())))))
    stay = [f"{name} (p = {p:.3f})" for name, p in corrected.items() if p < 0.05]
    zero = sum(p < 0.05 for p in found.values())
    return (
        f"## All differences\n\nOf the {len(found)} Welch intervals above {zero} leave out 0; about "
        f"{0.05 * len(found):.0f} would if no two variants differed. After Holm's correction for so many comparisons "
        f"(5% for the whole family) these differences stay: {'; '.join(stay) or 'none'}.\n"
    )


def many_agents_table(rows: dict[str, list[Record]]) -> str:
    """From 8 agents a cell on: interquartile means, and the probability that one variant's agent beats another's."""
    full = {variant: agents for variant, agents in rows.items() if len(sample(agents, "best")) >= 8}
    if not full:
        return ""
    text = []
    lines = [
        [label(variant), len(agents), *(stats.bootstrap(stats.iqm, sample(agents, score)) for score in SCORES)]
        for variant, agents in full.items()
    ]
    text.append(table(["interquartile mean", "n", *SCORES.values()], lines))
    lines = []
    for a, b in combinations(full, 2):
        pairs = [(sample(full[a], score), sample(full[b], score)) for score in SCORES]
        lines.append(
            [f"P({label(a)} > {label(b)})", f"{len(full[a])}, {len(full[b])}"]
            + [stats.bootstrap(stats.improvement, x, y) if min(len(x), len(y)) else "-" for x, y in pairs]
        )
    if lines:
        text.append(table(["probability of improvement", "n", *SCORES.values()], lines))
    return "\n".join(text)


def percent(yes: pd.Series) -> float:
    """How many of 100 are true; NaN of nothing."""
    return 100 * yes.mean() if len(yes) else np.nan


def trust_region_tables(rows: dict[str, list[Record]], clip_coef: float) -> str:
    """How often the maximum ratio leaves 1 + eps; mean KL over the thirds of training, its largest, how often it is
    over the bound.
    """
    ratio_lines, kl_lines = [], []
    trpo = [agent.history["trust_region/max_kl"] for agent in rows["trpo"][:1]]
    for variant, agents in rows.items():
        ratios, kls = [], []
        for agent in agents:
            trust = {name.removeprefix("trust_region/"): column.dropna() for name, column in agent.history.items()}
            heldout_ratio, heldout_kl = (trust.get(f"heldout_{name}", pd.Series()) for name in ("max_ratio", "mean_kl"))
            ratios.append([percent(ratio > 1 + clip_coef) for ratio in (trust["max_ratio"], heldout_ratio)])
            bound = trust.get("max_kl", *trpo or [pd.Series(np.nan, trust["mean_kl"].index)])
            over = [percent(kl > bound[kl.index]) if trpo else np.nan for kl in (trust["mean_kl"], heldout_kl)]
            thirds = [np.mean(part) for part in np.array_split(trust["mean_kl"], 3)]
            kls.append([*thirds, trust["mean_kl"].max(), *over])
        for lines, values in ((ratio_lines, ratios), (kl_lines, kls)):
            columns = [column[~np.isnan(column)] for column in np.array(values).T]
            estimates = [stats.bootstrap(stats.mean, column) if len(column) else "-" for column in columns]
            lines += [[label(variant), len(agents), *estimates]] if agents else []
    head = ["variant", "n", f"% of iterations with maximum ratio > {1 + clip_coef:g}", "% of held-out batches"]
    text = [table(head, ratio_lines)]
    head = ["variant", "n", "mean KL, first third", "middle third", "last third", "largest", "% over the bound"]
    text.append(table([*head, "% of held-out batches"], kl_lines))
    text.append("The bound on KL: TRPO's and TRPO+'s own, for PPO's variants TRPO's.\n")
    return "\n".join(text)


def report_table(suite: str, cells: Cells, name: str, out: Path) -> str:
    """Tables 2 and 3, learning curves, the authors' code beside them, and Figure 2."""
    text, clip_coef = [], 0.2
    theirs = {}  # environment -> variant -> histories of the authors' code
    histories = {
        env_id: {variant: [agent.history for agent in agents] for variant, agents in rows.items() if agents}
        for env_id, rows in cells.items()
    }
    histories = {env_id: variants for env_id, variants in histories.items() if variants}
    figures.learning_curves(out / f"{name}_curves.png", histories)
    for env_id, variants in histories.items():
        rows = cells[env_id]
        steps = {agent.about["args"]["total_timesteps"] for agents in rows.values() for agent in agents}
        at_full_length = steps == {SUITES["table2"]["cells"][env_id]["ppo"]["total_timesteps"]}
        text += [f"## {env_id}\n", score_table(env_id, rows, at_full_length)]
        text += [runs_table(env_id, rows, at_full_length)]
        text += [improvement_table(env_id, rows, at_full_length), difference_table(env_id, rows, at_full_length)]
        text += [many_agents_table(rows)]
        text += [trust_region_tables(rows, clip_coef)]
        shown = {variant: variants[variant] for variant in ("ppo", "ppo_m", "trpo") if variant in variants}
        if shown:
            figure = f"{name}_trust_region_{env_id}.png"
            figures.trust_region(out / figure, env_id, shown, clip_coef)
            text.append(f"![{env_id}: reward, maximum ratio and mean KL, training and held-out]({figure})\n")
        if at_full_length:
            theirs[env_id] = {variant: [history for _, history in authors(env_id, variant)] for variant in variants}
    text.insert(0, f"![mean return against steps]({name}_curves.png)\n")
    if theirs:
        ours = {env_id: histories[env_id] for env_id in theirs}
        figures.against_authors(out / f"{name}_authors.png", ours, theirs)
        text.insert(1, f"![every run, and every run of the authors' code]({name}_authors.png)\n")
    text.append(many_differences(cells))
    return "\n".join(part for part in text if part)


def best_rates(rows: dict[str, list[Record]], score: str) -> dict[str, tuple[str, np.ndarray]]:
    """For each of the 16 settings: the learning rate with the best mean, and its agents' scores."""
    best = {}
    for variant, agents in rows.items():
        setting, rate = variant.split("_")
        values = sample(agents, score)
        if len(values) and (setting not in best or values.mean() > best[setting][1].mean()):
            best[setting] = rate, values
    return best


def report_factorial(suite: str, cells: Cells, name: str, out: Path) -> str:
    """Figure 1: the 2^4 ablation of items 1 to 4, each setting at its best learning rate."""
    text, factors = [], list(FACTORS)
    for env_id, rows in cells.items():
        if not any(rows.values()):
            continue
        text.append(f"## {env_id}\n")
        on_off, shown = {}, {}
        for score, score_name in SCORES.items():
            best = best_rates(rows, score)
            ordered = sorted(best)
            is_on = {s: {f: s[2 * i + 1] == "1" for i, f in enumerate(factors)} for s in ordered}
            on_off[score_name] = {
                factor: tuple(
                    np.concatenate([best[s][1] for s in ordered if is_on[s][factor] == on] or [np.array([])])
                    for on in (True, False)
                )
                for factor in factors
            }
            lines = [
                [" ".join("+" if on else "-" for on in is_on[s].values()), best[s][0], len(best[s][1])]
                + [stats.bootstrap(stats.mean, best[s][1])]
                for s in ordered
            ]
            head = [", ".join(factors), f"best of {len(RATES)} rates", "n", score_name]
            text.append(table(head, lines))
            if len(ordered) < 2 ** len(factors):
                text.append(f"Effects need all {2 ** len(factors)} settings; {len(ordered)} have runs.\n")
                continue
            shown[score_name] = {}
            for chosen in [(f,) for f in factors] + list(combinations(factors, 2)):
                signs = [np.prod([1 if is_on[s][f] else -1 for f in chosen]) for s in ordered]
                estimate = stats.bootstrap(stats.contrast(signs), *(best[s][1] for s in ordered))
                shown[score_name][" × ".join(chosen)] = estimate
            lines = [[effect, sum(e.n), e] for effect, e in shown[score_name].items()]
            text.append(table([f"effect on {score_name}", "n", "on less off"], lines))
        figure = f"{name}_{env_id}.png"
        figures.on_and_off(out / figure, env_id, on_off)
        text.append(f"![{env_id}: share of agents above a score, each optimization on and off]({figure})\n")
        if shown:
            figure = f"{name}_effects_{env_id}.png"
            figures.effects(out / figure, f"{env_id}: main effects and interactions", shown)
            text.append(f"![{env_id}: main effects and interactions]({figure})\n")
    text.insert(
        0,
        "An effect is the mean over settings with the item on less that with it off; an interaction (×) compares "
        "settings where both are alike with those where they differ. Intervals take the chosen rate as given.\n",
    )
    return "\n".join(text)


def report_leave_one_out(suite: str, cells: Cells, name: str, out: Path) -> str:
    """The effect of each of the nine: all on, less all but that one."""
    text, shown = [], {}
    for env_id, rows in cells.items():
        if not any(rows.values()):
            continue
        lines = []
        for variant, agents in rows.items():
            line = [label(variant), len(agents)]
            for score in SCORES:
                values, everything = sample(agents, score), sample(rows["all_on"], score)
                line.append(mean_score(agents, score))
                if variant == "all_on" or not len(values) or not len(everything):
                    line.append("-")
                    continue
                line.append(stats.bootstrap(stats.difference, everything, values))
                item = label(variant).removeprefix("no ")
                shown.setdefault(f"{env_id}: {SCORES[score]}", {})[item] = line[-1]
            lines.append(line)
        head = ["variant", "n", "best iteration", "effect of the item", "last five", "effect of the item"]
        text += [f"## {env_id}\n", table(head, lines)]
    text.insert(0, f"An item's effect is the mean with all nine on, less the mean without it ({len(LEFT_OUT) - 1}).\n")
    for score_name in SCORES.values():
        panels = {title.partition(":")[0]: rows for title, rows in shown.items() if title.endswith(score_name)}
        if panels:
            figure = f"{name}_{score_name.split()[0]}.png"
            figures.effects(out / figure, f"all nine on, less all but one: {score_name}", panels)
            text.append(f"![effect of each of the nine, {score_name}]({figure})\n")
    return "\n".join(text)


REPORTS = {"table": report_table, "factorial": report_factorial, "leave_one_out": report_leave_one_out}


def main() -> int:
    """The command line. Exit status 0: written; 2: bad input, nothing written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", help=", ".join(SUITES))
    parser.add_argument("--timesteps", type=int, help="the results that run.py --timesteps made")
    options = parser.parse_args()
    try:
        cells = load(options.suite, options.timesteps)
        name = every(cells)[0].about["suite"]
        out = records.ROOT / records.RESULTS
        body = REPORTS[SUITES[options.suite]["report"]](options.suite, cells, name, out)
        path = out / f"{name}.md"
        path.write_text(f"# {name}\n\n{provenance(options.suite, cells)}\n{body}")
    except InputError as error:
        print(f"report.py: error: {error}", file=sys.stderr)
        return 2
    print(f"{path.relative_to(records.ROOT)} and its figures: {len(every(cells))} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
