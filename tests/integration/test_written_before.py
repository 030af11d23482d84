"""What was written before is read on: a store with its checkpoints, and an export."""

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
STORE, EXPORT = DATA / "store", DATA / "export.csv.gz"
EXPECTED = json.loads((STORE / "expected.json").read_text())
FINISHED, KILLED = "gas-median", "foolsgold"
# How many rounds each had still to train, of six.
ROUNDS_LEFT = {FINISHED: 0, KILLED: 3}

is_reused = pytest.mark.skipif(
    protocol() != EXPECTED["protocol"],
    reason="PROTOCOL was raised since: its runs are not reused",
)


@pytest.fixture(scope="module")
def after(tmp_path_factory):
    """A copy of the store that `outvote run` was called on, with the config of then."""
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


def num_lines(folder):
    """How many rounds were timed, trained again or not."""
    return len((folder / "timings.jsonl").read_text().splitlines())


@is_reused
def test_no_run_gets_another_folder(after):
    before = sorted((STORE / "runs").glob("*/*"))
    assert [path.name for path in sorted(after.glob("*/*"))] == [path.name for path in before]


@is_reused
def test_a_finished_run_is_not_touched(after):
    for path in only(STORE / "runs", FINISHED).iterdir():
        assert (only(after, FINISHED) / path.name).read_bytes() == path.read_bytes()


@is_reused
@pytest.mark.parametrize("name", [FINISHED, KILLED])
def test_only_what_is_left_is_trained(after, name):
    added = num_lines(only(after, name)) - num_lines(only(STORE / "runs", name))
    assert added == ROUNDS_LEFT[name]


@is_reused
def test_a_half_done_run_ends_as_if_nothing_had_stopped_it(after):
    # Another revision rounds otherwise.
    is_exact = fingerprint() == EXPECTED["fingerprint"] and revision() == EXPECTED["revision"]
    found = list(differences(EXPECTED["runs"], read_store(after), is_exact, tolerance("store")))
    assert not found, f"a run went on to another end:\n{in_words(found)}"


@pytest.mark.parametrize("path", [EXPORT, STORE / "runs"], ids=["export", "store"])
def test_tables_have_the_same_numbers(path):
    assert make_table(path) == EXPECTED["table"]
