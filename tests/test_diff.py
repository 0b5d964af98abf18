"""The diff is the paper: lower floors are the same letter for letter, upper floors differ where that is marked."""

import ast
import difflib
import functools
import re
import subprocess
import sys

import pytest
from conftest import FULL, NAMES, ROOT, SCRIPTS, load

OPTIMIZATION_DIFFS = (("ppo_m", "ppo_continuous"), ("trpo_continuous", "trpo_plus"))

# the definitions that differ on purpose; all others that stand in both scripts of a pair are the same
OPTIMIZED = {"Algorithm", "Optimizations", "Agent", "learn", "reset", "rollout", "gradients", "ObservationFilter"}
STEP = {"Algorithm", "Details", "Agent", "update", "gradients"}  # from PPO's step to TRPO's
DIFFERENT = {
    ("ppo_m", "ppo_continuous"): OPTIMIZED,
    ("trpo_continuous", "trpo_plus"): OPTIMIZED,
    ("ppo_m", "trpo_continuous"): STEP,
    ("ppo_continuous", "trpo_plus"): STEP | {"Optimizations", "learn"},  # [4] anneals other things
}
KL_ANNEALING = "annealing, here of the KL bound"  # trpo_plus.py's other [4]
# where each acts, beside its argument in Optimizations; names as Python qualifies them
PLACES = {
    1: {"gradients", "clipped_value_loss"},
    2: {"RewardFilter.__call__", "Agent.__init__", "Agent.parts", "reset", "rollout"},
    3: {"orthogonal_init", "Agent.__init__"},
    4: {"learn"},
    5: {"RewardFilter.__call__", "Agent.__init__", "Agent.parts", "rollout"},
    6: {"ObservationFilter.__call__"},
    7: {"ObservationFilter.__call__"},
    8: {"mlp"},
    9: {"gradients", "clip_grads"},
}
MARK = re.compile(r"\[(\d)\] ([^\[\]]*[^\[\],\s])")
EXEMPT = ("docstring", "imports", "Algorithm", "Optimizations")  # where a difference needs no mark


@functools.cache
def floors(name: str) -> tuple[str, str]:
    upper, line, lower = (ROOT / f"{name}.py").read_text().partition("\n# RUNNING IT")
    return upper + "\n", line + lower


@functools.cache
def parts(name: str) -> dict[str, range]:
    """The lines of each definition of the upper floor, with the comments and decorators right above it."""
    upper, found = floors(name)[0], {}
    lines = upper.splitlines()
    for node in ast.parse(upper).body:
        if isinstance(node, ast.Import | ast.ImportFrom | ast.If):
            key = "imports"
        elif isinstance(node, ast.Assign):
            key = " ".join(map(ast.unparse, node.targets))
        else:
            key = "docstring" if isinstance(node, ast.Expr) else node.name
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        while key != "docstring" and lines[first - 2].startswith("#"):
            first -= 1
        assert key not in found or key == "imports", f"{name}.py defines {key} twice"
        found[key] = range(found.get(key, [first])[0], node.end_lineno + 1)
    return found


def definitions(name: str) -> dict[str, str]:
    """The text of each definition of the upper floor, and of the header above it."""
    lines = floors(name)[0].splitlines()
    found = {key: "\n".join(lines[i - 1] for i in where) for key, where in parts(name).items() if key != "imports"}
    return {"header": "\n".join(lines[: parts(name)["docstring"][0] - 1]), **found}


def marks(name: str) -> list[tuple[int, str]]:
    """(line number, text) of every comment that begins with an [n], but for those of the arguments."""
    lines, arguments = floors(name)[0].splitlines(), parts(name)["Optimizations"]
    found = [(i, match[1]) for i, line in enumerate(lines, 1) if (match := re.search(r"# (\[\d.*)$", line))]
    return [(i, text) for i, text in found if i not in arguments and i not in parts(name)["docstring"]]


def place(name: str, line: int) -> str:
    """The function around a line, as Python qualifies it."""
    for node in ast.parse(floors(name)[0]).body:
        if getattr(node, "lineno", line) <= line <= node.end_lineno and isinstance(node, ast.FunctionDef):
            return node.name
        for inner in node.body if isinstance(node, ast.ClassDef) else []:
            if isinstance(inner, ast.FunctionDef) and inner.lineno <= line <= inner.end_lineno:
                return f"{node.name}.{inner.name}"
    return ""


def test_lower_floor_is_the_same_in_all():
    lower = [floors(name)[1] for name in SCRIPTS]
    assert lower[0].count("\n") > 100 and lower.count(lower[0]) == 4
    assert lower[0].endswith('if __name__ == "__main__":\n    main()\n')


@pytest.mark.parametrize("name", SCRIPTS)
def test_upper_floor_needs_nothing_of_the_lower(name):
    """Cut out, it has no undefined name and no import that it does not use, says ruff."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", "-"]
    found = subprocess.run(command, input=floors(name)[0], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("name", SCRIPTS)
def test_learn_is_short_and_stands_first(name):
    """Arguments, Agent, Iteration, then the whole algorithm, then what it calls in the order in which it does."""
    body = [node for node in ast.parse(floors(name)[0]).body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    first = ["Algorithm", "Optimizations", "Details", "Hyperparameters", "Agent", "Iteration", "learn"]
    assert [node.name for node in body[:7]] == first
    learn = body[6]
    assert learn.end_lineno - learn.body[1].lineno < 15  # its docstring not counted
    calls = [n for n in ast.walk(learn) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    called = [call.func.id for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset))]
    functions = [node.name for node in body[7:] if isinstance(node, ast.FunctionDef)]
    called = [function for function in called if function in functions]
    assert called == ["reset", "rollout", "make_batch", "update"]
    assert called == [function for function in functions if function in called]


@pytest.mark.parametrize("a, b", DIFFERENT)
def test_shared_definitions_are_equal(a, b):
    """In both directions: what is not listed is equal, and what is listed is there and differs."""
    ours, theirs = definitions(a), definitions(b)
    shared = [key for key in ours if key in theirs]
    assert len(shared) > 30 and shared == [key for key in theirs if key in ours], "another order"
    assert {key for key in shared if ours[key] != theirs[key]} == DIFFERENT[a, b] | {"docstring"}


def test_what_stands_only_in_some():
    """The definitions that not all four scripts have: the full ones' optimizations, each algorithm's own step."""
    everywhere = set.intersection(*(set(parts(name)) for name in SCRIPTS))
    optimizations = {"RewardFilter", "orthogonal_init", "clip_grads", "clipped_value_loss"}
    trpo = {"surrogate", "flatten", "set_parameters", "fisher_vector_product", "conjugate_gradient", "line_search"}
    trpo |= {"trpo_step", "ACCEPT_RATIO"}
    assert set(parts("ppo_m")) - everywhere == {"policy_loss"}
    assert set(parts("ppo_continuous")) - everywhere == {"policy_loss"} | optimizations
    assert set(parts("trpo_continuous")) - everywhere == trpo
    assert set(parts("trpo_plus")) - everywhere == trpo | optimizations


@pytest.mark.parametrize("minimal, full", OPTIMIZATION_DIFFS)
def test_every_hunk_of_the_diff_only_adds_and_is_marked(minimal, full):
    """But for hunks within docstrings, imports and arguments."""
    old, new = (floors(name)[0].splitlines() for name in (minimal, full))
    hunks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    marked, seen = {line for line, _ in marks(full)}, 0
    exempt = [{line for key in EXEMPT for line in parts(name)[key]} for name in (minimal, full)]
    for tag, i, j, k, m in hunks:
        if tag == "equal" or (exempt[0].issuperset(range(i + 1, j + 1)) and exempt[1].issuperset(range(k + 1, m + 1))):
            continue
        text = "\n".join(["", *(f"< {line}" for line in old[i:j]), *(f"> {line}" for line in new[k:m])])
        if [line.strip()[:3] for line in old[i:j] + new[k:m]] == ['"""'] * 2:
            continue  # of ObservationFilter
        seen += 1
        assert i == j, f"{minimal}.py:{i + 1} does not stand in {full}.py:{text}"
        assert marked & set(range(k + 1, m + 1)), f"an unmarked difference at {full}.py:{k + 1}:{text}"
    assert seen > 10


@pytest.mark.parametrize("name", SCRIPTS)
def test_marks(name):
    """Which of the nine act, by the paper's names, and in which functions; nothing else looks like a mark."""
    places, names = {}, {}
    for line, text in marks(name):
        found = MARK.findall(text)
        assert ", ".join(f"[{n}] {what}" for n, what in found) == text, f"{name}.py:{line}"
        for n, what in found:
            places.setdefault(int(n), set()).add(place(name, line))
            names.setdefault(int(n), set()).add(what)
    numbers = NAMES if name in FULL else (6, 8)
    assert places == {n: PLACES[n] for n in numbers}
    kl_annealing = {4: {NAMES[4], KL_ANNEALING}} if name == "trpo_plus" else {}
    assert names == {n: {NAMES[n]} for n in numbers} | kl_annealing


@pytest.mark.parametrize("name", SCRIPTS)
def test_grep_finds_the_marks(name):
    """The docstring's command, which a reader copies from the file or from --help, finds what is looked at above."""
    command = re.search(r"`(grep -n .*?\.py)`", load(name).__doc__)[1]
    assert command in floors(name)[0] and command.endswith(f" {name}.py")
    found = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {line for line, _ in marks(name)} < {int(line.partition(":")[0]) for line in found.splitlines()}
