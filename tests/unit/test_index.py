"""The index of a store: derived, up to date, and never in the way."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from made_results import reseal, write_store
from outvote.results import index as indices
from outvote.results.index import NAME, IndexRow, list_runs
from outvote.results.long_table import settings_of
from outvote.results.run import read_result

ENTRY = ", ".join(IndexRow._fields)
TWO = {"rule": ["mean", "gas(median, num_groups=20)"], "attack": ["lie", "none"], "rounds": 6}


@pytest.fixture
def store(tmp_path):
    write_store(tmp_path, TWO, seeds=2)
    return tmp_path


@pytest.fixture
def reads(monkeypatch):
    """The names of the runs that were read from their folders."""
    names = []

    def read(folder):
        names.append(folder.path.name)
        return read_result(folder)

    monkeypatch.setattr(indices, "read_result", read)
    return names


def content(store, columns=ENTRY):
    with sqlite3.connect(store / NAME) as index:
        rows = index.execute(f"SELECT {columns} FROM runs ORDER BY path").fetchall()
    index.close()
    return rows


def quiet(text):
    pytest.fail(f"no message was expected, got {text!r}")


def change(path, **facts):
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


def test_an_entry_holds_the_numbers_of_the_run_folder(store):
    entries = list_runs(store, quiet)
    assert len(entries) == 8
    for entry in entries:
        result = read_result(indices.RunFolder(store / entry.path))
        assert (entry.suite, entry.name, entry.hash) == ("own", result.name, result.hash)
        assert (entry.rule, entry.attack) == (result.config["rule"], result.config["attack"])
        assert (entry.best, entry.final, entry.last_ten) == (
            result.best,
            result.final,
            result.last_ten,
        )
        assert entry.kept_byzantine == result.summary.kept_byzantine
        assert entry.byzantine_weight == result.summary.byzantine_weight
        assert entry.deviation == result.summary.deviation
        assert json.loads(entry.settings) == settings_of(result)
    assert [entry.name for entry in entries] == sorted(entry.name for entry in entries)


def test_every_column_has_a_type_and_every_setting_a_column(store):
    write_store(store, {**TWO, "data": {"beta": 0.1}, "federation": {"sampled": 5}}, seeds=1)
    entries = list_runs(store, quiet)
    with sqlite3.connect(store / NAME) as index:
        about = {name: kind for _, name, kind, *_ in index.execute("PRAGMA table_info(runs)")}
    index.close()
    assert {*about.values()} == {"TEXT", "INTEGER", "REAL"}
    kinds = {name: about[name] for name in ("seed", "best", "data.beta", "rounds", "data.name")}
    assert kinds == {
        "seed": "INTEGER",
        "best": "REAL",
        "data.beta": "REAL",
        "rounds": "INTEGER",
        "data.name": "TEXT",
    }
    assert {*IndexRow._fields} < {*about}
    columns = 'typeof("data.beta"), "data.beta", "data.balance", "rule.num_groups", "attack.z"'
    for entry, row in zip(sorted(entries), content(store, columns), strict=True):
        settings = json.loads(entry.settings)
        assert row == (
            "real",
            settings["data.beta"],
            1,
            settings.get("rule.num_groups"),
            settings.get("attack.z"),
        )
    assert {json.loads(entry.settings)["data.beta"] for entry in entries} == {0.1, 0.5}


def test_accuracy_by_a_setting_is_one_query(store):
    write_store(store, {**TWO, "data": {"beta": 0.1}}, seeds=1)
    entries = list_runs(store, quiet)
    with sqlite3.connect(store / NAME) as index:
        found = dict(index.execute('SELECT "data.beta", avg(best) FROM runs GROUP BY 1'))
    index.close()
    for beta in (0.1, 0.5):
        own = [each.best for each in entries if json.loads(each.settings)["data.beta"] == beta]
        assert found[beta] == pytest.approx(sum(own) / len(own))
    assert found.keys() == {0.1, 0.5}


def test_an_index_that_was_deleted_is_made_again_with_the_same_content(store):
    first = list_runs(store, quiet)
    before = content(store)
    (store / NAME).unlink()
    assert list_runs(store, quiet) == first
    assert content(store) == before
    assert list_runs(store, quiet, rebuild=True) == first
    assert content(store) == before


def test_only_folders_that_changed_are_read_again(store, reads):
    first = list_runs(store, quiet)
    assert len(reads) == 8
    reads.clear()
    assert list_runs(store, quiet) == first
    assert reads == []
    os.utime(store / first[3].path / "metrics.jsonl", ns=(1, 1))
    change(store / first[5].path / "status.json", outcome="interrupted", sums=None)
    found = list_runs(store, quiet)
    assert sorted(reads) == [first[3].name, first[5].name]
    assert (found[3].best, found[5].outcome) == (first[3].best, "interrupted")
    reads.clear()
    assert list_runs(store, quiet) == found
    assert reads == [first[5].name]  # Its process may have ended since.
    reads.clear()
    assert list_runs(store, quiet, rebuild=True) == found
    assert len(reads) == 8


def test_runs_that_are_gone_leave_the_index_and_new_ones_enter_it(store, reads):
    first = list_runs(store, quiet)
    shutil.move(store / first[0].path, store / "own" / "moved-0")
    reads.clear()
    found = list_runs(store, quiet)
    assert reads == ["moved-0"]
    assert sorted(entry.path for entry in found) == [row[0] for row in content(store)]
    assert first[0].path not in [entry.path for entry in found]


@pytest.mark.parametrize("step", [293, pytest.param(97, marks=pytest.mark.slow)])
def test_a_damaged_index_is_rebuilt_whichever_byte_is_wrong(store, step):
    first = list_runs(store, quiet)
    whole = (store / NAME).read_bytes()
    for at in range(0, len(whole), step):
        wrong = bytearray(whole)
        wrong[at] ^= 0x55
        (store / NAME).write_bytes(wrong)
        assert list_runs(store, quiet) == first, at
    for size in (0, 10, 100, 5000):
        (store / NAME).write_bytes(whole[:size])
        assert list_runs(store, quiet) == first
    (store / NAME).write_text("no database")
    assert list_runs(store, quiet) == first
    assert content(store) == [tuple(entry) for entry in sorted(first)]


def test_an_index_of_another_version_is_rebuilt(store, monkeypatch, reads):
    first = list_runs(store, quiet)
    monkeypatch.setattr(indices, "VERSION", indices.VERSION + 1)
    reads.clear()
    assert list_runs(store, quiet) == first
    assert len(reads) == 8
    reads.clear()
    assert list_runs(store, quiet) == first
    assert reads == []


def test_runs_are_listed_though_the_index_cannot_be_written(store, monkeypatch):
    first = list_runs(store, quiet)
    (store / NAME).unlink()
    (store / NAME).mkdir()
    words = []
    assert list_runs(store, words.append) == first
    assert "could not be written" in words[-1]
    assert "the list is complete without it" in words[-1]


def test_runs_are_listed_though_another_process_holds_the_index(store, monkeypatch):
    first = list_runs(store, quiet)
    monkeypatch.setattr(indices, "PATIENCE", 0.05)
    other = sqlite3.connect(store / NAME, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    words = []
    assert list_runs(store, words.append) == first
    assert ["database is locked" in word for word in words] == [True, True]
    other.close()
    assert list_runs(store, quiet) == first


def test_a_damaged_run_is_named_and_left_out(store):
    first = list_runs(store, quiet)
    (store / first[2].path / "status.json").write_text("{")
    words = []
    assert list_runs(store, words.append) == [*first[:2], *first[3:]]
    assert "is left out" in words[0]


def test_a_run_that_is_over_but_lacks_rounds_is_named_and_left_out(store):
    first = list_runs(store, quiet)
    path = store / first[2].path / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"{half\n", *lines[3:]]))
    words = []
    assert list_runs(store, words.append) == [*first[:2], *first[3:]]
    assert "6 rounds are done, and 2 can be read; the command that made" in words[0]


def test_what_sqlite_cannot_hold_is_listed_all_the_same(store):
    first = list_runs(store, quiet)
    large = shutil.move(store / first[0].path, store / "own" / f"a-lie-seed{2**70}-0123456789ab")
    path = large / "config.toml"
    path.write_text(path.read_text().replace("seed = 0", f"seed = {2**70}"))
    reseal(large)
    words = []
    found = list_runs(store, words.append, rebuild=True)
    assert 2**70 in [entry.seed for entry in found]
    shutil.move(store / first[1].path, os.fsencode(store / "own" / "odd") + b"\xff-0")
    assert len(list_runs(store, words.append, rebuild=True)) == 8
    assert ["could not be written" in word for word in words] == [True, True]


MANY = """
import sys
from pathlib import Path
from outvote.results.index import list_runs
words = []
for turn in range(15):
    found = list_runs(Path(sys.argv[1]), words.append, rebuild=turn % 3 == 0)
    assert len(found) == 8, found
assert words == [], words
"""


def test_several_processes_at_once_do_each_other_no_harm(store):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    started = [
        subprocess.Popen([sys.executable, "-c", MANY, str(store)], env=environment)
        for _ in range(4)
    ]
    assert [each.wait(timeout=120) for each in started] == [0] * 4
    assert [row[0] for row in content(store)] == [
        entry.path for entry in sorted(list_runs(store, quiet))
    ]
    assert not Path(f"{store / NAME}-journal").exists()
