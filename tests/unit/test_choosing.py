"""Selecting parts of a suite, and adding to it."""

import re

import pytest

from outvote.experiment.choosing import Choice, choose
from outvote.experiment.plan import plan_suite
from outvote.suites.suite import read_suite


def test_a_name_is_a_filter_whatever_its_parameters():
    suite = choose(
        read_suite("table1-cifar10"), Choice(rules=["rbtm", "gas(dnc)"], attacks=["ipm", "lie"])
    )
    assert [(part.name, part.rows, part.values) for part in suite.parts] == [
        ("main", ["trimmed-mean", "gas(dnc)"], ["ipm", "lie"]),
        ("lie-p100", ["gas(dnc)"], ["lie"]),
        ("other-side", ["trimmed-mean", "gas(dnc)"], ["lie"]),
        ("lie-p100-other-side", ["gas(dnc)"], ["lie"]),
        ("all-clients", ["trimmed-mean", "gas(dnc)"], ["ipm", "lie"]),
    ]


def test_a_text_with_parameters_is_a_filter_to_the_letter():
    suite = choose(read_suite("table1-cifar10"), Choice(rules=["gas(median, num_groups=100)"]))
    assert [(part.name, part.rows) for part in suite.parts] == [
        ("lie-p100", ["gas(median)"]),
        ("lie-p100-other-side", ["gas(median)"]),
    ]


def test_what_a_suite_has_not_is_added_to_the_parts_that_can_show_it(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    mine = f"{tmp_path / 'mine.py'}:Mine"
    suite = choose(
        read_suite("smoke"),
        Choice(rules=[mine, "gas(median)", "gas(rfa)"], attacks=["none"], parts=["table1"]),
    )
    assert [part.values for part in suite.parts] == [["none"]]
    assert suite.parts[0].rows == [mine, "gas(median)", "gas(rfa)"]
    groups = choose(read_suite("smoke"), Choice(rules=["krum"]))
    assert "table3" not in {part.name for part in groups.parts}
    assert len(groups.parts) == len(read_suite("smoke").parts) - 1


MINE = """
import outvote
class Mine(outvote.VectorRule):
    def max_byzantine(self, num_clients):
        return num_clients - 1
    def aggregate(self, rows, num_byzantine):
        return rows.mean(dim=0)
"""


@pytest.mark.parametrize(
    ("name", "choice", "message"),
    [
        ("table1-cifar10", {"parts": ["mian"]}, "no part 'mian'; did you mean 'main'?"),
        ("table1-cifar10", {"rules": ["mediann"]}, "did you mean 'median'?"),
        ("table1-cifar10", {"attacks": ["lye"]}, "did you mean 'lie'?"),
        ("table3-num-groups", {"rules": ["krum"]}, "take one of gas(bulyan), gas(multi-krum)"),
        ("table5-heterogeneity", {"attacks": ["ipm"]}, "its columns are data.beta"),
        ("smoke", {"settings": ["rounds"]}, "a setting is written key=value"),
    ],
)
def test_a_choice_that_nothing_matches_is_an_error_of_one_line(name, choice, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        choose(read_suite(name), Choice(**choice))
    assert "\n" not in str(error.value)


def test_settings_and_seeds_hold_for_all_parts():
    suite = choose(read_suite("smoke"), Choice(settings=["rounds=2"], num_seeds=3))
    plan = plan_suite(suite)
    assert {spec.rounds for spec in plan.specs} == {2}
    assert {spec.seed for spec in plan.specs} == {0, 1, 2}
