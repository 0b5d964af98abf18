"""A report on variants that are compared: scores, differences, trust regions, and the authors' code beside them."""

import figures
import numpy as np
import pandas as pd
import scipy.optimize
import scipy.stats
import stats
from figures import label
from paper import PAPER, Theirs
from records import Record
from suites import LABELS, SUITES
from tables import SCORES, Cells, corrected, is_papers, listed, mean_score, p_text, sample, span, table, theirs

LAST_FIFTY = {"last50": "last fifty iterations"}
ALL_ITERATIONS = {"all": "all iterations"}  # how fast, the area under the curve; no score of the paper's
LENGTH = "charts/episodic_length"
LOOKED_AT = 3  # seeds that were seen before the others were planned
# what the paper compares: both together, the optimizations on PPO and on TRPO, the algorithms with and without them,
# the clip
COMPARISONS = {
    ("ppo", "trpo"): "PPO beats TRPO",
    ("ppo", "ppo_m"): "PPO beats PPO-M",
    ("trpo_plus", "trpo"): "TRPO+ beats TRPO",
    ("ppo", "trpo_plus"): "",
    ("ppo_m", "trpo"): "",
    ("ppo_noclip", "ppo_m"): "PPO-NoClip beats PPO-M",
    ("ppo_noclip", "ppo"): "",
}
# with mean actions: fixed before the agents that played were trained
PLAYED = (("ppo", "trpo"), ("ppo", "trpo_plus"), ("ppo_m", "trpo"), ("trpo_plus", "trpo"), ("ppo_noclip", "ppo"))
FOUR = ("ppo", "ppo_m", "trpo", "trpo_plus")
# the paper's question as contrasts of means: FOUR are a 2 x 2 design, a part is a main effect
ANSWERS = {
    "PPO - TRPO": {"ppo": 1, "trpo": -1},
    "the step's part": {"ppo": 0.5, "ppo_m": 0.5, "trpo": -0.5, "trpo_plus": -0.5},
    "the optimizations' part": {"ppo": 0.5, "ppo_m": -0.5, "trpo": -0.5, "trpo_plus": 0.5},
    "optimizations - step": {"trpo_plus": 1, "ppo_m": -1},
    "interaction": {"ppo": 1, "ppo_m": -1, "trpo": 1, "trpo_plus": -1},
    "PPO-NoClip - PPO": {"ppo_noclip": 1, "ppo": -1},
}
ALL = "all tasks, %"
MEASURED = {
    "trust_region/mean_kl": "mean KL",
    "losses/entropy": "entropy",
    "losses/explained_variance": "explained variance",
}


def means(cells: Cells) -> str:
    """Of several tasks, every variant's mean by either score; behind it in brackets the paper's, where it has one."""
    if len(cells) < 2:
        return ""
    variants = list(dict.fromkeys(variant for rows in cells.values() for variant in rows))
    papers = {
        (env_id, variant): f" ({PAPER[env_id][variant][0]})"
        for env_id, rows in cells.items()
        for variant, agents in rows.items()
        if is_papers(env_id, variant, agents)
    }
    text = []
    for score, title in SCORES.items():
        lines = [
            [label(v), *(mean_score(rows.get(v, []), score) + papers.get((env, v), "") for env, rows in cells.items())]
            for v in variants
        ]
        text.append(table([title + " (the paper's, on v2)" * bool(papers), *cells], lines))
    return "\n".join(["## Means\n", *text])


def score_table(env_id: str, rows: dict[str, list[Record]]) -> str:
    """Both scores of every variant, with the paper's value and the authors' code on v5 beside them."""
    head = ["variant", "n", "best iteration", "authors' code on v5", "last five", "authors' code on v5", "paper (v2)"]
    lines = []
    for variant, agents in rows.items():
        line = [label(variant), len(agents)]
        for score in SCORES:
            other = sample(theirs(env_id, variant, agents), score)
            line += [mean_score(agents, score), f"{other.mean():.0f} (n = {len(other)})" if len(other) else "-"]
        paper = PAPER[env_id][variant] if is_papers(env_id, variant, agents) else None
        lines.append([*line, "{:.0f} [{:.0f}, {:.0f}]".format(*paper) if paper else "-"])
    return table(head, lines)


def runs_table(env_id: str, rows: dict[str, list[Record]]) -> str:
    """Every run's scores, seed by seed, where no cell has more than ten."""
    head, lines = ["each run", "best iteration", "authors' code on v5", "last five", "authors' code on v5"], []
    if max(map(len, rows.values())) > 10:
        return ""
    for variant, agents in rows.items():
        both = agents, theirs(env_id, variant, agents)
        lines.append([label(variant), *(listed(runs, score) for score in SCORES for runs in both)])
    return table(head, lines)


def iqm_table(rows: dict[str, list[Record]]) -> str:
    """Interquartile means, of cells with agents enough for them."""
    full = {variant: agents for variant, agents in rows.items() if len(agents) >= stats.ENOUGH}
    iqm = lambda values: stats.bootstrap(stats.iqm, values)  # noqa: E731
    lines = [
        [label(v), len(agents), *(mean_score(agents, score, iqm) for score in SCORES)] for v, agents in full.items()
    ]
    return table(["interquartile mean", "n", *SCORES.values()], lines)


def improvement_table(rows: dict[str, list[Record]]) -> str:
    """P(X > Y) of the paper's comparisons, of cells with agents enough."""
    lines = []
    for a, b in pairs(rows):
        if min(len(rows[a]), len(rows[b])) >= stats.ENOUGH:
            found = [stats.bootstrap(stats.improvement, sample(rows[a], s), sample(rows[b], s)) for s in SCORES]
            lines.append([f"P({label(a)} > {label(b)})", f"{len(rows[a])}, {len(rows[b])}", *found])
    return table(["an agent of one beats one of the other", "n", *SCORES.values()], lines)


def pairs(rows: dict[str, list[Record]]) -> list[tuple[str, str]]:
    """Which variants to compare: as the paper does, and as a suite says, else what the paper has not with the first."""
    first, *others = rows
    asked = [pair for suite in SUITES.values() for pair in suite.get("pairs", ()) if set(pair) <= set(rows)]
    own = [(variant, first) for variant in others if not {variant, first} <= set(LABELS)]
    return [pair for pair in COMPARISONS if set(pair) <= set(rows)] + (asked or own)


def all_differences(cells: Cells) -> dict:
    """(environment, pair, score) -> Welch's difference; one family, its p values corrected together."""
    found = {}
    for env_id, rows in cells.items():
        for pair in pairs(rows):
            for score in SCORES:
                x, y = (sample(rows[variant], score) for variant in pair)
                if len(x) and len(y):
                    found[env_id, pair, score] = stats.difference(x, y)
    return corrected(found)


def difference_table(env_id: str, rows: dict[str, list[Record]], found: dict) -> str:
    """How much more one variant reaches than another."""
    lines = []
    for pair in pairs(rows):
        estimates = [found.get((env_id, pair, score)) for score in SCORES]
        if all(estimates):
            both = all(is_papers(env_id, variant, rows[variant]) for variant in pair)
            expected = f"{PAPER[env_id][pair[0]][0] - PAPER[env_id][pair[1]][0]:.0f}" if both else "-"
            line = [" - ".join(map(label, pair)), ", ".join(str(len(rows[variant])) for variant in pair)]
            line += [x for estimate in estimates for x in (estimate, p_text(estimate.p))]
            lines.append([*line, stats.difference(*(sample(rows[variant], "all") for variant in pair)), expected])
    head = ["difference of means", "n", *(x for score in SCORES.values() for x in (score, "p")), "all iterations"]
    return table([*head, "paper (v2)"], lines)


def contrast(cells: Cells, weights: dict[str, float], score: str) -> stats.Estimate | None:
    """A contrast of variants' means on one task, in points of return; over more tasks the mean of their contrasts, each
    in % of that task's mean over FOUR. None where a variant has no agents.
    """
    factors, samples = [], []
    for rows in cells.values():
        found = {variant: sample(rows.get(variant, []), score) for variant in {*FOUR, *weights}}
        if not all(len(found[variant]) for variant in weights):
            return None
        scale = 1.0
        if len(cells) > 1:
            level = np.mean([found[variant].mean() for variant in FOUR if len(found[variant])])
            scale = 100 / abs(level) / len(cells)
        factors += [weight * scale for weight in weights.values()]
        samples += [found[variant] for variant in weights]
    return stats.linear(factors, *samples)


def answers(cells: Cells, name: str, out) -> str:
    """The paper's question, task by task and over all of them: a table a score, and a figure of the paper's scores."""
    single = {env_id: {env_id: rows} for env_id, rows in cells.items()}
    panels = single | ({ALL: cells} if len(cells) > 1 else {})
    found = {
        (question, score): [contrast(tasks, weights, score) for tasks in panels.values()]
        for question, weights in ANSWERS.items()
        for score in SCORES | ALL_ITERATIONS
    }
    found = {key: estimates for key, estimates in found.items() if any(estimates)}
    text = []
    for score, title in (SCORES | ALL_ITERATIONS).items():
        lines = [[q, *(e or "-" for e in estimates)] for (q, of), estimates in found.items() if of == score]
        text.append(table([title, *panels], lines))
    drawn = {}
    for (question, score), estimates in found.items():
        for panel, estimate in zip(panels, estimates):
            if score in SCORES and estimate and not np.isnan(estimate.low):
                drawn.setdefault(panel, {}).setdefault(question, {})[SCORES[score]] = estimate
    if not drawn:
        return ""
    figures.effects(out / f"{name}_answer.png", "", drawn)
    text.append(f"![the paper's question as differences of means, with 95% intervals]({name}_answer.png)\n")
    legend = [
        "Differences of mean returns; intervals are Welch's, each for itself: not corrected. *All iterations*: the "
        "mean over training, how fast agents learn; the paper has no such score."
    ]
    if all(set(FOUR) <= set(rows) for rows in cells.values()):
        legend.append(TWO_BY_TWO)
    if ALL in panels:
        legend.append(f"*{ALL}*: the mean over the tasks, each in % of its mean over those four, taken as known.")
    if all(is_papers(env_id, variant, agents) for env_id, rows in cells.items() for variant, agents in rows.items()):
        legend.append("Every variant has the rates that the authors tuned for it, and they are in its part.")
    return "\n".join(["## The paper's question\n", " ".join(legend) + "\n", *text])


TWO_BY_TWO = (
    "PPO, PPO-M, TRPO and TRPO+ are a 2 x 2 design, the update's step by the optimizations. A part is a main effect, "
    "the mean of what it does with and without the other; the two add up to PPO - TRPO, and their difference is "
    "TRPO+ - PPO-M. *Interaction*: what the optimizations do for PPO less what they do for TRPO; below 0 step and "
    "optimizations overlap."
)


def by_chance(statistic, samples: list[np.ndarray]) -> str:
    """What the statistic would be on average if no two variants' means differed; "-" of fewer than ten agents."""
    alike = [(x - x.mean()) * (len(x) / max(1, len(x) - 1)) ** 0.5 for x in samples]
    draws = stats.bootstrap(statistic, *alike).distribution
    return str(stats.Estimate(draws.mean(), np.nan, np.nan, (len(draws),))) if len(draws) else "-"


def aai_acli(rows: dict[str, list[Record]], score: str) -> list[stats.Estimate]:
    """AAI, ACLI and ACLI - AAI; nothing where one of the four has no agents."""
    samples = [sample(rows.get(variant, []), score) for variant in FOUR]
    if not all(map(len, samples)):
        return []
    return [stats.bootstrap(statistic, *samples) for statistic in (stats.aai, stats.acli, stats.acli_less_aai)]


def acli_p(rows: dict[str, list[Record]], score: str) -> stats.Estimate | None:
    """ACLI - AAI with the bootstrap's p of its being 0, NaN of fewer than ten agents a cell; None without the four."""
    if not (found := aai_acli(rows, score)):
        return None
    draws = found[-1].distribution
    p = min(1.0, 2 * min(np.mean(draws <= 0), np.mean(draws >= 0))) if len(draws) else np.nan
    return found[-1]._replace(p=p)


def aai_table(env_id: str, rows: dict[str, list[Record]]) -> str:
    """AAI and ACLI, what chance alone makes of either, and how sure it is that the second is greater."""
    lines = []
    for score, name in SCORES.items():
        if found := aai_acli(rows, score):
            draws = found[2].distribution
            greater = f"{np.mean(draws > 0):.2f}" if len(draws) else "-"
            sizes = [estimate._replace(low=np.nan, high=np.nan) for estimate in found[:2]]
            chance = [by_chance(s, [sample(rows[v], score) for v in FOUR]) for s in (stats.aai, stats.acli)]
            pairs = (cell for both in zip(sizes, chance) for cell in both)
            lines.append([name, ", ".join(map(str, found[0].n)), *pairs, found[2], greater])
    if lines and all(is_papers(env_id, variant, rows[variant]) for variant in FOUR):
        aai, acli = PAPER[env_id]["AAI"], PAPER[env_id]["ACLI"]
        lines.append(["paper (v2)", "at least 80 each", aai, "-", acli, "-", acli - aai, "-"])
    head = ["score", f"n: {', '.join(map(label, FOUR))}", "AAI", "by chance alone", "ACLI", "by chance alone"]
    return table([*head, "ACLI - AAI", "P(ACLI > AAI)"], lines)


def verdict(estimate: stats.Estimate | None, sure: bool) -> str:
    """What a difference that the paper says is positive says of that."""
    if estimate is None:
        return "-"
    if np.isnan(estimate.low):
        return "not tested"
    return "undecided" if not sure else "holds" if estimate.value > 0 else "the reverse"


def found_from(tests: int) -> float:
    """How many half intervals of two samples of ten a difference must measure to be found (p < 0.05 after so many tests
    are corrected for, by the first step of Holm's method) with probability 0.8.
    """
    critical, half = scipy.stats.t.ppf([1 - 0.025 / tests, 0.975], 18)
    return scipy.optimize.brentq(lambda size: scipy.stats.nct.sf(critical, 18, size) - 0.8, 0, 99) / half


def claims(cells: Cells, found: dict) -> str:
    """Which of the paper's claims hold, task by task, and what Holm's correction leaves of all differences."""
    tasks = [env_id for env_id, rows in cells.items() if any(rows.values())]
    lines = []
    for pair, claim in COMPARISONS.items():
        if claim:
            there = [found.get((env_id, pair, score)) for env_id in tasks for score in SCORES]
            lines.append([claim, *(verdict(e, e is not None and e.p < 0.05) for e in there)])
    there = corrected({(env_id, score): acli_p(cells[env_id], score) for env_id in tasks for score in SCORES})
    lines.append(["ACLI > AAI", *(verdict(e, e is not None and e.p < 0.05) for e in there.values())])
    lines = [line for line in lines if set(line[1:]) != {"-"}]
    tested = {key: estimate for key, estimate in found.items() if not np.isnan(estimate.p)}
    if not tested:
        return ""
    zero = sum(estimate.low * estimate.high > 0 for estimate in tested.values())
    stay = [
        f"{' - '.join(map(label, pair))} on {env_id}, {SCORES[score]}: {estimate} (p {p_text(estimate.p, '= ')})"
        for (env_id, pair, score), estimate in tested.items()
        if estimate.p < 0.05
    ]
    text = ["## What holds\n"]
    if lines:
        head = [f"{env_id}, {name.split()[0]}" for env_id in tasks for name in SCORES.values()]
        text.append(table(["the paper's claim", *head], lines))
        text.append(
            "*Holds* and *the reverse*: p < 0.05 after Holm's correction for all differences of this report (ACLI > "
            "AAI: by the bootstrap, from ten agents a cell on, and Holm's correction for that row). *Undecided*: "
            "neither, which does not say that there is no difference. *Not tested*: too few agents.\n"
        )
    text.append(
        f"Of the {len(tested)} Welch intervals of differences between two variants {zero} leave out 0; about "
        f"{0.05 * len(tested):.1g} would if no two variants differed. Holm's correction leaves "
        f"{len(stay)}{':' if stay else '.'}\n"
    )
    text.append("".join(f"- {line}\n" for line in stay))
    text.append(
        f"So corrected, a difference between ten agents a cell is found in four of five such benchmarks from "
        f"{found_from(len(tested)):.1f} times half its interval on; alone, from {found_from(1):.1f} times.\n"
    )
    return "\n".join(text)


def episodes_table(rows: dict[str, list[Record]]) -> str:
    """How returns come about: how long episodes last and what a step of one earns, at the best iteration and late."""
    lines = []
    for variant, agents in rows.items():
        numbers = []
        for agent in agents:
            returns, lengths = (agent.history.get(name, pd.Series(dtype=float)) for name in (stats.RETURN, LENGTH))
            if returns.count() and lengths.count():
                best, late, steps = returns.idxmax(), returns.iloc[-100:], lengths.iloc[-100:].mean()
                noise = agent.history.get("losses/entropy", returns * np.nan).iloc[-100:].mean()
                at_best = lengths[best], returns[best] / lengths[best]
                numbers.append([*at_best, steps, late.mean() / steps, late.std(), noise])
        if numbers:
            cells = [
                span(values, digits)
                for values, digits in zip(zip(*numbers), (".0f", ".2f", ".0f", ".2f", ".0f", ".1f"))
            ]
            lines.append([label(variant), len(numbers), *cells])
    head = ["best iteration: steps an episode", "reward a step", "last hundred: steps an episode", "reward a step"]
    return table(
        ["variant", "n", *head, "standard deviation of the iterations' returns", "entropy of the policy"], lines
    )


def played(path) -> str:
    """What trained agents earned when they played with mean and with sampled actions (play.py), if any did."""
    if not path.is_file():
        return ""
    episodes = pd.read_csv(path, comment="#")
    agents = episodes.groupby(["env_id", "variant", "actions", "seed"], sort=False)["return"].mean()
    samples = {key: values.to_numpy() for key, values in agents.groupby(level=[0, 1, 2], sort=False)}
    cells = list(dict.fromkeys(key[:2] for key in samples))
    both = [[samples[*cell, kind] for kind in ("mean", "sampled")] for cell in cells]
    lines = [
        [env_id, label(v), len(x), stats.mean(x), stats.mean(y), stats.mean(x - y)]
        for (env_id, v), (x, y) in zip(cells, both)
    ]
    text = ["## Mean and sampled actions\n"]
    text.append("Every agent's mean over its episodes, after training, with frozen statistics (play.py).\n")
    text.append(table(["task", "variant", "n", "mean actions", "sampled actions", "difference"], lines))
    pairs = [(env, x, y) for env in dict(cells) for x, y in PLAYED if {(env, x), (env, y)} <= set(cells)]
    found = {
        (*pair, kind): stats.difference(*(samples[pair[0], v, kind] for v in pair[1:]))
        for pair in pairs
        for kind in ("mean", "sampled")
    }
    p = corrected({pair: found[*pair, "mean"] for pair in pairs})
    lines = [
        [pair[0], " - ".join(map(label, pair[1:])), found[*pair, "mean"], p_text(p[pair].p), found[*pair, "sampled"]]
        for pair in pairs
    ]
    text.append(table(["task", "difference of means", "mean actions", f"p, of {len(pairs)}", "sampled actions"], lines))
    return "\n".join(text)


def percent(yes: pd.Series) -> float:
    """How many of 100 are true; NaN of nothing."""
    return 100 * yes.mean() if len(yes) else np.nan


def clip_of(agents: list[Record]) -> float:
    """The variant's clip coefficient; the paper's where it has none."""
    clips = {agent.about["args"].get("clip_coef", "inf") for agent in agents} - {"inf"}
    return clips.pop() if clips else 0.2


def trust(agent: Record, name: str) -> pd.Series:
    """What was measured of an agent's trust region, where it was."""
    return agent.history.get(f"trust_region/{name}", pd.Series(dtype=float)).dropna()


def trust_region_tables(rows: dict[str, list[Record]]) -> str:
    """How often the maximum ratio leaves 1 + eps; mean KL over the thirds of training, its largest, how often it is
    over the bound: TRPO's and TRPO+'s own, for the others TRPO's.
    """
    ratio_lines, kl_lines = [], []
    for variant, agents in rows.items():
        agents = [agent for agent in agents if len(trust(agent, "mean_kl"))]
        if not agents:
            continue
        clip, line = clip_of(agents), [label(variant), len(agents)]
        kept = [[percent(trust(a, f"{where}max_ratio") > 1 + clip) for a in agents] for where in ("", "heldout_")]
        ratio_lines.append([*line, f"{1 + clip:g}", *(span(values, ".1f") for values in kept)])
        thirds = zip(*([part.mean() for part in np.array_split(trust(a, "mean_kl"), 3)] for a in agents))
        largest = [trust(a, "mean_kl").max() for a in agents]
        kl_lines.append([*line, *(span(values, ".4f") for values in (*thirds, largest))])
        for where in ("", "heldout_"):
            over = []
            for agent in agents:
                kl, own = trust(agent, f"{where}mean_kl"), [trust(a, "max_kl") for a in [agent, *rows.get("trpo", [])]]
                bound = next((bound for bound in own if len(bound)), None)
                over.append(np.nan if bound is None else percent(kl > bound.reindex(kl.index)))
            kl_lines[-1].append(span(over, ".1f"))
    head = ["variant", "n", "1 + ε", "% of iterations with a maximum ratio over it", "% of held-out batches"]
    text = table(head, ratio_lines)
    head = ["variant", "n", "mean KL, first third", "middle third", "last third", "largest"]
    return (
        text
        + "\n" * bool(text)
        + table([*head, "% over the bound (TRPO+: its own)", "% of held-out batches"], kl_lines)
    )


def authors_cell(env_id: str, variant: str, agents: list[Record], out, name: str) -> str:
    """Our agents of one cell against all runs of the authors' code, where there are at least three of either."""
    runs = theirs(env_id, variant, agents, as_released=False)
    if min(len(runs), len(agents)) < 3:
        return ""
    lines = []
    for score, title in (SCORES | LAST_FIFTY).items():
        x, y = sample(agents, score), sample(runs, score)
        later = sample([agent for agent in agents if agent.seed > LOOKED_AT], score)
        for some, which in ((x, title), (later, f"{title}, without seeds 1 to {LOOKED_AT}")):
            if len(some) >= 3:
                gap, rank = stats.difference(y, some), scipy.stats.mannwhitneyu(some, y, method="exact").pvalue
                lines.append([which, span(some, ".0f"), span(y, ".0f"), gap, p_text(gap.p), p_text(rank)])
    head = ["score", f"here, n = {len(agents)}", f"authors' code, n = {len(runs)}", "theirs - ours", "p, Welch"]
    text = [
        f"## {label(variant)} on {env_id}, here and in the authors' code\n",
        table([*head, "p, Mann-Whitney"], lines),
    ]
    released, without = ([run for run in runs if run.heldout is kind] for kind in (True, False))
    text.append("Mean (lowest to highest); p values not corrected.\n")
    if without:
        seeds = ", ".join(str(run.seed) for run in without)
        lists = (f"{title} {listed(released, s)} / {listed(without, s)}" for s, title in (SCORES | LAST_FIFTY).items())
        text[-1] = text[-1].rstrip() + (
            f" Theirs are runs as released and, of seeds {seeds}, runs without its held-out rollouts. As released / "
            f"without: {'; '.join(lists)}.\n"
        )
    text.append(measured_table(agents, runs))
    names = {"charts/episodic_return": "mean return"} | MEASURED
    figure = f"{name}_authors_{env_id}_{variant}.png"
    histories = [agent.history for agent in agents], [run.history for run in runs]
    title = f"{label(variant)} on {env_id}" + f"; {len(without)} of the authors' runs without held-out batches" * bool(
        without
    )
    figures.one_cell(out / figure, title, variant, *histories, names)
    text.append(f"![every run, and every run of the authors' code]({figure})\n")
    return "\n".join(part for part in text if part)


def measured_table(agents: list[Record], runs: list[Theirs]) -> str:
    """What the authors' code did in every iteration, where that was logged, against the range of our agents."""
    lines, n = [], len(agents)
    for run in runs:
        for name, title in MEASURED.items():
            if name in run.history:
                ours = np.array([agent.history[name] for agent in agents])
                there = run.history[name].to_numpy()
                inside = percent(pd.Series((ours.min(axis=0) <= there) & (there <= ours.max(axis=0))))
                ends = span([values[-1] for values in ours], ".4g"), f"{there[-1]:.4g}"
                means = span([values.mean() for values in ours], ".4g"), f"{there.mean():.4g}"
                which = f"{title}, their seed {run.seed}" + " (no held-out)" * (not run.heldout)
                lines.append([which, *means, *ends, f"{inside:.0f}%"])
    head = ["all iterations", f"here, n = {n}, mean", "theirs, mean", "here, at the end", "theirs, at the end"]
    chance = 100 * (n - 1) / (n + 1)
    return table([*head, f"theirs within the range of ours ({chance:.0f}% if alike)"], lines)


def report_table(cells: Cells, name: str, out) -> str:
    """Tables 2 and 3, learning curves, the authors' code beside them, and Figure 2."""
    there = {env_id: {v: agents for v, agents in rows.items() if agents} for env_id, rows in cells.items()}
    there = {env_id: rows for env_id, rows in there.items() if rows}
    histories = {env: {v: [agent.history for agent in agents] for v, agents in r.items()} for env, r in there.items()}
    found = all_differences(there)
    figures.learning_curves(out / f"{name}_curves.png", histories)
    text = [f"![mean return against steps]({name}_curves.png)\n"]
    other = {
        env: {v: [run.history for run in theirs(env, v, a)] for v, a in rows.items()} for env, rows in there.items()
    }
    other = {env_id: rows for env_id, rows in other.items() if any(rows.values())}
    if other:
        figures.against_authors(out / f"{name}_authors.png", {env_id: histories[env_id] for env_id in other}, other)
        text.append(f"![every run, and the authors' code as released]({name}_authors.png)\n")
    text += [means(there), answers(there, name, out), claims(there, found)]
    for env_id, rows in there.items():
        text += [f"## {env_id}\n", score_table(env_id, cells[env_id]), runs_table(env_id, cells[env_id])]
        text += [difference_table(env_id, rows, found), aai_table(env_id, rows)]
        text += [iqm_table(rows), improvement_table(rows), episodes_table(rows), trust_region_tables(rows)]
        if any(len(trust(agent, "mean_kl")) for agents in rows.values() for agent in agents):
            figure = f"{name}_trust_region_{env_id}.png"
            clips = sorted({clip_of(agents) for agents in rows.values()})
            figures.trust_region(out / figure, env_id, histories[env_id], clips)
            text.append(f"![{env_id}: reward, maximum ratio and mean KL]({figure})\n")
    text.append(played(out / f"{name}_played.csv"))
    text += [authors_cell(env_id, v, agents, out, name) for env_id, rows in there.items() for v, agents in rows.items()]
    return "\n".join(part for part in text if part)
