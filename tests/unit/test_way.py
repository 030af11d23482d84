"""The way of a call stays short: a reader has to hold it in one head."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import outvote as ov
from way import count, long_functions

# Call: functions, files, depth. Lower them with the code; they never rise.
BUDGETS = {
    "mean": (37, 9, 9),
    "multi-krum": (60, 11, 14),
    "gas(median)": (95, 15, 18),
    "simulate": (451, 65, 30),
}
# Functions of more than 40 lines, in which a way would hide. None may be added.
LONG = {"engine/record.py:record", "simulator.py:simulate"}


@pytest.fixture(scope="module")
def ways():
    """The counts of a fresh process, in which nothing but these calls has run."""
    program = Path(__file__).parents[2] / "tools" / "way.py"
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", BUDGETS)
def test_a_call_stays_within_its_budget(ways, name):
    found = ways[name]
    for budget, what in zip(BUDGETS[name], ("functions", "files", "depth"), strict=True):
        assert found[what] <= budget, what


@pytest.mark.parametrize("name", BUDGETS)
def test_no_function_in_the_files_of_a_way_has_more_than_40_lines(ways, name):
    assert set(ways[name]["long"]) - LONG == set()


def test_work_in_another_thread_counts():
    def work():
        ov.Mean()([[1.0, 2.0], [3.0, 4.0]])

    def elsewhere():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    here, there = count(work), count(elsewhere)
    assert here["functions"] > 10
    assert there["functions"] == here["functions"]


def test_a_long_function_is_found_and_its_docstring_does_not_count(tmp_path, monkeypatch):
    lines = ["    x = 0\n"] * 40
    documented = ["def fits():\n", '    """' + "Words.\n" * 9, '    """\n', *lines, "\n"]
    path = tmp_path / "made.py"
    path.write_text("".join([*documented, "def long():\n", *lines, "    return x\n"]))
    monkeypatch.setattr("way.SOURCE", tmp_path)
    assert long_functions(path) == ["made.py:long"]
