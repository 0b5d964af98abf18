"""The figures. Okabe-Ito colours with a line style each, so that they work in print and for colour-blind readers."""

from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from stats import RETURN, Estimate, band
from suites import LABELS

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import LogFormatter  # noqa: E402

STYLE = {
    "ppo": ("#0072B2", "-"),
    "ppo_m": ("#E69F00", "--"),
    "trpo": ("#009E73", "-."),
    "trpo_plus": ("#D55E00", ":"),
    "ppo_noclip": ("#CC79A7", (0, (5, 1, 1, 1, 1, 1))),
}
plt.rcParams.update({"font.size": 10, "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False})
plt.rcParams.update({"axes.spines.right": False, "figure.dpi": 150, "legend.frameon": False})
WINDOW = 10  # iterations of the moving average


def save(figure, path: Path) -> None:
    """Writes the PNG and forgets the figure."""
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)


def curves(histories: list[pd.DataFrame], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps (T,) at which `name` was recorded, and its values (n, T): moving averages, but for held-out batches."""
    columns = [h.set_index("global_step")[name] if name in h else pd.Series(dtype=float) for h in histories]
    columns = [column.replace([np.inf, -np.inf], np.nan) for column in columns]
    if "heldout" not in name:  # those are of single iterations, some apart
        columns = [column.rolling(WINDOW, min_periods=1).mean() for column in columns]
    table = pd.concat(columns, axis=1).dropna(how="all")
    return table.index.to_numpy(), table.to_numpy().T


def draw(axes, histories: list[pd.DataFrame], name: str, variant: str, label: str | None = None) -> None:
    """One variant's mean and its 95% band."""
    steps, values = curves(histories, name)
    if not len(steps):
        return
    color, line = STYLE[variant]
    middle, low, high = band(values)
    axes.plot(steps / 1e6, middle, color=color, linestyle=line, linewidth=1.4, label=label)
    if low is not None:
        axes.fill_between(steps / 1e6, low, high, color=color, alpha=0.18, linewidth=0)


def learning_curves(path: Path, tasks: dict[str, dict[str, list[pd.DataFrame]]]) -> None:
    """A panel a task: mean return against steps, every variant."""
    figure, panels = plt.subplots(
        1, len(tasks), figsize=(0.8 + 3.6 * len(tasks), 3.6), squeeze=False, layout="constrained"
    )
    for axes, (env_id, variants) in zip(panels[0], tasks.items()):
        for variant, histories in variants.items():
            draw(axes, histories, RETURN, variant, f"{LABELS[variant]} (n = {len(histories)})")
        axes.set(title=env_id, xlabel="million steps")
        axes.legend(fontsize=8, handlelength=3)
    panels[0][0].set_ylabel(f"mean return, moving average of {WINDOW} iterations")
    save(figure, path)


def against_authors(path: Path, ours: dict[str, dict[str, list]], theirs: dict[str, dict[str, list]]) -> None:
    """A row a task, a panel a variant: every run's mean return, and in black every run of the authors' code."""
    variants = list(dict.fromkeys(variant for row in ours.values() for variant in row))
    figure, panels = plt.subplots(
        len(ours), len(variants), figsize=(2.6 * len(variants), 2.4 * len(ours)), squeeze=False, layout="constrained"
    )
    for line, env_id in zip(panels, ours):
        for axes, variant in zip(line, variants):
            for histories, color, name in (
                (ours[env_id].get(variant, []), STYLE[variant][0], "here"),
                (theirs[env_id].get(variant, []), "black", "authors' code"),
            ):
                label = f"{name} (n = {len(histories)})"
                for history in histories:
                    steps, values = curves([history], RETURN)
                    axes.plot(steps / 1e6, values[0], color=color, linewidth=0.9, label=label)
                    label = None
            axes.set_title(f"{env_id}, {LABELS[variant]}", fontsize=9)
            axes.set_ylim(0, 1.3 * axes.get_ylim()[1])  # room for the legend
            axes.legend(fontsize=8, loc="upper left", borderaxespad=0.1, labelspacing=0.2)
    figure.supylabel(f"mean return, moving average of {WINDOW} iterations", fontsize=10)
    for axes in panels[-1]:
        axes.set_xlabel("million steps")
    save(figure, path)


def trust_region(path: Path, env_id: str, variants: dict[str, list[pd.DataFrame]], clip_coef: float) -> None:
    """The paper's Figure 2: reward, maximum ratio with 1 + eps, mean KL with TRPO's bound; below, held out."""
    figure, panels = plt.subplots(2, 3, figsize=(11, 6), sharex=True, layout="constrained")
    for row, prefix, where in ((0, "", "training batch"), (1, "heldout_", "held-out batch")):
        _, ratio, kl = panels[row]
        for variant, histories in variants.items():
            draw(ratio, histories, f"trust_region/{prefix}max_ratio", variant)
            draw(kl, histories, f"trust_region/{prefix}mean_kl", variant)
        ratio.axhline(1 + clip_coef, color="black", linewidth=1)
        label = {"transform": ratio.get_yaxis_transform(), "va": "top", "fontsize": 8}
        ratio.text(0.02, 0.98 + clip_coef, f"1 + ε = {1 + clip_coef:g}", **label)
        ratio.set(title=f"maximum ratio, {where}", yscale="log", ylim=(0.85, None))
        ratio.yaxis.set_major_formatter(LogFormatter())  # 2, 5, 100 instead of powers of ten
        ratio.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2.5, 0.4)))  # a few below ten, too
        bounds = [h["trust_region/max_kl"] for h in variants.get("trpo", []) if "trust_region/max_kl" in h]
        if bounds:
            steps = variants["trpo"][0]["global_step"] / 1e6
            kl.plot(steps, bounds[0], color="black", linewidth=1)
            label = {"transform": kl.get_yaxis_transform(), "va": "bottom", "fontsize": 8}
            kl.text(0.02, bounds[0].iloc[0], "TRPO's bound", **label)
        kl.set(title=f"mean KL, {where}", ylim=(0, None))
    reward, legend = panels[0][0], panels[1][0]
    for variant, histories in variants.items():
        draw(reward, histories, RETURN, variant, f"{LABELS[variant]} (n = {len(histories)})")
    reward.set(title=f"{env_id}: mean return")
    for axes in panels[0]:
        axes.set_ylabel(f"moving average of {WINDOW} iterations")
    for axes in panels[1][1:]:
        axes.set_ylabel("single iterations")
    legend.axis("off")
    legend.legend(*reward.get_legend_handles_labels(), loc="center", fontsize=11, handlelength=4)
    for axes in (reward, *panels[1][1:]):
        axes.set_xlabel("million steps")
    reward.tick_params(labelbottom=True)
    save(figure, path)


def on_and_off(path: Path, env_id: str, rows: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]) -> None:
    """The paper's Figure 1: for each optimization 1 - CDF of the agents' scores with it on and off; a row a score."""
    columns = len(next(iter(rows.values())))
    figure, panels = plt.subplots(
        len(rows), columns, figsize=(3 * columns, 2.9 * len(rows)), sharey=True, layout="constrained", squeeze=False
    )
    for line, (score, factors) in zip(panels, rows.items()):
        for axes, (factor, (on, off)) in zip(line, factors.items()):
            for values, variant, label in ((on, "ppo", "on"), (off, "trpo_plus", "off")):
                color, style = STYLE[variant]
                x = np.sort(values)
                share = 1 - np.arange(1, len(x) + 1) / len(x)
                if len(x):
                    x, share = np.concatenate([[x[0]], x]), np.concatenate([[1], share])
                label = f"{label} (n = {len(values)})"
                axes.step(x, share, where="post", color=color, linestyle=style, linewidth=1.8, label=label)
            axes.set(title=factor, xlabel=score, ylim=(0, 1.02))
            axes.legend(fontsize=8)
        line[0].set_ylabel("share of agents above")
    figure.suptitle(env_id)
    save(figure, path)


def effects(path: Path, title: str, rows: dict[str, dict[str, Estimate]]) -> None:
    """Effects with 95% intervals, one a line; a panel a task or score."""
    height = 1.4 + 0.3 * max(len(lines) for lines in rows.values())
    figure, panels = plt.subplots(
        1, len(rows), figsize=(2 + 3.6 * len(rows), height), squeeze=False, layout="constrained"
    )
    for axes, (name, lines) in zip(panels[0], rows.items()):
        for y, estimate in enumerate(lines.values()):
            if not np.isnan(estimate.low):
                axes.plot([estimate.low, estimate.high], [y, y], color="#0072B2", linewidth=2)
            axes.plot(estimate.value, y, "o", color="#0072B2")
        axes.axvline(0, color="black", linewidth=1)
        axes.set(title=name, xlabel="difference in return", yticks=range(len(lines)), ylim=(len(lines) - 0.5, -0.5))
        axes.set_yticklabels(lines)
    figure.suptitle(title)
    save(figure, path)
