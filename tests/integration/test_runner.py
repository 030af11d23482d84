"""Many runs: skipped, resumed, stacked, and a broken one harms nobody."""

import hashlib
import os
from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image

from outvote.engine import round as rounds
from outvote.experiment import stack_run
from outvote.experiment.builder import RunBuilder
from outvote.experiment.run_spec import REVISION
from outvote.results.checkpoint import read_checkpoint
from outvote.results.disk import StoreError
from outvote.results.folder import RunFolder, Writer, find_runs
from outvote.results.schema import CodeUsed
from simulations import STATES, Recorder, execute, results, tiny

BROKEN = """
import outvote
class Broken(outvote.VectorRule):
    def max_byzantine(self, num_clients):
        return num_clients - 1
    def aggregate(self, rows, num_byzantine):
        raise RuntimeError("no idea")
"""
ODD = """
import outvote
class Odd(outvote.Rule):
    traits = outvote.Traits(has_state=True)
    def max_byzantine(self, num_clients):
        return num_clients - 1
    def compute(self, matrix, info):
        found = outvote.Mean().compute(matrix, info)
        return outvote.Aggregation(weights=found.weights, state=object())
"""


def stopping_after(number: int):
    """A listener and a question to stop, that stop after so many rounds."""
    recorder = Recorder()
    return {"listener": recorder, "should_stop": lambda: len(recorder.rounds) >= number}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What runs with every kind of state come to when nothing stops them."""
    folder = tmp_path_factory.mktemp("whole")
    execute(tiny(**STATES), folder)
    return results(folder)


@pytest.mark.parametrize(
    "number", [2, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 3))]
)
def test_a_run_stopped_anywhere_ends_as_if_it_never_was(tmp_path, undisturbed, number):
    plan = tiny(**STATES)
    ends = execute(plan, tmp_path, **stopping_after(number))
    assert {end.outcome for end in ends.values()} == {"interrupted"}
    status = find_runs(tmp_path)[0].status()
    assert (status.outcome, status.round) == ("interrupted", number)
    execute(plan, tmp_path)
    assert results(tmp_path) == undisturbed


@pytest.mark.parametrize("optimizer", ["adam", "yogi"])
def test_a_stopped_run_keeps_the_moments_of_its_server(tmp_path, optimizer):
    server = {"optimizer": optimizer, "learning_rate": 0.05}
    plan = tiny(rule=["mean", "median"], server=server, training={"proximal": 0.1})
    execute(plan, tmp_path / "whole")
    execute(plan, tmp_path / "stopped", **stopping_after(2))
    for path in (tmp_path / "stopped").glob("*/*/checkpoint.safetensors"):
        arrays = read_checkpoint(path).arrays
        assert set(arrays) == {"weights", "buffers", "first_moment", "second_moment"}
        assert arrays["second_moment"].shape == arrays["weights"].shape
    execute(plan, tmp_path / "stopped")
    assert len(results(tmp_path / "whole")) == 2
    assert results(tmp_path / "stopped") == results(tmp_path / "whole")


def test_how_runs_are_stacked_changes_nothing(tmp_path, undisturbed):
    recorder = Recorder()
    execute(tiny(**STATES), tmp_path, max_stacked=2, listener=recorder)
    assert {num_runs for _, num_runs in recorder.rounds} == {2}
    assert results(tmp_path) == undisturbed


def test_runs_that_are_over_are_not_executed_again(tmp_path):
    execute(tiny(), tmp_path)
    recorder = Recorder()
    ends = execute(tiny(rule=["mean", "median"]), tmp_path, listener=recorder)
    assert {rule: (end.outcome, end.is_new) for rule, end in ends.items()} == {
        "mean": ("finished", False),
        "median": ("finished", True),
    }
    assert recorder.rounds == [(number, 1) for number in (1, 2, 3, 4)]
    assert recorder.num_planned == 4


def test_a_broken_run_fails_alone(tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    broken = f"{tmp_path / 'broken.py'}:Broken"
    recorder = Recorder()
    ends = execute(tiny(rule=["mean", broken, "median"]), tmp_path, listener=recorder)
    assert [end.outcome for end in ends.values()] == ["finished", "failed", "finished"]
    assert "RuntimeError: no idea" in ends[broken].reason
    assert "One of these 3 runs causes it" in recorder.messages[0]
    assert "no idea" in ends[broken].traceback
    assert "broken.py" in ends[broken].traceback
    assert not ends["mean"].traceback
    assert RunFolder(ends[broken].job.folder.path).status().outcome == "failed"
    execute(tiny(rule=["mean", "median"]), tmp_path / "sound")
    assert results(tmp_path / "sound").items() <= results(tmp_path).items()


def test_a_run_whose_state_cannot_be_saved_fails_alone(tmp_path):
    (tmp_path / "odd.py").write_text(ODD)
    odd = f"{tmp_path / 'odd.py'}:Odd"
    ends = execute(tiny(rule=["mean", odd, "median"]), tmp_path, checkpoint_every=0)
    assert [end.outcome for end in ends.values()] == ["finished", "failed", "finished"]
    assert "cannot be saved: rule_state is of type object" in ends[odd].reason
    execute(tiny(rule=["mean", "median"]), tmp_path / "sound")
    assert results(tmp_path / "sound").items() <= results(tmp_path).items()


def test_a_state_that_cannot_be_saved_fails_after_the_first_round(tmp_path):
    (tmp_path / "odd.py").write_text(ODD.replace("object()", "{'seen': {1}}"))
    recorder = Recorder()
    plan = tiny(rule=f"{tmp_path / 'odd.py'}:Odd")
    (end,) = execute(plan, tmp_path, listener=recorder, checkpoint_every=1e9).values()
    assert recorder.rounds == [(1, 1)]
    assert end.outcome == "failed"
    assert "cannot be saved: rule_state.seen is of type set" in end.reason


def test_a_resumed_run_is_named_once_with_its_round(tmp_path):
    execute(tiny(seed=[0, 1]), tmp_path, **stopping_after(2))
    recorder = Recorder()
    execute(tiny(seed=[0, 1, 2]), tmp_path, listener=recorder)
    (line,) = recorder.messages
    assert line.startswith("resumes mean-lie-seed0-")
    assert line.endswith(" and 1 more after round 2 of 4")


def test_runs_record_the_revision_of_the_protocol_and_the_code_of_the_user(tmp_path):
    (tmp_path / "own.py").write_text(
        BROKEN.replace('raise RuntimeError("no idea")', "return rows[0]")
    )
    own = f"{tmp_path / 'own.py'}:Broken"
    ends = execute(tiny(rule=["mean", own]), tmp_path / "runs")
    plain, mine = (ends[rule].job.folder.environment() for rule in ("mean", own))
    assert plain.revision == mine.revision == REVISION
    path = tmp_path / "own.py"
    checksum = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    assert plain.code == ()
    assert mine.code == (CodeUsed(path=str(path), checksum=checksum),)


def test_a_run_that_cannot_be_built_fails_alone(tmp_path):
    plan = tiny(data={"partition": "dirichlet", "min_size": [1, 1000]})
    ends = execute(plan, tmp_path)
    found = [run.status() for run in find_runs(tmp_path)]
    assert sorted(status.outcome for status in found) == ["failed", "finished"]
    assert any("samples each need" in status.reason for status in found)
    assert len(ends) == 1


def test_a_run_that_diverges_is_a_result(tmp_path):
    plan = tiny(rule=["mean", "median"], server={"learning_rate": 1e38}, rounds=5)
    recorder = Recorder()
    ends = execute(plan, tmp_path, listener=recorder)
    assert recorder.messages == []
    assert {end.outcome for end in ends.values()} == {"diverged"}
    run = find_runs(tmp_path)[0]
    assert run.status().round == len(run.rounds()) < 5
    assert not any(end.is_new for end in execute(plan, tmp_path).values())


@pytest.mark.parametrize(("outcome", "rate"), [("finished", 1.0), ("diverged", 1e38)])
def test_without_weights_no_run_that_is_over_leaves_a_checkpoint(tmp_path, outcome, rate):
    plan = tiny(server={"learning_rate": rate}, rounds=2)
    ends = execute(plan, tmp_path, keep_weights=False, checkpoint_every=0)
    assert {end.outcome for end in ends.values()} == {outcome}
    assert not list(tmp_path.glob("*/*/checkpoint*"))


def test_a_run_killed_while_it_was_ending_ends_the_same(tmp_path, monkeypatch):
    settings = {"rule": ["mean", "median"], "rounds": 5}
    for name, more in (("diverged", {"server": {"learning_rate": 1e38}}), ("finished", {})):
        plan = tiny(**settings, **more)
        execute(plan, tmp_path / name)
        with monkeypatch.context() as patch:
            patch.setattr(stack_run, "to_npz", _killed)
            with pytest.raises(KeyboardInterrupt):
                execute(plan, tmp_path / f"{name}-killed")
        ends = execute(plan, tmp_path / f"{name}-killed")
        assert {end.outcome for end in ends.values()} == {name}
        assert results(tmp_path / name) == results(tmp_path / f"{name}-killed")


def _killed(arrays):
    raise KeyboardInterrupt


@pytest.mark.parametrize("how", ["cut", "flip"])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_used(tmp_path, undisturbed, how):
    plan = tiny(**STATES)
    execute(plan, tmp_path / "hurt", checkpoint_every=0, **stopping_after(3))
    newest = min((tmp_path / "hurt").glob("*/*/checkpoint.safetensors"))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 16
    newest.write_bytes(content if how == "flip" else content[:-100])
    recorder = Recorder()
    execute(plan, tmp_path / "hurt", listener=recorder)
    assert len(recorder.messages) == 2
    assert " and 4 more after round 3 of 4" in recorder.messages[1]
    assert "is damaged" in recorder.messages[0]
    assert "resumes from round 2" in recorder.messages[0]
    assert results(tmp_path / "hurt") == undisturbed


def test_a_full_disk_ends_with_one_sentence_and_can_be_resumed(tmp_path, monkeypatch):
    plan = tiny()
    execute(plan, tmp_path / "whole")
    real, calls = os.fsync, []

    def full(handle):
        calls.append(handle)
        if len(calls) > 15:
            raise OSError(28, "No space left on device")
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match="No space left on device; the last checkpoint"):
            execute(plan, tmp_path / "full", checkpoint_every=0)
    recorder = Recorder()
    execute(plan, tmp_path / "full", listener=recorder)
    assert 0 < len(recorder.rounds) < 4
    assert results(tmp_path / "full") == results(tmp_path / "whole")


def test_too_little_memory_means_smaller_stacks(tmp_path, monkeypatch):
    plan = tiny(rule=["mean", "median", "rfa"])

    def run_round(stack, state, **how):
        if len(stack.runs) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return rounds.run_round(stack, state, **how)

    monkeypatch.setattr("outvote.engine.simulation.run_round", run_round)
    recorder = Recorder()
    ends = execute(plan, tmp_path, listener=recorder)
    assert {end.outcome for end in ends.values()} == {"finished"}
    assert recorder.messages == [
        "3 runs do not fit into memory together; their rounds are run with 1 run at a time."
    ]
    assert [num_runs for _, num_runs in recorder.rounds] == [3] * 4


def test_stacks_are_about_equal_in_size(tmp_path, monkeypatch):
    monkeypatch.setattr(RunBuilder, "most_runs", lambda *_: 3)
    recorder = Recorder()
    rules = ["mean", "median", "rfa", "krum"]
    execute(tiny("rounds=1", rule=rules), tmp_path, listener=recorder)
    assert [num_runs for _, num_runs in recorder.rounds] == [2, 2]


def test_a_run_that_another_process_works_on_is_left_alone(tmp_path):
    plan = tiny(rule=["mean", "median"])
    execute(plan, tmp_path / "first", **stopping_after(1))
    run = next(run for run in find_runs(tmp_path / "first") if "mean" in run.path.name)
    writer = Writer(run, b"", "x")
    ends = execute(plan, tmp_path / "first")
    writer.close()
    assert {rule: end.outcome for rule, end in ends.items()} == {
        "mean": "busy",
        "median": "finished",
    }


def test_the_audit_has_scores_and_who_was_kept(tmp_path):
    execute(tiny("attack=nan", "rule=gas(median)"), tmp_path)
    run = find_runs(tmp_path)[0]
    audit = np.load(run.path / "audit.npz")
    assert audit["scores"].shape == (4, 10)
    assert audit["is_sampled"].sum(axis=1).tolist() == [5] * 4
    assert audit["is_byzantine"].sum() == 2
    is_attacker = audit["is_sampled"] & audit["is_byzantine"]
    assert np.isposinf(audit["scores"][is_attacker]).all()
    assert not audit["is_kept"][is_attacker].any()
    assert np.isnan(audit["scores"][~audit["is_sampled"]]).all()
    assert audit["label_counts"].sum() == 6000


def test_images_of_a_folder_have_the_size_that_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTVOTE_DATA", str(tmp_path / "data"))
    random = np.random.default_rng(0)
    for part, name, number in product(("train", "val"), "ab", range(12)):
        folder = tmp_path / "data" / "imagenet12" / part / name
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    data = {"name": "imagenet12", "image_size": [16, 8]}
    plan = tiny(data=data, rounds=1, federation={"num_clients": 4, "sampled": 2})
    recorder = Recorder()
    execute(plan, tmp_path / "runs", listener=recorder)
    assert [end.outcome for end in recorder.ends] == ["finished", "finished"]
    assert recorder.rounds == [(1, 1), (1, 1)], "other images cannot be stacked"
    sizes = {run.path.name[-12:]: len(_weights(run)) for run in find_runs(tmp_path / "runs")}
    by_size = {spec.data.image_size: sizes[spec.hash] for spec in plan.specs}
    inputs = {size: size * size * 3 for size in (8, 16)}
    # One row of weights per pixel and colour: the first layer is what differs.
    assert (by_size[16] - by_size[8]) % (inputs[16] - inputs[8]) == 0
    assert by_size[16] > by_size[8]


def _weights(run):
    return read_checkpoint(run.path / "checkpoint.safetensors").arrays["weights"]


RAISING_ATTACK = """
import outvote
class Raising(outvote.Attack):
    def craft(self, *args, **kwargs):
        raise RuntimeError("two\\nlines")
"""


@pytest.mark.parametrize("who", ["rule", "attack"])
def test_a_rule_or_attack_that_raises_has_failed_and_not_diverged(tmp_path, who):
    (tmp_path / "own.py").write_text(BROKEN if who == "rule" else RAISING_ATTACK)
    text = f"{tmp_path / 'own.py'}:{'Broken' if who == 'rule' else 'Raising'}"
    (end,) = execute(tiny(**{who: text}), tmp_path / "runs").values()
    status = find_runs(tmp_path / "runs")[0].status()
    line = 7 if who == "rule" else 5
    what = "no idea" if who == "rule" else "two lines"
    expected = f"RuntimeError: {what} (own.py, line {line})."
    assert (end.outcome, end.reason) == ("failed", expected)
    assert (status.outcome, status.reason) == ("failed", expected)
