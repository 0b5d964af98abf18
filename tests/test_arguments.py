"""The arguments: groups and order, what is said of each, defaults, and the table of flags in the docstring."""

import contextlib
import dataclasses
import math
import re
import sys

import pytest
from conftest import FULL, MINIMAL, NAMES, PPO, ROOT, SCRIPTS, load

ORDER = {
    "Algorithm": "seed total_timesteps num_envs num_steps num_minibatches update_epochs gamma gae_lambda clip_coef "
    "ent_coef max_kl fisher_fraction cg_steps cg_damping max_backtracks policy_lr value_lr hidden_sizes",
    "Optimizations": "vf_clip_coef reward_scaling init anneal_lr max_kl_final clip_reward norm_obs clip_obs "
    "activation max_grad_norm",
    "Details": "norm_adv adam_eps reset_each_iteration bootstrap_truncated clip_actions compile",
    "Run": "env_id env_kwargs runs_dir run_name resume checkpoint_every heldout_every progress",
    "Evaluation": "evaluate episodes stochastic video max_episode_steps",
}
PPO_ALONE, TRPO_ALONE = "clip_coef ent_coef policy_lr", "max_kl fisher_fraction cg_steps cg_damping max_backtracks"
SEVEN = {"vf_clip_coef": 1, "reward_scaling": 2, "init": 3, "anneal_lr": 4}
SEVEN |= {"clip_reward": 5, "clip_obs": 7, "max_grad_norm": 9}


def missing(name):
    """The arguments that a script does not have."""
    other = set((TRPO_ALONE if name in PPO else PPO_ALONE).split())
    return other | (set(SEVEN) if name in MINIMAL else set()) | ({"max_kl_final"} if name != "trpo_plus" else set())


def arguments(m, *flags):
    """What a command line gives."""
    argv, sys.argv = sys.argv, [f"{m.__name__}.py", *flags]
    try:
        return m.command_line(m.Args())
    finally:
        sys.argv = argv


def test_groups_and_their_order(script):
    for group, names in ORDER.items():
        fields = [field.name for field in dataclasses.fields(getattr(script, group))]
        assert fields == [name for name in names.split() if name not in missing(script.__name__)]
    groups = (script.Evaluation, script.Run, script.Details, script.Optimizations, script.Algorithm)
    assert script.Args.__mro__[1:3] == groups[:2] and script.Hyperparameters.__mro__[1:4] == groups[2:]


def letters(text):
    return "".join(filter(str.isalnum, text))


def test_help_says_what_each_argument_means(script, capsys):
    """What stands behind it as a comment, in one line of the file."""
    with pytest.raises(SystemExit) as stopped:
        arguments(script, "--help")
    assert stopped.value.code == 0
    shown, source = letters(capsys.readouterr().out), (ROOT / f"{script.__name__}.py").read_text()
    for field in dataclasses.fields(script.Args):
        [comment] = re.findall(rf"^    {field.name}: .* = .*  # (.{{10,}})$", source, re.M)
        assert letters(comment) in shown, field.name


def test_optimizations_carry_their_numbers(script):
    """In the paper's order."""
    source = (ROOT / f"{script.__name__}.py").read_text()
    found = {name: int(n) for name, n in re.findall(r"^    (\w+): .* = .*  # \[(\d)\] ", source, re.M)}
    expected = {"norm_obs": 6, "activation": 8, **SEVEN, "max_kl_final": 4}
    assert found == {name: n for name, n in expected.items() if name not in missing(script.__name__)}
    assert found.keys() == {field.name for field in dataclasses.fields(script.Optimizations)}
    assert list(found.values()) == sorted(found.values())


TABLE = re.compile(r"^ {4}\[(\d)\] (.+?)  +(--\S+(?: \S+)?)  +(?:turns it off|replaces it)", re.M)


def test_flag_table_is_true(script):
    """Each line of the docstring's table: the flag exists and differs from the default, which is on: it is off."""
    table = TABLE.findall(script.__doc__)
    assert [int(n) for n, *_ in table] == (list(range(1, 10)) if script.__name__ in FULL else [6, 8])
    off = dict.fromkeys((1, 5, 7, 9), math.inf) | {2: "none", 3: "xavier", 4: False, 6: False, 8: "relu"}
    for n, what, flags in table:
        assert NAMES[int(n)].startswith(what)
        args, default = arguments(script, *flags.split()), script.Args()
        [(name, value)] = vars(args).items() - vars(default).items()
        assert value == off[int(n)] and (SEVEN | {"norm_obs": 6, "activation": 8})[name] == int(n)
    args = arguments(script, *" ".join(flags for *_, flags in table).split())
    script.check(args, script.make_env(args, contextlib.ExitStack()))  # all off at once is accepted


def test_examples_in_the_docstring_parse(script):
    examples = re.findall(rf"^ {{4}}python {script.__name__}\.py (.*?)(?: +#.*)?$", script.__doc__, re.M)
    assert len(examples) == (4 if script.__name__ in FULL else 3)
    assert len(re.findall(r"^ {4}python", script.__doc__, re.M)) == len(examples)  # each names this script
    for flags in examples:
        assert isinstance(arguments(script, *flags.split()), script.Args)


DEFAULTS = {
    "ppo_continuous": {"policy_lr": 3e-4, "value_lr": 2.5e-4},
    "ppo_m": {"policy_lr": 1.7e-4, "value_lr": 4e-4},
    "trpo_continuous": {"value_lr": 2e-4, "max_kl": 0.13},
    "trpo_plus": {"value_lr": 2e-4, "max_kl": 0.04, "max_kl_final": None},
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_defaults(name):
    """The paper's Hopper rates; all nine on in the full scripts. They are what an empty command line gives."""
    m = load(name)
    expected = {"env_id": "Hopper-v5", "total_timesteps": 1_000_000, "num_envs": 1, "num_steps": 2048, "gamma": 0.99}
    expected |= {"num_minibatches": 32, "update_epochs": 10, "gae_lambda": 0.95, "hidden_sizes": (64, 64)}
    expected |= {"norm_obs": True, "activation": "tanh", "norm_adv": True, "adam_eps": 1e-5, "heldout_every": 0}
    expected |= {"reset_each_iteration": True, "bootstrap_truncated": False, "clip_actions": False, "compile": False}
    if name in PPO:
        expected |= {"clip_coef": 0.2, "ent_coef": 0.0}
    else:
        expected |= {"fisher_fraction": 0.1, "cg_steps": 10, "cg_damping": 0.1, "max_backtracks": 10}
    if name in FULL:
        expected |= {"vf_clip_coef": 0.2, "reward_scaling": "returns", "init": "orthogonal", "anneal_lr": True}
        expected |= {"clip_reward": 10.0, "clip_obs": 10.0, "max_grad_norm": 0.5}
    expected |= DEFAULTS[name]
    args = dataclasses.asdict(m.Args())
    assert {field: args[field] for field in expected} == expected
    assert arguments(m) == m.Args()
