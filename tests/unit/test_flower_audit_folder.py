"""The folders of a federation: one per run, locked, private; and what the console reports."""

import logging
import stat
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message, MetricRecord

from bad_replies import HandMadeGrid, content_of, honest, record_of, run_round
from flower_small import MODEL, NODES, grid_of, strategy_of
from outvote.flower import RobustStrategy, audit_writer, node_sampling, reply_collection
from outvote.results.audit_log import find_log, read_audit, read_manifest
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


def test_a_log_of_0_1_is_in_the_folder_itself_and_is_resumed_there(tmp_path):
    made, _ = start(tmp_path, num_rounds=2)
    for path in made.run_dir.iterdir():
        path.rename(tmp_path / path.name)
    made.run_dir.rmdir()
    again = RobustStrategy.resume(tmp_path)
    again.start(grid_of(honest), record_of(MODEL), num_rounds=3)
    assert again.run_dir == tmp_path
    assert [entry.round for entry in read_audit(tmp_path)] == [1, 2, 3]


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


def test_files_are_for_the_owner_alone_from_the_start(tmp_path):
    modes = []

    def evaluate(number, arrays):
        modes.extend(stat.S_IMODE(path.stat().st_mode) for path in strategy.run_dir.iterdir())
        return MetricRecord({"accuracy": 0.5})

    strategy = strategy_of("median", audit_dir=tmp_path, checkpoint_every=10)
    strategy.start(grid_of(honest), record_of(MODEL), num_rounds=2, evaluate_fn=evaluate)
    assert len(modes) >= 12
    assert set(modes) == {0o600}


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


def test_a_waiting_server_reports_every_thirty_seconds_who_is_missing(monkeypatch, caplog):
    caplog.set_level(logging.INFO, logger="flwr")
    grid = grid_of(honest, list(NODES))
    strategy = strategy_of("median", min_available_nodes=11)
    run_round(strategy, grid, record_of(MODEL))
    grid.nodes = list(NODES)[:9]
    come_back = {100: lambda: setattr(grid, "nodes", list(NODES))}
    monkeypatch.setattr(node_sampling, "time", Clock(come_back))
    run_round(strategy, grid, record_of(MODEL), 2)
    lines = [r.getMessage() for r in caplog.records if "Waiting for nodes" in r.getMessage()]
    rest = "9 of 11 are connected; not connected: 109, 110"
    assert lines == [f"Waiting for nodes for {k} s: {rest}" for k in (0, 30, 60, 90)]


def test_a_server_that_waits_for_replies_reports_every_thirty_seconds_who_is_missing(
    monkeypatch, caplog
):
    caplog.set_level(logging.INFO, logger="flwr")
    monkeypatch.setattr(reply_collection, "time", Clock())

    def respond(message):
        node = message.metadata.dst_node_id
        return Message(content_of(honest(node, MODEL)), reply_to=message) if node < 109 else None

    strategy = strategy_of("median", fraction_evaluate=0.0)
    strategy.start(HandMadeGrid(NODES, respond), record_of(MODEL), num_rounds=1, timeout=100)
    lines = [r.getMessage() for r in caplog.records if "Waiting for replies" in r.getMessage()]
    rest = "2 of 11 are missing: nodes 109, 110"
    assert lines == [f"Waiting for replies for {k} s of 100 s: {rest}" for k in (30, 60, 90)]


def test_known_nodes_survive_a_restart(tmp_path):
    start(tmp_path)
    assert RobustStrategy.resume(tmp_path).state.known_nodes == set(NODES)


def test_known_nodes_do_not_grow_for_ever(monkeypatch):
    monkeypatch.setattr(node_sampling, "MOST_KNOWN", 25)
    grid = grid_of(honest)
    strategy = strategy_of("median", fraction_evaluate=0.0)
    for number in range(1, 6):
        grid.nodes = list(range(100 * number, 100 * number + 11))
        run_round(strategy, grid, record_of(MODEL), number)
    assert strategy.state.known_nodes == set(range(400, 411)) | set(range(500, 511))


@pytest.mark.parametrize(("factor", "is_warned"), [(-10, True), (12, True), (1.2, False)])
def test_a_long_reversed_update_is_a_warning(factor, is_warned, caplog):
    caplog.set_level(logging.INFO, logger="flwr")

    def send(node, model):
        arrays = honest(node, model)
        scale = np.float32(factor if node == 104 else 1)
        return {name: model[name] + scale * array for name, array in arrays.items()}

    run_round(strategy_of("multi-krum"), grid_of(send), record_of(MODEL))
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    found = [each for each in warnings if "node 104" in each]
    assert bool(found) == is_warned
    if is_warned:
        assert "times as long as the median" in found[0]
        assert ("points against the update" in found[0]) == (factor < 0)
        assert found[0].endswith("outvoted")


def test_the_manifest_is_found_from_the_parent_folder(tmp_path):
    start(tmp_path)
    assert read_manifest(tmp_path).rule == "median"
    assert Path(tmp_path / "manifest.json").exists() is False
