"""The folders of a federation: one per run, locked, private; and what the console reports."""

import logging
import stat

import pytest

from bad_replies import honest, record_of, run_round
from flower_small import MODEL, NODES, grid_of, strategy_of
from outvote.flower import RobustStrategy, audit_writer
from outvote.results.audit_log import find_log, read_audit
from outvote.results.disk import BusyError


class Clock:
    """Time that passes only in `sleep`; at some times something happens."""

    def __init__(self, events=None):
        self.now, self.events = 0.0, dict(events or {})

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        for moment in [each for each in self.events if each <= self.now]:
            self.events.pop(moment)()


def start(folder, num_rounds=1, **settings):
    strategy = strategy_of("median", audit_dir=folder, **settings)
    result = strategy.start(grid_of(honest), record_of(MODEL), num_rounds=num_rounds)
    return strategy, result


def test_a_second_run_of_the_same_script_gets_a_folder_of_its_own(tmp_path):
    first, _ = start(tmp_path / "audit", num_rounds=2)
    second, _ = start(tmp_path / "audit", num_rounds=3)
    assert first.run_dir != second.run_dir
    assert first.run_dir.parent == second.run_dir.parent == tmp_path / "audit"
    assert [len(read_audit(each.run_dir)) for each in (first, second)] == [2, 3]


def test_resume_continues_the_newest_run_and_any_other_by_its_folder(tmp_path):
    first, _ = start(tmp_path, num_rounds=2)
    second, _ = start(tmp_path, num_rounds=3)
    newest = RobustStrategy.resume(tmp_path)
    assert newest.state.round == 3
    newest.start(grid_of(honest), record_of(MODEL), num_rounds=4)
    assert newest.run_dir == second.run_dir
    other = RobustStrategy.resume(first.run_dir)
    assert other.state.round == 2
    other.start(grid_of(honest), record_of(MODEL), num_rounds=3)
    assert [len(read_audit(each.run_dir)) for each in (first, second)] == [3, 4]
    assert sorted(path for path in tmp_path.iterdir()) == [first.run_dir, second.run_dir]


def test_a_folder_without_a_manifest_is_no_run(tmp_path):
    made, _ = start(tmp_path)
    (tmp_path / "9999-12-31T00-00-00Z").mkdir()
    assert find_log(tmp_path) == made.run_dir
    assert find_log(tmp_path / "nothing") == tmp_path / "nothing"


def test_folders_are_for_the_owner_alone(tmp_path):
    strategy, _ = start(tmp_path / "audit", num_rounds=2)
    for folder in (tmp_path / "audit", strategy.run_dir):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in strategy.run_dir.iterdir()}
    assert len(modes) >= 4
    assert set(modes.values()) == {0o600}, modes


def test_a_relative_folder_is_printed_with_its_full_path_and_survives_a_change_of_folder(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO, logger="flwr")
    strategy = strategy_of("median", audit_dir="audit")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    strategy.start(grid_of(honest), record_of(MODEL), num_rounds=1)
    assert strategy.run_dir.parent == tmp_path / "audit"
    assert str(strategy.run_dir) in caplog.text


def test_a_server_that_is_about_to_end_is_waited_for_and_named(tmp_path, monkeypatch, caplog):
    first = strategy_of("median", audit_dir=tmp_path)
    run_round(first, grid_of(honest), record_of(MODEL))
    second = RobustStrategy.resume(tmp_path)
    assert second.state.round == 1
    # Meanwhile the first server ends another round.
    run_round(first, grid_of(honest), record_of(MODEL), 2)
    monkeypatch.setattr(audit_writer, "time", Clock({15: first.close}))
    grid = grid_of(honest)
    second.start(grid, record_of(MODEL), num_rounds=3)
    waits = [r.getMessage() for r in caplog.records if "is in use by process" in r.getMessage()]
    assert len(waits) == 2
    assert waits[0].endswith("waiting up to 60 s for it.")
    assert [entry.round for entry in read_audit(tmp_path)] == [1, 2, 3]
    assert len(grid.asked) == 2  # Round 3 alone: training and evaluation.


def test_a_server_that_does_not_end_is_an_error_that_names_it(tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(audit_writer, "time", clock)
    first = strategy_of("median", audit_dir=tmp_path)
    run_round(first, grid_of(honest), record_of(MODEL))
    with pytest.raises(BusyError, match=r"is in use by process \d+ on .* since 20.*; stop it"):
        RobustStrategy.resume(tmp_path).start(grid_of(honest), record_of(MODEL), num_rounds=2)
    first.close()
    assert clock.now == 60  # An orphaned server needs about 15 seconds.


def test_your_own_loop_does_not_go_on_from_a_model_that_is_out_of_date(tmp_path, monkeypatch):
    first = strategy_of("median", audit_dir=tmp_path)
    run_round(first, grid_of(honest), record_of(MODEL))
    second = RobustStrategy.resume(tmp_path)
    run_round(first, grid_of(honest), record_of(MODEL), 2)
    monkeypatch.setattr(audit_writer, "time", Clock({5: first.close}))
    with pytest.raises(RuntimeError, match=r"went on to round 2 .* call resume again"):
        run_round(second, grid_of(honest), record_of(MODEL), 2)
    second.close()


def test_known_nodes_survive_a_restart(tmp_path):
    start(tmp_path)
    assert RobustStrategy.resume(tmp_path).state.known_nodes == set(NODES)
