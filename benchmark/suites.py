"""What the benchmark runs: suites of variants x environments x seeds, every training flag of every run spelled out.

Nothing here relies on a default of the scripts. The hyperparameters are the paper's (its authors' released
configurations); where those set a bound to "none", it is `inf` here.

A variant, a script or a task of your own is an entry in SUITES and nothing else:

    "mine": {
        "seeds": (1, 2, 3),
        "cells": {
            "HalfCheetah-v5": {
                "clip_0.1": PPO | {"policy_lr": 3e-4, "value_lr": 2.5e-4, "clip_coef": 0.1},
                "my_ppo_m": PPO_M | {"script": "my_ppo_m", "policy_lr": 3e-4, "value_lr": 2.5e-4},
            },
        },
    },

`script` is a file in the project's folder, or a path; it takes the flags of an entry and leaves args.json and
history.jsonl behind as the four scripts do. A flag that an entry leaves out is the script's default.
"""

import re
from itertools import product
from math import inf
from typing import NamedTuple

LABELS = {"ppo": "PPO", "ppo_m": "PPO-M", "trpo": "TRPO", "trpo_plus": "TRPO+", "ppo_noclip": "PPO-NoClip"}

COMMON = {
    "total_timesteps": 999_424,  # 488 iterations of 2048
    "checkpoint_every": 1,
    "env_kwargs": "{}",
    "num_envs": 1,
    "num_steps": 2048,
    "num_minibatches": 32,
    "update_epochs": 10,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "hidden_sizes": (64, 64),
    "norm_obs": True,
    "activation": "tanh",
    "norm_adv": True,
    "adam_eps": 1e-5,
    "reset_each_iteration": True,
    "bootstrap_truncated": False,
    "clip_actions": False,
    "heldout_every": 0,
    "compile": False,
}
PPO_M = COMMON | {"script": "ppo_m", "clip_coef": 0.2, "ent_coef": 0.0}
TRPO = COMMON | {
    "script": "trpo_continuous",
    "fisher_fraction": 0.1,
    "cg_steps": 10,
    "cg_damping": 0.1,
    "max_backtracks": 10,
}
OPTIMIZATIONS = {  # as most of the configurations have them
    "vf_clip_coef": inf,
    "reward_scaling": "returns",
    "init": "orthogonal",
    "anneal_lr": True,
    "clip_reward": 10.0,
    "clip_obs": 10.0,
    "max_grad_norm": inf,
}
PPO = PPO_M | {"script": "ppo_continuous"} | OPTIMIZATIONS
NOCLIP = PPO | {"clip_coef": inf}
# The released TRPO+ anneals nothing (its bound was meant to move, but never does) and clips no gradient.
TRPO_PLUS = TRPO | {"script": "trpo_plus"} | OPTIMIZATIONS | {"anneal_lr": False, "max_kl_final": None}

PAPER_ROWS = {
    "Hopper-v5": {
        "ppo": PPO | {"policy_lr": 3e-4, "value_lr": 2.5e-4},
        "ppo_m": PPO_M | {"policy_lr": 1.7e-4, "value_lr": 4e-4},
        "trpo": TRPO | {"max_kl": 0.13, "value_lr": 2e-4},
        "trpo_plus": TRPO_PLUS | {"max_kl": 0.04, "value_lr": 2e-4},
        "ppo_noclip": NOCLIP
        | {"policy_lr": 6e-5, "value_lr": 4e-4, "reward_scaling": "rewards", "clip_reward": 2.5, "max_grad_norm": 4.0}
        | {"gae_lambda": 0.925, "ent_coef": -0.005},
    },
    "Walker2d-v5": {
        "ppo": PPO | {"policy_lr": 4e-4, "value_lr": 3e-4, "vf_clip_coef": 0.2},
        "ppo_m": PPO_M | {"policy_lr": 1e-4, "value_lr": 2e-4},
        "trpo": TRPO | {"max_kl": 0.04, "value_lr": 3e-4},
        "trpo_plus": TRPO_PLUS | {"max_kl": 0.07, "value_lr": 1e-4},
        "ppo_noclip": NOCLIP
        | {"policy_lr": 7.25e-5, "value_lr": 6e-4, "reward_scaling": "rewards", "clip_reward": 30.0, "clip_obs": inf}
        | {"max_grad_norm": 0.1, "gae_lambda": 0.85, "ent_coef": -0.01},
    },
    "Humanoid-v5": {
        "ppo": PPO | {"policy_lr": 1.5e-4, "value_lr": 1e-4, "vf_clip_coef": 0.2},
        "ppo_m": PPO_M | {"policy_lr": 9e-5, "value_lr": 4e-4},
        "trpo": TRPO | {"max_kl": 0.07, "value_lr": 3e-4},
        "trpo_plus": TRPO_PLUS
        | {"max_kl": 0.1, "value_lr": 5e-5, "init": "xavier", "vf_clip_coef": 0.2, "gae_lambda": 0.85},
        "ppo_noclip": NOCLIP
        | {"policy_lr": 2e-5, "value_lr": 5e-5, "init": "xavier", "anneal_lr": False, "vf_clip_coef": 0.2}
        | {"max_grad_norm": 0.5, "gae_lambda": 0.85, "ent_coef": 0.005},
    },
}

# Figure 1: all on/off settings of items 1 to 4 times four rates, the rest as in the paper's grid. The released code
# clips rewards inside the scaling, so where scaling is off there is no reward clip.
FACTORS = {
    "value clipping": {"v0": {"vf_clip_coef": inf}, "v1": {"vf_clip_coef": 0.2}},
    "reward scaling": {"r0": {"reward_scaling": "none", "clip_reward": inf}, "r1": {"reward_scaling": "returns"}},
    "orthogonal init": {"i0": {"init": "xavier"}, "i1": {"init": "orthogonal"}},
    "annealing": {"a0": {"anneal_lr": False}, "a1": {"anneal_lr": True}},
}
RATES = {"1e-5": 1e-5, "8e-5": 8e-5, "1.5e-4": 1.5e-4, "2.2e-4": 2.2e-4}


def ablation() -> dict[str, dict]:
    """Variants such as `v1r0i1a1_8e-5`: the four items in order, 1 for on, then the policy's rate."""
    variants = {}
    for levels in product(*(factor.items() for factor in FACTORS.values())):
        flags = PPO | {"value_lr": 1e-4}
        for _, changed in levels:
            flags = flags | changed
        for name, rate in RATES.items():
            variants["".join(level for level, _ in levels) + "_" + name] = flags | {"policy_lr": rate}
    return variants


# Leave one out: all nine on, at the rates of the task's PPO row, then each of the nine off alone.
LEFT_OUT = {
    "all_on": {},
    "no_value_clipping": {"vf_clip_coef": inf},
    "no_reward_scaling": {"reward_scaling": "none"},
    "no_orthogonal_init": {"init": "xavier"},
    "no_annealing": {"anneal_lr": False},
    "no_reward_clipping": {"clip_reward": inf},
    "no_obs_normalization": {"norm_obs": False},
    "no_obs_clipping": {"clip_obs": inf},
    "no_tanh": {"activation": "relu"},
    "no_gradient_clipping": {"max_grad_norm": inf},
}


def left_out(env_id: str) -> dict[str, dict]:
    """The ten variants of `leave_one_out` on one task."""
    all_on = PAPER_ROWS[env_id]["ppo"] | {"vf_clip_coef": 0.2, "max_grad_norm": 0.5}
    return {name: all_on | changed for name, changed in LEFT_OUT.items()}


# What the paper's TRPO+ has otherwise than its TRPO and is none of the nine.
REST = ("max_kl", "value_lr", "gae_lambda")


def swapped(env_id: str) -> dict[str, dict]:
    """TRPO with the rest of TRPO+'s configuration, and TRPO+ with the rest of TRPO's."""
    trpo, plus = PAPER_ROWS[env_id]["trpo"], PAPER_ROWS[env_id]["trpo_plus"]
    return {
        "trpo_swapped": trpo | {name: plus[name] for name in REST},
        "trpo_plus_swapped": plus | {name: trpo[name] for name in REST},
    }


def with_flags(rows: dict[str, dict], **flags) -> dict[str, dict]:
    """The same variants, `flags` set in each."""
    return {variant: row | flags for variant, row in rows.items()}


# suite -> kind of report ("table" where it is left out), seeds by default, environment -> variant -> flags. Where it
# has them: another suite's variants that its report shows beside its own, and the pairs of variants that it compares.
SUITES = {
    "table2": {
        "report": "table",
        "seeds": tuple(range(1, 11)),  # fixed before any of 4 to 10 was run
        "cells": {env_id: with_flags(rows, heldout_every=5) for env_id, rows in PAPER_ROWS.items()},
    },
    "figure1": {
        "report": "factorial",
        "seeds": (1, 2, 3, 4, 5),
        "cells": {"Humanoid-v5": ablation(), "Walker2d-v5": ablation()},
    },
    "leave_one_out": {
        "report": "leave_one_out",
        "seeds": (1, 2, 3),
        "cells": {env_id: left_out(env_id) for env_id in PAPER_ROWS},
    },
    "swapped": {
        "seeds": tuple(range(1, 11)),
        "beside": {"table2": ("trpo", "trpo_plus")},
        "pairs": (
            ("trpo_plus_swapped", "trpo"),  # the optimizations, at TRPO's rest
            ("trpo_plus", "trpo_swapped"),  # the optimizations, at TRPO+'s rest
            ("trpo_swapped", "trpo"),  # the rest, without the optimizations
            ("trpo_plus", "trpo_plus_swapped"),  # the rest, with them
            ("trpo_plus_swapped", "trpo_swapped"),  # the optimizations less the rest, main effects
        ),
        "cells": {"Humanoid-v5": with_flags(swapped("Humanoid-v5"), heldout_every=5)},
    },
    "smoke": {
        "report": "table",
        "seeds": (1, 2),
        "cells": {"Hopper-v5": with_flags(PAPER_ROWS["Hopper-v5"], total_timesteps=8192, heldout_every=2)},
    },
}


NEEDED = ("script", "total_timesteps", "num_envs", "num_steps")  # by the runner, in every entry


class Run(NamedTuple):
    """One training run of a suite. `suite` names its folder; with narrowed steps it is SUITE-STEPS."""

    suite: str
    env_id: str
    variant: str
    seed: int
    script: str
    flags: dict  # training arguments, by field name, without env_id and seed

    @property
    def name(self) -> str:
        """A name for its folder and files; what no file should have in its name (`my_package:MyEnv-v0`) becomes _."""
        return re.sub(r"[^\w.-]", "_", f"{self.env_id}__{self.variant}__{self.seed}")


class InputError(ValueError):
    """What was asked for cannot be done; the message says why, in one line."""


def choose(what: str, asked: list[str] | None, known: list[str]) -> list[str]:
    """Those of `known` that were asked for (None: all). Raises InputError at an unknown one."""
    for name in asked or ():
        if name not in known:
            raise InputError(f"unknown {what} {name}; there are {', '.join(known)}")
    return [name for name in known if asked is None or name in asked]


def select(suite: str, envs=None, variants=None, seeds=None, timesteps: int | None = None) -> list[Run]:
    """The runs of a suite, narrowed; all variants of a seed before the next seed, one environment after the other."""
    if suite not in SUITES:
        raise InputError(f"unknown suite {suite}; there are {', '.join(SUITES)}")
    cells = SUITES[suite]["cells"]
    folder = f"{suite}-{timesteps}" if timesteps else suite
    names = list(dict.fromkeys(variant for rows in cells.values() for variant in rows))
    variants = choose("variant", variants, names)
    runs = []
    for env_id in choose("environment", envs, list(cells)):
        for seed in SUITES[suite].get("seeds", (1, 2, 3)) if seeds is None else seeds:
            for variant in (name for name in variants if name in cells[env_id]):
                flags = cells[env_id][variant] | ({"total_timesteps": timesteps} if timesteps else {})
                if lacking := [name for name in NEEDED if name not in flags]:
                    raise InputError(f"suites.py: {variant} on {env_id} in {suite} lacks {', '.join(lacking)}")
                least = flags["num_envs"] * flags["num_steps"]
                if flags["total_timesteps"] < least:
                    raise InputError(f"--timesteps must be at least one iteration, {least}")
                runs.append(Run(folder, env_id, variant, seed, flags.pop("script"), flags))
    return runs
