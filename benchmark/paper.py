"""Numbers to compare with: the paper's, and what its authors' released code reaches on today's environments."""

from pathlib import Path

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

# The released code on v5 environments: env_id, variant, seed, iteration from 0, and the mean return of the episodes
# that ended in it, -1 where none did; its first lines say which runs benchmark/authors.py made
AUTHORS_ON_V5 = Path(__file__).with_name("authors_on_v5.csv")
COLUMNS = ["env_id", "variant", "seed", "iteration", "mean_episode_return"]


def authors(env_id: str, variant: str, path: Path = AUTHORS_ON_V5) -> list[tuple[int, pd.DataFrame]]:
    """Seed and history of each run of the released code, columns named as in a script's history."""
    if not path.is_file():
        return []
    runs = pd.read_csv(path, comment="#")
    runs = runs[(runs["env_id"] == env_id) & (runs["variant"] == variant)]
    return [
        (
            seed,
            pd.DataFrame(
                {
                    "global_step": (run["iteration"].to_numpy() + 1) * 2048,
                    RETURN: run["mean_episode_return"].where(run["mean_episode_return"] != -1).to_numpy(),
                }
            ),
        )
        for seed, run in runs.groupby("seed")
    ]
