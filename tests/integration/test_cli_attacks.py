"""The verbs about attacks: list, show, stress."""

import re

import pytest

from command_line import run
from outvote.attacks.attack_spec import ATTACKS

MINE = '''
import dataclasses
import outvote
class Zeros(outvote.Attack):
    """Nothing at all."""
    def craft(self, context):
        return outvote.AttackOutput(rows=0 * context.mean.unsqueeze(1))
class First(outvote.VectorRule):
    """The first client is right."""
    def max_byzantine(self, num_clients):
        return num_clients - 1
    def aggregate(self, rows, num_byzantine):
        return rows[0]
class Broken(First):
    def aggregate(self, rows, num_byzantine):
        raise RuntimeError("out of order")
class Raises(outvote.Attack):
    def craft(self, context):
        raise RuntimeError("no idea")
class FailsFor3(First):
    def aggregate(self, rows, num_byzantine):
        if (rows[-1] == 3).all():
            raise RuntimeError("three")
        return rows[0]
class Threes(outvote.Attack):
    def craft(self, context):
        return outvote.AttackOutput(rows=0 * context.mean.unsqueeze(1) + 3)
@dataclasses.dataclass(frozen=True)
class Quiet(outvote.Attack):
    loud: int = 7
    def craft(self, context):
        return outvote.AttackOutput(rows=0 * context.mean.unsqueeze(1))
class Labels(Quiet):
    poisons_data = True
'''
SMALL = ["--clients", 12, "--byzantine", 2, "--dim", 60]


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def test_list_names_every_attack_with_its_parameters_and_other_names(capsys):
    result = run(capsys, "list", "attacks")
    assert result.code == 0
    for words in ("lie", "z=1.5", "sign-flip", "asks the rule", "changes the training data"):
        assert words in result.out
    found = run(capsys, "list", "attacks", "--json").json
    assert [each["name"] for each in found] == list(ATTACKS)
    flip = next(each for each in found if each["name"] == "bit-flip")
    assert (flip["aliases"], flip["is_colluding"]) == (["sign-flip"], False)
    assert "tolerates" not in flip


def test_list_names_every_model(capsys):
    from outvote.models.model_spec import MODELS

    assert "2,472,266 parameters" in run(capsys, "list", "models").out
    found = run(capsys, "list", "models", "--json").json
    assert [each["name"] for each in found] == list(MODELS)
    assert all(each["summary"] for each in found)


def test_show_prints_formula_kind_reference_and_parameters_of_an_attack(capsys):
    result = run(capsys, "show", "lie(z=2)")
    assert result.code == 0
    for words in (r"\mu - z \sigma", "all send one row", "Baruch", "z=2", "(default z=1.5)"):
        assert words in result.out
    found = run(capsys, "show", "gas-aware(draws=8)", "--json").json
    assert (found["attack"], found["values"]["draws"]) == ("gas-aware(draws=8)", 8)
    assert (found["needs_rule"], found["is_random"], found["poisons_data"]) == (True, True, False)


def test_show_knows_other_names_and_attacks_of_the_user(capsys, mine):
    assert "bit-flip" in run(capsys, "show", "sign-flip").out
    assert "Nothing at all" in run(capsys, "show", f"{mine}:Zeros").out
    assert "The first client is right" in run(capsys, "show", f"{mine}:First").out


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (["show", "gas-awear"], ["'gas-aware'", "nothing is called 'gas-awear'"]),
        (["show", "lie(x=2)"], ["'x'"]),
        (["show", "lie(z=nan)"], ["z", "finite"]),
        (["list", "atacks"], ["'attacks'"]),
        (["stress", "--attack", "lei"], ["'lei'", "'lie'"]),
        (["stress", "--rule", "kurm"], ["'kurm'", "'krum'"]),
        (["stress", "--clients", "5", "--byzantine", "5"], ["num_byzantine", "honest"]),
        (["stress", "--byzantine", "0"], ["--byzantine"]),
        (["stress", "--attack", "label-flip"], ["'label-flip' cannot be tried here", "labels"]),
        (["show", "nope.py:Foo"], ["rule or attack 'nope.py:Foo': there is no file nope.py"]),
        (["stress", "--heterogeneity", "nan"], ["heterogeneity"]),
    ],
)
def test_a_mistake_of_the_user_is_one_line_that_names_the_way_out(capsys, words, messages):
    run(capsys, *words).assert_fails(2, *messages)


def test_stress_prints_a_table_marks_the_worst_and_names_the_safest(capsys):
    words = ["stress", *SMALL, "--attack", "lie", "--attack", "zero", "--rule", "mean"]
    result = run(capsys, *words, "--rule", "gas(median, num_groups=6)")
    assert (result.code, result.err) == (0, "")
    assert "Synthetic gradients" in result.out
    assert re.search(r"mean +\*0\.\d{3} +0\.\d{3}", result.out)
    assert "Smallest worst case: " in result.out


def test_stress_as_json_holds_every_cell_and_the_recipe(capsys):
    words = ["stress", *SMALL, "--attack", "nan", "--attack", "ipm", "--rule", "krum", "--json"]
    found = run(capsys, *words, "--seed", 3).json
    assert found["gradients"]["synthetic"]
    assert (found["gradients"]["seed"], found["gradients"]["num_clients"]) == (3, 12)
    assert [(cell["attack"], cell["rule"]) for cell in found["cells"]] == [
        ("nan", "krum"),
        ("ipm", "krum"),
    ]
    assert found["safest"] == "krum"


@pytest.mark.parametrize(
    ("attacks", "rules", "message"),
    [
        (["Raises"], ["median"], "{mine}:Raises failed: RuntimeError: no idea"),
        (["Raises", "lie"], ["median", "mean"], "{mine}:Raises failed: RuntimeError: no idea"),
        (["Threes", "lie"], ["FailsFor3"], "{mine}:FailsFor3 failed with {mine}:Threes: "),
        (["ipm"], ["Broken"], "{mine}:Broken failed: RuntimeError: out of order"),
    ],
)
def test_stress_reports_who_failed(capsys, mine, attacks, rules, message):
    words = ["stress", *SMALL]
    for option, names in (("--attack", attacks), ("--rule", rules)):
        for name in names:
            words += [option, f"{mine}:{name}" if name[0].isupper() else name]
    result = run(capsys, *words)
    assert message.format(mine=mine) in result.out + result.err


def test_stress_reports_which_rules_were_lowered_to_their_limit(capsys):
    words = ["stress", "--clients", 12, "--byzantine", 5, "--dim", 60, "--attack", "zero"]
    words += ["--rule", "krum", "--rule", "bulyan", "--rule", "median"]
    assert "as many as they tolerate: krum 4, bulyan 2." in run(capsys, *words).out
    assert run(capsys, *words, "--json").json["lowered"] == {"krum": 4, "bulyan": 2}


def test_show_names_both_kinds_for_a_class_that_is_neither(capsys, mine):
    result = run(capsys, "show", f"{mine}:Nope")
    result.assert_fails(2, "has no class Nope that is a Rule or an Attack")


@pytest.mark.slow
def test_stress_with_everything_fails_nowhere(capsys):
    found = run(capsys, "stress", "--dim", 500, "--groups", 10, "--json").json
    assert [cell for cell in found["cells"] if cell["failure"]] == []
