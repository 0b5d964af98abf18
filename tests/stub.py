"""A training script in miniature for the tests of the benchmark: same command line, files and exit statuses.

Its numbers depend on the seed and the iteration alone. It notes every start in `starts`, and in `two_at_once` that it
was not alone on its run. It fails at once while there is a file `broken`, in iteration 3 with --kind crash, and ends
early with --kind short. STUB_IMPORTS are the seconds before it does anything, as importing PyTorch takes.
"""

import fcntl
import hashlib
import json
import os
import signal
import sys
import time
import zipfile
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass
class Args:
    env_id: str
    seed: int
    kind: str
    total_timesteps: int
    num_envs: int
    num_steps: int
    heldout_every: int
    delay: float


# RUNNING IT


def stop(number, frame):
    raise KeyboardInterrupt(number)


signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
time.sleep(float(os.environ.get("STUB_IMPORTS", 0)))
flags = {k[2:].replace("-", "_"): v for k, v in zip(sys.argv[1::2], sys.argv[2::2])}
if Path("broken").exists():
    print("first line\nall is broken")
    sys.exit(2)
if "resume" in flags:
    run = Path(flags["resume"])
    about = json.loads((run / "args.json").read_text())
    with zipfile.ZipFile(run / "checkpoint.pt") as file:
        iteration = int(file.read("iteration"))
else:
    run = Path(flags.pop("runs_dir", "runs"), flags.pop("run_name", "unnamed"))
    types = {field.name: field.type for field in fields(Args)}
    text, iteration = Path(__file__).read_text(), 0
    parts = {"sha256": text, "algorithm_sha256": text.partition("\n# RUNNING IT")[0]}
    about = {"script": Path(__file__).stem, "versions": {"python": "3", "stub": "1"}}
    about |= {name: hashlib.sha256(part.encode()).hexdigest() for name, part in parts.items()}
    about["args"] = {name: types[name](value) for name, value in flags.items()}
    try:
        run.mkdir(parents=True)
    except FileExistsError:
        print(f"{run} exists")
        sys.exit(2)
    (run / "args.json").write_text(json.dumps(about))
lock = open(run / ".lock", "a")  # noqa: SIM115 - until the end of the process
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    Path("two_at_once").write_text(run.name)
    print(f"{run} is locked: another process trains it")
    sys.exit(2)
with open("starts", "a") as file:
    file.write(f"{os.getpid()} {run.name} {iteration}\n")
args, path = about["args"], run / "history.jsonl"
history = path.read_text().splitlines(keepends=True)[:iteration] if iteration else []
path.write_text("".join(history))


def save(iteration):
    with zipfile.ZipFile(run / "checkpoint.tmp", "w") as file:
        file.writestr("iteration", str(iteration))
    os.replace(run / "checkpoint.tmp", run / "checkpoint.pt")


try:
    save(iteration)
    for i in range(iteration + 1, args["total_timesteps"] // args["num_steps"] + 1):
        time.sleep(args["delay"])
        if args["kind"] == "crash" and i == 3:
            sys.exit("stub.py: error: iteration 3: loss is not finite")
        if args["kind"] == "short" and i == 3:
            break
        row = {"iteration": i, "global_step": i * args["num_steps"], "trust_region/mean_kl": 1 / (i + args["seed"])}
        row |= {"trust_region/max_ratio": float("inf") if i == 5 else 1.5, "charts/SPS": 100.0}
        if i % 2 == 0:
            row["charts/episodic_return"] = float(i * args["seed"])
        with open(path, "a") as file:
            file.write(json.dumps(row) + "\n")
        save(i)
except KeyboardInterrupt as error:
    sys.exit(128 + error.args[0])
