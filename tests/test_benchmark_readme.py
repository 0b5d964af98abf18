"""benchmark/README.md says what is there: its numbers are the committed report's, its map names every file."""

import re
import subprocess
import sys
from importlib import import_module
from math import inf

from conftest import ROOT, SCRIPTS

sys.path.insert(0, str(ROOT / "benchmark"))

import suites  # noqa: E402

README = (ROOT / "benchmark/README.md").read_text()
REPORT = "".join((ROOT / f"benchmark/results/{suite}.md").read_text() for suite in ("table2", "figure1", "swapped"))
RESULTS = README.partition("## Results")[2].partition("\n### v5 is not v2")[0]
ONE_LINE = re.sub(r"\s+", " ", RESULTS)  # a number may stand at the end of one line, its interval on the next


def test_the_map_names_every_file():
    named = re.findall(r"`(\w+\.py)` \|$", README, re.M)
    assert sorted(named) == sorted(path.name for path in (ROOT / "benchmark").glob("*.py"))


def test_tables_are_the_reports():
    """Means and the paper's question by both scores, its claims, the rest of TRPO+, four optimizations."""
    heads = [f"{score} | Hopper-v5" for score in ("best iteration", "last five iterations")]
    heads += [f"{score} (the paper's, on v2) |" for score in ("best iteration", "last five iterations")]
    for head in (*heads, "the paper's claim", "difference of means | n |", "effect, on less off"):
        (said,) = re.findall(rf"^\| {re.escape(head)} .*(?:\n\|.*)+", README, re.M)
        assert said.count("\n") in (6, 7, 11) and f"\n{said}\n\n" in REPORT


def test_what_the_configurations_leave_out():
    """The table of which of the nine a variant of table2 is without."""
    off = {1: {"vf_clip_coef": inf}, 2: {"reward_scaling": "none"}, 3: {"init": "xavier"}, 4: {"anneal_lr": False}}
    off |= {5: {"clip_reward": inf}, 7: {"clip_obs": inf}, 9: {"max_grad_norm": inf}}
    (said,) = re.findall(r"^\| off \| (.*)\n.*\n((?:\|.*\n)+)", README, re.M)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in said[1].splitlines()]
    variants = {label: variant for variant, label in suites.LABELS.items()}
    for label, *cells in rows:
        for env_id, cell in zip(said[0].strip("| ").split(" | "), cells):
            flags = suites.PAPER_ROWS[env_id][variants[label]]
            assert cell == " ".join(f"[{n}]" for n, one in off.items() if one.items() <= flags.items()), (label, env_id)
    assert len(rows) == 3 and len(cells) == 3


def test_every_estimate_and_p_value_is_in_the_report():
    number = r"-?\d[\d.]*"
    estimates = re.findall(rf"{number} \[{number}, {number}\]", ONE_LINE)
    spans = re.findall(rf"{number} \({number} to {number}\)", ONE_LINE)
    ps = re.findall(r"p = [\d.]+\d", ONE_LINE)
    assert len(estimates) > 8 and len(spans) > 15 and ps
    assert [found for found in estimates + spans if found not in REPORT] == []
    assert [p for p in ps if f"({p})" not in REPORT and f"| {p[4:]} |" not in REPORT] == []


def test_every_other_number_is_in_the_report():
    """Scores, shares and lists of runs: no figure of the results stands in README alone."""
    known = set(re.findall(r"\d[\d.]*\d|\d", REPORT))
    counts = {"999,424", "2", "3", "4", "5", "88"}  # steps, a figure's and seeds' numbers, the paper's
    prose = re.sub(r"\(results/[^)]*\)|\[results/[^]]*\]|`[^`]*`|-v5", "", RESULTS)
    found = set(re.findall(r"\d[\d.,]*\d|\d", prose)) - counts
    assert len(found) > 60 and {x for x in found if x not in known} == set()


def test_speed_at_other_sizes_is_the_committed_measurement():
    words = [sys.executable, ROOT / "benchmark/speed.py", "sizes", "--show"]
    overview = subprocess.run(words, capture_output=True, text=True, check=True).stdout.partition("\n\n")[0]
    assert overview.count("\n") > 8 and overview in README


def test_links_and_figures_exist():
    links = re.findall(r"\]\((?!http)([^)]+)\)", README)
    assert len(links) > 8 and [link for link in links if not (ROOT / "benchmark" / link).exists()] == []
    figures = [link for link in links if link.endswith(".png")]
    assert figures and all((ROOT / "benchmark" / link).with_suffix(".svg").is_file() for link in figures)


def test_flags_and_suites_exist():
    known = {f"--{name.replace('_', '-')}" for script in SCRIPTS for name in vars(import_module(script).Args())}
    known |= {flag.replace("--", "--no-", 1) for flag in known}
    for name in ("run", "authors"):
        known |= set(re.findall(r'"(--[\w-]+)"', (ROOT / f"benchmark/{name}.py").read_text()))
    named = set(re.findall(r"(?<![\w-])(--[a-z][\w-]*\w)", README))
    assert len(named) > 8 and named - known == set()
    assert set(re.findall(r"(?:run|report|play)\.py (\w+)", README)) <= set(suites.SUITES)
