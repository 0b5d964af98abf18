"""Numbers to compare with: the paper's, and what its authors' released code reaches on today's environments."""

from pathlib import Path
from typing import NamedTuple

import pandas as pd
from stats import RETURN

# Tables 2 and 3 of the paper: mean and 95% interval, v2 environments, at least 80 agents a cell
PAPER = {
    "Hopper-v5": {
        "ppo": (2513, 2391, 2632),
        "ppo_m": (2142, 2008, 2279),
        "trpo": (2043, 1948, 2136),
        "trpo_plus": (2466, 2381, 2549),
        "ppo_noclip": (2371, 2316, 2424),
        "AAI": 99,
        "ACLI": 421,
    },
    "Walker2d-v5": {
        "ppo": (3292, 3157, 3426),
        "ppo_m": (2735, 2602, 2866),
        "trpo": (2791, 2709, 2873),
        "trpo_plus": (3050, 2976, 3126),
        "ppo_noclip": (2867, 2701, 3024),
        "AAI": 242,
        "ACLI": 557,
    },
    "Humanoid-v5": {
        "ppo": (806, 785, 827),
        "ppo_m": (674, 656, 695),
        "trpo": (586, 576, 596),
        "trpo_plus": (1030, 979, 1083),
        "ppo_noclip": (831, 798, 869),
        "AAI": 224,
        "ACLI": 444,
    },
}

# The released code on v5 environments. results/authors_on_v5.csv has the early runs, returns alone; its first lines say
# which of them authors.py made. results/authors/ENV__VARIANT__SEED.csv is a run each, `_no_heldout` behind the seed of
# one that measured nothing on fresh batches.
RESULTS = Path(__file__).with_name("results")
COLUMNS = {  # theirs -> ours; the return of an iteration in which no episode ended is -1 there
    "mean_episode_return": RETURN,
    "mean_kl": "trust_region/mean_kl",
    "entropy": "losses/entropy",
    "explained_variance": "losses/explained_variance",
}


class Theirs(NamedTuple):
    """A run of the authors' code."""

    seed: int
    heldout: bool  # as released: every fifth iteration a batch more, which moves the running statistics, too
    history: pd.DataFrame  # columns named as in a script's history


def authors(env_id: str, variant: str, folder: Path = RESULTS) -> list[Theirs]:
    """All runs of the released code on one task with one variant's configuration: as released, then the others."""
    found, early = [], folder / "authors_on_v5.csv"
    if early.is_file():
        runs = pd.read_csv(early, comment="#").query("env_id == @env_id and variant == @variant")
        found += [Theirs(seed, True, history(run)) for seed, run in runs.groupby("seed")]
    for path in (folder / "authors").glob(f"{env_id}__{variant}__*.csv"):
        seed, _, without = path.stem.rpartition("__")[2].partition("_")
        found.append(Theirs(int(seed), not without, history(pd.read_csv(path, comment="#"))))
    return sorted(found, key=lambda run: (not run.heldout, run.seed))


def history(run: pd.DataFrame) -> pd.DataFrame:
    """A run of theirs as a script's history."""
    steps = (run["iteration"] + 1) * 2048
    known = pd.DataFrame({"global_step": steps} | {ours: run[name] for name, ours in COLUMNS.items() if name in run})
    return known.replace({RETURN: {-1: float("nan")}}).reset_index(drop=True)
