"""What people see on a terminal: tables, and 40 columns."""

import pytest

from command_line import run
from made_results import write_store
from outvote.cli import output

WIDTH = 40


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


@pytest.mark.parametrize(
    "words",
    [
        ["list", "runs", "--store", "{store}"],
        ["show", "gas(krum)"],
        ["plan", "--clients", 50, "--byzantine", 10, "--sample", 5, "--rule", "bulyan"],
        ["table", "{store}"],
        ["audit", "{store}"],
        ["compare", "{store}", "--a", "rule=krum", "--b", "rule=gas(krum)"],
    ],
    ids=lambda words: " ".join(map(str, words[:2])),
)
def test_on_40_columns_no_line_is_too_long_and_no_short_word_is_broken(
    capsys, store, terminal, words
):
    words = [str(word).format(store=store) for word in words]
    terminal(200)
    wide = set(run(capsys, *words).out.split())
    terminal(WIDTH)
    done = run(capsys, *words)
    assert done.code == 0
    # A long path or formula, and a command to copy, may be longer; a terminal breaks those.
    long = [
        line
        for line in done.out.splitlines()
        if len(line) > WIDTH and len(line.split()) > 2 and not line.startswith("    outvote")
    ]
    assert long == []
    short = {word for word in wide if word.isalpha() and len(word) < output.NARROWEST_COLUMN - 1}
    assert short - set(done.out.replace(":", "").split()) == set()
