"""What can go wrong with many runs, reported in one line each."""

import resource
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from outvote.data.loader import load
from outvote.experiment import dataset_cache, stack_run
from outvote.results.folder import find_runs
from simulations import Recorder, execute, results, tiny

# Its weights are too large for a second round.
FAR = """
import outvote
class Far(outvote.VectorRule):
    def max_byzantine(self, num_clients):
        return num_clients - 1
    def aggregate(self, rows, num_byzantine):
        return rows[0] * 1e30
"""
MAKING = """
    def __init__(self):
        from pathlib import Path
        if Path(__file__ + ".mark").exists():
            raise KeyError("no idea")
"""


def stopped_after(number: int, plan, output: Path):
    recorder = Recorder()
    execute(plan, output, listener=recorder, should_stop=lambda: len(recorder.rounds) >= number)


def killed(arrays):
    raise KeyboardInterrupt


def test_a_run_killed_while_it_diverged_ends_beside_one_that_goes_on(tmp_path, monkeypatch):
    (tmp_path / "far.py").write_text(FAR)
    far = f"{tmp_path / 'far.py'}:Far"
    usual = {"attack": "none"}
    with monkeypatch.context() as patch:
        patch.setattr(stack_run, "to_npz", killed)
        with pytest.raises(KeyboardInterrupt):
            execute(tiny(rule=far, **usual), tmp_path / "out")
    (run,) = find_runs(tmp_path / "out")
    stopped_after(run.status().round, tiny(rule="median", **usual), tmp_path / "out")
    recorder = Recorder()
    ends = execute(tiny(rule=[far, "median"], **usual), tmp_path / "out", listener=recorder)
    assert [end.outcome for end in ends.values()] == ["diverged", "finished"]
    assert all(text.startswith("resumes ") for text in recorder.messages)
    execute(tiny(rule=[far, "median"], **usual), tmp_path / "whole")
    assert results(tmp_path / "out") == results(tmp_path / "whole")


def test_stacks_are_as_large_as_the_limit_on_open_files_allows(tmp_path):
    plan = tiny("rounds=1", "training.num_steps=1", f"seed={list(range(12))}")
    execute(tiny("rounds=1"), tmp_path / "first")  # Loads threads and data before the count.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_open = len(list(Path("/dev/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_open + 10, hard))
    recorder = Recorder()
    try:
        execute(plan, tmp_path / "many", listener=recorder)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert {end.outcome for end in recorder.ends} == {"finished"}
    assert len(recorder.ends) == 12
    assert recorder.messages == []


def other_samples(name: str, **options):
    found = load(name)
    return replace(found, test_targets=found.test_labels[::-1].copy())


@pytest.mark.parametrize("number", [2, 99])
def test_on_other_samples_a_run_neither_goes_on_nor_counts(tmp_path, monkeypatch, number):
    stopped_after(number, tiny(), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.glob("*/*/*")}
    (run,) = find_runs(tmp_path)
    used = run.environment().data
    assert (used.num_train, used.num_test) == (6000, 2000)
    with monkeypatch.context() as patch:
        patch.setattr(dataset_cache, "load", other_samples)
        (end,) = execute(tiny(), tmp_path).values()
    assert (end.outcome, "\n" in end.reason) == ("failed", False)
    for words in ("other samples", used.checksum[:16], "expected, got", "--output"):
        assert words in end.reason
    assert {path: path.read_bytes() for path in tmp_path.glob("*/*/*")} == before
    (end,) = execute(tiny(), tmp_path).values()
    assert end.outcome == "finished"


def test_a_rule_edited_during_a_sweep_is_not_run_under_the_old_name(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FAR.replace("Far", "Mine").replace("1e30", "1"))
    rules = [f"{path}:Mine", f"nnm('{path}:Mine')"]

    def edit(progress):
        path.write_text(FAR.replace("Far", "Mine").replace("1e30", "2"))

    ends = execute(tiny(rule=rules), tmp_path, max_stacked=1, listener=Recorder(edit))
    assert [end.outcome for end in ends.values()] == ["finished", "failed"]
    assert "was changed since the sweep began" in list(ends.values())[1].reason


def test_a_rule_that_can_no_longer_be_made_fails_alone(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FAR + MAKING)
    plan = tiny(rule=[f"{path}:Far", "mean"])
    (tmp_path / "mine.py.mark").touch()
    ends = execute(plan, tmp_path / "out")
    assert [end.outcome for end in ends.values()] == ["failed", "finished"]
    assert "KeyError: 'no idea'" in ends[f"{path}:Far"].reason


def test_each_dataset_is_loaded_once(tmp_path, monkeypatch):
    names = []

    def count(name: str, **options):
        names.append(name)
        return replace(load("fashion-mnist-small"), name=name)

    monkeypatch.setattr(dataset_cache, "load", count)
    plan = tiny("rounds=1", rule=["mean", "median"], data={"name": ["mnist", "fashion-mnist"]})
    recorder = Recorder()
    execute(plan, tmp_path, max_stacked=1, listener=recorder)
    assert [end.outcome for end in recorder.ends] == ["finished"] * 4
    assert sorted(names) == ["fashion-mnist", "mnist"]


def test_writers_are_clients_and_are_counted_once(tmp_path, monkeypatch):
    counted = []

    def written(name: str, **options):
        found = load(name)
        return replace(found, train_groups=np.arange(len(found.train_labels)) % 12)

    def count(values):
        counted.append(values)
        return np.unique(values)

    monkeypatch.setattr(dataset_cache, "load", written)
    monkeypatch.setattr(dataset_cache, "np", SimpleNamespace(**{**vars(np), "unique": count}))
    federation = {"num_clients": "all", "sampled": 0.5}
    plan = tiny(seed=[0, 1, 2], data={"partition": "by-group"}, federation=federation)
    execute(plan, tmp_path)
    assert [run.status().outcome for run in find_runs(tmp_path)] == ["finished"] * 3
    for run in find_runs(tmp_path):
        assert {len(each.clients) for each in run.rounds()} == {6}
        assert {client for each in run.rounds() for client in each.clients} <= set(range(12))
    assert len(counted) == 1


@pytest.mark.parametrize("number", [2, 99])
def test_a_status_that_cannot_be_read_stops_no_run(tmp_path, number):
    plan = tiny(rule=["mean", "median"])
    execute(plan, tmp_path / "whole")
    stopped_after(number, plan, tmp_path / "hurt")
    (find_runs(tmp_path / "hurt")[0].path / "status.json").write_text('{"outcome": "fi')
    recorder = Recorder()
    ends = execute(plan, tmp_path / "hurt", listener=recorder)
    assert {end.outcome for end in ends.values()} == {"finished"}
    assert len([text for text in recorder.messages if not text.startswith("resumes ")]) == 1
    assert "status.json cannot be read" in recorder.messages[0]
    assert results(tmp_path / "hurt") == results(tmp_path / "whole")


def test_timings_count_the_samples_that_were_trained_on(tmp_path):
    execute(tiny(attack="lie"), tmp_path)
    (run,) = find_runs(tmp_path)
    expected = [2 * 16 * (5 - len(each.byzantine)) for each in run.rounds()]
    assert [timing.images for timing in run.timings()] == expected
