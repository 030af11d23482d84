"""What people see on a terminal: tables, and 40 columns."""

import re

import pytest

from command_line import run
from made_results import write_store
from outvote.cli import output


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("store") / "runs"
    write_store(root, "demo", seeds=1, rounds=3)
    return root


@pytest.fixture
def terminal(monkeypatch):
    """Make the output one of a terminal of 100 columns, or as many as are asked for."""

    def resize(width):
        monkeypatch.setenv("COLUMNS", str(width))

    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setattr("outvote.cli.table.is_terminal", lambda: True)
    resize(100)
    return resize


def test_a_table_is_markdown_in_a_pipe_and_drawn_on_a_terminal(capsys, store, monkeypatch):
    piped = run(capsys, "table", store).out
    assert "| rule |" in piped
    monkeypatch.setattr("outvote.cli.table.is_terminal", lambda: True)
    drawn = run(capsys, "table", store).out
    assert "| rule |" not in drawn
    assert "**" not in drawn
    assert "─" in drawn
    assert "Bold:" not in drawn
    for rule in ("mean", "gas(krum)", "gas(dnc)"):
        assert f"\n  {rule} " in drawn
    assert run(capsys, "table", store, "--format", "md").out == piped
    assert run(capsys, "table", store, "--format", "text").out == drawn


def test_a_table_on_a_terminal_has_the_numbers_of_markdown(capsys, store):
    piped = run(capsys, "table", store).out
    drawn = run(capsys, "table", store, "--format", "text").out
    numbers = re.findall(r"(?<=[ *])\d+\.\d+(?=[ *])", piped)
    assert len(numbers) > 15
    assert set(numbers) <= set(re.findall(r"\d+\.\d+", drawn))


def test_a_narrow_table_is_a_list_of_fields(capsys, terminal):
    terminal(30)
    columns = ["rule", *(output.NumberColumn(f"attack {k}") for k in range(5))]
    output.print_table(columns, [["mean", "1", "2", "3", "", "5"]])
    lines = capsys.readouterr().out.split("\n")
    assert lines[:4] == ["", "rule: mean", "  attack 0: 1", "  attack 1: 2"]
    assert "  attack 3:" not in lines  # An empty field.
