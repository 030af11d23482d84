"""A server that stops, or is killed, goes on where it was."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import outvote as ov
from bad_replies import HandMadeGrid, arrays_of, record_of, respond_with, run_round
from outvote.flower import RobustStrategy, audit_writer
from outvote.results import checkpoint
from outvote.results.audit_log import find_log, read_audit, read_manifest
from outvote.results.disk import BusyError, StoreError
from outvote.rules.rule import Traits

MODEL = {"w": np.zeros((3, 4), np.float32), "steps": np.array(0, np.int64)}
NODES = range(100, 111)
SETTINGS = {
    "rule": "gas(multi-krum)",
    "num_byzantine": 2,
    "seed": 5,
    "server_optimizer": "fedadam(learning_rate=0.05)",
    "exclude_after": 3,
}


def grid_of(kind="shape"):
    return HandMadeGrid(NODES, respond_with(kind, [104]))


def weights(record):
    return {name: array.tolist() for name, array in arrays_of(record).items()}


def test_a_run_in_two_parts_ends_like_one_in_one_part(tmp_path):
    whole = RobustStrategy(audit_dir=tmp_path / "whole", **SETTINGS)
    expected = whole.start(grid_of(), record_of(MODEL), num_rounds=6)
    first = RobustStrategy(audit_dir=tmp_path / "parts", **SETTINGS)
    first.start(grid_of(), record_of(MODEL), num_rounds=3)
    second = RobustStrategy.resume(tmp_path / "parts")
    grid = grid_of()
    result = second.start(grid, record_of(MODEL), num_rounds=6)
    assert weights(result.arrays) == weights(expected.arrays)
    assert result.train_metrics_clientapp == expected.train_metrics_clientapp
    # Excluded after round 3, before the restart.
    assert not any(104 in asked for asked in grid.asked)
    logs = [read_audit(tmp_path / name) for name in ("whole", "parts")]
    clients = [[(entry.round, entry.seed, entry.clients) for entry in log] for log in logs]
    assert clients[0] == clients[1]


def test_rules_and_optimisers_keep_their_state_across_a_restart(tmp_path):
    settings = {"num_byzantine": 2, "server_optimizer": "fedavg(momentum=0.9)"}
    for rule in ("centered-clipping(radius=1.0)", "foolsgold"):
        whole = RobustStrategy(rule, audit_dir=None, **settings)
        expected = whole.start(grid_of("none"), record_of(MODEL), num_rounds=4)
        folder = tmp_path / rule
        RobustStrategy(rule, audit_dir=folder, **settings).start(
            grid_of("none"), record_of(MODEL), num_rounds=2
        )
        again = RobustStrategy.resume(folder).start(grid_of("none"), record_of(MODEL), num_rounds=4)
        assert weights(again.arrays) == weights(expected.arrays)


def test_another_rule_does_not_get_the_state_of_the_first(tmp_path):
    first = RobustStrategy("foolsgold", audit_dir=tmp_path)
    first.start(grid_of("none"), record_of(MODEL), num_rounds=1)
    second = RobustStrategy.resume(tmp_path, rule="centered-clipping(radius=1.0)")
    assert second.state.rule_state is None
    second.start(grid_of("none"), record_of(MODEL), num_rounds=2)
    assert [entry.is_updated for entry in read_audit(tmp_path)] == [True, True]


def test_a_finished_run_has_no_round_left(tmp_path):
    done = RobustStrategy(audit_dir=tmp_path, **SETTINGS).start(grid_of(), record_of(MODEL), 2)
    grid = grid_of()
    again = RobustStrategy.resume(tmp_path).start(grid, record_of(MODEL), 2)
    assert grid.asked == []
    assert weights(again.arrays) == weights(done.arrays)


def test_resume_starts_where_there_is_nothing_to_resume(tmp_path):
    strategy = RobustStrategy.resume(tmp_path / "new", **SETTINGS)
    strategy.start(grid_of(), record_of(MODEL), num_rounds=1)
    assert [entry.round for entry in read_audit(tmp_path / "new")] == [1]


def test_two_servers_cannot_write_one_log(tmp_path, monkeypatch):
    monkeypatch.setattr(audit_writer, "PATIENCE_SECONDS", 0)
    first = RobustStrategy(audit_dir=tmp_path, **SETTINGS)
    run_round(first, grid_of(), record_of(MODEL))
    with pytest.raises(BusyError, match="is in use by process"):
        run_round(RobustStrategy.resume(tmp_path), grid_of(), record_of(MODEL))
    first.close()


def test_settings_can_be_changed_on_the_way_and_the_manifest_follows(tmp_path):
    RobustStrategy(audit_dir=tmp_path, **SETTINGS).start(grid_of(), record_of(MODEL), 1)
    started = read_manifest(tmp_path).started
    again = RobustStrategy.resume(tmp_path, byzantine_fraction=0.1, exclude_after=None)
    assert str(again.settings.rule) == "gas(multi-krum)"
    assert (again.settings.num_byzantine, again.settings.byzantine_fraction) == (None, 0.1)
    again.start(grid_of(), record_of(MODEL), 2)
    assert read_manifest(tmp_path).byzantine_fraction == 0.1
    assert read_manifest(tmp_path).started == started


def test_hooks_must_be_given_again(tmp_path):
    def every_node(round_, nodes):
        return nodes

    strategy = RobustStrategy(audit_dir=tmp_path, sample=every_node, **SETTINGS)
    strategy.start(grid_of(), record_of(MODEL), 1)
    with pytest.raises(ValueError, match=r"had its own sample= .*every_node"):
        RobustStrategy.resume(tmp_path)
    RobustStrategy.resume(tmp_path, sample=every_node)


def test_another_model_is_refused(tmp_path):
    RobustStrategy(audit_dir=tmp_path, **SETTINGS).start(grid_of(), record_of(MODEL), 1)
    other = RobustStrategy.resume(tmp_path)
    with pytest.raises(ValueError, match="the checkpoint is of another model"):
        other.start(grid_of(), record_of({"w": np.zeros(5, np.float32)}), 2)
    other.close()


def test_a_damaged_checkpoint_costs_a_round_and_two_of_them_are_an_error(tmp_path):
    RobustStrategy(audit_dir=tmp_path, **SETTINGS).start(grid_of(), record_of(MODEL), 3)
    for name, round_ in (("checkpoint.safetensors", 2), ("checkpoint.previous.safetensors", None)):
        path = find_log(tmp_path) / name
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        if round_ is not None:
            assert RobustStrategy.resume(tmp_path).state.round == round_
            path.write_bytes(content)
    with pytest.raises(StoreError, match="no checkpoint in"):
        RobustStrategy.resume(tmp_path)


def test_a_lost_checkpoint_is_an_error_and_the_federation_does_not_start_anew(tmp_path):
    RobustStrategy(audit_dir=tmp_path, **SETTINGS).start(grid_of(), record_of(MODEL), 2)
    for path in find_log(tmp_path).glob("checkpoint*"):
        path.unlink()
    with pytest.raises(StoreError, match="holds 2 rounds, but the checkpoint is gone"):
        RobustStrategy.resume(tmp_path)
    lines = (find_log(tmp_path) / "audit.jsonl").read_text().splitlines(keepends=True)
    (find_log(tmp_path) / "audit.jsonl").write_text(lines[0])  # killed before the first checkpoint
    assert RobustStrategy.resume(tmp_path).state.round == 0


def test_a_half_written_line_is_cut_off_before_the_next(tmp_path):
    RobustStrategy(audit_dir=tmp_path, **SETTINGS).start(grid_of(), record_of(MODEL), 1)
    with (find_log(tmp_path) / "audit.jsonl").open("ab") as file:
        file.write(b'{"round":2,"time":"20')
    RobustStrategy.resume(tmp_path).start(grid_of(), record_of(MODEL), 2)
    lines = (find_log(tmp_path) / "audit.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2]


def test_a_damaged_line_costs_no_other_when_a_run_goes_on(tmp_path):
    RobustStrategy(audit_dir=tmp_path, **SETTINGS).start(grid_of(), record_of(MODEL), 3)
    path = find_log(tmp_path) / "audit.jsonl"
    first, *others = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([first[:50] + b"\n", *others]))
    RobustStrategy.resume(tmp_path).start(grid_of(), record_of(MODEL), 4)
    assert [entry.round for entry in read_audit(tmp_path)] == [2, 3, 4]


def test_a_round_that_could_not_be_logged_is_run_again(tmp_path, monkeypatch):
    RobustStrategy(audit_dir=tmp_path, **SETTINGS).start(grid_of(), record_of(MODEL), 2)
    full = RobustStrategy.resume(tmp_path)

    def disk_is_full(path, line):
        raise StoreError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr("outvote.results.disk.append_line", disk_is_full)
        with pytest.raises(StoreError, match="the disk is full"):
            full.start(grid_of(), record_of(MODEL), 3)
    again = RobustStrategy.resume(tmp_path)
    assert again.state.round == 2
    again.start(grid_of(), record_of(MODEL), 3)
    assert [entry.round for entry in read_audit(tmp_path)] == [1, 2, 3]


def test_a_checkpoint_that_cannot_be_written_lets_go_of_the_folder(tmp_path, monkeypatch):
    def disk_is_full(folder, state, rule):
        raise StoreError("the disk is full")

    first = RobustStrategy(audit_dir=tmp_path, **SETTINGS)
    with monkeypatch.context() as patched:
        patched.setattr("outvote.flower.audit_writer.save_state", disk_is_full)
        with pytest.raises(StoreError, match="the disk is full"):
            first.start(grid_of(), record_of(MODEL), 1)
    RobustStrategy.resume(tmp_path).start(grid_of(), record_of(MODEL), 1)
    assert [entry.round for entry in read_audit(tmp_path)] == [1]


SERVER = """
import sys
sys.path.insert(0, {tests!r})
from unit.test_flower_resume import MODEL, SETTINGS, grid_of, record_of
from outvote.flower import RobustStrategy, audit_writer
from outvote.results import checkpoint
strategy = RobustStrategy.resume({folder!r}, **SETTINGS)
print(strategy.state.round, flush=True)
def report(number, arrays):
    print("round", number, flush=True)
strategy.start(grid_of(), record_of(MODEL), num_rounds={rounds}, evaluate_fn=report)
"""


def test_a_server_killed_in_any_moment_goes_on_at_the_right_round_with_the_same_model(tmp_path):
    tests = str(Path(__file__).parents[1])
    code = SERVER.format(tests=tests, folder=str(tmp_path / "killed"), rounds=10**6)
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        for line in server.stdout:
            if line.strip() == "round 12":
                break
    finally:
        os.kill(server.pid, signal.SIGKILL)
        server.wait()
        server.stdout.close()
    again = RobustStrategy.resume(tmp_path / "killed")
    last = again.state.round
    assert last >= 12
    rounds = [each.round for each in read_audit(tmp_path / "killed")]
    assert rounds[:last] == list(range(1, last + 1))
    assert len(rounds) <= last + 1
    result = again.start(grid_of(), record_of(MODEL), num_rounds=last + 3)
    expected = RobustStrategy(audit_dir=None, **SETTINGS).start(
        grid_of(), record_of(MODEL), num_rounds=last + 3
    )
    assert weights(result.arrays) == weights(expected.arrays)


@dataclass
class Reputation:
    trust: dict
    num_rounds: int


class Trusting(ov.Rule):
    """A rule whose state is a dataclass of its own module."""

    name = "trusting"
    traits = Traits(uses_num_byzantine=False, has_state=True)

    def max_byzantine(self, num_clients):
        return num_clients - 1

    def compute(self, matrix, info):
        before = info.state or Reputation(trust={}, num_rounds=0)
        found = ov.Mean().compute(matrix, info)
        trust = {client: before.trust.get(client, 0) + 1 for client in info.clients}
        return replace(found, state=Reputation(trust, before.num_rounds + info.round))


def test_a_state_that_is_a_dataclass_survives_a_restart(tmp_path):
    first = RobustStrategy(Trusting(), audit_dir=tmp_path, seed=1)
    first.start(grid_of(), record_of(MODEL), num_rounds=2)
    again = RobustStrategy.resume(tmp_path, rule=Trusting())
    assert again.state.rule_state == first.state.rule_state
    again.start(grid_of(), record_of(MODEL), num_rounds=3)
    assert again.state.rule_state.num_rounds == 1 + 2 + 3
    assert set(again.state.rule_state.trust.values()) == {3}


ODD_NOTES = {
    "no offenders": lambda notes, arrays: notes.pop("offenders"),
    "no shapes": lambda notes, arrays: notes.pop("shapes"),
    "no state of the rule": lambda notes, arrays: notes.pop("rule_state"),
    "nodes that are no numbers": lambda notes, arrays: notes.update(nodes=["x"]),
    "nodes that are no list": lambda notes, arrays: notes.update(nodes=None),
    "offences that are no lines": lambda notes, arrays: notes["offenders"].update(offences=[1]),
    "tests without capitals": lambda notes, arrays: notes["offenders"].update(
        tests=[[1, 2, 1, []]]
    ),
    "a capital below 0": lambda notes, arrays: notes["offenders"].update(
        tests=[[1, 2, 1, [-1.0] * 5]]
    ),
    "more rounds against a node than rounds": lambda notes, arrays: notes["offenders"].update(
        tests=[[1, 2, 3, [1.0] * 5]]
    ),
    "an array less": lambda notes, arrays: arrays.pop("model/w"),
    "another size": lambda notes, arrays: arrays.update({"model/w": np.zeros(7, np.float32)}),
    "NaN": lambda notes, arrays: arrays.update({"model/w": np.full((3, 4), np.nan, np.float32)}),
    "an optimizer of another model": lambda notes, arrays: arrays.update(
        {"optimizer/first": np.zeros(7, np.float32)}
    ),
}


@pytest.mark.parametrize("kind", ODD_NOTES)
def test_a_checkpoint_that_no_server_wrote_is_one_line(kind, tmp_path):
    settings = {"num_byzantine": 2, "audit_dir": tmp_path, "server_optimizer": "fedadam"}
    strategy = RobustStrategy("centered-clipping", **settings)
    run_round(strategy, grid_of("none"), record_of(MODEL))
    strategy.close()
    path = find_log(tmp_path) / checkpoint.NEWEST
    found = checkpoint.read_checkpoint(path)
    notes, arrays = json.loads(json.dumps(found.notes)), dict(found.arrays)
    ODD_NOTES[kind](notes, arrays)
    path.write_bytes(replace(found, notes=notes, arrays=arrays).to_bytes())
    with pytest.raises(StoreError, match="is not one of this server") as caught:
        RobustStrategy.resume(tmp_path)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 600
