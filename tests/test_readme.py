"""What README says is so: its diff, its sizes, its defaults, its flags, its results, and that it stays short."""

import dataclasses
import re
import subprocess
import sys
from importlib import import_module

import pytest
from conftest import ROOT, SCRIPTS

README = (ROOT / "README.md").read_text()
REPORT = "".join((ROOT / f"benchmark/results/{suite}.md").read_text() for suite in ("table2", "swapped"))


def fields(script: str) -> dict:
    return {field.name: field.default for field in dataclasses.fields(import_module(script).Args)}


def diff(*words: str) -> str:
    return subprocess.run(["diff", *words], cwd=ROOT, capture_output=True, text=True).stdout


def test_it_is_short():
    assert len(README.encode()) <= 10_000


def test_the_hunk_on_the_first_screen_is_the_diffs():
    block = re.search(r"```diff\n\$ diff (-U1 \w+\.py \w+\.py)\n@@.*\n((?:[-+ ].*\n)+)```", README)
    assert len(re.findall(r"^\+.*# \[\d\]", block[2], re.M)) >= 2 and README.index(block[2]) < 1500
    whole = diff(*block[1].split())
    assert [line for line in block[2].splitlines() if f"\n{line}\n" not in whole] == []


SIZES = re.findall(r"^diff (\w+\.py) (\w+\.py) .*?(\d+) changed lines$", README, re.M)


def test_the_three_diffs_are_there():
    assert len(SIZES) == 3


@pytest.mark.parametrize("old, new, size", SIZES)
def test_sizes_of_the_diffs(old, new, size):
    """Lines that `diff` marks with < or >."""
    assert len(re.findall(r"^[<>]", diff(old, new), re.M)) == int(size)


def test_defaults_of_the_nine():
    """The table of the nine: each script's defaults."""
    rows = re.findall(r"^\| (\d) \| [^|]+ \| `--([\w-]+)`[^|]* \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", README, re.M)
    assert [int(number) for number, *_ in rows] == list(range(1, 10))
    for _, flag, ppo, trpo, minimal in rows:
        for script in SCRIPTS:
            defaults, name = fields(script), flag.replace("-", "_")
            said = {"ppo_continuous": ppo, "trpo_plus": trpo}.get(script, minimal).split(" (")[0].strip()
            if said in ("-", "Xavier"):
                assert name not in defaults
            elif isinstance(defaults[name], bool):
                assert said == {True: "on", False: "off"}[defaults[name]]
            elif isinstance(defaults[name], float):
                assert float(said) == defaults[name]
            else:
                assert said == defaults[name]


def test_flags_exist():
    """Every flag that README names is a flag of a script or of the benchmark."""
    known = {f"--{name.replace('_', '-')}" for script in SCRIPTS for name in fields(script)}
    known |= {flag.replace("--", "--no-", 1) for flag in known}
    for name in ("run", "speed"):
        known |= set(re.findall(r'"(--[\w-]+)"', (ROOT / f"benchmark/{name}.py").read_text()))
    elsewhere = {"--logdir", "--index-url", "--no"}  # TensorBoard's, pip's, the form `--no-...`
    named = set(re.findall(r"(?<![\w-])(--[a-z][\w-]*\w)", README))
    assert len(named) > 20 and named - known - elsewhere == set()


def test_results_are_the_reports():
    """The table of results is the report's, whole, and every difference in the text stands there, too."""
    (table,) = re.findall(r"^\| last five iterations \(the paper.*\n(?:\|.*\n)+", REPORT, re.M)
    assert table.count("\n") == 7 and table in README
    differences = re.findall(r"-?[\d.]+ \[-?[\d.]+, -?[\d.]+\]", re.sub(r"\s+", " ", README.replace(table, "")))
    assert len(differences) > 4 and [found for found in differences if found not in REPORT] == []


def test_claims_are_the_reports():
    """What README says of a claim are the report's verdicts, all of them and no other."""
    verdicts = {
        row[0]: set(row[1:]) for row in re.findall(r"^\| (\S+ (?:beats|>) \S+) \|" + " ([^|]+) \\|" * 6, REPORT, re.M)
    }
    bullets = [re.sub(r"\s+", " ", text) for text in re.findall(r"^- (\*\*.*(?:\n  .*)*)", README, re.M)]
    assert len(verdicts) == 5
    for claim, said in verdicts.items():
        (bullet,) = [text for text in bullets if claim in text]
        assert {word for word in ("holds", "the reverse", "undecided", "not tested") if word in bullet} == said, claim


def test_speed_is_the_committed_measurement():
    """The table of speed is what speed.py --show makes of results/speed.csv."""
    words = [sys.executable, ROOT / "benchmark/speed.py", "--show"]
    overview = subprocess.run(words, capture_output=True, text=True, check=True).stdout.partition("\n\n")[0]
    assert overview.count("\n") > 8 and overview in README


def test_the_preset_prints_the_papers_command():
    command = re.search(r"`python (benchmark/run\.py table2 --dry-run .*?)`", re.sub(r"\s+", " ", README))[1]
    done = subprocess.run([sys.executable, *command.split()], cwd=ROOT, capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    assert "ppo_continuous.py" in line and "--env-id Walker2d-v5" in line and "--policy-lr 0.0004" in line


def test_links_exist():
    links = re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", README)
    assert len(links) > 4 and [link for link in links if not (ROOT / link).exists()] == []
