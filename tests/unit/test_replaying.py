"""The commands that a page tells: what its runs have otherwise than their suite is in them."""

from made_results import made_results
from outvote.report.layout import grids_of
from outvote.report.replaying import replay_commands


def commands(results):
    return replay_commands(grids_of(results))


def with_settings(results, **settings):
    for each in results:
        each.config.update(settings)
    return results


def test_a_whole_suite_is_one_command():
    assert commands(made_results("smoke", seeds=2, rounds=1)) == ["outvote bench smoke --seeds 2"]


def test_one_part_of_several_is_named():
    results = made_results("smoke", seeds=1, rounds=1)
    grid = next(each for each in grids_of(results) if each.part == "table5")
    assert commands(grid.results) == ["outvote bench smoke --seeds 1 --part table5"]


def test_settings_that_the_suite_has_otherwise_are_told():
    results = with_settings(made_results("demo", seeds=1, rounds=1), rounds=3)
    assert commands(results) == ["outvote bench demo --seeds 1 --set rounds=3"]


def test_rules_that_the_suite_does_not_have_are_told():
    results = made_results("demo", seeds=1, rounds=1)
    own = with_settings([results[0]], rule="mine.py:MyRule")
    assert commands([*results[1:], *own])[-1] == (
        f"outvote bench demo --seeds 1 --rule mine.py:MyRule --attack {own[0].attack}"
    )


def test_a_few_rules_and_attacks_of_many_are_named():
    results = made_results("demo", seeds=1, rounds=1)
    some = [each for each in results if each.rule == "gas(bulyan)" and each.attack != "none"]
    assert commands(some) == [
        "outvote bench demo --seeds 1 --rule 'gas(bulyan)' --attack lie --attack bit-flip"
    ]
    assert commands([each for each in results if each.attack == "lie"]) == [
        "outvote bench demo --seeds 1 --attack lie"
    ]
