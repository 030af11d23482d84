"""What `outvote list` and `outvote show` read from the rules themselves."""

from dataclasses import asdict, dataclass

import pytest

from outvote.cli.describe import describe
from outvote.rules.bulyan import Bulyan
from outvote.rules.centered_clipping import CenteredClipping
from outvote.rules.gas import GAS
from outvote.rules.rfa import RFA
from outvote.rules.rule import VectorRule
from outvote.rules.rule_spec import RULES


@pytest.mark.parametrize("name", RULES)
def test_every_rule_has_everything_that_show_prints(name):
    about = describe(RULES[name])
    assert about.name == name
    expected = {key: value for key, value in asdict(about).items() if isinstance(value, str)}
    assert [key for key, value in expected.items() if not value and key != "notes"] == []
    assert [parameter.name for parameter in about.parameters if not parameter.doc] == []


def test_the_parts_of_a_docstring_are_separated():
    about = describe(Bulyan)
    assert about.tolerates == "n >= 4f + 3"
    assert about.differs.startswith("nothing; selection=")
    assert about.reference == "Guerraoui et al., ICML 2018"
    assert about.formula.startswith(r"|S| = \theta = n - 2f")
    assert "$" not in about.formula
    assert about.example.startswith(">>> Bulyan()(")
    assert about.example.endswith("array([1.])")


def test_a_sentence_after_a_label_is_a_note():
    about = describe(CenteredClipping)
    assert about.tolerates == "n >= 2f + 1 (f is not used)"
    assert about.tolerates_in_short == "n >= 2f + 1"
    assert about.notes.startswith("Has state: ")


def test_a_parameter_is_shown_with_its_default_and_its_docstring():
    smoothing = next(p for p in describe(RFA).parameters if p.name == "smoothing")
    assert smoothing.text == "smoothing=1e-06"
    assert smoothing.doc == "Distances below this count as this."


def test_the_rule_inside_a_wrapper_is_no_parameter():
    about = describe(GAS)
    assert about.is_wrapper
    assert [parameter.name for parameter in about.parameters] == ["num_groups", "split"]


@dataclass(frozen=True)
class Undocumented(VectorRule):
    power: int = 2

    def max_byzantine(self, num_clients):
        return num_clients

    def aggregate(self, rows, num_byzantine):
        return rows[0]


def test_a_rule_without_a_docstring_is_described_by_its_class():
    about = describe(Undocumented)
    assert (about.name, about.summary, about.example) == ("Undocumented", "", "")
    assert about.needs == VectorRule.traits.needs
    assert [parameter.text for parameter in about.parameters] == ["power=2"]
