"""benchmark/run.py --engine slurm, on a real Slurm: .ci/run installs one of a single node."""

import shutil
import subprocess
import time

import pytest
from conftest import ROOT, SCRIPTS, call_runner, make_project, results, starts

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("sbatch") is None, reason="no Slurm is installed")]


def wait_for_status(project, words, end: str, seconds=300) -> str:
    """Asks --status until its last line is `end`."""
    deadline = time.time() + seconds
    while (output := call_runner(project, *words, "--status")[1]).splitlines()[-1] != end:
        assert time.time() < deadline, output
        time.sleep(1)
    return output


def test_smoke_suite(tmp_path):
    """Every variant, really trained; one job is cancelled, and the next call submits that one alone again."""
    project = make_project(tmp_path)
    for script in SCRIPTS:
        shutil.copy(ROOT / f"{script}.py", project)
    words = ["smoke", "--seeds", 1, "--timesteps", 2048]
    slurm = [*words, "--engine", "slurm", "--parallel", 2, "--time", 10, "--mem", 1]
    assert call_runner(project, *slurm) == (0, "5 runs submitted, 0 were in the queue; --status tells how they stand\n")
    last = (project / "benchmark/runs/smoke-2048/slurm/jobs.txt").read_text().split()[-2:]
    assert last[1] == "Hopper-v5__ppo_noclip__1"
    subprocess.run(["scancel", last[0]], check=True)
    wait_for_status(project, words, "5 runs: 4 done, 1 not started")
    assert call_runner(project, *slurm)[1].startswith("1 runs submitted")  # others may still be leaving the queue
    assert call_runner(project, *slurm)[1].startswith("0 runs submitted")
    wait_for_status(project, words, "5 runs: 5 done")
    assert len(results(project, "smoke-2048")) == 5
    assert call_runner(project, *words)[0] == 0  # nothing is left for the local engine


def test_failed_jobs_are_reported_and_retried_on_request(tmp_path):
    project = make_project(tmp_path)
    slurm = ["crashing", "--seeds", 1, "--engine", "slurm", "--time", 10, "--mem", 1]
    assert call_runner(project, *slurm)[1].startswith("2 runs submitted")
    output = wait_for_status(project, ["crashing", "--seeds", 1], "2 runs: 1 done, 1 failed")
    assert "loss is not finite" in output and len(starts(project)) == 2
    time.sleep(2)  # for the job to leave the queue
    status, output = call_runner(project, *slurm)
    assert "loss is not finite" in output and "0 runs submitted" in output
    assert call_runner(project, *slurm, "--retry-failed")[1].startswith("1 runs submitted")
    wait_for_status(project, ["crashing", "--seeds", 1], "2 runs: 1 done, 1 failed")
