"""Numbers to compare with: the paper's, and what its authors' released code reaches on today's environments."""

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

# The released code (MadryLab/implementation-matters 5ee6ecb, unchanged) on v5 environments: best iteration and mean of
# the last five iterations of each seed. A yardstick: one or two seeds.
AUTHORS_ON_V5 = {
    "Hopper-v5": {
        "ppo": ((3408, 3402), (1689, 2905)),
        "ppo_m": ((3759, 3614), (2174, 2783)),
        "trpo": ((3295, 3252), (1625, 2377)),
        "trpo_plus": ((3183, 3510), (1785, 2005)),
        "ppo_noclip": ((3096,), (2580,)),
    },
    "Walker2d-v5": {
        "ppo": ((4393,), (2735,)),
        "ppo_m": ((3934,), (2285,)),
        "trpo": ((3897,), (1692,)),
        "trpo_plus": ((4575,), (2678,)),
        "ppo_noclip": ((3672,), (2788,)),
    },
    "Humanoid-v5": {
        "ppo": ((1075,), (709,)),
        "ppo_m": ((722,), (634,)),
        "trpo": ((412,), (366,)),
        "trpo_plus": ((1137,), (759,)),
        "ppo_noclip": ((747,), (603,)),
    },
}
