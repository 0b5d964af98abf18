"""How numbers become rows of a report, and which of the paper's and its authors' stand beside them."""

import numpy as np
import records
import stats
from paper import Theirs, authors
from records import Record
from suites import PAPER_ROWS

SCORES = {"best": "best iteration", "last": "last five iterations"}
Cells = dict[str, dict[str, list[Record]]]  # environment -> variant -> agents


def table(head: list[str], rows: list[list]) -> str:
    """A Markdown table, without the columns in which no row has anything to say; "" without rows."""
    if not rows:
        return ""
    lines = [[str(cell) for cell in line] for line in rows]
    kept = [i for i in range(len(head)) if any(line[i] != "-" for line in lines)]
    lines = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(line[i] for i in kept) + " |" for line in lines) + "\n"


def sample(agents: list[Record], score: str) -> np.ndarray:
    """The agents' scores, without those that have none."""
    values = np.array([stats.scores(agent.history)[score] for agent in agents], dtype=float)
    return values[~np.isnan(values)]


def mean_score(agents: list[Record], score: str, statistic=stats.mean) -> str:
    """The mean score with its interval; with its n where that is not the number of agents."""
    values = sample(agents, score)
    if not len(values):
        return "-"
    return f"{statistic(values)}" + f" (n = {len(values)})" * (len(values) < len(agents))


def listed(agents: list, score: str) -> str:
    """Every run's score, by seed."""
    agents = sorted(agents, key=lambda agent: agent.seed)
    return ", ".join(f"{value:.0f}" for value in sample(agents, score)) or "-"


def span(values: list[float], digits: str) -> str:
    """Mean, lowest and highest over agents; "-" of nothing."""
    values = [value for value in values if not np.isnan(value)]
    if not values:
        return "-"
    middle, low, high = (f"{value:{digits}}" for value in (np.mean(values), min(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"


def p_text(p: float, equals: str = "") -> str:
    """A p value as people write it."""
    if np.isnan(p):
        return "-"
    return "< 0.001" if p < 0.001 else equals + (f"{p:.3f}" if p < 0.1 else f"{p:.2f}")


def corrected(found: dict) -> dict:
    """The same estimates, their p values corrected for so many (Holm); those without an interval have none."""
    tested = [key for key, estimate in found.items() if estimate and not np.isnan(estimate.p)]
    p = dict(zip(tested, stats.holm(np.array([found[key].p for key in tested])))) if tested else {}
    return {key: estimate and estimate._replace(p=p.get(key, np.nan)) for key, estimate in found.items()}


def is_papers(env_id: str, variant: str, agents: list[Record]) -> bool:
    """Whether these agents were trained as the paper's were: only then its numbers have a place beside theirs."""
    flags = records.plain(PAPER_ROWS.get(env_id, {}).get(variant, {}))
    names = set(flags) - {"script", "heldout_every", "checkpoint_every", "compile"}  # none of these changes training
    if any(agent.about["script"] != flags.get("script") for agent in agents):
        return False
    return bool(flags) and all(agent.about["args"].get(name) == flags[name] for agent in agents for name in names)


def theirs(env_id: str, variant: str, agents: list[Record], as_released: bool = True) -> list[Theirs]:
    """Runs of the authors' code that these agents can be compared with."""
    runs = authors(env_id, variant) if is_papers(env_id, variant, agents) else []
    return [run for run in runs if run.heldout or not as_released]
