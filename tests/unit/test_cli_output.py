"""What is printed can be read by programs, and does not command the terminal."""

import json
import math

import pytest

from outvote.cli.output import NumberColumn, number, one_line, print_json, print_table
from outvote.markup import clean


def test_numbers_that_are_not_finite_become_null(capsys):
    print_json({"a": [1.5, math.inf, -math.inf, math.nan], "b": {"c": (math.nan,)}, 5: True})
    text = capsys.readouterr().out
    assert json.loads(text) == {"a": [1.5, None, None, None], "b": {"c": [None]}, "5": True}
    assert "NaN" not in text
    assert "Infinity" not in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mb", r"a\x1b[31mb"),
        ("a\rb\x07", r"a\rb\x07"),
        ("ü × 5", "ü × 5"),
        ("\udcff", r"\udcff"),
    ],
)
def test_control_characters_are_shown_instead_of_obeyed(text, shown):
    assert clean(text) == shown


def test_a_message_of_many_lines_becomes_one():
    assert one_line("one\n  two\r\n\nthree") == "one two three"


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "–"), (math.inf, "–"), (math.nan, "–"), (0.0, "0"), (1e-9, "1e-09")]
)
def test_a_number_that_does_not_exist_is_a_dash(value, shown):
    assert number(value) == shown


def test_a_table_prints_markup_as_text_and_cuts_nothing_off(capsys):
    long = "x" * 400
    print_table(["what", NumberColumn("many")], [["[red]client[/red]", "1"], [long, "2"]])
    text = capsys.readouterr().out
    assert "[red]client[/red]" in text
    assert text.count("x") == 400
    assert not any(line.endswith(" ") for line in text.splitlines())
