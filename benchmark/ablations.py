"""Reports on what an optimization does: the 2^4 factorial of Figure 1, and all but one."""

from itertools import combinations, product
from math import prod

import figures
import numpy as np
import stats
from figures import label
from records import Record
from suites import FACTORS, InputError
from tables import SCORES, Cells, corrected, mean_score, p_text, sample, table

SETTINGS = {"".join(levels) for levels in product(*FACTORS.values())}  # v0r0i0a0 to v1r1i1a1


def best_rates(rows: dict[str, list[Record]], score: str) -> dict[str, tuple[str, int, np.ndarray]]:
    """Setting -> the learning rate with the best mean, of how many that have runs, and its agents' scores."""
    settings = {}
    for variant, agents in rows.items():
        setting, _, rate = variant.partition("_")
        if setting not in SETTINGS or not rate:
            raise InputError(f"suites.py: a factorial suite's variants are named like v1r0i0a1_8e-5, not {variant}")
        values = sample(agents, score)
        if len(values):
            settings.setdefault(setting, {})[rate] = values
    found = {}
    for setting, rates in sorted(settings.items()):
        best = max(rates, key=lambda rate: rates[rate].mean())
        found[setting] = best, len(rates), rates[best]
    return found


def is_on(setting: str) -> dict[str, bool]:
    """ "v1r0i0a1" -> which factors are on."""
    return {factor: level == "1" for factor, level in zip(FACTORS, setting[1::2])}


def factorial_effects(best: dict) -> dict[str, stats.Estimate]:
    """Main effects and interactions of two; none while a setting is missing."""
    if len(best) < 2 ** len(FACTORS):
        return {}
    found = {}
    for chosen in [(factor,) for factor in FACTORS] + list(combinations(FACTORS, 2)):
        signs = [prod(1 if is_on(setting)[factor] else -1 for factor in chosen) for setting in best]
        weights = [sign / (len(signs) / 2) for sign in signs]
        found[" × ".join(chosen)] = stats.linear(weights, *(values for _, _, values in best.values()))
    return found


def on_off_samples(best: dict) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Factor -> the scores of all agents with it on, and with it off."""
    pools = {}
    for factor in FACTORS:
        both = ([v for s, (_, _, v) in best.items() if is_on(s)[factor] == on] for on in (True, False))
        pools[factor] = tuple(np.concatenate(values) if values else np.array([]) for values in both)
    return pools


def report_factorial(cells: Cells, name: str, out) -> str:
    """Figure 1: each setting at its best learning rate."""
    best = {
        (env, score): best_rates(rows, score) for env, rows in cells.items() for score in SCORES if any(rows.values())
    }
    effects = {(*key, effect): e for key, found in best.items() for effect, e in factorial_effects(found).items()}
    effects = corrected(effects)
    text = [
        "An effect is the mean over settings with the item on less that with it off; an interaction (×) compares "
        "settings where both are alike with those where they differ: where the other is on, an item does its effect "
        "plus the interaction, where it is off, its effect less it. Intervals (Welch's) take a rate that was the "
        f"best of several as given, and so are too narrow. p: Holm's, for the {len(effects)} effects of this report.\n"
    ]
    for env_id in dict.fromkeys(env for env, _ in best):
        text.append(f"## {env_id}\n")
        shown = {}
        for score, title in SCORES.items():
            found = best[env_id, score]
            lines = [
                [*("on" if on else "off" for on in is_on(s).values()), rates, rate, len(values), stats.mean(values)]
                for s, (rate, rates, values) in found.items()
            ]
            text.append(table([*FACTORS, "rates tried", "best rate", "n", f"return, {title}"], lines))
            shown[title] = {key[2]: e for key, e in effects.items() if key[:2] == (env_id, score)}
        lines = [
            [effect, sum(x.n), x, p_text(x.p), y, p_text(y.p)]
            for (effect, x), y in zip(shown[SCORES["best"]].items(), shown[SCORES["last"]].values())
        ]
        head = ["effect, on less off", "n", *(x for title in SCORES.values() for x in (title, "p"))]
        text.append(table(head, lines))
        figure = f"{name}_{env_id}.png"
        pools = {title: on_off_samples(best[env_id, score]) for score, title in SCORES.items()}
        figures.on_and_off(out / figure, env_id, pools)
        if not all(shown.values()):
            text.append(f"Effects need runs of all {2 ** len(FACTORS)} settings.\n")
        text.append(f"![{env_id}: share of agents above a return, each optimization on and off]({figure})\n")
        if all(shown.values()):
            figure = f"{name}_effects_{env_id}.png"
            of_effect = {effect: {title: of[effect] for title, of in shown.items()} for effect in shown[SCORES["best"]]}
            figures.effects(out / figure, "Main effects and interactions", {env_id: of_effect})
            text.append(f"![{env_id}: main effects and interactions]({figure})\n")
    return "\n".join(part for part in text if part)


def report_leave_one_out(cells: Cells, name: str, out) -> str:
    """The effect of each item: the first variant of the suite, with all on, less each of the others."""
    effects = {}
    for env_id, rows in cells.items():
        whole, *others = rows
        for variant in others:
            for score in SCORES:
                x, y = sample(rows[whole], score), sample(rows[variant], score)
                if len(x) and len(y):
                    effects[env_id, variant, score] = stats.difference(x, y)
    effects = corrected(effects)
    text = [
        "An item's effect is the mean with all on, less the mean without it; Welch's interval. p: Holm's, for the "
        f"{len(effects)} effects of this report.\n"
    ]
    for env_id, rows in cells.items():
        lines = []
        for variant, agents in rows.items():
            line = [label(variant).replace("_", " "), len(agents)]
            for score in SCORES:
                effect = effects.get((env_id, variant, score))
                line += [mean_score(agents, score), effect or "-", p_text(effect.p) if effect else "-"]
            lines.append(line)
        head = ["variant", "n", *(word for title in SCORES.values() for word in (title, "effect of the item", "p"))]
        text += [f"## {env_id}\n", table(head, lines)] if any(rows.values()) else []
    panels = {}
    for (env_id, variant, score), effect in effects.items():
        item = label(variant).removeprefix("no_").replace("_", " ")
        panels.setdefault(env_id, {}).setdefault(item, {})[SCORES[score]] = effect
    if panels:
        figures.effects(out / f"{name}_effects.png", "All on, less all but one", panels)
        text.append(f"![effect of each item]({name}_effects.png)\n")
    return "\n".join(text)
