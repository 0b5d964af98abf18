"""benchmark/speed.py: what it measures of a script, and the tables it makes of a CSV."""

import json
import subprocess
import sys

from conftest import ROOT

SPEED = [sys.executable, str(ROOT / "benchmark/speed.py")]
MEASURED = """# {"cpu": "a processor", "cores": 2, "versions": {"torch": "2"}}
row,contender,round,steps_per_second,first_seconds,megabytes
Hopper-v5,ppo_m.py,1,1000,5,100
Hopper-v5,ppo_m.py --compile,1,4000,25,200
Hopper-v5,Stable-Baselines3 PPO,1,500,6,300
Hopper-v5,ppo_m.py,2,3000,5,100
Hopper-v5,ppo_m.py --compile,2,6000,9,220
Hopper-v5,Stable-Baselines3 PPO,2,500,6,300
Hopper-v5,ppo_m.py,3,1000,5,100
Hopper-v5,ppo_m.py --compile,3,2500,7,230
Hopper-v5,Stable-Baselines3 PPO,3,500,6,300
"""


def test_a_measurement_of_a_script():
    """Two iterations of 2048 steps: the rate is the second's, and the first takes longer than that by the set-up."""
    words = [*SPEED, "--steps", "4096", "--measure", "ppo_m.py", "Hopper-v5"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert 50 < found["steps_per_second"] < 20_000 and 100 < found["megabytes"] < 2_000
    assert found["first_seconds"] > 2048 / 20_000


def test_tables(tmp_path):
    """Ratios are medians of the rounds' ratios; compiling costs 20 s, with the cache 3, and gains 0.75 ms a step."""
    (tmp_path / "speed.csv").write_text(MEASURED)
    words = [*SPEED, "--show", "--out", tmp_path / "speed.csv"]
    overview, _, tables = subprocess.run(words, capture_output=True, text=True, check=True).stdout.partition("\n\n")
    assert overview.splitlines() == [
        "| steps/s (ratio to its library) | Hopper-v5 |",
        "| --- | --- |",
        "| `ppo_m.py` | 1,000 (2.0) |",
        "| `ppo_m.py --compile` | 4,000 (8.0) |",
    ]
    first, _, _, _, *rows = tables.splitlines()
    assert first == "a processor, 2 cores; torch 2; rounds: 3, medians (range)"
    assert rows == [
        "| ppo_m.py | 1,000 (1,000-3,000) | 2.00 x Stable-Baselines3 PPO | - | - | - | 100 |",
        "| ppo_m.py --compile | 4,000 (2,500-6,000) | 8.00 x Stable-Baselines3 PPO | 2.50 | 20.0, 3.0 | 26,667, 4,000 "
        "| 220 |",
        "| Stable-Baselines3 PPO | 500 (500-500) | - | - | - | - | 300 |",
    ]
