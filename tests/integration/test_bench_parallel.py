"""`outvote bench` by many processes: those of this machine, of any executor, of Dask."""

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from benches import is_running, metrics, outcomes, own_rule, own_suite, start
from command_line import run
from outvote.experiment.processes import ProcessEnded, Processes
from outvote.experiment.runner import Runner
from outvote.experiment.scheduler import OPTIONS, ProcessPool, execute_on
from outvote.results.disk import StoreError
from outvote.results.folder import find_runs
from simulations import Recorder, execute, tiny

CPU = ["--device", "cpu"]
ASLEEP = """
import os, time
from outvote.experiment.processes import Processes
pool = Processes(1)
print(pool.submit(os.getpid).result(), flush=True)
pool.submit(time.sleep, 600).result()
"""
needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="there is no /proc")
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
MARKED = "p = Path(__file__ + '.once'); p.exists() or (p.touch(), {kill})"


def two_processes():
    """Two processes with as many threads as this one."""
    pool = Processes(2)
    return pool, ProcessPool(executor=pool, number=2, num_threads=torch.get_num_threads())


def execute_by_two(plan, output, **how):
    pool, workers = two_processes()
    with pool:
        ends = execute_on(workers, Runner(output=output, **how), plan)
    return {end.job.spec.rule: end for end in ends}


def test_many_processes_give_the_same_as_one_and_one_that_is_killed_harms_no_other(tmp_path):
    once = own_rule(tmp_path, MARKED.format(kill=KILL), "once")
    always = own_rule(tmp_path, KILL, "always")
    broken = own_rule(tmp_path, "raise RuntimeError('no idea')", "broken")
    plan = tiny(rule=["mean", once, always, broken, "gas(median)", "centered-clipping"])
    recorder = Recorder()
    ends = execute_by_two(plan, tmp_path / "many", listener=recorder)
    assert {rule: end.outcome for rule, end in ends.items()} == {
        "mean": "finished",
        once: "finished",
        always: "failed",
        broken: "failed",
        "gas(median)": "finished",
        "centered-clipping": "finished",
    }
    assert "its process ended with the exit code -9" in ends[always].reason
    assert "RuntimeError: no idea" in ends[broken].reason
    assert len([words for words in recorder.messages if "Trying once more." in words]) == 2
    assert outcomes(tmp_path / "many") == {"failed": 2, "finished": 4}
    assert {end.job.spec.rule for end in recorder.ends} == set(ends)
    # What is reported meanwhile: every round of every run that ended, as it was written.
    assert recorder.num_planned == 6 * 4
    assert {number for number, _ in recorder.rounds} == {1, 2, 3, 4}
    sound = tiny(rule=["mean", once, "gas(median)", "centered-clipping"])
    execute(sound, tmp_path / "one")
    whole = metrics(tmp_path / "one")
    assert whole.items() <= metrics(tmp_path / "many").items()
    assert len(whole) == 4


def test_any_executor_will_do(tmp_path):
    plan = tiny(rule=["mean", "median"], seed=[0, 1])
    with ThreadPoolExecutor(2) as pool:
        ends = execute_on(ProcessPool(executor=pool, number=2), Runner(output=tmp_path / "a"), plan)
    assert [end.outcome for end in ends] == ["finished"] * 4
    assert [end.job.spec for end in ends] == list(plan.specs)
    execute(plan, tmp_path / "b")
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")


def test_the_options_of_a_runner_reach_every_process(tmp_path):
    """`--no-weights` holds under `-j` too, and so does an option that is added later."""
    # A unit has these in another form, or they are used before units are submitted.
    elsewhere = {"output", "device", "listener", "should_stop", "adopts", "builder"}
    elsewhere |= {"reported"}
    assert {field.name for field in fields(Runner)} - elsewhere == set(OPTIONS)
    runner = Runner(output=tmp_path, keep_weights=False)
    with ThreadPoolExecutor(1) as pool:
        ends = execute_on(ProcessPool(executor=pool), runner, tiny(rounds=1))
    assert [end.outcome for end in ends] == ["finished"]
    assert not list(tmp_path.glob("*/*/checkpoint*"))


def test_a_stop_reaches_all_and_nothing_more_is_started(tmp_path):
    plan = tiny(rule=["mean", "median", "rfa"])
    recorder = Recorder()
    runner = Runner(output=tmp_path, listener=recorder, should_stop=lambda: True)
    with ThreadPoolExecutor(1) as pool:
        ends = execute_on(ProcessPool(executor=pool), runner, plan)
    assert {end.outcome for end in ends} <= {"interrupted", "finished"}
    assert ends[-1].outcome == "interrupted"
    assert not list(tmp_path.glob(".stop-*"))


def test_a_full_disk_ends_all_with_one_sentence(tmp_path):
    (tmp_path / "tiny").write_text("a file")
    with ThreadPoolExecutor(2) as pool, pytest.raises(StoreError, match="could not be written"):
        execute_on(ProcessPool(executor=pool), Runner(output=tmp_path), tiny(seed=[0, 1, 2]))


def test_a_busy_run_is_left_to_the_other_process(tmp_path):
    plan = tiny(rule=["mean", "median"])
    busy = plan.jobs(tmp_path)[0].writer()
    with ThreadPoolExecutor(1) as pool:
        ends = execute_on(ProcessPool(executor=pool), Runner(output=tmp_path), plan)
    busy.close()
    assert [end.outcome for end in ends] == ["busy", "finished"]


def test_a_process_that_ends_is_replaced():
    pool = Processes(1)
    with pool:
        first = pool.submit(os.getpid).result()
        assert pool.submit(os.getpid).result() == first
        with pytest.raises(ProcessEnded, match="exit code 7"):
            pool.submit(os._exit, 7).result()
        with pytest.raises(RuntimeError, match="ValueError: invalid literal"):
            pool.submit(int, "x").result()
        assert pool.submit(os.getpid).result() != first


def test_processes_can_be_ended_at_once():
    pool = Processes(1)
    asleep = pool.submit(time.sleep, 600)
    while not asleep.running():
        time.sleep(0.01)
    started = time.monotonic()
    while not pool._all:
        time.sleep(0.01)
    pool.kill()
    with pytest.raises(ProcessEnded):
        asleep.result(timeout=60)
    assert time.monotonic() - started < 60


@needs_proc
def test_processes_at_work_end_when_the_one_that_started_them_is_killed():
    process = subprocess.Popen([sys.executable, "-c", ASLEEP], stdout=subprocess.PIPE, text=True)
    worker = int(process.stdout.readline())
    assert is_running(worker)
    process.kill()
    process.communicate(timeout=60)
    last = time.monotonic() + 60
    while is_running(worker):
        assert time.monotonic() < last
        time.sleep(0.01)


def test_a_child_that_is_asked_to_end_saves_and_its_run_goes_on(tmp_path):
    once = own_rule(tmp_path, MARKED.format(kill="os.kill(os.getpid(), signal.SIGTERM)"), "once")
    recorder = Recorder()
    with Processes(1) as pool:
        runner = Runner(output=tmp_path / "runs", listener=recorder)
        (end,) = execute_on(ProcessPool(executor=pool), runner, tiny(rule=once))
    assert end.outcome == "finished"
    asked, resumed = recorder.messages
    assert "was asked to stop, and saved. Trying once more." in asked
    assert "after round 1 of 4" in resumed
    (found,) = find_runs(tmp_path / "runs")
    assert (found.status().outcome, len(found.rounds()), len(found.timings())) == ("finished", 4, 4)


@pytest.fixture
def cluster():
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1,
        threads_per_worker=2,
        processes=False,
        host="127.0.0.1",
        protocol="tcp://",
        dashboard_address="127.0.0.1:0",
    ) as found:
        yield found


def test_the_workers_of_dask_run_a_suite(capsys, cluster, tmp_path):
    suite = own_suite(tmp_path, ["mean", own_rule(tmp_path, "pass")])
    assert re.match(r"tcp://127\.0\.0\.1:\d+$", cluster.scheduler_address)
    words = ["--dask", cluster.scheduler_address, *CPU]
    result = run(capsys, "bench", suite, "-o", tmp_path / "dask", *words)
    assert result.code == 0, result.err
    assert outcomes(tmp_path / "dask") == {"finished": 8}
    assert run(capsys, "bench", suite, "-o", tmp_path / "here", *CPU).code == 0
    assert metrics(tmp_path / "dask") == metrics(tmp_path / "here")


@pytest.fixture
def same_environment():
    """Dask sets OMP_NUM_THREADS and others for its workers, and leaves them set."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.slow
@pytest.mark.usefixtures("same_environment")
def test_a_worker_of_dask_that_is_killed_harms_nobody(capsys, tmp_path):
    distributed = pytest.importorskip("distributed")
    once = own_rule(tmp_path, MARKED.format(kill=KILL), "once")
    suite = own_suite(tmp_path, ["mean", once])
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0"
    ) as cluster:
        words = ["--dask", cluster.scheduler_address, *CPU]
        result = run(capsys, "bench", suite, "-o", tmp_path / "runs", *words)
    assert result.code == 0, result.err
    assert Path(f"{once.removesuffix(':Mine')}.once").exists()
    assert outcomes(tmp_path / "runs") == {"finished": 8}


@pytest.mark.slow
def test_an_address_without_a_scheduler_is_reported(capsys, tmp_path):
    pytest.importorskip("distributed")
    suite = own_suite(tmp_path, ["mean"])
    result = run(capsys, "bench", suite, "-o", tmp_path, *CPU, "--dask", "tcp://127.0.0.1:9")
    assert result.code == 2
    assert "no scheduler answers at 'tcp://127.0.0.1:9'" in result.err


@pytest.mark.slow
def test_smoke_takes_less_than_five_minutes_on_two_cores(tmp_path):
    started = time.monotonic()
    process = start("smoke", tmp_path)
    _, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    assert outcomes(tmp_path) == {"finished": 256}
    assert time.monotonic() - started < 300
