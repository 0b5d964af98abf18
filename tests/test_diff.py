"""The diff is the paper: what two scripts share is letter for letter the same, and what differs is marked."""

import ast
import dataclasses
import difflib
import importlib
import itertools
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import tyro
from conftest import FULL, MINIMAL, ROOT, SCRIPTS

PAIRS = tuple(itertools.combinations(SCRIPTS, 2))
OPTIMIZATION_DIFFS = (("ppo_m", "ppo_continuous"), ("trpo_continuous", "trpo_plus"))

# the definitions that differ on purpose, pair by pair; all others that stand in both scripts of a pair are the same
OPTIMIZED = {"docstring", "Args", "check", "ObservationFilter", "Agent", "rollout", "value_loss", "update"}
STEP = {"docstring", "Args", "check", "Agent", "update"}  # from PPO's step to TRPO's
DIFFERENT = {
    ("ppo_continuous", "ppo_m"): OPTIMIZED | {"train"},
    ("trpo_continuous", "trpo_plus"): OPTIMIZED | {"train"},
    ("ppo_m", "trpo_continuous"): STEP,
    ("ppo_continuous", "trpo_plus"): STEP | {"train"},
    ("ppo_continuous", "trpo_continuous"): OPTIMIZED | {"train"},
    ("ppo_m", "trpo_plus"): OPTIMIZED | {"train"},
}
NAMES = {
    1: "value function clipping",
    2: "reward scaling",
    3: "orthogonal initialization and layer scaling",
    4: "Adam learning-rate annealing",
    5: "reward clipping",
    6: "observation normalization",
    7: "observation clipping",
    8: "hyperbolic tangent activations",
    9: "global gradient clipping",
}
KL_ANNEALING = "annealing, here of the KL bound"  # trpo_plus.py's other [4]
# where each acts, outside the docstring, Args and check; "train" or "Agent.__init__" as Python qualifies names
PLACES = {
    1: {"value_loss"},
    2: {"RewardFilter.__call__", "Agent.__init__", "rollout", "train"},
    3: {"orthogonal_init", "Agent.__init__"},
    4: {"train"},
    5: {"RewardFilter.__call__", "Agent.__init__", "rollout"},
    6: {"ObservationFilter.__call__"},
    7: {"ObservationFilter.__call__"},
    8: {"mlp"},
    9: {"update", "clip_gradient"},
}
MARK = re.compile(r"\[(\d+)\] ([^\[\]]*[^\[\],\s])")
OFF = re.compile(r"^ {4}\[(\d)\] (.+?)  +(--\S+(?: \S+)?)  +(turns it off|replaces it)(.*)$", re.M)

EXEMPT = ("docstring", "Args", "check")  # where a difference needs no mark


def source(name: str) -> str:
    return (ROOT / f"{name}.py").read_text()


def parts(name: str) -> dict[str, tuple[int, int]]:
    """First and last line of everything at top level, with the comments and decorators right above it."""
    lines, found = source(name).splitlines(), {}
    for node in ast.parse(source(name)).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            key = ast.unparse(node)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            key = node.name
        elif isinstance(node, ast.Assign):
            key = " ".join(map(ast.unparse, node.targets))
        else:
            key = "docstring" if node.lineno < 20 and isinstance(node, ast.Expr) else ast.unparse(node).split("\n")[0]
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        while first > 1 and lines[first - 2].startswith("#"):
            first -= 1
        assert key not in found, f"{name}.py defines {key} twice"
        found[key] = (first, node.end_lineno)
    return found


def segments(name: str) -> dict[str, str]:
    lines = source(name).splitlines()
    found = {key: "\n".join(lines[first - 1 : last]) for key, (first, last) in parts(name).items()}
    header, _, text = found["docstring"].partition('"""')  # the header is a comment right above the docstring
    return {"header": header, **found, "docstring": '"""' + text}


def comments(name: str) -> list[tuple[int, str]]:
    """(line number, text) of every comment that holds a [n]."""
    return [(i, m[1]) for i, line in enumerate(source(name).splitlines(), 1) if (m := re.search(r"# (\[\d.*)$", line))]


def marks(name: str) -> list[tuple[int, int, str]]:
    """(line, n, name) of each mark `# [n] name`; one comment may hold two."""
    return [(line, int(n), what) for line, text in comments(name) for n, what in MARK.findall(text)]


def place(name: str, line: int) -> str:
    """The innermost named function or class around a line; nested functions count as the outer one."""
    for node in ast.parse(source(name)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.lineno <= line <= node.end_lineno:
            for inner in node.body if isinstance(node, ast.ClassDef) else []:
                if isinstance(inner, ast.FunctionDef) and inner.lineno <= line <= inner.end_lineno:
                    return f"{node.name}.{inner.name}"
            return node.name
    return ""


@pytest.mark.parametrize("a, b", PAIRS)
def test_shared_definitions_are_equal(a, b):
    """In both directions: what is not listed is equal, and what is listed is there and differs."""
    ours, theirs = segments(a), segments(b)
    differing = {key for key in ours.keys() & theirs.keys() if ours[key] != theirs[key]}
    listed = DIFFERENT[(a, b) if (a, b) in DIFFERENT else (b, a)]
    assert differing == listed


def test_header_stands_in_all():
    assert len({segments(name)["header"] for name in SCRIPTS}) == 1


def test_nothing_outside_definitions():
    """The comparison sees every line: whatever lies between two definitions is blank."""
    for name in SCRIPTS:
        covered = {line for first, last in parts(name).values() for line in range(first, last + 1)}
        for number, line in enumerate(source(name).splitlines(), 1):
            assert number in covered or not line.strip(), f"{name}.py:{number}: {line}"


@pytest.mark.parametrize("a, b", PAIRS)
def test_same_order(a, b):
    shared = set(parts(a)) & set(parts(b))
    assert [key for key in parts(a) if key in shared] == [key for key in parts(b) if key in shared]
    assert len(shared) > 50  # the comparison is of whole scripts


def test_what_stands_only_in_some():
    """The definitions that not all four scripts have: the full ones' optimizations, each algorithm's own step."""
    everywhere = set.intersection(*(set(parts(name)) for name in SCRIPTS))
    optimizations = {"RewardFilter", "orthogonal_init", "clip_gradient"}
    trpo = {"surrogate", "flatten", "set_parameters", "fisher_vector_product", "conjugate_gradient", "line_search"}
    trpo |= {"trpo_step"}
    assert set(parts("ppo_m")) - everywhere == {"policy_loss"}
    assert set(parts("ppo_continuous")) - everywhere == {"policy_loss"} | optimizations
    assert set(parts("trpo_continuous")) - everywhere == trpo
    assert set(parts("trpo_plus")) - everywhere == trpo | optimizations


def hunks(a: str, b: str) -> list[tuple[range, list[str], range, list[str]]]:
    """What `diff a.py b.py` shows: line numbers and lines of both sides, 1-based."""
    old, new = source(a).splitlines(), source(b).splitlines()
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return [
        (range(i + 1, j + 1), old[i:j], range(k + 1, m + 1), new[k:m])
        for tag, i, j, k, m in matcher.get_opcodes()
        if tag != "equal"
    ]


@pytest.mark.parametrize("minimal, full", OPTIMIZATION_DIFFS)
def test_every_hunk_is_marked(minimal, full):
    found = hunks(minimal, full)
    assert len(found) > 15
    for old_lines, old, new_lines, new in found:
        exempt = [range(first, last + 1) for key, (first, last) in parts(full).items() if key in EXEMPT]
        exempt_old = [range(first, last + 1) for key, (first, last) in parts(minimal).items() if key in EXEMPT]
        inside = all(any(line in lines for lines in exempt) for line in new_lines)
        inside &= all(any(line in lines for lines in exempt_old) for line in old_lines)
        marked = any(line in new_lines for line, _, _ in marks(full))
        docstring = all(line.strip().startswith('"""') for line in old + new)  # of ObservationFilter
        text = "\n".join(["", *(f"< {line}" for line in old), *(f"> {line}" for line in new)])
        assert inside or marked or docstring, f"an unmarked difference at {full}.py:{new_lines.start}{text}"


@pytest.mark.parametrize("minimal, full", OPTIMIZATION_DIFFS)
def test_a_hunk_only_adds(minimal, full):
    """Outside the docstrings, Args and check the full script has all the lines of the minimal one, in order."""
    for old_lines, old, _, _ in hunks(minimal, full):
        exempt = [range(first, last + 1) for key, (first, last) in parts(minimal).items() if key in EXEMPT]
        for number, line in zip(old_lines, old):
            inside = any(number in lines for lines in exempt) or line.strip().startswith('"""')
            assert inside, f"{minimal}.py:{number} does not stand in {full}.py: {line}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_marks(name):
    """Which of the nine are marked, by the paper's names, and in which functions."""
    found = marks(name)
    numbers = {n for _, n, _ in found}
    assert numbers == (set(NAMES) if name in FULL else {6, 8})
    for line, n, what in found:
        allowed = {NAMES[n]} | ({KL_ANNEALING} if n == 4 and name == "trpo_plus" else set())
        assert what in allowed, f"{name}.py:{line}: [{n}] {what}"
    for n in numbers:
        assert {place(name, line) for line, m, _ in found if m == n} == PLACES[n], f"[{n}]"
        assert NAMES[n] in {what for _, m, what in found if m == n}
    assert sum(what == KL_ANNEALING for _, _, what in found) == (name == "trpo_plus")


@pytest.mark.parametrize("name", SCRIPTS)
def test_grep_finds_all_marks(name):
    """`grep -n '# \\['`, as the docstring says; every comment with a number is a mark through and through."""
    for line, text in comments(name):
        joined = ", ".join(f"[{n}] {what}" for n, what in MARK.findall(text))
        assert joined == text, f"{name}.py:{line}: # {text}"
    assert f"grep -n '# \\\\[' {name}.py" in source(name)


OTHER_SEVEN = (
    "vf_clip",
    "reward_scaling",
    "reward_filter",
    "RewardFilter",
    "orthogonal",
    "gain=",
    "anneal",
    "clip_rew",
)
OTHER_SEVEN += ("clip_obs", "max_grad_norm", "clip_gradient", "clip_grad_norm", "clamp", ".clip(", '["lr"] =')


@pytest.mark.parametrize("name", MINIMAL)
def test_minimal_has_no_code_for_the_other_seven(name):
    m, (_, last) = importlib.import_module(name), parts(name)["docstring"]
    fields = {field.name for field in dataclasses.fields(m.Args)}
    code = "\n".join(source(name).splitlines()[last:])
    allowed = {"clamp": 1 if name == "ppo_m" else 0, ".clip(": 1}  # the algorithm's own ratio clip; --clip-actions
    for word in OTHER_SEVEN:
        assert code.count(word) == allowed.get(word, 0), word
    full = importlib.import_module(dict(OPTIMIZATION_DIFFS)[name])
    own = {"vf_clip_coef", "reward_scaling", "init", "anneal_lr", "clip_reward", "clip_obs", "max_grad_norm"}
    own |= {"max_kl_final"} if name == "trpo_continuous" else set()
    assert {field.name for field in dataclasses.fields(full.Args)} - fields == own
    assert not fields - {field.name for field in dataclasses.fields(full.Args)}


GROUPS = {
    "run": "env_id seed total_timesteps runs_dir run_name checkpoint_every resume evaluate episodes stochastic video "
    "progress env_kwargs",
    "algorithm": "num_envs num_steps num_minibatches update_epochs gamma gae_lambda clip_coef ent_coef max_kl "
    "fisher_fraction cg_steps cg_damping max_backtracks policy_lr value_lr hidden_sizes",
    "code-level optimizations": "vf_clip_coef reward_scaling init anneal_lr max_kl_final clip_reward norm_obs clip_obs "
    "activation max_grad_norm",
    "details the paper does not list": "norm_adv adam_eps reset_each_iteration bootstrap_truncated clip_actions",
    "measurement": "heldout_every",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_args(name):
    """Groups in DESIGN's order, the fields in theirs, and under every field its docstring."""
    m, (node,) = (
        importlib.import_module(name),
        [n for n in ast.parse(source(name)).body if getattr(n, "name", "") == "Args"],
    )
    lines, group, found = source(name).splitlines(), None, {}
    for field, doc in zip(node.body[::2], node.body[1::2]):
        assert isinstance(field, ast.AnnAssign)
        assert isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant), f"{field.target.id} has no docstring"
        assert len(doc.value.value) > 10 and doc.lineno == field.end_lineno + 1
        if lines[field.lineno - 2].strip().startswith("# "):
            group = lines[field.lineno - 2].strip().removeprefix("# ")
            assert group not in found
            found[group] = []
        found[group].append(field.target.id)
    assert len(node.body) % 2 == 0
    assert list(found) == list(GROUPS)
    declared = {field.name for field in dataclasses.fields(m.Args)}
    for key, fields in found.items():
        assert fields == [field for field in GROUPS[key].split() if field in declared]
    assert sum(found.values(), []) == [field.name for field in dataclasses.fields(m.Args)]


@pytest.mark.parametrize("name", SCRIPTS)
def test_optimization_flags_carry_their_number(name):
    """In Args the docstring of each of the nine begins with its [n], in the paper's order."""
    (node,) = [n for n in ast.parse(source(name)).body if getattr(n, "name", "") == "Args"]
    numbers = {f.target.id: re.match(r"\[(\d)\] ", d.value.value) for f, d in zip(node.body[::2], node.body[1::2])}
    found = {field: int(match[1]) for field, match in numbers.items() if match}
    expected = {"norm_obs": 6, "activation": 8}
    if name in FULL:
        expected |= {"vf_clip_coef": 1, "reward_scaling": 2, "init": 3, "anneal_lr": 4, "clip_reward": 5}
        expected |= {"clip_obs": 7, "max_grad_norm": 9} | ({"max_kl_final": 4} if name == "trpo_plus" else {})
    assert found == expected
    assert list(found.values()) == sorted(found.values())


DEFAULTS = {
    "ppo_continuous": {"policy_lr": 3e-4, "value_lr": 2.5e-4},
    "ppo_m": {"policy_lr": 1.7e-4, "value_lr": 4e-4},
    "trpo_continuous": {"value_lr": 2e-4, "max_kl": 0.13},
    "trpo_plus": {"value_lr": 2e-4, "max_kl": 0.04, "max_kl_final": None},
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_flag_table_is_true(name):
    """Each line of the docstring's table: the flag exists, its value parses and differs from the default: it is off."""
    m = importlib.import_module(name)
    table = OFF.findall(m.__doc__)
    assert [int(n) for n, *_ in table] == (list(range(1, 10)) if name in FULL else [6, 8])
    assert len(re.findall(r"^ {4}\[\d\]", m.__doc__, re.M)) == len(table)
    short = {3: "orthogonal initialization", 8: "hyperbolic tangent"}
    off = dict.fromkeys((1, 5, 7, 9), float("inf")) | {2: "none", 3: "xavier", 4: False, 6: False, 8: "relu"}
    changed = {}
    for n, what, flags, _, _ in table:
        n = int(n)
        assert what == short.get(n, NAMES[n])
        args = dataclasses.asdict(tyro.cli(m.Args, args=flags.split()))
        ((field, value),) = [item for item in args.items() if item[1] != getattr(m.Args(), item[0])]
        assert value == off[n]
        changed[field] = value
    m_args = m.Args(**changed)
    env = m.make_env(m_args)
    m.check(m_args, env)  # all off at once is accepted
    env.close()


@pytest.mark.parametrize("name", SCRIPTS)
def test_defaults(name):
    """The paper's Hopper rates; all nine on in the full scripts."""
    args = dataclasses.asdict(importlib.import_module(name).Args())
    expected = {"env_id": "Hopper-v5", "total_timesteps": 1_000_000, "num_envs": 1, "num_steps": 2048, "gamma": 0.99}
    expected |= {"num_minibatches": 32, "update_epochs": 10, "gae_lambda": 0.95, "hidden_sizes": (64, 64)}
    expected |= {"norm_obs": True, "activation": "tanh", "norm_adv": True, "adam_eps": 1e-5, "heldout_every": 0}
    expected |= {"reset_each_iteration": True, "bootstrap_truncated": False, "clip_actions": False}
    if name.startswith("ppo"):
        expected |= {"clip_coef": 0.2, "ent_coef": 0.0}
    else:
        expected |= {"fisher_fraction": 0.1, "cg_steps": 10, "cg_damping": 0.1, "max_backtracks": 10}
    if name in FULL:
        expected |= {"vf_clip_coef": 0.2, "reward_scaling": "returns", "init": "orthogonal", "anneal_lr": True}
        expected |= {"clip_reward": 10.0, "clip_obs": 10.0, "max_grad_norm": 0.5}
    expected |= DEFAULTS[name]
    assert {field: args[field] for field in expected} == expected


@pytest.mark.parametrize("name", SCRIPTS)
def test_examples_in_docstring_parse(name):
    m = importlib.import_module(name)
    examples = re.findall(rf"^ {{4}}python {name}\.py (.*?)(?: +#.*)?$", m.__doc__, re.M)
    assert len(examples) == (4 if name in FULL else 3)
    assert len(re.findall(r"^ {4}python", m.__doc__, re.M)) == len(examples)  # each names this script
    for flags in examples:
        assert tyro.cli(m.Args, args=flags.split()) is not None


IMPORT = """
import os, sys, threading
import torch, numpy, random, signal, gymnasium
def state():
    return (torch.get_num_threads(), torch.get_rng_state().tolist(), torch.get_default_dtype(),
            str(numpy.random.get_state()), random.getstate(), signal.getsignal(signal.SIGINT),
            signal.getsignal(signal.SIGTERM), sorted(os.environ.items()), os.getcwd(), sorted(gymnasium.registry))
torch.set_num_threads(2)
import torch.utils.tensorboard, tqdm, tyro
before = state()
module = __import__(sys.argv[1])
assert all(a == b for a, b in zip(before, state())), [a == b for a, b in zip(before, state())]
assert threading.active_count() == 1
"""


@pytest.mark.parametrize("name", SCRIPTS)
def test_import_has_no_side_effect(name, tmp_path):
    """No files, no output; threads, generators, signal handlers and the environment as before."""
    command = [sys.executable, "-B", "-c", IMPORT, name]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_pep_723_header(name):
    """Parsed as the standard says; it lists the distributions of all third-party imports, each with a lower bound."""
    pattern = r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$"  # from PEP 723
    (block,) = re.finditer(pattern, source(name))
    assert block["type"] == "script" and block.start() == 0
    content = "".join(line[2:] if line.startswith("# ") else line[1:] for line in block["content"].splitlines(True))
    header = tomllib.loads(content)
    assert header.keys() == {"requires-python", "dependencies"}
    assert header["requires-python"] == ">=3.11"
    listed = [re.fullmatch(r"([a-z]+)(\[mujoco\])?>=\d+(\.\d+)+", line) for line in header["dependencies"]]
    assert all(listed), header["dependencies"]
    modules = set()
    for node in ast.walk(ast.parse(source(name))):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules |= {node.module.partition(".")[0]} | ({"tensorboard"} if "tensorboard" in node.module else set())
    third_party = modules - sys.stdlib_module_names
    # what gymnasium imports when asked for: mujoco for the environments, moviepy for --video
    assert sorted(match[1] for match in listed) == sorted(third_party | {"mujoco", "moviepy"})
    assert [match[1] for match in listed if match[2]] == ["gymnasium"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_lone_copy(name, tmp_path):
    """A copy in an empty folder, nothing else of the project on the path: help, and a tiny training."""
    shutil.copy(ROOT / f"{name}.py", tmp_path)
    code = "import sys; sys.argv = sys.argv[1:]; import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"

    def run(*flags):
        command = [sys.executable, "-I", "-c", code, f"{name}.py", *flags]  # -I: no PYTHONPATH, no current folder
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    shown = run("--help")
    assert shown.returncode == 0 and shown.stderr == ""
    m = importlib.import_module(name)
    for field in dataclasses.fields(m.Args):
        assert f"--{field.name.replace('_', '-')}" in shown.stdout
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.py"]
    done = run("--num-steps", "64", "--num-minibatches", "4", "--total-timesteps", "128", "--no-progress")
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(rf"Hopper-v5__{name}__1__\d+", folder.name)
    assert {"args.json", "checkpoint.pt"} < {path.name for path in folder.iterdir()}
    assert len(list(folder.iterdir())) == 3
    assert done.stdout.startswith(f"runs/{folder.name}: finished, 128 steps (2 iterations)")
