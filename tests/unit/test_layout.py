"""Where runs stand in tables: beside the paper's number only if they have the paper's settings."""

from dataclasses import replace

import pytest

from made_results import made_results
from outvote.attacks.attack_spec import make_attack
from outvote.report.layout import grids_of
from outvote.report.rendered_table import render
from outvote.report.table_formats import markdown
from outvote.results.labels import DEFAULTS, outline
from outvote.rules.rule_spec import make_rule
from outvote.suites.suite import read_suite, suite_names


def table1(rule, attack):
    """Runs of one rule and one attack, or of all."""
    return [
        each
        for each in made_results("table1-cifar10", seeds=1, rounds=2)
        if (rule in (None, each.rule)) and (attack in (None, each.attack))
    ]


def changed(result, **settings):
    return replace(result, config={**result.config, **settings}, name=f"{result.name}f")


def main_cells(results):
    grid = grids_of(results, "main")[0]
    return {
        (row, column): cell
        for row, cells in zip(grid.rows, grid.cells, strict=True)
        for column, cell in zip(grid.columns, cells, strict=True)
    }


@pytest.mark.parametrize("with_own", [False, True])
@pytest.mark.parametrize(
    ("rule", "own", "name"),
    [
        ("dnc(removal_factor=2.0)", "dnc", "dnc(removal_factor=2)"),
        ("dnc", "dnc", "dnc(removal_factor=1)"),
        ("multi-krum(num_selected=3)", "multi-krum", "multi-krum(num_selected=3)"),
        ("gas(rfa(start=median))", "gas(rfa)", "gas(rfa(start=median))"),
    ],
)
def test_a_rule_with_another_parameter_never_stands_beside_the_papers_number(
    rule, own, name, with_own
):
    first = table1(own, "lie")[0]
    cells = main_cells([changed(first, rule=rule), *([first] if with_own else [])])
    assert len(cells[name, "lie"].results) == 1
    assert cells[name, "lie"].printed is None
    assert len(cells[own, "lie"].results) == with_own
    assert cells[own, "lie"].printed is not None


@pytest.mark.parametrize("with_own", [False, True])
@pytest.mark.parametrize(
    ("attack", "own", "name"),
    [
        ("lie(z=0.3)", "lie", "lie(z=0.3)"),
        ("min-max", "min-max", "min-max(method=closed-form)"),
        ("ipm(max_epsilon=5.0)", "ipm", "ipm(max_epsilon=5)"),
    ],
)
def test_an_attack_with_another_parameter_is_a_column_of_its_own(attack, own, name, with_own):
    first = table1("median", own)[0]
    cells = main_cells([changed(first, attack=attack), *([first] if with_own else [])])
    assert len(cells["median", name].results) == 1
    assert cells["median", name].printed is None
    assert len(cells["median", own].results) == with_own


def test_an_added_attack_leaves_the_rules_their_rows():
    first = table1("trimmed-mean", "lie")[0]
    cells = main_cells([first, changed(first, attack="zero")])
    assert len(cells["trimmed-mean", "zero"].results) == 1
    assert {row for row, _ in cells} == set(read_suite("table1-cifar10").parts[0].rows)


def test_what_suites_say_and_texts_of_runs_leave_out_is_known():
    texts = {"rule": make_rule, "attack": make_attack}
    for suite in map(read_suite, suite_names()):
        for part in suite.parts:
            for key, make in texts.items():
                for text in part.texts(key):
                    check_defaults(outline(text), make)


def check_defaults(found, make):
    for each in found.inside:
        check_defaults(each, make)
    inside = [each.label for each in found.inside]
    plain = make(f"{found.name}({', '.join(inside)})" if inside else found.name)
    known = DEFAULTS.get(found.name, {})
    for key, value in known.items():
        assert value == getattr(plain, key)
    for key in found.parameters.keys() - known.keys():
        assert found.parameters[key] != getattr(plain, key), "the text of a run leaves it out"


OWN = """
title = "Mine"
[settings]
preset = "paper-cifar10"
[[part]]
name = "first"
title = "Two rules"
columns = "attack"
settings.rule = ["median", "krum"]
settings.attack = ["lie(z=1.5)", "bit-flip"]
[[part]]
name = "second"
columns = "attack"
settings.rule = "median"
settings.attack = "lie(z=1.5, sign=1)"
"""


@pytest.fixture
def own_suite(tmp_path, monkeypatch):
    """The file of a suite of one's own in the current folder, and its runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(OWN)
    return made_results("mine.toml", seeds=1, rounds=2)


def test_the_file_of_a_suite_gives_its_runs_their_parts_titles_and_order(own_suite):
    first, second = grids_of(own_suite, sources=["mine.toml"])
    assert (first.part, first.title, first.rows) == ("first", "Two rules", ("median", "krum"))
    assert (first.columns, second.part) == (("lie", "bit-flip"), "second")
    assert {grid.part for grid in grids_of(own_suite)} == {""}


def test_rules_and_attacks_of_one_name_are_never_averaged(tmp_path):
    file = tmp_path / "alike.toml"
    file.write_text(
        OWN.replace('["median", "krum"]', '["rfa(start=zero)", "rfa(num_iterations=8)", "krum"]')
        .replace('"bit-flip"]', '"lie(z=1.5, sign=1)"]')
        .replace('settings.attack = "lie(z=1.5, sign=1)"', 'settings.attack = "bit-flip"')
    )
    first, _ = grids_of(made_results(str(file), seeds=1, rounds=2), sources=[str(file)])
    rows = ("rfa(num_iterations=3, start=zero)", "rfa(num_iterations=8)", "krum")
    assert first.rows == rows
    assert first.columns == ("lie", "lie(sign=1)")
    assert {len(cell.results) for row in first.cells for cell in row} == {1}


def test_pages_name_the_file_of_a_suite_in_their_commands(own_suite):
    grids = grids_of(own_suite[:1], sources=["mine.toml"])
    text = markdown(render(grids))
    assert "; run them with `outvote bench mine.toml --part first`." in text
    assert text.splitlines()[-1].startswith("    outvote bench mine.toml --seeds 1 --part first")


def test_the_file_of_a_suite_without_runs_is_refused(own_suite, tmp_path):
    (tmp_path / "other.toml").write_text(OWN)
    with pytest.raises(ValueError, match=r"suite 'other' \(other.toml\); they are of: mine"):
        grids_of(own_suite, sources=["other.toml"])
