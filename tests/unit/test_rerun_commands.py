"""The commands on a page: they hold everything in which its runs differ from their suite."""

import shlex
from dataclasses import replace

import pytest

from made_results import made_results
from outvote.experiment.choosing import Choice, choose
from outvote.experiment.plan import plan_parts
from outvote.report.layout import grids_of
from outvote.report.provenance import rerun_commands
from outvote.report.rendered_table import render
from outvote.report.table_formats import as_json, latex, markdown
from outvote.suites.suite import read_suite


def commands(results):
    return rerun_commands(grids_of(results))


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


def test_settings_that_differ_from_the_suite_are_named():
    results = with_settings(made_results("demo", seeds=1, rounds=1), rounds=3)
    assert commands(results) == ["outvote bench demo --seeds 1 --set rounds=3"]


def test_settings_that_differ_from_the_preset_are_named():
    results = made_results("table2-bucketing", seeds=1, rounds=1, parts=("main",))
    for each in results:
        each.config["training"]["momentum"] = 0.25
    assert commands(results) == [
        "outvote bench table2-bucketing --seeds 1 --part main --set training.momentum=0.25"
    ]


def test_one_command_runs_all_parts_with_the_same_changes():
    results = made_results("figure1-motivation", seeds=1, rounds=1)
    for each in results:
        each.config["training"]["momentum"] = 0.25
    wanted = "outvote bench figure1-motivation --seeds 1 --set training.momentum=0.25"
    assert commands(results) == [wanted]


def test_the_command_for_missing_cells_has_the_settings_of_those_that_are_there():
    results = made_results("table1-femnist", seeds=1, rounds=1)[:1]
    results[0].config["training"]["momentum"] = 0.25
    wanted = (
        "run them with `outvote bench table1-femnist --part main --set training.momentum=0.25`."
    )
    assert wanted in markdown(render(grids_of(results)))


def test_rules_that_the_suite_does_not_have_are_named():
    results = made_results("demo", seeds=1, rounds=1)
    own = with_settings([results[0]], rule="mine.py:MyRule")
    assert commands([*results[1:], *own])[-1] == (
        f"outvote bench demo --seeds 1 --rule mine.py:MyRule --attack {own[0].attack}"
    )


def test_a_few_rules_and_attacks_of_many_are_named():
    results = made_results("demo", seeds=1, rounds=1)
    some = [each for each in results if each.rule == "gas(krum)" and each.attack != "none"]
    assert commands(some) == [
        "outvote bench demo --seeds 1 --rule 'gas(krum)' --attack lie --attack bit-flip"
    ]
    assert commands([each for each in results if each.attack == "lie"]) == [
        "outvote bench demo --seeds 1 --attack lie"
    ]


ADDED = [
    ("attack", "lie", "lie(z=0.3)", "--attack 'lie(z=0.3)'"),
    ("attack", "min-max", "min-max", "--attack 'min-max(direction=std, method=closed-form, "),
    ("attack", "lie", "zero", "--attack zero"),
    ("rule", "dnc", "dnc(removal_factor=2.0)", "--rule 'dnc(removal_factor=2.0)'"),
    ("rule", "dnc", "dnc", "--rule 'dnc(removal_factor=1.0, "),
    ("rule", "gas(dnc)", "gas(dnc)", "--rule 'gas(dnc(removal_factor=1.0, "),
    ("rule", "gas(median)", "gas(median, num_groups=7)", "--rule 'gas(median, num_groups=7)'"),
]


@pytest.mark.parametrize(("axis", "own", "text", "words"), ADDED)
def test_the_same_name_with_other_parameters_is_named_and_gives_the_same_run(
    axis, own, text, words
):
    results = made_results("table1-cifar10", seeds=1, rounds=1)
    first = next(each for each in results if each.setting(axis) == own)
    added = replace(first, config={**first.config, axis: text}, name="added")
    (command,) = commands([added])
    assert words in command
    assert command.count(f"--{axis}") == 1
    assert (added.config["rule"], added.config["attack"]) in run_by(command)
    assert len(run_by(command)) == 1


def test_what_a_part_has_no_row_or_column_for_is_set():
    results = made_results("table5-heterogeneity", seeds=1, rounds=1)
    added = replace(results[0], config={**results[0].config, "attack": "zero"}, name="added")
    (command,) = commands([added])
    assert "--set 'attack=\"zero\"'" in command
    assert (added.config["rule"], "zero") in run_by(command)


def test_tables_and_records_have_the_same_commands_as_the_page():
    results = with_settings(made_results("demo", seeds=1, rounds=1), rounds=3)
    own = with_settings([results[0]], rule="mine.py:MyRule")
    grids = grids_of([*results[1:], *own])
    wanted = rerun_commands(grids)
    assert len(wanted) == 2
    rendered = render(grids)
    assert markdown(rendered).endswith("".join(f"\n    {each}\n" for each in wanted))
    assert as_json(rendered)["provenance"]["commands"] == wanted
    assert all(f"% {each}\n" in latex(rendered) for each in wanted)


def run_by(command):
    """Rules and attacks of the runs of a command."""
    options = {"--part": [], "--rule": [], "--attack": [], "--set": [], "--seeds": ["1"]}
    _, _, suite, *words = shlex.split(command)
    for option, value in zip(words[::2], words[1::2], strict=True):
        options[option].append(value)
    choice = Choice(
        settings=options["--set"],
        parts=options["--part"],
        rules=options["--rule"],
        attacks=options["--attack"],
        num_seeds=int(options["--seeds"][-1]),
    )
    plans = plan_parts(choose(read_suite(suite), choice))
    return {(spec.rule, spec.attack) for plan in plans for spec in plan.specs}
