"""Arguments from Python, train(Args(...)): of whatever kind they are, they become plain values at once, and the run can
be read again; or they are refused in one line before anything is written."""

import dataclasses
import decimal
import enum
import fractions
import hashlib
import importlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import FULL, ROOT, assert_equal, files, load, read_checkpoint, trained

pytestmark = pytest.mark.slow

SIZES = {"num_steps": 8, "num_minibatches": 1, "update_epochs": 1, "total_timesteps": 16, "hidden_sizes": (4,)}
SIZES |= {"env_id": "envs:Toy-v0", "env_kwargs": '{"length": 4}', "run_name": "run", "progress": False}


@pytest.fixture
def m():
    return load("ppo_continuous")


def test_arguments_of_another_script(m, cli):
    """What this one does not know would be dropped without a word."""
    other = load("trpo_plus")
    for args in (other.Args(**SIZES), m.Hyperparameters(), m.Run()):
        with pytest.raises(m.InputError, match=r"^arguments must be ppo_continuous\.Args, not \S+$"):
            m.train(args)
    assert files() == []


def test_another_default_dtype(m, cli):
    """The networks would be drawn in float64, and acting fail late; with float32 back, the policy plays."""
    run = m.train(m.Args(**SIZES)).run
    torch.set_default_dtype(torch.float64)
    try:
        for call in (lambda: m.train(m.Args(**SIZES | {"run_name": "other"})), lambda: m.evaluate(run)):
            with pytest.raises(m.InputError, match="torch.set_default_dtype"):
                call()
    finally:
        torch.set_default_dtype(torch.float32)
    assert not Path("runs/other").exists() and len(m.evaluate(run, episodes=2)) == 2


def test_prolonging_by_less_than_an_iteration(m, cli, capsys):
    run = m.train(m.Args(**SIZES)).run
    assert len(m.train(m.Args(resume=run, total_timesteps=23)).history) == 2
    assert capsys.readouterr().err == "note: --total-timesteps 23 adds no whole iteration of 8 steps\n"
    assert len(m.train(m.Args(resume=run, total_timesteps=24)).history) == 3


def test_prolonging_that_is_interrupted_between_its_files(m, cli, monkeypatch):
    """The same call again begins anew: args.json is never left behind what the run is."""
    run = m.train(m.Args(**SIZES)).run
    with monkeypatch.context() as patch:
        for name in ("write_args", "save_checkpoint"):
            whole = getattr(m, name)
            patch.setattr(m, name, lambda *args, whole=whole: (whole(*args), 1 / 0))
        with pytest.raises(ZeroDivisionError):
            m.train(m.Args(resume=run, total_timesteps=24))
    assert len(m.train(m.Args(resume=run, total_timesteps=24)).history) == 3
    assert json.loads((run / "args.json").read_text())["args"]["total_timesteps"] == 24


def test_the_hash_is_of_what_runs(tmp_path, monkeypatch):
    """Though the file was changed, or removed, since it was imported."""
    source = (ROOT / "ppo_m.py").read_bytes()
    path = tmp_path / "changing.py"
    path.write_bytes(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module("changing")
    path.unlink()
    run = module.train(module.Args(**SIZES)).run
    assert json.loads((run / "args.json").read_text())["sha256"] == hashlib.sha256(source).hexdigest()


NUMBERS = {
    "total_timesteps": [16.0, 1.6e1, np.int32(16), np.uint64(16), np.float64(16), torch.tensor(16), torch.tensor(16.0)],
    "seed": [np.int64(3), np.uint8(3), 3.0, np.array(3), torch.tensor(3)],
    "num_steps": [np.int64(8), np.float32(8), torch.tensor(8, dtype=torch.int16), 8.0],
    "num_envs": [np.int64(2), 2.0, torch.tensor(1)],
    "policy_lr": [np.float64(1e-3), np.float32(1e-3), torch.tensor(1e-3), np.array(1e-3), 1, decimal.Decimal("0.5")],
    "gamma": [np.float16(0.5), torch.tensor(0.5, dtype=torch.float64), 1, np.int64(0), fractions.Fraction(1, 2)],
    "clip_reward": [np.float64("inf"), torch.tensor(math.inf), np.inf, np.int64(4)],
    "hidden_sizes": [[4, 4], np.array([4, 5]), torch.tensor([4, 5]), (np.int64(4),), [4.0], range(4, 6)],
    "anneal_lr": [np.bool_(False), np.True_],
    "checkpoint_every": [np.int64(1), 2.0],
    "heldout_every": [np.int64(1), 0.0, torch.tensor(2)],
}
WORDS = {
    "runs_dir": [Path("runs"), Path("my runs", "below")],
    "run_name": [Path("run"), None],
    "env_kwargs": [{"length": 4}, {}],
}
CASES = [(name, value) for table in (NUMBERS, WORDS) for name, values in table.items() for value in values]


def plain_types(value) -> bool:
    if type(value) is tuple:
        return all(map(plain_types, value))
    return value is None or type(value) in (bool, int, float, str)


@pytest.mark.parametrize("name, value", CASES)
def test_kinds_of_arguments(m, cli, name, value):
    """Plain values arrive in the checkpoint and in args.json, strict JSON; the run can be read again."""
    result = m.train(m.Args(**{**SIZES, name: value}))
    saved = read_checkpoint(result.run)["args"]
    assert all(map(plain_types, saved.values())), saved
    kinds = {"hidden_sizes": tuple, "anneal_lr": bool, "runs_dir": str, "run_name": str, "env_kwargs": str}
    kinds |= dict.fromkeys(("policy_lr", "gamma", "clip_reward"), float)
    assert type(saved[name]) is kinds.get(name, int)
    if name == "env_kwargs":
        assert json.loads(saved[name]) == value
    elif name in NUMBERS:
        assert saved[name] == (
            tuple(map(int, value)) if name == "hidden_sizes" else pytest.approx(float(value), rel=1e-12)
        )
    written = (result.run / "args.json").read_text()
    about = json.loads(written, parse_constant=lambda word: pytest.fail(f"{word} is no strict JSON"))
    assert about["args"][name] == ("inf" if saved[name] == math.inf else json.loads(json.dumps(saved[name])))
    assert m.load_policy(result.run)(np.zeros(3)).shape == (2,)


def test_a_sweep_over_numpy_values(m, cli):
    """As a notebook writes it; the same bits as with plain numbers."""
    for lr in np.logspace(-4, -3, 2):
        run = m.train(m.Args(**{**SIZES, "run_name": None}, policy_lr=lr)).run
        same = m.train(m.Args(**{**SIZES, "run_name": None}, policy_lr=float(lr))).run
        assert_equal(trained(run), trained(same))
        assert len(m.train(m.Args(resume=run, total_timesteps=np.int64(32))).history) == 4


REFUSED = [
    ("total_timesteps", 16.5), ("total_timesteps", "16"), ("total_timesteps", None), ("total_timesteps", math.inf),
    ("total_timesteps", math.nan), ("total_timesteps", True), ("total_timesteps", [16]), ("total_timesteps", 2j),
    ("total_timesteps", np.float64(16.5)), ("total_timesteps", torch.tensor([16, 16])), ("total_timesteps", 0),
    ("seed", -1), ("seed", 2**32), ("seed", np.int64(-1)), ("seed", np.array([1, 2])),
    ("policy_lr", "1e-3"), ("policy_lr", np.str_("1e-3")), ("policy_lr", b"1"), ("policy_lr", math.nan),
    ("policy_lr", torch.tensor(math.inf)), ("policy_lr", np.float64(0)), ("policy_lr", False),
    ("policy_lr", np.full((9, 9), 0.1)), ("gamma", np.float32(1.5)),
    ("hidden_sizes", 4), ("hidden_sizes", ()), ("hidden_sizes", []), ("hidden_sizes", "44"), ("hidden_sizes", [4.5]),
    ("hidden_sizes", np.ones((2, 2))), ("hidden_sizes", [4, 0]), ("hidden_sizes", None),
    ("anneal_lr", 0), ("anneal_lr", "no"), ("anneal_lr", None), ("norm_obs", torch.tensor(1)),
    ("activation", "gelu"), ("activation", None), ("activation", ["relu"]), ("activation", torch.nn.Tanh),
    ("env_id", None), ("env_id", ""), ("env_id", 3), ("env_id", b"Hopper-v5"), ("runs_dir", ""), ("runs_dir", b"runs"),
    ("run_name", ""), ("run_name", 3), ("resume", ""), ("resume", 3), ("resume", Path("nowhere")),
    ("env_kwargs", None), ("env_kwargs", ""), ("env_kwargs", {"length": {3}}), ("env_kwargs", [3]),
    ("progress", 1), ("heldout_every", -1), ("checkpoint_every", 0),
]  # fmt: skip


@pytest.mark.parametrize("name, value", REFUSED)
def test_refused(m, cli, name, value):
    """In one line that names the flag and shows the value; nothing is written."""
    with pytest.raises(m.InputError) as error:
        m.train(m.Args(**{**SIZES, name: value}))
    said = str(error.value)
    assert f"--{name.replace('_', '-')} takes " in said or name == "resume" and "nowhere" in said
    assert "\n" not in said and ("nowhere" in said or repr(value).replace("\n", " ") in said) and files() == []


@pytest.mark.parametrize(
    "name, value", [("episodes", 5), ("stochastic", True), ("video", True), ("evaluate", "runs/run")]
)
def test_what_goes_with_evaluation_is_refused(m, cli, name, value):
    with pytest.raises(m.InputError, match=f"--{name} goes with --evaluate"):
        m.train(m.Args(**SIZES, **{name: value}))
    assert files() == []


@pytest.mark.parametrize("name", FULL)
def test_evaluate_takes_the_same_kinds(name, cli):
    m = load(name)
    run = m.train(m.Args(**SIZES)).run
    plain = m.evaluate(str(run), episodes=3, seed=2, max_episode_steps=3)
    kinds = {"episodes": np.int64(3), "seed": torch.tensor(2), "max_episode_steps": 3.0}
    assert m.evaluate(Path(run), **kinds) == plain and len(plain) == 3
    for wrong in ({"episodes": 1.5}, {"episodes": "3"}, {"seed": -1}, {"max_episode_steps": 0}, {"env_kwargs": None}):
        with pytest.raises(m.InputError, match=f"--{next(iter(wrong)).replace('_', '-')} takes"):
            m.evaluate(run, **wrong)
    for nothing in ("", "nowhere"):
        with pytest.raises(m.InputError, match="is not a run's folder|--evaluate takes a word"):
            m.evaluate(nothing)


def test_failure_before_the_first_iteration_leaves_no_name_taken(m, cli, monkeypatch):
    """The name can be used at once, after an argument, an environment or a folder that cannot be used."""
    wrong = [{"seed": -1}, {"num_minibatches": 3}, {"env_id": "CartPole-v1"}, {"env_kwargs": '{"length": "x"}'}]
    for changed in wrong:
        with pytest.raises((m.InputError, TypeError)):
            m.train(m.Args(**{**SIZES, **changed}))
        assert files() == []
    assert len(m.train(m.Args(**SIZES)).history) == 2


class Name(str, enum.Enum):  # noqa: UP042 - as people write it
    relu = "relu"


KINDS = [("env_id", np.str_("envs:Toy-v0")), ("activation", np.str_("relu")), ("init", np.array(["xavier"])[0])]
KINDS += [("reward_scaling", np.str_("none")), ("runs_dir", np.str_("folder")), ("activation", Name.relu)]
KINDS += [("env_kwargs", np.str_('{"length": 4}')), ("env_kwargs", {"length": np.int64(4)})]


@pytest.mark.parametrize("name, value", KINDS)
def test_kinds_of_words(m, cli, name, value):
    """A word of NumPy's, or of an enumeration, becomes a plain one: the checkpoint can be read."""
    run = m.train(m.Args(**{**SIZES, name: value})).run
    assert m.load_policy(run)(np.zeros(3)).shape == (2,)
    assert type(read_checkpoint(run)["args"][name]) is str


@pytest.mark.parametrize("value", [np.array(["relu"]), np.array("relu"), ["relu"], b"relu"])
def test_no_word(m, cli, value):
    with pytest.raises(m.InputError, match="--activation takes "):
        m.train(m.Args(**{**SIZES, "activation": value}))
    assert files() == []


def test_args_json_goes_back_in(m, cli):
    """What it says makes the same arguments, infinite ones included."""
    run = m.train(m.Args(**SIZES, clip_coef=math.inf, clip_obs=math.inf)).run
    about = json.loads((run / "args.json").read_text())["args"]
    assert m.plain(m.Args(**about)) == m.Args(**read_checkpoint(run)["args"])


@pytest.mark.parametrize("wrong", [{"stochastic": "no"}, {"video": 2}, {"episodes": "inf"}])
def test_evaluate_refuses_other_kinds(m, cli, wrong):
    run = m.train(m.Args(**SIZES)).run
    with pytest.raises(m.InputError, match=f"--{next(iter(wrong))} takes"):
        m.evaluate(run, **wrong)


def test_defaults_of_ones_own_flags(m, cli, monkeypatch):
    """In a copy: whatever their kind, as long as nobody names another value."""

    @dataclasses.dataclass
    class Args(m.Args):
        model: str = ""
        bins: int | str = "auto"

    monkeypatch.setattr(m, "Args", Args)
    run = m.train(Args(**SIZES)).run
    assert m.load_checkpoint(run)[1].bins == "auto"
