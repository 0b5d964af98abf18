"""The figures, as PNG and SVG. Okabe-Ito colours with a line style each, for print and for colour-blind readers."""

import re
from itertools import cycle
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from stats import ENOUGH, RETURN, Estimate, band
from suites import LABELS

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import LogFormatter, MaxNLocator  # noqa: E402

STYLE = {
    "ppo": ("#0072B2", "-"),
    "ppo_m": ("#E69F00", "--"),
    "trpo": ("#009E73", "-."),
    "trpo_plus": ("#D55E00", ":"),
    "ppo_noclip": ("#CC79A7", (0, (5, 1, 1, 1, 1, 1))),
}
OTHERS = "#56B4E9", "#8C564B", "#7F7F7F", "#BCBD22", "#4B0082"
plt.rcParams.update({"font.size": 10, "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False})
plt.rcParams.update({"axes.spines.right": False, "figure.dpi": 150, "legend.frameon": False})
plt.rcParams.update({"figure.constrained_layout.use": True, "svg.hashsalt": "benchmark", "svg.fonttype": "none"})
WINDOW = 10  # iterations of the moving average
BANDS = f"means over agents, moving average of {WINDOW} iterations; bands: 95% interval of the mean, \
lowest to highest below {ENOUGH} agents"
Tasks = dict[str, dict[str, list[pd.DataFrame]]]  # environment -> variant -> histories


def save(figure, path: Path) -> None:
    """Writes the PNG, and beside it the SVG, its curves shortened to tenths of a point; forgets the figure."""
    figure.savefig(path, metadata={"Software": None})
    svg = path.with_suffix(".svg")
    figure.savefig(svg, metadata={"Date": None})
    short = lambda curve: re.sub(r"(\.\d)\d+", r"\1", curve[0]).replace(" \nL ", " ")  # noqa: E731
    svg.write_text(re.sub(r' d="[^"]*"', short, svg.read_text()))
    plt.close(figure)


def styles(variants) -> dict[str, tuple]:
    """Variant -> colour and line style: the paper's variants their own, the others what is left."""
    colors, lines = cycle(OTHERS), cycle(((0, (3, 1)), "-", "--", "-.", ":", (0, (1, 2, 4, 2))))  # 30 together
    return {variant: STYLE.get(variant) or (next(colors), next(lines)) for variant in variants}


def curves(histories: list[pd.DataFrame], name: str, median: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Steps (T,) at which `name` was recorded, and its values (n, T): moving averages (or medians), but for held-out
    batches. An infinite value is left out.
    """
    columns = [h.set_index("global_step")[name] if name in h else pd.Series(dtype=float) for h in histories]
    columns = [column.replace([np.inf, -np.inf], np.nan) for column in columns]
    if "heldout" not in name:  # those are of single iterations, some apart
        windows = [column.rolling(WINDOW, min_periods=1) for column in columns]
        columns = [window.median() if median else window.mean() for window in windows]
    table = pd.concat(columns, axis=1).dropna(how="all")
    step = max(1, len(table) // 75)  # to the eye the same, and an SVG of moderate size
    thin = slice((len(table) - 1) % step, None, step)
    return table.index.to_numpy()[thin], table.to_numpy()[thin].T


def axis_of_steps(axes, steps: np.ndarray, labelled: bool = True) -> np.ndarray:
    """Steps in the unit that suits the length of the run, which the axis then names."""
    unit, name = (1e6, "million") if steps.max(initial=0) >= 2e5 else (1e3, "thousand")
    if labelled:
        axes.set_xlabel(f"{name} steps")
    return steps / unit


def draw(axes, histories: list[pd.DataFrame], name: str, style: tuple, label=None, median=False, labelled=True) -> None:
    """One variant's middle and its band."""
    steps, values = curves(histories, name, median)
    if not len(steps):
        return
    (color, line), (middle, low, high) = style, band(values, median)
    steps = axis_of_steps(axes, steps, labelled)
    axes.plot(steps, middle, color=color, linestyle=line, linewidth=1.4, label=label)
    if len(values) > 1:
        axes.fill_between(steps, low, high, color=color, alpha=0.18, linewidth=0)


def each(axes, histories: list[pd.DataFrame], name: str, color: str, label: str, labelled=True) -> None:
    """Every run on its own, one label for all."""
    for i, history in enumerate(histories):
        steps, values = curves([history], name)
        if len(steps):
            steps = axis_of_steps(axes, steps, labelled)
            axes.plot(steps, values[0], color=color, linewidth=0.8, label="" if i else label)


def numbers(variants: dict[str, list]) -> str:
    """How many agents a variant has: "n = 3", or "n = 3 to 10"."""
    sizes = sorted({len(histories) for histories in variants.values() if histories})
    return f"n = {sizes[0]}" if len(sizes) == 1 else f"n = {sizes[0]} to {sizes[-1]}"


def label(variant: str) -> str:
    """The name a reader knows a variant by."""
    return LABELS.get(variant, variant)


def legend_below(figure, panels) -> None:
    """One legend for all panels."""
    entries = {}
    for axes in panels:
        entries |= {name: line for line, name in zip(*axes.get_legend_handles_labels())}
    names = sorted(entries, key="authors' code".__eq__)  # last
    lines = [entries[name] for name in names]
    columns = max(1, min(6, len(names), int(figure.get_figwidth() / 1.6)))
    figure.legend(lines, names, loc="outside lower center", ncols=columns, handlelength=3)


def learning_curves(path: Path, tasks: Tasks) -> None:
    """A panel a task: mean return against steps, every variant."""
    figure, panels = plt.subplots(1, len(tasks), figsize=(1 + 3.6 * len(tasks), 3.8), squeeze=False)
    style = styles(dict.fromkeys(variant for row in tasks.values() for variant in row))
    for axes, (env_id, variants) in zip(panels[0], tasks.items()):
        for variant, histories in variants.items():
            draw(axes, histories, RETURN, style[variant], label(variant))
        axes.set_title(f"{env_id} ({numbers(variants)})", fontsize=11)
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    panels[0][0].set_ylabel("mean return")
    figure.suptitle(BANDS if len(tasks) > 1 else BANDS.replace("; ", "\n").replace(", lowest", ",\nlowest"), fontsize=8)
    legend_below(figure, panels[0])
    save(figure, path)


def against_authors(path: Path, ours: Tasks, theirs: Tasks) -> None:
    """A row a task, a panel a variant: every run's mean return, and in black every run of the authors' code."""
    variants = list(dict.fromkeys(variant for row in ours.values() for variant in row))
    size = (0.6 + 2.4 * len(variants), 0.5 + 2.2 * len(ours))
    figure, panels = plt.subplots(len(ours), len(variants), figsize=size, squeeze=False, sharey="row")
    style = styles(variants)
    for line, env_id in zip(panels, ours):
        for axes, variant in zip(line, variants):
            here, there = ours[env_id].get(variant, []), theirs[env_id].get(variant, [])
            each(axes, here, RETURN, style[variant][0], label(variant), labelled=axes in panels[-1])
            each(axes, there, RETURN, "black", "authors' code", labelled=axes in panels[-1])
            axes.xaxis.set_major_locator(MaxNLocator(3, steps=[5, 10]))
            axes.set_title(f"{label(variant)}: n = {len(here)}, authors' {len(there)}", fontsize=9)
        line[0].set_ylabel(f"{env_id}\nmean return")
        line[0].set_ylim(bottom=min(0, line[0].get_ylim()[0]))
    legend_below(figure, panels.flat)
    save(figure, path)


def trust_region(path: Path, env_id: str, variants: dict[str, list[pd.DataFrame]], clips: list[float]) -> None:
    """The paper's Figure 2: reward, maximum ratio with 1 + eps, mean KL with TRPO's bound; below, held out."""
    heldout = any("trust_region/heldout_mean_kl" in h for histories in variants.values() for h in histories)
    figure, panels = plt.subplots(1 + heldout, 3, figsize=(11, 3.4 + 2.6 * heldout), sharey="col", squeeze=False)
    style = styles(variants)
    for row, (prefix, where) in zip(panels, (("", "training batch"), ("heldout_", "held-out batch"))):
        _, ratio, kl = row
        for variant, histories in variants.items():
            last = ratio in panels[-1]
            draw(ratio, histories, f"trust_region/{prefix}max_ratio", style[variant], median=True, labelled=last)
            draw(kl, histories, f"trust_region/{prefix}mean_kl", style[variant], labelled=last)
        for clip in clips:
            ratio.axhline(1 + clip, color="black", linewidth=1)
            said = {"transform": ratio.get_yaxis_transform(), "va": "top", "fontsize": 8}
            ratio.text(0.02, 0.98 * (1 + clip), f"1 + ε = {1 + clip:g}", **said)
        ratio.set(title=where, ylabel="maximum ratio", yscale="log")
        ratio.yaxis.set_major_formatter(LogFormatter())  # 2, 5, 100 instead of powers of ten
        ratio.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2.5, 0.4)))  # a few below ten, too
        bounds = {h["trust_region/max_kl"].iloc[0] for h in variants.get("trpo", []) if "trust_region/max_kl" in h}
        for bound in bounds:
            kl.axhline(bound, color="black", linewidth=1)
            said = {"transform": kl.get_yaxis_transform(), "va": "bottom", "fontsize": 8}
            kl.text(0.02, bound, "TRPO's bound", **said)
        kl.set(title=where, ylabel="mean KL (nats)")
    reward, ratio, kl = panels[0]
    ratio.set_ylim(bottom=0.75)  # after all is drawn: both rows share their scales, and one that is set stays
    kl.set_ylim(bottom=0)
    for variant, histories in variants.items():
        draw(reward, histories, RETURN, style[variant], f"{label(variant)} (n = {len(histories)})")
    reward.set(title=env_id, ylabel="mean return")
    if heldout:
        panels[1][0].axis("off")
        panels[1][0].legend(*reward.get_legend_handles_labels(), loc="center", fontsize=11, handlelength=4)
    else:
        reward.legend(fontsize=8)
    save(figure, path)


def one_cell(path: Path, title: str, variant: str, here: list[pd.DataFrame], there: list[pd.DataFrame], names) -> None:
    """A panel a quantity: every run, and in black every run of the authors' code."""
    figure, panels = plt.subplots(1, len(names), figsize=(3.2 * len(names), 3.4))
    for axes, (name, quantity) in zip(panels, names.items()):
        logged = [history for history in there if name in history]
        each(axes, here, name, styles([variant])[variant][0], label(variant))
        each(axes, logged, name, "black", "authors' code")
        axes.set_ylabel(quantity)
        axes.set_title(f"n = {len(here)}, authors' {len(logged)}", fontsize=9)
        if "variance" in name:
            axes.set_ylim(max(axes.get_ylim()[0], -0.2), 1)
    figure.suptitle(title)
    legend_below(figure, panels)
    save(figure, path)


def on_and_off(path: Path, env_id: str, rows: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]) -> None:
    """The paper's Figure 1: for each optimization 1 - CDF of the agents' scores with it on and off; a row a score."""
    columns = len(next(iter(rows.values())))
    size = (3 * columns, 2.9 * len(rows))
    figure, panels = plt.subplots(len(rows), columns, figsize=size, sharey=True, sharex="row", squeeze=False)
    for line, (score, factors) in zip(panels, rows.items()):
        for axes, (factor, (on, off)) in zip(line, factors.items()):
            for values, (color, style), name in ((on, STYLE["ppo"], "on"), (off, STYLE["trpo_plus"], "off")):
                x = np.sort(values)
                share = 1 - np.arange(1, len(x) + 1) / len(x)
                if len(x):
                    x, share = np.concatenate([[x[0]], x]), np.concatenate([[1], share])
                name = f"{name} (n = {len(values)})"
                axes.step(x, share, where="post", color=color, linestyle=style, linewidth=1.8, label=name)
            axes.set(title=factor, xlabel=f"return, {score}", ylim=(0, 1.02))
            axes.legend(fontsize=8)
        line[0].set_ylabel("share of agents\nwith a higher return")
    figure.suptitle(env_id)
    save(figure, path)


def effects(path: Path, title: str, panels: dict[str, dict[str, dict[str, Estimate]]]) -> None:
    """Effects with 95% intervals: a panel a task, a line an effect, in it one point a score."""
    lines = list(dict.fromkeys(line for panel in panels.values() for line in panel))
    scores = list(dict.fromkeys(score for panel in panels.values() for line in panel.values() for score in line))
    size = (2 + 3.2 * len(panels), 1.4 + 0.45 * len(lines))
    figure, row = plt.subplots(1, len(panels), figsize=size, squeeze=False, sharey=True)
    for axes, (name, panel) in zip(row[0], panels.items()):
        for i, (score, (color, _), marker) in enumerate(zip(scores, STYLE.values(), "os")):
            found = [(lines.index(line), of[score]) for line, of in panel.items() if score in of]
            y = [at + 0.24 * (i - (len(scores) - 1) / 2) for at, _ in found]
            axes.hlines(y, [e.low for _, e in found], [e.high for _, e in found], color=color, linewidth=2)
            axes.plot([e.value for _, e in found], y, marker, color=color, label=score)
        axes.axvline(0, color="black", linewidth=1, zorder=1)
        axes.set(title=name, xlabel=f"difference in {'%' if '%' in name else 'return'}", ylim=(len(lines) - 0.5, -0.5))
    row[0][0].set_yticks(range(len(lines)), lines)
    legend_below(figure, row[0])
    figure.suptitle(title)
    save(figure, path)
