"""What README says of the scripts is so: its commands are the paper's configurations, its diffs have these sizes."""

import dataclasses
import importlib
import re
import shlex
import subprocess
import sys

import pytest
import tyro
from conftest import ROOT, SCRIPTS

sys.path.insert(0, str(ROOT / "benchmark"))
suites = importlib.import_module("suites")

README = (ROOT / "README.md").read_text()
CONFIGURATIONS = re.findall(r"^\| (\w+) \| (\S+) \| `python (\w+)\.py ?(.*)` \|$", README, re.M)


def test_every_configuration_has_a_command():
    found = {(f"{task}-v5", variant) for task, variant, _, _ in CONFIGURATIONS}
    assert found == {(env, suites.LABELS[name]) for env, rows in suites.PAPER_ROWS.items() for name in rows}


@pytest.mark.parametrize("task, variant, script, flags", CONFIGURATIONS)
def test_commands_are_the_configurations(task, variant, script, flags):
    name = {label: name for name, label in suites.LABELS.items()}[variant]
    expected = dict(suites.PAPER_ROWS[f"{task}-v5"][name])
    args = tyro.cli(importlib.import_module(script).Args, args=shlex.split(flags))
    assert (script, args.env_id) == (expected.pop("script"), f"{task}-v5")
    assert args.total_timesteps // 2048 == expected.pop("total_timesteps") // 2048
    assert {key: getattr(args, key) for key in expected} == expected


@pytest.mark.parametrize("old, new, size", re.findall(r"^diff (\w+)\.py (\w+)\.py .*?(\d+) lines$", README, re.M))
def test_sizes_of_the_diffs(old, new, size):
    """Lines that `diff` marks with < or >."""
    done = subprocess.run(["diff", f"{old}.py", f"{new}.py"], cwd=ROOT, capture_output=True, text=True)
    assert len(re.findall(r"^[<>]", done.stdout, re.M)) == int(size)


def test_defaults_of_the_nine():
    """The table of the nine: each script's defaults."""
    rows = re.findall(r"^\| (\d) \| [^|]+ \| `--([\w-]+)`[^|]* \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", README, re.M)
    assert [int(number) for number, *_ in rows] == list(range(1, 10))
    for _, flag, ppo, trpo, minimal in rows:
        for name in SCRIPTS:
            fields = {field.name: field.default for field in dataclasses.fields(importlib.import_module(name).Args)}
            said = {"ppo_continuous": ppo, "trpo_plus": trpo}.get(name, minimal).split(" (")[0].strip()
            if said in ("-", "Xavier"):
                assert flag.replace("-", "_") not in fields
            else:
                default = fields[flag.replace("-", "_")]
                assert (
                    said == {True: "on"}.get(default, default)
                    if not isinstance(default, float)
                    else float(said) == default
                )


def test_flags_exist():
    """Every flag that README names is a flag of a script or of the benchmark."""
    known = set()
    for name in SCRIPTS:
        for field in dataclasses.fields(importlib.import_module(name).Args):
            known |= {f"--{field.name.replace('_', '-')}", f"--no-{field.name.replace('_', '-')}"}
    known |= set(re.findall(r'"(--[\w-]+)"', (ROOT / "benchmark/run.py").read_text()))
    elsewhere = {"--logdir", "--index-url", "--no-install-recommends", "--help"}  # TensorBoard's, pip's, apt-get's, all
    named = set(re.findall(r"(?<![\w-])(--[a-z][\w-]*\w)(?!-)", README))
    assert named - known - elsewhere == set()
    assert named  # the pattern finds them


def test_results_are_the_reports():
    """The table of results: every row stands in the committed report, and none of the report's is left out."""
    report = (ROOT / "benchmark/results/table2.md").read_text()
    labels = "|".join(map(re.escape, suites.LABELS.values()))
    expected = []
    for section in re.split(r"^## ", report, flags=re.M)[1:]:
        task = section.split("-v5")[0]
        rows = re.findall(rf"^\| ((?:{labels}) \| \d+ \|(?: [^|]+ \|){{5}})$", section.partition("| score")[0], re.M)
        expected += [f"| {task} | {row}" for row in rows]
    assert expected and re.findall(rf"^\| \w+ \| (?:{labels}) \| \d+ \|.*$", README, re.M) == expected

    section = README.partition("## Results")[2].partition("\n## ")[0]
    estimates = re.findall(r"-?[\d.]+ \[-?[\d.]+, -?[\d.]+\]", section)
    assert len(estimates) > len(expected) and [e for e in estimates if f" {e} " not in report] == []
    chances = re.findall(r"\(p = [\d.]+\)", section)
    assert chances and [p for p in chances if p not in report] == []
