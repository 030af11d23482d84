"""Run folders: whole or not at all, and damage is noticed."""

import errno
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from outvote.results import checkpoint as checkpoints
from outvote.results import disk
from outvote.results.audit_log import audit_arrays
from outvote.results.checkpoint import Checkpoint, load_newest, read_checkpoint, save
from outvote.results.disk import (
    BusyError,
    StoreError,
    append_line,
    cut_back,
    cut_unfinished,
    read_lines,
)
from outvote.results.folder import RunFolder, Writer, find_runs
from outvote.results.round import Round
from outvote.results.schema import VERSION, Environment, Status, Timing
from outvote.results.series import series_of, summary_of

ENVIRONMENT = Environment(
    outvote="0",
    python="3",
    torch="2",
    numpy="2",
    system="",
    device="cpu",
    precision="float32",
    num_threads=1,
    commit=None,
)


def a_round(number: int, **facts) -> Round:
    usual = {
        "round": number,
        "num_samples": 7,
        "loss": 0.1 * number,
        "accuracy": 0.5,
        "clients": (1, 4),
        "byzantine": (4,),
        "num_byzantine_assumed": 1,
        "num_byzantine_used": 1,
        "kept": (1,),
        "rejected": (),
        "scores": (0.1 + 0.2, float("inf")),
        "deviation": 1e-17,
        "honest_norm": 1.0,
        "byzantine_weight": 0.0,
    }
    return Round(**{**usual, **facts})


def a_checkpoint(number: int, config: str = "c") -> Checkpoint:
    arrays = {
        "weights": np.arange(100, dtype=np.float32) + number,
        "buffers": np.empty(0, dtype=np.float64),
        "attack.target": np.array([number]),
    }
    return Checkpoint(round=number, config=config, arrays=arrays, notes={"outcome": "running"})


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    save(tmp_path, a_checkpoint(3))
    found, faults = load_newest(tmp_path, "c")
    assert (found.round, found.config, found.notes, faults) == (3, "c", {"outcome": "running"}, [])
    for name, array in a_checkpoint(3).arrays.items():
        assert found.arrays[name].dtype == array.dtype
        assert np.array_equal(found.arrays[name], array)


def test_every_cut_and_every_flipped_bit_is_noticed(tmp_path):
    path = tmp_path / checkpoints.NEWEST
    whole = a_checkpoint(3).to_bytes()
    start = int.from_bytes(whole[:8], "little") + 8
    for size in (0, 1, 7, 8, 50, start, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(StoreError, match="is damaged"):
            read_checkpoint(path)
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1 << (at % 8)
        path.write_bytes(changed)
        try:
            found = read_checkpoint(path)
        except StoreError:
            continue
        # A flip that changes nothing that is read: the padding of the header.
        assert found.to_bytes() == whole


@pytest.mark.parametrize("how", ["cut", "flip", "gone"])
def test_a_damaged_newest_checkpoint_gives_way_to_the_previous_one(tmp_path, how):
    save(tmp_path, a_checkpoint(3))
    save(tmp_path, a_checkpoint(4))
    newest = tmp_path / checkpoints.NEWEST
    content = bytearray(newest.read_bytes())
    content[-5] ^= 4
    if how == "gone":
        newest.unlink()
    else:
        newest.write_bytes(content if how == "flip" else content[:200])
    found, faults = load_newest(tmp_path, "c")
    assert found.round == 3
    assert ["is damaged" in fault for fault in faults] == ([] if how == "gone" else [True])


def test_a_checkpoint_of_other_settings_is_not_used(tmp_path):
    save(tmp_path, a_checkpoint(3))
    found, faults = load_newest(tmp_path, "other")
    assert found is None
    assert "other settings" in faults[0]


def test_a_full_disk_is_reported_and_leaves_the_last_checkpoint_intact(tmp_path, monkeypatch):
    save(tmp_path, a_checkpoint(3))

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match=r"No space left .* last checkpoint is intact: free"):
            save(tmp_path, a_checkpoint(4))
    assert load_newest(tmp_path, "c")[0].round == 3
    assert [path.name for path in tmp_path.iterdir()] == [checkpoints.NEWEST]


def test_lines_are_strict_json_and_floats_come_back_to_the_last_bit(tmp_path):
    append_line(tmp_path / "metrics.jsonl", a_round(1, loss=float("nan")).line())
    text = (tmp_path / "metrics.jsonl").read_text()
    line = json.loads(text, parse_constant=lambda word: pytest.fail(f"not JSON: {word}"))
    of_clients = ("client_accuracy", "worst_decile", "client_accuracies")
    absent = ("test_loss", *of_clients, "diagnostics", "theory")
    assert list(line) == [name for name in Round.__slots__ if name not in absent]
    assert line["scores"] == [0.30000000000000004, None]
    assert read_lines(tmp_path / "metrics.jsonl", Round)[0].deviation == 1e-17


def test_a_half_written_last_line_does_not_count_and_is_cut_off(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for number in (1, 2, 3):
        append_line(path, a_round(number).line())
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    assert [line.round for line in read_lines(path, Round)] == [1, 2]
    assert not cut_back(path, 3, Round)
    assert cut_back(path, 2, Round)
    assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:2])


@pytest.mark.parametrize("tail", [b'{"round":5,', b"\xff", b""])
def test_only_an_unfinished_last_line_is_cut_off(tmp_path, tail):
    """What stands behind a damaged line is evidence: an audit log must not lose it."""
    path = tmp_path / "audit.jsonl"
    for number in (1, 2, 3, 4):
        append_line(path, a_round(number).line())
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = lines[0] + lines[1][:20] + b"\n\xff\n" + lines[2] + lines[3]
    path.write_bytes(damaged + tail)
    cut_unfinished(path)
    assert path.read_bytes() == damaged
    cut_unfinished(tmp_path / "none.jsonl")
    assert not (tmp_path / "none.jsonl").exists()


def test_a_damaged_line_of_timings_hides_no_other(tmp_path):
    timing = Timing(round=1, seconds=1.0, num_runs=1, images=1)
    for _ in range(3):
        append_line(tmp_path / "timings.jsonl", timing)
    first, *others = (tmp_path / "timings.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "timings.jsonl").write_bytes(first[:9] + b"\n" + b"".join(others))
    assert RunFolder(tmp_path).timings() == [timing, timing]


def test_a_run_goes_on_where_its_checkpoint_is(tmp_path):
    folder = RunFolder(tmp_path / "a" / "run")
    writer = Writer(folder, b"", "c")
    writer.begin(0, ENVIRONMENT)
    timing = Timing(round=1, seconds=0.1, num_runs=1, images=1)
    for number in (1, 2, 3):
        writer.add(a_round(number), timing)
        if number == 2:
            status = Status(outcome="running", round=2, num_rounds=9)
            notes = {"metrics": writer.metrics_sum}
            writer.save(replace(a_checkpoint(2), notes=notes), status)
    with pytest.raises(BusyError, match="another process works on"):
        Writer(folder, b"", "c")
    writer.close()
    writer = Writer(folder, b"", "c")
    found, faults = writer.resume()
    writer.begin(found.round, ENVIRONMENT)
    assert ([line.round for line in folder.rounds()], faults) == ([1, 2], [])
    writer.close()
    assert [run.path for run in find_runs(tmp_path)] == [folder.path]


@pytest.fixture
def calls(monkeypatch):
    """What reaches the disk, in order: (fsync, name), (rename, new name), (remove, name)."""
    found = []
    fsync, replace, unlink = os.fsync, Path.replace, Path.unlink

    def shown(path):
        return re.sub(r"^\.(.*)\.[0-9a-f]{8}\.tmp$", r"temporary \1", Path(path).name)

    def recorded_fsync(handle):
        found.append(("fsync", shown(Path(f"/proc/self/fd/{handle}").readlink())))
        fsync(handle)

    def recorded_replace(path, target):
        found.append(("rename", Path(target).name))
        return replace(path, target)

    def recorded_unlink(path, missing_ok=False):
        if path.exists():
            found.append(("remove", shown(path)))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(Path, "replace", recorded_replace)
    monkeypatch.setattr(Path, "unlink", recorded_unlink)
    return found


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="there is no /proc")


def written(name, folder="run"):
    """The calls of a file that is written whole."""
    return [("fsync", f"temporary {name}"), ("rename", name), ("fsync", folder)]


@needs_proc
def test_metrics_are_on_the_disk_before_the_checkpoint_that_counts_on_them(tmp_path, calls):
    """After a power failure, a checkpoint whose rounds are lost could not be used."""
    writer = Writer(RunFolder(tmp_path / "run"), b"", "c")
    status = Status(outcome="running", round=1, num_rounds=9)
    for number in (1, 2):
        writer.add(a_round(number), Timing(round=number, seconds=0.1, num_runs=1, images=1))
        calls.clear()
        writer.save(a_checkpoint(number), status)
        newest = written(checkpoints.NEWEST)
        if number == 2:
            newest.insert(1, ("rename", checkpoints.PREVIOUS))
        assert calls == [("fsync", "metrics.jsonl"), *newest, *written("status.json")]
    writer.close()


@needs_proc
def test_the_status_of_a_finished_run_is_written_last(tmp_path, calls):
    """Whoever reads that a run is over may rely on its audit."""
    writer = Writer(RunFolder(tmp_path / "run"), b"", "c")
    status = Status(outcome="finished", round=2, num_rounds=2)
    for number in (1, 2):
        writer.add(a_round(number), Timing(round=number, seconds=0.1, num_runs=1, images=1))
        writer.save(a_checkpoint(number), status)
    calls.clear()
    writer.end(status, b"audit")
    writer.close()
    removed = ("remove", checkpoints.PREVIOUS)
    assert calls == [*written("audit.npz"), removed, *written("status.json")]


def test_a_half_line_of_timings_is_cut_off_before_the_next_is_added(tmp_path):
    timing = Timing(round=1, seconds=0.1, num_runs=1, images=1)
    path = tmp_path / "timings.jsonl"
    append_line(path, timing)
    path.write_bytes(path.read_bytes() + b'{"round": 2, "sec')
    writer = Writer(RunFolder(tmp_path), b"", "c")
    writer.begin(0, ENVIRONMENT)
    writer.add(a_round(1), timing)
    writer.close()
    assert RunFolder(tmp_path).timings() == [timing, timing]


def test_a_run_holds_one_file_open(tmp_path):
    before = len(list(Path("/dev/fd").iterdir()))
    writer = Writer(RunFolder(tmp_path), b"", "c")
    writer.begin(0, ENVIRONMENT)
    writer.add(a_round(1), Timing(round=1, seconds=0.1, num_runs=1, images=1))
    num_open = len(list(Path("/dev/fd").iterdir())) - before
    writer.close()
    assert num_open == 1


def test_only_a_lock_that_is_taken_means_another_process(tmp_path, monkeypatch):
    def refuse(file, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(disk.fcntl, "flock", refuse)
    with pytest.raises(StoreError, match="No locks available"):
        Writer(RunFolder(tmp_path), b"", "c")


def test_a_checkpoint_without_its_metrics_is_not_used(tmp_path):
    folder = RunFolder(tmp_path)
    save(tmp_path, a_checkpoint(3))
    writer = Writer(folder, b"", "c")
    found, faults = writer.resume()
    writer.close()
    assert found is None
    assert "lacks rounds" in faults[0]


@pytest.mark.parametrize("outcome", ["finished", "of-a-kind-unknown-today"])
def test_a_folder_of_a_newer_layout_is_refused_whatever_is_in_it(tmp_path, outcome):
    status = {"outcome": outcome, "round": 1, "num_rounds": 1, "version": VERSION + 1}
    (tmp_path / "status.json").write_text(json.dumps(status))
    with pytest.raises(StoreError, match=r"newer outvote \(layout 3, known: 2\); upgrade"):
        RunFolder(tmp_path).status()


@pytest.mark.parametrize("version", [{}, {"version": 1}])
def test_a_folder_of_an_unreleased_layout_is_refused(tmp_path, version):
    status = {"outcome": "finished", "round": 2, "num_rounds": 2, **version}
    (tmp_path / "status.json").write_text(json.dumps(status))
    with pytest.raises(StoreError, match=r"unreleased outvote \(layout [01], known: 2\); choose"):
        RunFolder(tmp_path).status()


def test_what_is_written_has_its_layout(tmp_path):
    writer = Writer(RunFolder(tmp_path), b"", "c")
    writer.write_status(Status(outcome="running", round=0, num_rounds=1))
    writer.close()
    assert json.loads((tmp_path / "status.json").read_text())["version"] == VERSION


def test_an_environment_of_an_earlier_version_is_read(tmp_path):
    known = dict.fromkeys(("outvote", "python", "torch", "numpy", "system", "device"), "1")
    known |= {"precision": "float32", "num_threads": 2, "commit": None}
    (tmp_path / "env.json").write_text(json.dumps(known))
    found = RunFolder(tmp_path).environment()
    assert (found.revision, found.code) == (None, None)


def summed(rounds, attack="lie"):
    return summary_of(series_of(rounds), attack=attack)


def test_a_summary_has_the_best_the_last_and_the_mean_of_the_last_ten():
    rounds = [a_round(k, accuracy=k / 100) for k in range(1, 21)]
    rounds[0] = a_round(1, accuracy=0.9, kept=(1, 4))
    found = summed(rounds)
    assert (found.best, found.final, found.kept_byzantine) == (0.9, 0.2, 0.05)
    assert found.last_ten == pytest.approx(0.155)
    assert summed([]).best is None


def test_the_selection_rate_is_a_share_of_the_byzantine_clients():
    """Of two, one is kept in the first round and none in the second; honest ones do not count."""
    facts = {"clients": (1, 2, 3, 4, 5, 6), "byzantine": (4, 5), "scores": (0.0,) * 6}
    rounds = [a_round(1, kept=(1, 2, 3, 4), **facts), a_round(2, kept=(1, 6), **facts)]
    assert summed(rounds).kept_byzantine == 1 / 4


def test_the_deviation_is_that_of_the_rounds_under_attack():
    rounds = [
        a_round(1, deviation=1.0),
        a_round(2, deviation=5.0, byzantine=()),
        a_round(3, deviation=2.0),
        a_round(4, deviation=None),
    ]
    assert summed(rounds).deviation == 1.5
    assert summed(rounds, "none").deviation == pytest.approx(8 / 3)
    assert summed(rounds[1:2]).deviation == 5.0
    assert summed(rounds[3:]).deviation is None


def test_a_rule_that_cannot_report_who_was_kept_is_unknown_and_not_zero():
    rounds = [a_round(1, kept=None), a_round(2, kept=(1, 4)), a_round(3, kept=None)]
    series = series_of(rounds)
    assert np.isnan(series.num_kept).tolist() == [True, False, True]
    assert np.isnan(series.num_kept_byzantine).tolist() == [True, False, True]
    known, unknown = summed(rounds[1:2]).kept_byzantine, summed(rounds[:1]).kept_byzantine
    assert summed(rounds).kept_byzantine == known is not None
    assert unknown is None
    arrays = audit_arrays(rounds, is_byzantine=[False] * 9, label_counts=np.zeros((9, 2), int))
    assert arrays["is_kept_known"].tolist() == [False, True, False]
    assert arrays["is_kept"].any(axis=1).tolist() == [False, True, False]
