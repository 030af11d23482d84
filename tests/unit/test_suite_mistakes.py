"""Mistakes in a suite of one's own."""

import re

import pytest

from outvote.experiment.plan import plan_suite
from outvote.suites.suite import make_suite, read_suite

USUAL = {"rule": "mean", "attack": "lie"}


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"part": [{"settings": {"rule": "mean"}}]}, "part 'main' names no attack"),
        ({"part": {"name": "main"}}, "needs at least one [[part]]"),
        ({"part": [3]}, "[part] is a table, got 3"),
        ({"settings": 3, "part": [{}]}, "settings is a table, got 3; write [settings]."),
        ({"settings": USUAL, "part": [{"settings": 3}]}, "part.settings is a table, got 3"),
        ({"settings": USUAL | {"rule": ["mean", 3]}, "part": [{}]}, "a list of texts, got 3"),
        ({"settings": USUAL, "part": [{}, {}]}, "2 parts are named 'main'; rename all but one."),
        ({"settings": USUAL, "part": [{"kind": 3}]}, "part.kind: unknown value 3"),
        ({"settings": USUAL, "part": [{"kind": "tabel"}]}, "did you mean 'table'?"),
        ({"settings": USUAL, "part": [{"columns": "atack"}]}, "did you mean 'attack'?"),
        ({"settings": USUAL, "part": [{"paper": "table1"}]}, "part.paper is a table"),
        ({"settings": USUAL, "part": [{"paper": {"fil": "table1"}}]}, "did you mean 'file'?"),
        ({"settings": USUAL, "part": [{"paper": {"file": "table1"}}]}, "needs 'column'"),
        (
            {"settings": USUAL, "part": [{"paper": {"file": "tabel1", "column": "attack"}}]},
            "did you mean 'table1'?",
        ),
    ],
)
def test_a_mistake_in_the_file_of_a_suite_is_reported_in_one_line(table, expected):
    with pytest.raises(ValueError, match=re.escape(expected)) as error:
        make_suite("own", table)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_text_and_presets_that_are_a_list_are_reported(tmp_path):
    path = tmp_path / "own.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(ValueError, match="suite own: 'utf-8' codec"):
        read_suite(str(path))
    suite = make_suite("own", {"settings": USUAL | {"preset": ["paper"]}, "part": [{}]})
    with pytest.raises(ValueError, match="part main: unknown preset"):
        plan_suite(suite)
