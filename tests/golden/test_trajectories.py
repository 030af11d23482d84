"""Short runs come out as they were recorded, to the last bit: trajectories.toml, trajectories.json.

The same settings must give the same numbers for as long as `PROTOCOL` is the same, because runs
that are finished are found again by their hash and not trained again. Where the processor or torch
are not those of the recording, whole numbers must be the same, and floats within a tolerance.
"""

import json
import os
from copy import deepcopy

import pytest

import record_trajectories
from same_numbers import differences, fingerprint, folders, in_words
from trajectories import CONFIGS, FILE, protocol, revision, tolerance, train, write_data

RECORDED = json.loads(FILE.read_text())
RECORD = 'python tools/record_trajectories.py --reason "..."'
CHANGED = (
    "a trajectory changed while PROTOCOL stayed {protocol}. If that was not intended, it is a "
    "fault. If it was: raise PROTOCOL (finished runs will not be reused), or REVISION if it is "
    "rounding alone, and record again with "
    f"{RECORD}."
)
RAISED = (
    "PROTOCOL is {protocol}, and the trajectories were recorded with "
    f"{RECORDED['protocol']}: record again with {RECORD}."
)
RENAMED = (
    "the numbers are the same, but a run has another folder: finished runs of these settings will "
    "not be found again. That is a fault, unless PROTOCOL (now {protocol}) was raised or "
    f"trajectories.toml was changed; then record again with {RECORD}."
)
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels have bits of their own"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


def test_the_protocol_is_the_recorded_one():
    assert protocol() == RECORDED["protocol"], RAISED.format(protocol=protocol())
    assert revision() == RECORDED["revision"], f"REVISION was raised: record again with {RECORD}."
    assert RECORDED["history"][-1]["protocol"] == protocol()
    assert RECORDED["history"][-1]["revision"] == revision()
    assert all(entry["reason"] for entry in RECORDED["history"])


def test_every_run_is_recorded_and_no_other():
    assert list(RECORDED["runs"]) == list(CONFIGS["run"]), f"record again with {RECORD}."


def test_bits_are_compared_here():
    if fingerprint() != RECORDED["fingerprint"]:
        pytest.skip(f"recorded on {RECORDED['fingerprint']}: here floats have a tolerance")


@pytest.mark.parametrize("name", CONFIGS["run"])
def test_a_run_comes_out_as_recorded(name, tmp_path, data):
    recorded = RECORDED["runs"].get(name, [])
    found = train(name, tmp_path, data)
    is_exact = fingerprint() == RECORDED["fingerprint"]
    differing = list(differences(recorded, found, is_exact, tolerance(name)))
    why = CHANGED if protocol() == RECORDED["protocol"] else RAISED
    assert not differing, f"{why.format(protocol=protocol())}\n{in_words(differing)}"
    assert folders(found) == folders(recorded), RENAMED.format(protocol=protocol())


class TestRecorder:
    """What tools/record_trajectories.py writes, and what it refuses to; nothing is trained here."""

    @pytest.fixture
    def record(self, tmp_path, monkeypatch):
        """Record into a copy, as if the runs had come out with the numbers given."""
        file = tmp_path / "trajectories.json"
        file.write_text(FILE.read_text())
        monkeypatch.setattr(record_trajectories, "FILE", file)
        monkeypatch.setattr(record_trajectories, "fingerprint", lambda: RECORDED["fingerprint"])

        def call(runs, *words):
            monkeypatch.setattr(record_trajectories, "train_all", lambda: runs)
            code = record_trajectories.main([*words])
            return code, json.loads(file.read_text())

        return call

    def test_the_file_is_what_it_wrote(self):
        assert record_trajectories.to_text(RECORDED) == FILE.read_text()

    def test_without_a_change_there_is_nothing_to_write(self, record):
        assert record(RECORDED["runs"]) == (0, RECORDED)

    def test_other_numbers_of_the_same_run_are_refused_whatever_the_reason(self, record, capsys):
        runs = deepcopy(RECORDED["runs"])
        runs["stacked"][1]["rounds"][0]["loss"] += 1e-15
        runs["stacked"][0]["folder"] += "-and-others"
        assert record(runs, "--reason", "none") == (1, RECORDED)
        assert "stacked changed" in capsys.readouterr().out

    def test_rounding_is_recorded_where_the_revision_was_raised(self, record, monkeypatch):
        monkeypatch.setattr(record_trajectories, "revision", lambda: RECORDED["revision"] + 1)
        runs = deepcopy(RECORDED["runs"])
        runs["stacked"][1]["rounds"][0]["loss"] *= 1 + 1e-9
        assert record(runs, "--reason", "rounding")[1]["runs"] == runs
        runs["stacked"][1]["rounds"][0]["loss"] *= 1.01
        assert record(runs, "--reason", "more than rounding")[0] == 1

    def test_new_runs_are_recorded_with_a_reason_only(self, record):
        runs = deepcopy(RECORDED["runs"])
        runs["more"] = runs.pop("rfa")
        runs["dnc"][0]["folder"] += "-other-settings"
        runs["dnc"][0]["rounds"][0]["kept"] = []
        assert record(runs) == (1, RECORDED)
        code, content = record(runs, "--reason", "one more")
        assert (code, content["runs"]) == (0, runs)
        entry = {"protocol": protocol(), "revision": revision(), "reason": "one more"}
        assert content["history"] == [*RECORDED["history"], entry]
