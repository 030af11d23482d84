"""Runs that another suite of the store has finished are copied, whole or not at all."""

import shutil
import tomllib
from pathlib import Path

import msgspec
import pytest

from benches import finished_store, metrics, outcomes, own_suite
from command_line import run
from outvote.experiment import adopting
from outvote.experiment.adopting import adopt, find_elsewhere
from outvote.experiment.dataset_cache import DatasetCache
from outvote.experiment.plan import Plan, read_plan
from outvote.results import disk
from outvote.results.folder import find_runs
from simulations import Recorder, execute

CPU = ["--device", "cpu"]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return finished_store(tmp_path_factory.mktemp("suite"))[1]


def copied(store, tmp_path):
    return shutil.copytree(store, tmp_path / "runs")


def test_a_run_of_another_suite_is_adopted_and_not_executed_again(capsys, store, tmp_path):
    output = copied(store, tmp_path)
    other = own_suite(tmp_path, ["mean", "median"], name="other")
    dry = run(capsys, "bench", other, "-o", output, *CPU, "--dry-run")
    assert "0 finished, 0 half done, 4 adoptable from another suite, 4 to do" in dry.out
    result = run(capsys, "bench", other, "-o", output, *CPU)
    assert result.code == 0
    assert result.err == f"4 runs finished in another suite of {output}: copied.\n"
    whole = metrics(store)
    adopted = [each for each in find_runs(output / "other") if each.path.name in whole]
    assert len(adopted) == 4
    for each in adopted:
        assert (each.path / "metrics.jsonl").read_bytes() == whole[each.path.name]
        assert not (each.path / "checkpoint.safetensors").exists()
        config = tomllib.loads((each.path / "config.toml").read_text())
        assert config["suite"] == "other"
        assert read_plan(each.path / "config.toml").hashes[0] in each.path.name
        assert len(each.timings()) == 3
    assert outcomes(output / "other") == {"finished": 8}
    assert not list((output / "other").glob(".*"))


def half_done(output):
    job = _job(output)
    plan = Plan(job.suite, (job.spec,), (job.hash,))
    recorder = Recorder()
    execute(plan, output, listener=recorder, should_stop=lambda: len(recorder.rounds) == 2)
    assert job.folder.status().round == 2
    return job


def test_a_half_done_run_goes_on_by_itself(store, tmp_path):
    job = half_done(copied(store, tmp_path))
    assert adopt(job, find_elsewhere(job), DatasetCache().used(job.spec.data)) is None
    assert job.folder.status().round == 2


def test_a_run_on_other_data_is_not_adopted(store, tmp_path):
    job = _job(copied(store, tmp_path))
    now = msgspec.structs.replace(DatasetCache().used(job.spec.data), checksum="0" * 64)
    assert adopt(job, find_elsewhere(job), now) is None
    assert not job.folder.path.exists()


@pytest.mark.parametrize("step", ["copyfile", "write_whole", "rename"])
def test_killed_while_it_copies_nothing_half_is_taken_for_a_run(store, tmp_path, monkeypatch, step):
    output = copied(store, tmp_path)
    job = _job(output)
    now = DatasetCache().used(job.spec.data)

    def killed(*facts, **more):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *facts, **more: None)
        owner = {"copyfile": shutil, "write_whole": adopting, "rename": Path}[step]
        patch.setattr(owner, step, killed)
        with pytest.raises(KeyboardInterrupt):
            adopt(job, find_elsewhere(job), now)
    assert [path.name[0] for path in (output / "elsewhere").iterdir()] == ["."]
    assert find_runs(output / "elsewhere") == []
    monkeypatch.setattr(disk, "LONG_AGO", -1.0)
    assert adopt(job, find_elsewhere(job), now).outcome == "finished"
    assert [path.name for path in (output / "elsewhere").iterdir()] == [job.name]


def _job(output):
    path = find_runs(output)[0].path / "config.toml"
    plan = read_plan(path, ["suite=elsewhere"])
    return plan.jobs(output)[0]
