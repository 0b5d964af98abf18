"""Scores of agents, and what samples of them tell: bootstrap intervals (percentile method, as the paper)."""

import warnings
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy.stats

RETURN = "charts/episodic_return"


def scores(history: pd.DataFrame) -> dict[str, float]:
    """An agent's two scores. An iteration in which no episode ended has no return, and is left out; NaN without any.

    `best`: the best iteration's mean return, as the paper's notebooks score; `last`: the mean of the last five
    iterations, as the released training script does.
    """
    if RETURN not in history:
        return {"best": np.nan, "last": np.nan}
    return {"best": history[RETURN].max(), "last": history[RETURN].iloc[-5:].mean()}


class Estimate(NamedTuple):
    """A statistic of one or more samples, its 95% interval (NaN with one agent), its bootstrap distribution, or p."""

    value: float
    low: float
    high: float
    n: tuple[int, ...]
    distribution: np.ndarray
    p: float = np.nan

    def __str__(self) -> str:
        size = np.nanmax(np.abs(self[:3]))
        places = 0 if size >= 100 or size == 0 else 1 if size >= 10 else 2 if size >= 0.1 else 4
        if np.isnan(self.low):
            return f"{self.value:.{places}f} (no interval)"
        return f"{self.value:.{places}f} [{self.low:.{places}f}, {self.high:.{places}f}]"


def bootstrap(statistic, *samples, resamples: int = 10_000) -> Estimate:
    """Percentile bootstrap of statistic(*samples, axis=-1); each sample, an array of agents, is resampled by itself.

    The generator is fixed: the same samples give the same resamples, whatever the statistic.
    """
    value, n = float(statistic(*samples, axis=-1)), tuple(len(sample) for sample in samples)
    if min(n) < 2:
        return Estimate(value, np.nan, np.nan, n, np.array([]))
    result = scipy.stats.bootstrap(
        samples, statistic, method="percentile", n_resamples=resamples, batch=1000, rng=np.random.default_rng(0)
    )
    return Estimate(value, *map(float, result.confidence_interval), n, result.bootstrap_distribution)


def welch(x: np.ndarray, y: np.ndarray) -> Estimate:
    """How much greater the mean of x is, with Welch's t interval: with few agents a bootstrap's is far too narrow.

    (Of 3 agents the percentile bootstrap's interval of the mean is just the lowest and the highest.)
    """
    value, n = difference(x, y), (len(x), len(y))
    if min(n) < 2:
        return Estimate(value, np.nan, np.nan, n, np.array([]))
    test = scipy.stats.ttest_ind(x, y, equal_var=False)
    return Estimate(value, *map(float, test.confidence_interval(0.95)), n, np.array([]), float(test.pvalue))


def holm(p: np.ndarray) -> np.ndarray:
    """(m,) p values -> p values corrected for so many comparisons, however they depend on each other (Holm, 1979).

    The smallest counts m times, the next m - 1 times, and so on; none less than one smaller than it, none over 1.
    """
    order, corrected = np.argsort(p), np.empty(len(p))
    corrected[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return corrected


def mean(x, axis=-1):
    """The mean."""
    return np.mean(x, axis=axis)


def iqm(x, axis=-1):
    """Interquartile mean: the mean without the lowest and the highest quarter."""
    return scipy.stats.trim_mean(x, 0.25, axis=axis)


def difference(x, y, axis=-1):
    """How much greater the mean of x is."""
    return np.mean(x, axis=axis) - np.mean(y, axis=axis)


def improvement(x, y, axis=-1):
    """P(X > Y): the chance that a random agent of x beats one of y; a tie counts half."""
    x, y = np.asarray(x)[..., :, None], np.asarray(y)[..., None, :]
    return np.mean(x > y, axis=(-2, -1)) + 0.5 * np.mean(x == y, axis=(-2, -1))


def aai(ppo, ppo_m, trpo, trpo_plus, axis=-1):
    """Average algorithmic improvement: max(|PPO - TRPO+|, |PPO-M - TRPO|)."""
    return np.maximum(abs(difference(ppo, trpo_plus, axis)), abs(difference(ppo_m, trpo, axis)))


def acli(ppo, ppo_m, trpo, trpo_plus, axis=-1):
    """Average code-level improvement: max(|PPO - PPO-M|, |TRPO+ - TRPO|)."""
    return np.maximum(abs(difference(ppo, ppo_m, axis)), abs(difference(trpo_plus, trpo, axis)))


def acli_less_aai(ppo, ppo_m, trpo, trpo_plus, axis=-1):
    """How much more the code-level optimizations change than the algorithm does."""
    return acli(ppo, ppo_m, trpo, trpo_plus, axis) - aai(ppo, ppo_m, trpo, trpo_plus, axis)


def contrast(signs):
    """A factorial effect over cells: the mean over cells of sign +1 less that over cells of sign -1."""

    def statistic(*cells, axis=-1):
        return sum(sign * np.mean(cell, axis=axis) for sign, cell in zip(signs, cells)) / (len(signs) / 2)

    return statistic


def band(curves: np.ndarray, resamples: int = 1000) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """(n, T) curves -> their mean (T,) and the ends of a 95% interval (None with one curve). NaN is left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a column of NaN alone
        middle = np.nanmean(curves, axis=0)
        if len(curves) < 2:
            return middle, None, None
        picked = np.random.default_rng(0).integers(0, len(curves), (resamples, len(curves)))
        means = np.stack([np.nanmean(curves[rows], axis=0) for rows in picked])
        return middle, *np.nanpercentile(means, [2.5, 97.5], axis=0)
