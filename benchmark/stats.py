"""Scores of agents, and what samples of them tell: 95% intervals that hold with few agents, and p values.

Intervals of means, of differences of means and of effects are Student's and Welch's: they take the scores as normal,
but of three agents they do not promise what a bootstrap cannot keep (its interval is there the lowest and the highest,
and covers the mean in about three of four cases). What has no such formula has a bootstrap's from ten agents on.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy.stats

RETURN = "charts/episodic_return"
ENOUGH = 10  # agents a cell, for a bootstrap


def scores(history: pd.DataFrame) -> dict[str, float]:
    """An agent's scores. An iteration in which no episode ended has no return, and is left out; NaN without any.

    `best`: the best iteration's mean return, as the paper's notebooks score; `last`: the mean of the last five
    iterations, as the released training script does; `last50`: of the last fifty; `all`: of all, how fast it learns.
    """
    returns = history.get(RETURN, pd.Series(dtype=float))
    means = {"last": returns.iloc[-5:].mean(), "last50": returns.iloc[-50:].mean(), "all": returns.mean()}
    return {"best": returns.max(), **means}


class Estimate(NamedTuple):
    """A statistic of one or more samples, its 95% interval (NaN where there is none), and p of its being 0."""

    value: float
    low: float
    high: float
    n: tuple[int, ...]
    p: float = np.nan
    distribution: np.ndarray = np.array([])  # the bootstrap's

    def __str__(self) -> str:
        size = np.nanmax(np.abs(self[:3]))
        places = 0 if size >= 100 or size == 0 else 1 if size >= 10 else 2 if size >= 0.1 else 4
        if np.isnan(self.low):
            return f"{self.value:z.{places}f}" + " (no interval)" * (min(self.n) < 2)
        return f"{self.value:z.{places}f} [{self.low:z.{places}f}, {self.high:z.{places}f}]"


def linear(weights, *samples: np.ndarray) -> Estimate:
    """sum of w_i * mean(x_i), with an interval that lets every sample have a variance of its own.

    One sample and weight 1: Student's interval of a mean; 1 and -1: Welch's of a difference; more: a contrast.
    The degrees of freedom are Welch's and Satterthwaite's.
    """
    n = tuple(map(len, samples))
    value = float(sum(w * np.mean(x) for w, x in zip(weights, samples)))
    if min(n) < 2:
        return Estimate(value, np.nan, np.nan, n)
    parts = np.array([w**2 * np.var(x, ddof=1) / len(x) for w, x in zip(weights, samples)])
    error = parts.sum() ** 0.5
    if error == 0:
        return Estimate(value, value, value, n, float(value == 0))
    freedom = parts.sum() ** 2 / (parts**2 / (np.array(n) - 1)).sum()
    half = scipy.stats.t.ppf(0.975, freedom) * error
    return Estimate(value, value - half, value + half, n, float(2 * scipy.stats.t.sf(abs(value) / error, freedom)))


def mean(x: np.ndarray) -> Estimate:
    """The mean, with Student's interval."""
    return linear([1], x)


def difference(x: np.ndarray, y: np.ndarray) -> Estimate:
    """How much greater the mean of x is, with Welch's interval."""
    return linear([1, -1], x, y)


def holm(p: np.ndarray) -> np.ndarray:
    """(m,) p values -> p values corrected for so many comparisons, however they depend on each other (Holm, 1979).

    The smallest counts m times, the next m - 1 times, and so on; none less than one smaller than it, none over 1.
    """
    order, corrected = np.argsort(p), np.empty(len(p))
    corrected[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return corrected


def bootstrap(statistic, *samples: np.ndarray, resamples: int = 10_000) -> Estimate:
    """Percentile bootstrap of statistic(*samples, axis=-1); no interval where a sample has fewer than ten agents.

    The generator is fixed: the same samples give the same resamples, whatever the statistic.
    """
    value, n = float(statistic(*samples, axis=-1)), tuple(map(len, samples))
    if min(n) < ENOUGH:
        return Estimate(value, np.nan, np.nan, n)
    result = scipy.stats.bootstrap(
        samples, statistic, method="percentile", n_resamples=resamples, batch=1000, rng=np.random.default_rng(0)
    )
    return Estimate(value, *map(float, result.confidence_interval), n, np.nan, result.bootstrap_distribution)


def iqm(x, axis=-1):
    """Interquartile mean: the mean without the lowest and the highest quarter."""
    return scipy.stats.trim_mean(x, 0.25, axis=axis)


def improvement(x, y, axis=-1):
    """P(X > Y): the chance that a random agent of x beats one of y; a tie counts half."""
    x, y = np.asarray(x)[..., :, None], np.asarray(y)[..., None, :]
    return np.mean(x > y, axis=(-2, -1)) + 0.5 * np.mean(x == y, axis=(-2, -1))


def aai(ppo, ppo_m, trpo, trpo_plus, axis=-1):
    """Average algorithmic improvement: max(|PPO - TRPO+|, |PPO-M - TRPO|)."""
    ppo, ppo_m, trpo, trpo_plus = (np.mean(x, axis=axis) for x in (ppo, ppo_m, trpo, trpo_plus))
    return np.maximum(abs(ppo - trpo_plus), abs(ppo_m - trpo))


def acli(ppo, ppo_m, trpo, trpo_plus, axis=-1):
    """Average code-level improvement: max(|PPO - PPO-M|, |TRPO+ - TRPO|)."""
    ppo, ppo_m, trpo, trpo_plus = (np.mean(x, axis=axis) for x in (ppo, ppo_m, trpo, trpo_plus))
    return np.maximum(abs(ppo - ppo_m), abs(trpo_plus - trpo))


def acli_less_aai(*samples, axis=-1):
    """How much more the code-level optimizations change than the algorithm does."""
    return acli(*samples, axis=axis) - aai(*samples, axis=axis)


def band(curves: np.ndarray, median: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(n, T) curves -> middle, low and high (T,). NaN is left out.

    Below ten curves their mean (or median), the lowest and the highest; from ten on the mean with Student's 95%
    interval (or the median with the quartiles).
    """
    columns = pd.DataFrame(curves)
    middle = columns.median() if median else columns.mean()
    if len(columns) < ENOUGH:
        low, high = columns.min(), columns.max()
    elif median:
        low, high = columns.quantile(0.25), columns.quantile(0.75)
    else:
        half = scipy.stats.t.ppf(0.975, columns.count() - 1) * columns.sem()
        low, high = middle - half, middle + half
    return middle.to_numpy(), low.to_numpy(), high.to_numpy()
