"""The long checks in tools/ run: in miniature here, so that none rots unseen."""

import json
import os
import random
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

import fuzz_readers
from damaged_copies import damaged
from fuzz_readers import READERS, Fuzz, Reader, TooLong, fault, place
from mutate import PACKAGES, bugs, draw
from mutate_plugin import recorded
from outvote.results.disk import StoreError, read_json
from soak_store import Soak

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools"
OPTIONS = Namespace(seed=0, seconds=5.0, megabytes=2000)


@pytest.mark.slow  # test_damaged_runs.py and test_kill.py disturb stores one by one.
def test_the_soak_disturbs_resumes_and_compares(tmp_path):
    target = tmp_path / "soak.json"
    words = ["--kills", "1", "--rules", "mean", "--kinds", "limit on files", "-o", str(target)]
    # As a program: it forks, which a process with threads must not.
    command = [sys.executable, str(TOOLS / "soak_store.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(target.read_text())
    assert result["kinds"]["limit on files"]["disturbances"] >= 1
    assert result["findings"] == []


def test_the_soak_names_what_differs(tmp_path):
    whole = Namespace(metrics={"a": b"1", "b": b"2"}, table={"cells": []})
    for name, text in {"a": "1", "c": "3"}.items():
        (tmp_path / "suite" / name).mkdir(parents=True)
        (tmp_path / "suite" / name / "metrics.jsonl").write_text(text)
    found = {"code": 1, "text": "no idea", "verify": "1 run is damaged", "table": {}}
    notes = Soak._differences(whole, tmp_path, found)
    assert [note.partition(":")[0] for note in notes] == [
        *("exit code 1", "runs lost", "verify", "another table")
    ]
    (tmp_path / "suite" / "b").mkdir()
    (tmp_path / "suite" / "b" / "metrics.jsonl").write_text("4")
    sound = {"code": 0, "text": "", "verify": 0, "table": whole.table}
    notes = Soak._differences(whole, tmp_path, sound)
    assert notes == ["runs too many: 3", "other metrics: b"]


@pytest.mark.parametrize("name", READERS)
def test_every_reader_reads_its_sound_files_and_some_damaged_ones(name, tmp_path, monkeypatch):
    monkeypatch.setenv("OUTVOTE_DATA", str(tmp_path / "cache"))
    fuzz = Fuzz(name, tmp_path / "files", OPTIONS)
    found = fuzz.chunk(0, 5)
    assert found["findings"] == []
    assert found["read"] + found["refused"] == 5
    if name != "index":  # It has the times of files.
        assert fuzz.damaged(3) == Fuzz(name, tmp_path / "again", OPTIONS).damaged(3)


def test_the_fuzz_counts_what_was_read_and_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OUTVOTE_DATA", "")
    target = tmp_path / "fuzz.json"
    assert fuzz_readers.main(f"--inputs 40 --readers idx settings -o {target}".split()) == 0
    result = json.loads(target.read_text())
    assert sum(each["inputs"] for each in result["readers"].values()) == 40
    assert all(
        each["read"] + each["refused"] == each["inputs"] for each in result["readers"].values()
    )
    assert "40 inputs, 0 kinds of findings" in capsys.readouterr().out


def broken(does):
    """A reader of one file that fails in some way."""

    def make(folder):
        (folder / "some.json").write_text('{"a": 1}')
        return [folder / "some.json"]

    def read(_folder, path):
        if path.read_text(errors="replace") != '{"a": 1}':
            does()

    return Reader(make, read)


def crash():
    raise KeyError("a")


def hang():
    while True:
        pass


def fill_memory():
    bytes(10**12)


def end():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("does", "what"),
    [
        (crash, "KeyError"),
        (hang, "TooLong"),
        (fill_memory, "MemoryError"),
        (end, "process ended (-9)"),
    ],
)
def test_the_fuzz_finds_what_it_is_looking_for(does, what, tmp_path, monkeypatch):
    monkeypatch.setitem(READERS, "broken", broken(does))
    options = Namespace(seed=0, seconds=0.2, megabytes=2000)
    found = Fuzz("broken", tmp_path, options).chunk(0, 1)
    assert [each["what"] for each in found["findings"]] == [what]


def test_findings_of_one_place_are_counted_together(tmp_path, monkeypatch):
    target = tmp_path / "fuzz.json"
    monkeypatch.setitem(READERS, "broken", broken(crash))
    words = f"--inputs 3 --minutes 1 --readers broken -o {target}"
    assert fuzz_readers.main(words.split()) == 1
    (finding,) = json.loads(target.read_text())["findings"].values()
    assert finding["count"] == 3


def test_a_clear_error_is_one_line_of_the_library(tmp_path):
    path = tmp_path / "some.json"
    path.write_text("{")
    with pytest.raises(StoreError) as caught:
        read_json(path, dict)
    assert fault(caught.value, (StoreError,)) == ""
    assert place(caught.value) == "results/disk.py:read_json"
    assert fault(caught.value, (ValueError,)) == "DamagedFileError"
    caught.value.args = ("two\nlines",)
    assert fault(caught.value, (StoreError,)) == "DamagedFileError of several lines"
    with pytest.raises(TooLong) as late:
        fuzz_readers._raise_too_long()
    assert fault(late.value, (StoreError,)) == "TooLong"


def test_most_copies_are_damaged():
    content = b'{"a": [1, 2.5, "x"], "b": {"c": null}}'
    copies = {damaged(content, random.Random(number)) for number in range(200)}
    assert len(copies) > 150


SOUND = """
@cached(size=3)
def some(rows: Array[2], scale: float = 0.5):
    'Not 1.'
    if not len(rows) <= 1 and scale is not None:
        rows.sort()
    return min(rows) - 2
"""
BUGS = """
def some(rows: Array[2], scale: float = 1.0):
    if (not (not len(rows) <= 1 and scale is not None)):
    if not len(rows) <= 1 or scale is not None:
    if (len(rows) <= 1) and scale is not None:
    if not len(rows) < 1 and scale is not None:
    if not len(rows) <= 2 and scale is not None:
    if not len(rows) <= 1 and scale is None:
        pass
    return min(rows) + 2
    return max(rows) - 2
    return min(rows) - 3
"""


def test_bugs_are_put_where_the_program_changes_and_nowhere_else(tmp_path):
    path = tmp_path / "some.py"
    path.write_text(SOUND)
    lines = []
    for bug in bugs(path, "some.py"):
        changed = SOUND[: bug.begin] + bug.new + SOUND[bug.end :]
        lines += [new for new in changed.splitlines() if new not in SOUND.splitlines()]
        assert bug.function == "some.py:2"
    assert lines == BUGS.splitlines()[1:]


def test_bugs_are_drawn_by_seed_and_as_many_in_each_package():
    drawn = draw(ROOT, 0, 15)
    assert drawn == draw(ROOT, 0, 15) != draw(ROOT, 1, 15)
    packages = [bug.file.split("/")[2] for bug in drawn]
    assert all(packages.count(name) == 3 for name in PACKAGES)
    assert len({(bug.file, bug.begin, bug.new) for bug in drawn}) == 15


def test_what_a_killed_run_recorded_is_kept_but_for_its_last_line(tmp_path):
    row = {"test": "a.py::test_a", "seconds": 1.0, "fails": False, "functions": ["a.py:3"]}
    (tmp_path / "1.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(row)[:20]}")
    assert recorded(tmp_path) == {"a.py::test_a": row}
