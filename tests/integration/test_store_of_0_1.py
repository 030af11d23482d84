"""What version 0.1 wrote is still read: its stores, its checkpoints, its configs, its exports."""

import json
import shutil
from pathlib import Path

import pytest

from same_numbers import differences, fingerprint, in_words
from trajectories import (
    make_table,
    protocol,
    read_store,
    reproducible,
    revision,
    run_program,
    tolerance,
    write_store_data,
)

DATA = Path(__file__).parents[1] / "data"
STORE, EXPORT = DATA / "store-0.1", DATA / "export-0.1.csv.gz"
EXPECTED = json.loads((STORE / "expected.json").read_text())
FINISHED, INTERRUPTED, KILLED = "gas-median", "centered-clipping", "foolsgold"
# How many rounds each had still to train, of six.
ROUNDS_LEFT = {FINISHED: 0, INTERRUPTED: 4, KILLED: 3}

is_reused = pytest.mark.skipif(
    protocol() != EXPECTED["protocol"],
    reason="PROTOCOL was raised since 0.1: its runs are not reused",
)


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """A copy of the store as 0.1 left it."""
    folder = tmp_path_factory.mktemp("before") / "runs"
    shutil.copytree(STORE / "runs", folder)
    return folder


@pytest.fixture(scope="module")
def after(tmp_path_factory):
    """A copy of the store that `outvote run` was called on, with the config of 0.1."""
    folder = tmp_path_factory.mktemp("after")
    write_store_data(folder / "data")
    shutil.copytree(STORE / "runs", folder / "runs")
    with reproducible(folder / "data"):
        assert run_program(STORE / "tiny.toml", folder / "runs") == 0
    return folder / "runs"


def only(store, name):
    """The folder of one of the runs."""
    (found,) = store.glob(f"*/{name}*")
    return found


def content(folder):
    """All files, and when they were written."""
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(folder.iterdir())
    }


def num_lines(folder):
    """How many rounds were timed, trained again or not."""
    return len((folder / "timings.jsonl").read_text().splitlines())


@is_reused
def test_no_run_gets_another_folder(before, after):
    assert [path.name for path in sorted(after.glob("*/*"))] == [
        path.name for path in sorted(before.glob("*/*"))
    ]


@is_reused
def test_a_finished_run_is_not_touched(before, after):
    assert content(only(after, FINISHED)) == content(only(before, FINISHED))


@is_reused
@pytest.mark.parametrize("name", [FINISHED, INTERRUPTED, KILLED])
def test_only_what_is_left_is_trained(before, after, name):
    added = num_lines(only(after, name)) - num_lines(only(before, name))
    assert added == ROUNDS_LEFT[name]


@is_reused
def test_half_done_runs_end_as_if_nothing_had_stopped_them(after):
    # Later revisions round otherwise: 0.1 was revision 1.
    is_exact = fingerprint() == EXPECTED["fingerprint"] and revision() == 1
    found = list(differences(EXPECTED["runs"], read_store(after), is_exact, tolerance("store-0.1")))
    assert not found, f"a run of 0.1 went on to another end:\n{in_words(found)}"


def test_a_finished_run_is_read_as_0_1_wrote_it(before):
    expected = [run for run in EXPECTED["runs"] if run["folder"].startswith(FINISHED)]
    found = [run for run in read_store(before) if run["folder"].startswith(FINISHED)]
    assert found == expected


@pytest.mark.parametrize("path", [EXPORT, STORE / "runs"], ids=["export", "store"])
def test_tables_of_0_1_have_the_same_numbers(path):
    assert make_table(path) == EXPECTED["table"]
