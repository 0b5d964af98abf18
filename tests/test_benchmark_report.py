"""benchmark/report.py and its parts: scores, bootstrap, tables, what is refused, what is missing."""

import re
import shutil
import sys
from math import inf
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmark")]

import comparisons  # noqa: E402
import figures  # noqa: E402
import paper  # noqa: E402
import records  # noqa: E402
import report  # noqa: E402
import stats  # noqa: E402
import suites  # noqa: E402
import tables  # noqa: E402

pytestmark = pytest.mark.slow

returns = st.floats(-1e4, 1e4, allow_nan=False)
samples = st.lists(returns, min_size=1, max_size=12).map(np.array)


def frame(values) -> pd.DataFrame:
    return pd.DataFrame({"charts/episodic_return": values})


# ---- scores


def test_scores_by_hand():
    assert stats.scores(frame([1, 9, 2, 3, 4, 5, 6])) == {"best": 9, "last": 4, "last50": 30 / 7, "all": 30 / 7}
    assert stats.scores(frame([1, 9, np.nan, 3, np.nan, 5, 7])) == {"best": 9, "last": 5, "last50": 5, "all": 5}
    assert stats.scores(frame(range(100)))["last50"] == 74.5 and stats.scores(frame(range(100)))["all"] == 49.5
    assert np.isnan(list(stats.scores(frame([np.nan] * 3)).values())).all()
    assert np.isnan(list(stats.scores(pd.DataFrame({"iteration": [1]})).values())).all()


@given(st.lists(returns, min_size=5, max_size=30))
def test_best_is_at_least_last(values):
    scores = stats.scores(frame(values))
    assert scores["best"] == max(values) and scores["best"] >= scores["last"] - 1e-9
    assert scores["last"] == pytest.approx(sum(values[-5:]) / 5)


# ---- bootstrap and statistics


def average(x, axis=-1):
    return np.mean(x, axis=axis)


def test_bootstrap_intervals_are_the_percentiles_of_resampled_statistics():
    values = np.arange(20.0)
    estimate = stats.bootstrap(average, values)
    assert estimate.value == 9.5 and estimate.n == (20,) and len(estimate.distribution) == 10_000
    half = 1.96 * values.std() / 20**0.5
    assert estimate.low == pytest.approx(9.5 - half, abs=0.15) and estimate.high == pytest.approx(9.5 + half, abs=0.15)
    assert (estimate.low, estimate.high) == pytest.approx(np.percentile(estimate.distribution, [2.5, 97.5]))


def test_fewer_than_ten_agents_have_no_bootstrap():
    """Theirs would be too narrow; ten have one, and with two samples the smaller counts."""
    assert np.isnan(stats.bootstrap(average, np.arange(9.0)).low) and stats.bootstrap(average, np.arange(10.0)).low > 0
    both = stats.bootstrap(stats.improvement, np.arange(10.0), np.arange(9.0))
    assert both.value == 0.55 and np.isnan(both.low) and str(both) == "0.55"


@settings(max_examples=20, deadline=None)
@given(st.lists(returns, min_size=10, max_size=14).map(np.array), st.integers(-1000, 1000))
def test_bootstrap_holds_the_mean_stays_in_range_and_shifts(values, shift):
    estimate, again = (stats.bootstrap(average, values, resamples=500) for _ in range(2))
    assert (estimate.low, estimate.high) == (again.low, again.high)  # a fixed generator
    assert values.min() - 1e-9 <= estimate.low <= estimate.high <= values.max() + 1e-9
    moved = stats.bootstrap(average, values + shift, resamples=500)
    assert moved.low == pytest.approx(estimate.low + shift, abs=1e-6)


@pytest.mark.parametrize("n", [2, 3, 10])
def test_intervals_of_means_and_differences_cover(n):
    """Of 2000 made-up samples from a normal distribution 95% of intervals hold the truth; unequal n and variance."""
    rng, hit = np.random.default_rng(0), np.zeros(2)
    for _ in range(2000):
        x, y = rng.normal(5, 1, n), rng.normal(2, 3, n + 2)
        found = stats.mean(x), stats.difference(x, y)
        hit += [estimate.low <= truth <= estimate.high for estimate, truth in zip(found, (5, 3))]
    assert (hit / 2000 > 0.935).all() and (hit / 2000 < 0.985).all(), hit


def test_interval_of_a_mean_by_hand():
    """Student's with two degrees of freedom: 4.303 standard errors."""
    assert stats.mean(np.array([1.0, 2, 3]))[:3] == pytest.approx(
        (2, 2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), rel=1e-4
    )
    assert stats.mean(np.array([7.0, 7]))[:3] == (7, 7, 7) and stats.mean(np.array([7.0])).n == (1,)


@given(samples, samples)
def test_probability_of_improvement(x, y):
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in x for b in y]
    assert stats.improvement(x, y) == pytest.approx(np.mean(pairs))
    assert stats.improvement(x, y) + stats.improvement(y, x) == pytest.approx(1)
    u = scipy.stats.mannwhitneyu(x, y).statistic
    assert stats.improvement(x, y) == pytest.approx(u / (len(x) * len(y)))


@given(samples, samples, samples, samples)
def test_aai_and_acli(ppo, ppo_m, trpo, trpo_plus):
    a, b, c, d = (sample.mean() for sample in (ppo, ppo_m, trpo, trpo_plus))
    assert stats.aai(ppo, ppo_m, trpo, trpo_plus) == pytest.approx(max(abs(a - d), abs(b - c)))
    assert stats.acli(ppo, ppo_m, trpo, trpo_plus) == pytest.approx(max(abs(a - b), abs(d - c)))


def test_aai_and_acli_of_the_papers_means():
    """AAI as printed; for Hopper's ACLI the printed means give 423, the paper prints 421."""
    for env_id, acli in (("Hopper-v5", 423), ("Walker2d-v5", 557), ("Humanoid-v5", 444)):
        cells = [np.array([paper.PAPER[env_id][v][0]]) for v in ("ppo", "ppo_m", "trpo", "trpo_plus")]
        # the paper rounds its differences from means it does not print in full
        assert stats.acli(*cells) == pytest.approx(acli, abs=0.5)
        assert stats.aai(*cells) == pytest.approx(paper.PAPER[env_id]["AAI"], abs=1)


def test_iqm_by_hand():
    assert stats.iqm(np.array([100.0, 1, 2, 3, 4, 5, 6, -100])) == 3.5


def test_a_contrast_of_cells_by_hand():
    cells = [np.array([1.0, 3]), np.array([10.0, 12]), np.array([5.0, 5, 8]), np.array([7.0, 7, 7])]
    found = stats.linear([-0.5, 0.5, -0.5, 0.5], *cells)
    assert found.value == (11 + 7) / 2 - (2 + 6) / 2 and found.n == (2, 2, 3, 3)
    parts = np.array([2 / 2, 2 / 2, 3 / 3, 0]) / 4
    freedom = parts.sum() ** 2 / (parts**2 / [1, 1, 2, 2]).sum()
    assert found.high - found.value == pytest.approx(scipy.stats.t.ppf(0.975, freedom) * parts.sum() ** 0.5)


def test_band():
    curves = np.array([[1.0, 2, np.nan], [3, 2, 5], [5, 2, 6]])
    middle, low, high = stats.band(curves)  # few: the lowest and the highest
    assert middle.tolist() == [3, 2, 5.5] and low.tolist() == [1, 2, 5] and high.tolist() == [5, 2, 6]
    assert stats.band(curves[:, :2] ** 2, median=True)[0].tolist() == [9, 4]
    curves = np.random.default_rng(0).normal(size=(12, 3))
    curves[:2, 2] = np.nan
    for i, rows in ((0, curves), (2, curves[2:])):
        assert [x[i] for x in stats.band(curves)] == pytest.approx(stats.mean(rows[:, i])[:3])
    assert [x[0] for x in stats.band(curves, median=True)] == pytest.approx(
        np.quantile(curves[:, 0], [0.5, 0.25, 0.75])
    )


def test_estimate_as_text():
    text = lambda *numbers: str(stats.Estimate(*numbers, (3,)))  # noqa: E731
    assert text(2513.4, 2391.2, 2632.0) == "2513 [2391, 2632]"
    assert text(0.01234, 0.0119, 0.0131) == "0.0123 [0.0119, 0.0131]"
    assert text(2513.4, np.nan, np.nan) == "2513"
    assert str(stats.difference(np.array([1.0]), np.array([2.0, 3]))) == "-1.50 (no interval)"
    assert text(13.9, -205.5, 233.3) == "14 [-206, 233]"
    assert (
        text(-0.2, -205.5, 233.3) == "0 [-206, 233]" and text(-0.001, -0.4, 0.2) == "0.00 [-0.40, 0.20]"
    )  # no "-0.00"


def test_welch_by_hand():
    """Unequal variances, unequal numbers: degrees of freedom by Welch and Satterthwaite."""
    x, y = np.array([1.0, 2, 3]), np.array([10.0, 20, 60, 70, 45])
    a, b = x.var(ddof=1) / 3, y.var(ddof=1) / 5
    half = scipy.stats.t.ppf(0.975, (a + b) ** 2 / (a**2 / 2 + b**2 / 4)) * np.sqrt(a + b)
    found = stats.difference(x, y)
    assert found[:3] == pytest.approx((-39, -39 - half, -39 + half)) and found.n == (3, 5)
    t = 39 / np.sqrt(a + b)
    assert found.p == pytest.approx(2 * scipy.stats.t.sf(t, (a + b) ** 2 / (a**2 / 2 + b**2 / 4)))
    assert found.p == pytest.approx(scipy.stats.ttest_ind(x, y, equal_var=False).pvalue)
    assert stats.difference(x, x + 1 - 1).p == 1 and stats.difference(np.array([3.0, 3]), np.array([1.0, 1])).p == 0


def test_holm_by_hand():
    assert stats.holm(np.array([0.04, 0.01, 0.03, 0.005])).tolist() == pytest.approx([0.06, 0.03, 0.06, 0.02])
    assert stats.holm(np.array([0.9, 0.6])).tolist() == [1, 1]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20).map(np.array))
def test_holm_lies_between_no_correction_and_bonferroni(p):
    corrected = stats.holm(p)
    assert (p <= corrected).all() and (corrected <= np.minimum(1, len(p) * p)).all()
    assert (np.diff(corrected[np.argsort(p)]) >= 0).all()
    assert corrected.min() == min(1, len(p) * p.min())


def test_ranges():
    assert report.ranges([3, 1, 2, 7]) == "1-3, 7"


# ---- whole reports over made-up results


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty project, where results are written and read."""
    monkeypatch.setattr(records, "ROOT", tmp_path)
    return tmp_path


def put(run: suites.Run, level: float, **about) -> Path:
    """A finished run: its return rises to `level` at the end, with a held-out measurement every other iteration."""
    history = []
    for i in range(1, records.num_iterations(run) + 1):
        row = {"iteration": i, "global_step": 2048 * i, "charts/SPS": 2048.0}
        row |= {"trust_region/mean_kl": 0.01 * i, "trust_region/max_ratio": inf if i == 1 else 1.1 if i == 2 else 3.0}
        if i % 2:
            row |= {"trust_region/heldout_mean_kl": 0.02 * i, "trust_region/heldout_max_ratio": 4.0}
        if "max_kl" in run.flags:
            row["trust_region/max_kl"] = run.flags["max_kl"]
        row["losses/entropy"] = float(run.seed)
        row["charts/episodic_return"] = float(level - 10 * (records.num_iterations(run) - i))
        row["charts/episodic_length"] = 100.0 * i
        history.append(row)
    records.write_csv(run, {"script": run.script, "sha256": "a" * 64, "versions": {"torch": "2"}}, history)
    path = records.csv_path(run)
    for name, value in about.items():  # more of the header, however much of it the writer knows
        path.write_text(re.sub(r'(# )(  "script")', rf'\1  "{name}": "{value}",\n\1\2', path.read_text(), count=1))
    return path


def run_report(monkeypatch, *words) -> int:
    monkeypatch.setattr(sys, "argv", ["report.py", *words])
    return report.main()


def cells(text: str, first: str) -> list[str]:
    """The first table row that starts with `first`."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


LEVELS = {"ppo": 2000, "ppo_m": 1500, "trpo": 1400, "trpo_plus": 1900, "ppo_noclip": 1700}
SHORT = 6 * 2048


def test_table_by_hand(project, monkeypatch):
    for run in suites.select("table2", ["Hopper-v5"], None, [1, 2, 3], SHORT):
        put(run, LEVELS[run.variant] + 100 * run.seed)
    assert run_report(monkeypatch, "table2", "--timesteps", str(SHORT)) == 0
    text = (project / f"benchmark/results/table2-{SHORT}.md").read_text()
    # three agents 100 apart: +- t(2 degrees of freedom) * 100 / sqrt(3); nothing beside them of the paper's
    assert cells(text, "PPO") == ["PPO", "3", "2200 [1952, 2448]", "2180 [1932, 2428]"]
    assert "authors' code on v5" not in text and "paper (v2)" not in text
    # fewer than ten agents: no bootstrap
    best = cells(text.partition("| score |")[2], "best iteration")
    assert best == ["best iteration", "3, 3, 3, 3", "100", "500", "400"]
    assert cells(text.partition("| each run |")[2], "PPO-M") == ["PPO-M", "1600, 1700, 1800", "1580, 1680, 1780"]
    # of six iterations all but the second leave 1 + eps, of three held-out batches all; KL is 0.01 i, 0.02 i held out
    ratio, kl = text.partition("a maximum ratio over it |")[2].split("mean KL, first third")[:2]
    assert cells(ratio, "PPO-M") == ["PPO-M", "3", "1.2", "83.3", "100.0"]
    # PPO-M's is never over TRPO's bound, 0.13 (held out it is 0.02, 0.06, 0.10); TRPO+ has its own bound, 0.04
    assert cells(kl, "PPO-M") == ["PPO-M", "3", "0.0150", "0.0350", "0.0550", "0.0600", "0.0", "0.0"]
    assert cells(kl, "TRPO+") == ["TRPO+", "3", "0.0150", "0.0350", "0.0550", "0.0600", "33.3", "66.7"]
    names = ("PPO - PPO-M", "TRPO+ - TRPO", "PPO-NoClip - PPO-M", "PPO-NoClip - PPO")
    # PPO's agents end at 2100, 2200 and 2300 in the sixth iteration, 600 steps long; of all six (fewer than a hundred)
    # the mean is 25 lower, 350 steps long, and they rise by 10 each
    episodes = cells(text.partition("best iteration: steps an episode |")[2], "PPO")[2:]
    assert episodes == ["600", "3.67 (3.50 to 3.83)", "350", "6.21 (5.93 to 6.50)", "19", "2.0 (1.0 to 3.0)"]
    differences = text.partition("| difference of means |")[2]
    assert [cells(differences, name)[2].split(" [")[0] for name in names] == ["500", "500", "200", "-300"]
    # differences of 600 (p = 0.0018, two), 500 (0.0036, twice two), 300 (0.021, two), 200, 100: six of 14 pass Holm
    assert "Of the 14 Welch intervals of differences between two variants 8 leave out 0; about 0.7 would" in text
    assert "Holm's correction leaves 6:" in text and text.count("(p = 0.043)") == 4 and text.count("(p = 0.026)") == 2
    assert "- TRPO+ - TRPO on Hopper-v5, last five iterations: 500 [273, 727] (p = 0.043)" in text
    # 500 +- t(4 degrees of freedom) * 100 * sqrt(2 / 3)
    assert cells(text, "PPO - PPO-M")[1:] == ["3, 3", *["500 [273, 727]", "0.043"] * 2, "500 [273, 727]"]
    for claim, said in (
        ("PPO beats PPO-M", "holds"),
        ("PPO-NoClip beats PPO-M", "undecided"),
        ("ACLI > AAI", "not tested"),
    ):
        assert cells(text, claim)[1:] == [said] * 2
    assert "15 runs." in text and "- Hopper-v5: every variant: n = 3 (seeds 1-3)." in text
    assert "- Humanoid-v5: every variant: no runs yet." in text
    assert "interquartile mean |" not in text and "P(" not in text
    names = re.findall(r"\]\((.*?\.png)\)", text)
    assert names == [f"table2-{SHORT}_{name}.png" for name in ("curves", "answer", "trust_region_Hopper-v5")]
    files = [project / "benchmark/results" / name.replace(".png", end) for name in names for end in (".png", ".svg")]
    before = text, [path.read_bytes() for path in files]
    assert run_report(monkeypatch, "table2", "--timesteps", str(SHORT)) == 0  # the same again, to the bit
    text = (project / f"benchmark/results/table2-{SHORT}.md").read_text()
    assert before == (text, [path.read_bytes() for path in files])


def test_the_papers_question_by_hand(project, monkeypatch):
    """Two ways from TRPO to PPO: the step brings 100 without the optimizations and 100 with them, they bring 500."""
    monkeypatch.setattr(suites, "SUITES", dict(suites.SUITES))
    rows = suites.with_flags(suites.PAPER_ROWS["Hopper-v5"], total_timesteps=SHORT)
    suites.SUITES["two"] = {"cells": {"Hopper-v5": rows, "Swimmer-v5": rows}}
    monkeypatch.setattr(report, "SUITES", suites.SUITES)
    for run in suites.select("two", seeds=range(1, 11)):
        level = LEVELS[run.variant] if run.env_id == "Hopper-v5" else {"ppo": 300, "trpo": 100}.get(run.variant, 200)
        if run.env_id == "Hopper-v5" or run.seed <= 3:
            put(run, level + 0.1 * run.seed)
    assert run_report(monkeypatch, "two") == 0
    text = (project / "benchmark/results/two.md").read_text()
    means, _, rest = text.partition("## The paper's question")
    # ten agents, 0.1 apart, on one task, three on the other; the last five of six iterations lie 20 lower
    means, _, last = means.partition("## Means")[2].partition("| last five")
    assert cells(means, "best iteration") == ["best iteration", "Hopper-v5", "Swimmer-v5"]  # nothing of the paper's
    x = [LEVELS["ppo_m"] + 0.1 * np.arange(1, 11), 200 + 0.1 * np.arange(1, 4)]
    assert cells(means, "PPO-M") == ["PPO-M", *(str(stats.mean(values)) for values in x)]
    assert cells(last, "PPO-M") == ["PPO-M", *(str(stats.mean(values - 20)) for values in x)]
    answer, _, last = rest.partition("| last five")
    assert cells(answer, "best iteration") == ["best iteration", "Hopper-v5", "Swimmer-v5", "all tasks, %"]
    for question, hopper, swimmer in (
        ("PPO - TRPO", 600, 200),
        ("the step's part", 100, 100),
        ("the optimizations' part", 500, 100),
        ("optimizations - step", 400, 0),
        ("interaction", 0, 0),
    ):
        shown = [float(cell.split(" [")[0]) for cell in cells(answer, question)[1:]]
        # in % of 1700.55 and 200.2, the means over the four variants
        assert shown == pytest.approx([hopper, swimmer, 50 * hopper / 1700.55 + 50 * swimmer / 200.2], rel=5e-3)
    # six iterations that rise by 10 each lie 25 below their last
    whole = cells(last.partition("| all iterations |")[2], "PPO - TRPO")[3].split(" [")[0]
    assert float(whole) == pytest.approx(50 * 600 / 1675.55 + 50 * 200 / 175.2, rel=5e-3)
    x, y = (LEVELS[v] + 0.1 * np.arange(1, 11) for v in ("ppo_noclip", "ppo"))
    assert cells(answer, "PPO-NoClip - PPO")[1] == str(stats.difference(x, y))
    drawn = (project / "benchmark/results/two_answer.svg").read_text()  # each score's name in the legend
    assert "(two_answer.png)" in text and all(drawn.count(f">{score}<") == 1 for score in comparisons.SCORES.values())
    assert cells(text, "ACLI > AAI")[1:] == ["holds"] * 2 + ["not tested"] * 2


def test_what_ten_agents_would_find():
    """Of 4000 pairs of samples whose means differ by so much, four in five come out with p < 0.05 / 14."""
    rng, hits = np.random.default_rng(0), 0
    size = comparisons.found_from(14) * scipy.stats.t.ppf(0.975, 18) * (2 / 10) ** 0.5
    for _ in range(4000):
        hits += stats.difference(rng.normal(size, 1, 10), rng.normal(0, 1, 10)).p < 0.05 / 14
    assert hits / 4000 == pytest.approx(0.8, abs=0.025)


def test_aai_and_acli_by_chance_alone():
    """Of four alike samples from N(0, 1) the larger of two differences is sqrt(2 / n) * 2 / sqrt(pi) on average."""
    samples = list(np.random.default_rng(0).normal(size=(4, 200)) + [[0], [50], [100], [1000]])
    for statistic in (stats.aai, stats.acli):
        assert float(comparisons.by_chance(statistic, [100 * x for x in samples])) == pytest.approx(
            100 * (2 / 200) ** 0.5 * 2 / np.pi**0.5, rel=0.1
        )
        assert comparisons.by_chance(statistic, [x[:9] for x in samples]) == "-"


def test_a_changed_script_under_the_papers_name_is_not_the_papers(project, monkeypatch):
    """Its numbers have no place beside those of another algorithm."""
    own = suites.PAPER_ROWS["Hopper-v5"]["ppo"]
    (run,) = suites.select("table2", ["Hopper-v5"], ["ppo"], [1])
    put(run, 1000)
    agent = records.read_csv(records.csv_path(run), "table2")
    assert tables.is_papers("Hopper-v5", "ppo", [agent])
    agent.about["script"] = "my_ppo"
    assert not tables.is_papers("Hopper-v5", "ppo", [agent]) and own["script"] == "ppo_continuous"


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """A place for made-up runs of the authors' code."""
    place = tmp_path / "theirs"
    (place / "authors").mkdir(parents=True)
    monkeypatch.setattr(tables, "authors", lambda env_id, variant: paper.authors(env_id, variant, place))
    return place


def test_full_length_stands_beside_the_paper_and_the_authors_code(project, monkeypatch, theirs):
    rows = [(v, seed, i) for v in ("ppo", "ppo_m") for seed in (1, 4) for i in range(6)]
    lines = [f"Walker2d-v5,{v},{seed},{i},{1000 * (v == 'ppo') + 100 * seed + i}" for v, seed, i in rows]
    head = "env_id,variant,seed,iteration,mean_episode_return"
    (theirs / "authors_on_v5.csv").write_text("\n".join([head, *lines]))
    # a run without held-out batches does not count as the released code
    (theirs / "authors/Walker2d-v5__ppo__2_no_heldout.csv").write_text("iteration,mean_episode_return\n0,9999\n")
    for variant in ("ppo", "trpo"):
        put(suites.select("table2", ["Walker2d-v5"], [variant], [2])[0], 3000)
    assert run_report(monkeypatch, "table2") == 0
    text = (project / "benchmark/results/table2.md").read_text()
    row = ["PPO", "1", "3000 (no interval)", "1255 (n = 2)", "2980 (no interval)", "1253 (n = 2)", "3292 [3157, 3426]"]
    assert cells(text, "PPO")[:7] == row
    assert cells(text, "PPO-M") == ["PPO-M", "0", "-", "255 (n = 2)", "-", "253 (n = 2)", "2735 [2602, 2866]"]
    each = text.partition("| each run |")[2]
    assert cells(each, "PPO") == ["PPO", "3000", "1105, 1405", "2980", "1103, 1403"]
    assert cells(each, "PPO-M") == ["PPO-M", "-", "105, 405", "-", "103, 403"]
    assert "(table2_authors.png)" in text and (project / "benchmark/results/table2_authors.svg").is_file()
    # one agent each, and not all of the four
    assert cells(text, "PPO - TRPO")[1:3] == ["1, 1", "0 (no interval)"]
    assert "| AAI" not in text and "What holds" not in text and "_answer" not in text
    assert "- Walker2d-v5: PPO, TRPO: n = 1 (seed 2); PPO-M, TRPO+, PPO-NoClip: no runs yet." in text


def test_a_cell_beside_all_runs_of_the_authors_code(project, monkeypatch, theirs):
    """Here 101, 102, 103 at best, theirs 111, 112 as released and 113, 114 without held-out batches."""
    monkeypatch.setitem(suites.PAPER_ROWS["Humanoid-v5"]["ppo"], "total_timesteps", SHORT)
    for run in suites.select("table2", ["Humanoid-v5"], ["ppo"], [1, 2, 3], SHORT):
        put(run, 100 + run.seed)
    for name, best in (("1", 111), ("2", 112), ("1_no_heldout", 113), ("2_no_heldout", 114)):
        rows = [f"{i},{best - 10 * (5 - i)},{1.5 if i < 3 else 9}" for i in range(6)]
        text = "\n".join(["# made up", "iteration,mean_episode_return,entropy", *rows])
        (theirs / f"authors/Humanoid-v5__ppo__{name}.csv").write_text(text)
    assert run_report(monkeypatch, "table2", "--timesteps", str(SHORT)) == 0
    text = (project / f"benchmark/results/table2-{SHORT}.md").read_text()
    section = text.partition("## PPO on Humanoid-v5, here and in the authors' code")[2]
    # ranks 1 to 3 of 7: two of 35 ways to choose are as far apart
    best = ["best iteration", "102 (101 to 103)", "112 (111 to 114)"]
    assert cells(section, "best iteration")[:3] == best and cells(section, "best iteration")[-1] == "0.057"
    assert cells(section, "last fifty iterations")[1:3] == ["77 (76 to 78)", "88 (86 to 89)"]
    assert "of seeds 1, 2, runs without its held-out rollouts. As released / without: best iteration" in section
    assert "best iteration 111, 112 / 113, 114; last" in section
    # the first three of six iterations lie between 1 and 3
    line = ["entropy, their seed 2 (no held-out)", "2 (1 to 3)", "5.25", "2 (1 to 3)", "9", "50%"]
    assert cells(section, "entropy, their seed 2 (no held-out)") == line and "(50% if alike)" in section
    assert (project / f"benchmark/results/table2-{SHORT}_authors_Humanoid-v5_ppo.svg").is_file()
    # with more seeds those that were looked at first are left out once, whichever there are
    for seed in (4, 5, 6):
        put(suites.select("table2", ["Humanoid-v5"], ["ppo"], [seed], SHORT)[0], 100 + seed)
    records.csv_path(suites.select("table2", ["Humanoid-v5"], ["ppo"], [1], SHORT)[0]).unlink()
    assert run_report(monkeypatch, "table2", "--timesteps", str(SHORT)) == 0
    section = (project / f"benchmark/results/table2-{SHORT}.md").read_text().partition("here and in the")[2]
    assert cells(section, "best iteration")[1] == "104 (102 to 106)"
    assert cells(section, "best iteration, without seeds 1 to 3")[1] == "105 (104 to 106)"
    # other arguments: not the authors' configuration
    monkeypatch.setitem(suites.PAPER_ROWS["Humanoid-v5"]["ppo"], "total_timesteps", SHORT + 1)
    assert run_report(monkeypatch, "table2", "--timesteps", str(SHORT)) == 0
    assert "authors' code" not in (project / f"benchmark/results/table2-{SHORT}.md").read_text()


def test_ten_agents_of_one_variant_three_of_another(project, monkeypatch):
    for run in suites.select("smoke", None, ["ppo", "ppo_m", "trpo"], range(1, 11)):
        if run.variant != "trpo" or run.seed <= 3:
            put(run, LEVELS[run.variant] + 100 * run.seed)
    assert run_report(monkeypatch, "smoke") == 0
    text = (project / "benchmark/results/smoke.md").read_text()
    # PPO's agents score 2100 ... 3000, PPO-M's 1600 ... 2500: PPO loses 1 + ... + 4 of 100 pairs, and ties 5
    assert cells(text, "P(PPO > PPO-M)")[2].startswith("0.88 [")
    assert cells(text, "PPO-M - TRPO")[1] == "10, 3"
    iqm = text.partition("| interquartile mean |")[2]
    assert cells(iqm, "PPO")[:2] == ["PPO", "10"] and cells(iqm, "PPO")[2].startswith("2550 [")
    assert "TRPO" not in iqm.partition("\n\n")[0].replace("PPO-M", "")
    assert (
        "- Hopper-v5: PPO, PPO-M: n = 10 (seeds 1-10); TRPO: n = 3 (seeds 1-3); TRPO+, PPO-NoClip: no runs yet." in text
    )


def test_factorial_by_hand(project, monkeypatch):
    effect = {"v": 10, "r": 200, "i": 50, "a": 0}
    for run in suites.select("figure1", ["Walker2d-v5"], None, [1, 2], 3 * 2048):
        setting, rate = run.variant.split("_")
        on = {name: int(level) for name, level in zip(setting[::2], setting[1::2])}
        level = 1000 + sum(effect[name] * on[name] for name in on) + 80 * on["r"] * on["i"] + run.seed
        if setting != "v0r0i0a0" or rate != "2.2e-4":
            put(run, level + {"1e-5": 0, "8e-5": 5, "1.5e-4": 7, "2.2e-4": 3}[rate])
    assert run_report(monkeypatch, "figure1", "--timesteps", str(3 * 2048)) == 0
    text = (project / "benchmark/results/figure1-6144.md").read_text()
    first = text.partition("| effect, on less off |")[2]
    assert [cells(first, name)[2].split()[0] for name in suites.FACTORS] == ["10.0", "240", "90.0", "0.00"]
    assert cells(first, "reward scaling × orthogonal init")[2].startswith("40.0 [")
    # 16 cells of two agents one apart, each with variance 1/2 / 2 of its mean, weight 1/8, one degree of freedom
    half = scipy.stats.t.ppf(0.975, 16) * (16 * 0.25 / 64) ** 0.5
    assert cells(first, "value clipping")[1:] == ["32", *[f"10.0 [{10 - half:.1f}, {10 + half:.1f}]", "< 0.001"] * 2]
    assert cells(first, "annealing")[4:] == [f"0.00 [-{half:.2f}, {half:.2f}]", "1.00"]
    assert cells(text, "off")[:7] == ["off", "off", "off", "off", "3", "1.5e-4", "2"]
    assert cells(text, "on")[4:7] == ["4", "1.5e-4", "2"] and "for the 20 effects of this report" in text
    assert "126 runs." in text and "- Humanoid-v5: every variant: no runs yet." in text
    assert "- Walker2d-v5: 63 variants: n = 2 (seeds 1-2); v0r0i0a0_2.2e-4: no runs yet." in text
    for name in ("figure1-6144_Walker2d-v5", "figure1-6144_effects_Walker2d-v5"):
        assert f"({name}.png)" in text and (project / f"benchmark/results/{name}.svg").is_file()


def test_a_factorial_that_is_not_whole_has_no_effects(project, monkeypatch):
    for run in suites.select("figure1", ["Walker2d-v5"], ["v1r1i1a1_1e-5", "v0r1i1a1_8e-5"], [1, 2], 2048):
        put(run, 1000 + run.seed)
    assert run_report(monkeypatch, "figure1", "--timesteps", "2048") == 0
    text = (project / "benchmark/results/figure1-2048.md").read_text()
    assert "Effects need runs of all 16 settings." in text and "effect, on" not in text and "effects_" not in text


def test_a_factorial_of_other_names_is_refused(project, monkeypatch, capsys):
    rows = {"ppo": suites.PAPER_ROWS["Hopper-v5"]["ppo"]}
    monkeypatch.setitem(suites.SUITES, "mine", {"report": "factorial", "cells": {"Hopper-v5": rows}})
    put(suites.select("mine", seeds=[1], timesteps=2048)[0], 1000)
    assert run_report(monkeypatch, "mine", "--timesteps", "2048") == 2
    assert "variants are named like v1r0i0a1_8e-5, not ppo" in capsys.readouterr().err


def test_leave_one_out_by_hand(project, monkeypatch):
    for run in suites.select("leave_one_out", ["Humanoid-v5"], None, [1, 2, 3], 2 * 2048):
        if run.variant != "no_tanh":
            put(run, 500 + run.seed - 120 * (run.variant == "no_annealing"))
    assert run_report(monkeypatch, "leave_one_out", "--timesteps", str(2 * 2048)) == 0
    text = (project / "benchmark/results/leave_one_out-4096.md").read_text()
    # +- t(4 degrees of freedom) * sqrt(2 / 3)
    assert cells(text, "no annealing")[3:5] == ["120 [118, 122]", "< 0.001"]
    assert cells(text, "no obs clipping")[3:5] == ["0.00 [-2.27, 2.27]", "1.00"]
    assert cells(text, "no tanh") == ["no tanh", "0", *["-"] * 6]
    assert "no_tanh: no runs yet" in text and "for the 16 effects of this report" in text
    drawn = (project / "benchmark/results/leave_one_out-4096_effects.svg").read_text()
    assert all(f">{said}<" in drawn for said in ("annealing", *comparisons.SCORES.values()))


# ---- a suite of one's own


@pytest.fixture
def own_suite(monkeypatch):
    """The one benchmark/README.md shows: PPO, another clip coefficient, a changed copy of ppo_m.py, HalfCheetah-v5."""
    (entry,) = re.findall(r"```python\n(.*?)```", (ROOT / "benchmark/README.md").read_text(), re.S)
    monkeypatch.setattr(suites, "SUITES", dict(suites.SUITES))
    monkeypatch.setattr(report, "SUITES", suites.SUITES)
    exec(entry, vars(suites))
    for rows in suites.SUITES["mine"]["cells"].values():
        for flags in rows.values():
            flags |= {"total_timesteps": SHORT, "heldout_every": 2}


def test_a_suite_of_ones_own(project, monkeypatch, own_suite):
    for run in suites.select("mine"):
        put(run, {"ppo": 1000, "clip_0.1": 1400, "my_ppo": 900}[run.variant] + 100 * run.seed)
    assert run_report(monkeypatch, "mine") == 0
    text = (project / "benchmark/results/mine.md").read_text()
    assert cells(text, "clip_0.1") == ["clip_0.1", "3", "1600 [1352, 1848]", "1580 [1332, 1828]"]
    assert cells(text, "clip_0.1 - PPO")[1:4] == ["3, 3", "400 [173, 627]", "0.032"]  # p = 0.0079, the least of four
    assert cells(text, "my_ppo - PPO")[2] == "-100 [-327, 127]" and "- my_ppo |" not in text  # with the first alone
    ratio = text.partition("a maximum ratio over it |")[2]
    assert cells(ratio, "clip_0.1")[2:4] == ["1.1", "83.3"] and cells(ratio, "PPO")[2:4] == ["1.2", "83.3"]
    assert cells(text.partition("mean KL, first third")[2], "my_ppo")[-1] == "0.0600"  # nobody has a bound on KL
    for nothing in ("paper", "authors", "| AAI", "TRPO", "bound"):
        assert nothing not in text.partition("\n## ")[2], nothing
    for name in ("mine_curves", "mine_trust_region_HalfCheetah-v5"):
        assert f"({name}.png)" in text and (project / f"benchmark/results/{name}.png").stat().st_size > 10_000


def test_variants_of_another_suite_beside_ones_own(project, monkeypatch, capsys):
    """Two of table2's are shown and compared as the suite says, each pair once; no other of its variants or tasks."""
    levels = {"trpo": 1000, "trpo_plus": 1900, "ppo": 5000, "trpo_swapped": 1200, "trpo_plus_swapped": 1600}
    table2 = suites.select("table2", ["Hopper-v5", "Humanoid-v5"], ["ppo", "trpo", "trpo_plus"], [1, 2, 3], SHORT)
    for run in table2:
        put(run, levels[run.variant] + 100 * run.seed)
    assert run_report(monkeypatch, "swapped", "--timesteps", str(SHORT)) == 2  # what stands beside is not enough
    assert f"there are no results in {project}/benchmark/results/swapped-{SHORT}" in capsys.readouterr().err
    for run in suites.select("swapped", None, None, [1, 2, 3], SHORT):
        put(run, levels[run.variant] + 100 * run.seed)
    assert run_report(monkeypatch, "swapped", "--timesteps", str(SHORT)) == 0
    text = (project / f"benchmark/results/swapped-{SHORT}.md").read_text()
    assert "12 runs." in text and "- Humanoid-v5: every variant: n = 3 (seeds 1-3)." in text and "Hopper" not in text
    differences = re.findall(r"^\| (\S+ - \S+) \| 3, 3 \| (-?\d+) ", text, re.M)
    assert dict(differences) == {
        "TRPO+ - TRPO": "900",
        "trpo_plus_swapped - TRPO": "600",
        "TRPO+ - trpo_swapped": "700",
        "trpo_swapped - TRPO": "200",
        "TRPO+ - trpo_plus_swapped": "300",
        "trpo_plus_swapped - trpo_swapped": "400",
    }
    assert len(differences) == 6 and "Of the 12 Welch intervals" in text and "| PPO |" not in text


def test_swapped_takes_all_that_is_none_of_the_nine():
    """What TRPO's and TRPO+'s flags differ in: script, the optimizations that act, and what is swapped."""
    rows = suites.PAPER_ROWS["Humanoid-v5"]
    differ = {name for name in rows["trpo"] if rows["trpo"][name] != rows["trpo_plus"][name]} - {"script"}
    assert differ == set(suites.REST)
    mine = suites.SUITES["swapped"]["cells"]["Humanoid-v5"]
    for new, old, other in (("trpo_swapped", "trpo", "trpo_plus"), ("trpo_plus_swapped", "trpo_plus", "trpo")):
        assert mine[new] == rows[old] | {name: rows[other][name] for name in differ} | {"heldout_every": 5}


def test_a_suite_without_any_measurements(project, monkeypatch, own_suite):
    """A script of one's own may log no trust region, and end no episode."""
    for run in suites.select("mine", None, ["my_ppo"]):
        path = put(run, 900)
        path.write_text(path.read_text().replace("trust_region/", "mine/").replace("charts/episodic_return", "mine/x"))
    assert run_report(monkeypatch, "mine") == 0
    text = (project / "benchmark/results/mine.md").read_text()
    assert cells(text, "my_ppo") == ["my_ppo", "3"] and "ratio" not in text.partition("\n## ")[2]


def test_agents_that_never_finish_an_episode_are_left_out_and_counted(project, monkeypatch):
    for run in suites.select("smoke", None, ["ppo"], [1, 2, 3]):
        path = put(run, 100)
        if run.seed == 3:
            path.write_text(path.read_text().replace("charts/episodic_return", "charts/other"))
    assert run_report(monkeypatch, "smoke") == 0
    text = (project / "benchmark/results/smoke.md").read_text()
    assert cells(text, "PPO")[:3] == ["PPO", "3", "100 [100, 100] (n = 2)"]


def test_the_algorithm_makes_a_cell_not_how_it_is_run(project, monkeypatch, capsys):
    """The upper floor's sha256 counts where both runs have it; an older run's whole script is all that is known."""
    first, second = suites.select("smoke", None, ["ppo"], [1, 2])
    path = put(first, 100, algorithm_sha256="c" * 64)
    put(second, 100, algorithm_sha256="c" * 64)
    path.write_text(path.read_text().replace("a" * 64, "b" * 64))
    assert run_report(monkeypatch, "smoke") == 0
    assert "Made by ppo_continuous.py cccccccccccc (sha256)" in (project / "benchmark/results/smoke.md").read_text()
    put(second, 100, algorithm_sha256="d" * 64)
    assert run_report(monkeypatch, "smoke") == 2
    assert "ppo__2.csv was made by ppo_continuous.py dddddddddddd" in capsys.readouterr().err
    put(second, 100)  # made before there was such a hash, by another script
    assert run_report(monkeypatch, "smoke") == 2
    assert "ppo__2.csv was made by ppo_continuous.py aaaaaaaaaaaa, Hopper-v5__ppo__1 by" in capsys.readouterr().err


def test_todays_scripts_go_on_with_the_first_results(project, monkeypatch, capsys):
    """A cell may hold runs of the scripts before there were floors and of today's, which repeat their training."""
    first, second = suites.select("smoke", None, ["ppo"], [1, 2])
    (project / "ppo_continuous.py").write_text("upper\n# RUNNING IT\nlower")
    path = put(first, 100)
    (old,) = [text for text in records.REPEATED if text.startswith("17d27401f09a")]
    path.write_text(path.read_text().replace("a" * 64, old))
    put(second, 100, algorithm_sha256=records.hashes(second)["algorithm_sha256"])
    assert run_report(monkeypatch, "smoke") == 0
    (old,) = [text for text in records.REPEATED if text.startswith("9ff4b72a")]  # of an earlier upper floor
    put(first, 100, algorithm_sha256=old)
    assert run_report(monkeypatch, "smoke") == 0
    put(second, 100, algorithm_sha256="d" * 64)  # today's no more
    assert run_report(monkeypatch, "smoke") == 2
    assert "ppo__2.csv was made by" in capsys.readouterr().err


# ---- what is refused


def test_nothing_to_report(project, monkeypatch, capsys):
    assert run_report(monkeypatch, "smoke") == 2
    assert "there are no results in" in (error := capsys.readouterr().err)
    assert "python benchmark/run.py smoke makes them" in error
    assert run_report(monkeypatch, "table2", "--timesteps", "4096") == 2
    assert "python benchmark/run.py table2 --timesteps 4096 makes them" in capsys.readouterr().err
    assert run_report(monkeypatch, "smokes") == 2
    assert "unknown suite smokes; there are table2, figure1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda text: text[: len(text) // 2], "its header is not whole|is truncated"),
        (lambda text: text[:-1], "is truncated"),
        (lambda text: text[:-9], "is truncated"),
        (lambda text: text[: text.rindex("\n", 0, -1) + 1], "is truncated: 3 rows, its header says 4"),
        (lambda text: "", "its header is not whole"),
        (lambda text: "iteration\n1\n", "its header is not whole"),
        (lambda text: text.replace('"suite": "smoke"', '"suite": "table2"'), "is of the suite table2, not smoke"),
        (lambda text: text.replace("__ppo__1", "__ppo__2"), "holds another run, Hopper-v5__ppo__2"),
        (lambda text: text.replace('"seed": 1', '"seed": 2'), "holds another run, Hopper-v5__ppo__2"),
        (lambda text: text.replace('"variant": "ppo"', '"variant": "dqn"'), "smoke has no dqn on Hopper-v5"),
        (lambda text: text.replace('"gamma": 0.99', '"gamma": 0.9'), r"other arguments: --gamma 0.9 \(suite: 0.99\)"),
        (lambda text: text.replace("2048", "20x8"), "."),
        (lambda text: text.replace("a" * 64, "b" * 64), "made by ppo_continuous.py aaaaaaaaaaaa, .*ppo__1 by .* bbbb"),
    ],
)
def test_spoilt_results_are_refused_in_one_line(project, monkeypatch, capsys, spoil, message):
    paths = [put(run, 100) for run in suites.select("smoke", None, ["ppo"], [1, 2])]
    paths[0].write_text(spoil(paths[0].read_text()))
    assert run_report(monkeypatch, "smoke") == 2
    error = capsys.readouterr().err
    assert re.search(message, error) and len(error.splitlines()) == 1 and "results/smoke" in error
    assert not list(project.glob("benchmark/results/*.md"))


@settings(max_examples=60, deadline=None)
@given(cut=st.floats(0, 1, exclude_max=True))
def test_a_csv_cut_anywhere_is_refused(tmp_path_factory, cut):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "ROOT", tmp_path_factory.mktemp("cut"))
        path = put(suites.select("smoke", None, ["trpo"], [1])[0], 100)
        text = path.read_text()
        path.write_text(text[: int(cut * len(text))])
        with pytest.raises(suites.InputError):
            records.read_csv(path, "smoke")


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {"iteration": st.integers(1, 10**9), "x": st.floats(allow_nan=False)},
            optional={"charts/episodic_return": st.floats(-1e30, 1e30)},
        ),
        min_size=1,
        max_size=6,
    )
)
def test_what_is_written_is_read_back(tmp_path_factory, history):
    history = [row | {"charts/SPS": 1000.0} for row in history]
    run = suites.select("smoke", None, ["trpo"], [1])[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "ROOT", tmp_path_factory.mktemp("csv"))
        records.write_csv(run, {"script": "x", "sha256": "y", "versions": {}}, history)
        record = records.read_csv(records.csv_path(run), "smoke")
    assert record[:3] == ("Hopper-v5", "trpo", 1) and not records.difference(run, record)
    assert set(record.history) == set().union(*history)
    for i, row in enumerate(history):
        for name, column in record.history.items():
            assert np.isnan(column[i]) if name not in row else column[i] == pytest.approx(row[name], rel=1e-5)


# ---- figures


def test_curves_align_what_was_recorded():
    a = pd.DataFrame({"global_step": [1, 2, 3], "heldout_kl": [1.0, np.nan, inf]})
    b = pd.DataFrame({"global_step": [1, 2, 3], "heldout_kl": [3.0, np.nan, 5]})
    steps, values = figures.curves([a, b], "heldout_kl")
    assert steps.tolist() == [1, 3] and values[:, 0].tolist() == [1, 3] and np.isnan(values[0, 1])
    steps, values = figures.curves([a], "charts/episodic_return")
    assert len(steps) == 0


def test_curves_of_every_iteration_are_moving_averages():
    a = pd.DataFrame({"global_step": np.arange(20), "kl": np.arange(20.0)})
    a.loc[3, "kl"] = inf  # left out
    _, values = figures.curves([a], "kl")
    assert values[0, :5].tolist() == [0, 0.5, 1, 1, 7 / 4] and values[0, 19] == np.arange(10, 20).mean()


def test_training_and_heldout_panels_share_a_scale_that_holds_both(tmp_path, monkeypatch):
    """Held out the ratio is 50 and the KL 0.3, in training 2 and 0.1; all of it shows, above 1 + eps and 0."""
    values = {"max_ratio": 2.0, "mean_kl": 0.1, "heldout_max_ratio": 50.0, "heldout_mean_kl": 0.3}
    history = pd.DataFrame({"global_step": [2048, 4096], "charts/episodic_return": [1.0, 2]})
    history = history.assign(**{f"trust_region/{name}": value for name, value in values.items()})
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure))
    figures.trust_region(tmp_path, "X-v0", {"ppo": [history]}, [0.2])
    panels = [axes for axes in drawn[0].axes if axes.get_ylabel()]
    assert [axes.get_ylabel() for axes in panels] == ["mean return", *["maximum ratio", "mean KL (nats)"] * 2]
    for axes in (panels[1], panels[3]):
        assert axes.get_ylim()[0] < 1 and axes.get_ylim()[1] > 50
    for axes in (panels[2], panels[4]):
        assert axes.get_ylim()[0] == 0 and axes.get_ylim()[1] > 0.3
    assert panels[3].get_xlabel() == "thousand steps"


def test_captions_and_legends_fit_one_task_and_many_variants(tmp_path, monkeypatch):
    history = pd.DataFrame({"global_step": [2048, 4096], "charts/episodic_return": [1.0, 2]})
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure))
    variants = {name: [history] for name in (*suites.LABELS, "mine", "another_one")}
    figures.learning_curves(tmp_path, {"X-v0": variants})
    figures.learning_curves(tmp_path, {"X-v0": variants, "Y-v0": variants, "Z-v0": variants})
    for figure in drawn:
        figure.canvas.draw()
        for part in (figure._suptitle, *figure.legends):
            box = part.get_window_extent()
            assert box.x0 >= 0 and box.x1 <= figure.bbox.x1


def test_own_variants_look_different():
    """Thirty of them; the paper's keep their own."""
    found = figures.styles([*suites.LABELS, *map(str, range(30))])
    assert len(set(found.values())) == 35 and found["ppo"] == figures.STYLE["ppo"]


def test_an_svg_is_small_and_lies_beside_its_png(tmp_path):
    """Ten runs of 488 iterations of five variants on three tasks, the largest figure there is: less than 300 kB."""
    rng, steps = np.random.default_rng(0), np.arange(1, 489) * 2048
    runs = [pd.DataFrame({"global_step": steps, "charts/episodic_return": rng.normal(size=488)}) for _ in range(10)]
    ours = {env_id: dict.fromkeys(suites.LABELS, runs) for env_id in paper.PAPER}
    figures.against_authors(
        tmp_path / "x.png", ours, {env_id: dict.fromkeys(suites.LABELS, runs[:2]) for env_id in ours}
    )
    text = (tmp_path / "x.svg").read_text()
    assert len(text) < 300_000 and text.count(">authors' code<") == 1 and (tmp_path / "x.png").is_file()


def test_the_committed_report_is_that_of_the_committed_runs(project, monkeypatch):
    committed = ROOT / "benchmark/results"
    shutil.copytree(committed / "table2", project / "benchmark/results/table2")
    assert run_report(monkeypatch, "table2") == 0
    assert (project / "benchmark/results/table2.md").read_text() == (committed / "table2.md").read_text()
    for env_id in suites.PAPER_ROWS:  # all five in the figure, too
        drawn = (project / f"benchmark/results/table2_trust_region_{env_id}.svg").read_text()
        assert all(f">{label} (n = 10)<" in drawn for label in suites.LABELS.values())
