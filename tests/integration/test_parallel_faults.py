"""What ends many processes: signals, an executor that breaks, a store that cannot be made."""

import os
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from outvote.experiment.processes import ProcessEnded, Processes
from outvote.experiment.runner import Runner
from outvote.experiment.scheduler import ProcessPool, execute_on, stop_file
from outvote.results import disk
from outvote.results.disk import StoreError
from outvote.results.folder import find_runs
from simulations import Recorder, tiny

THREE = {"rule": ["mean", "median", "rfa"], "rounds": 1}


class Breaking(ThreadPoolExecutor):
    """Takes one piece of work, then none."""

    def submit(self, fn, /, *args, **kwargs):
        future = super().submit(fn, *args, **kwargs)
        self.shutdown()
        return future


class Deadly(ThreadPoolExecutor):
    """All of its processes end before they return."""

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        future.set_exception(ProcessEnded("its process ended with the exit code -2"))
        return future


def execute_by(executor, output, **how):
    return execute_on(ProcessPool(executor=executor), Runner(output=output, **how), tiny(**THREE))


def test_a_store_that_cannot_be_made_is_reported_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with ThreadPoolExecutor(2) as pool, pytest.raises(StoreError, match="could not be written"):
        execute_by(pool, tmp_path / "file" / "runs")


def test_what_an_executor_does_not_accept_is_left_and_reported_once(tmp_path):
    recorder = Recorder()
    ends = execute_by(Breaking(1), tmp_path, listener=recorder)
    assert [end.outcome for end in ends] == ["finished", "interrupted", "interrupted"]
    assert len(find_runs(tmp_path)) == 1
    why = "RuntimeError: cannot schedule new futures after shutdown."
    assert recorder.messages == [f"the executor accepted no more work: {why}"]


def test_a_process_that_ends_when_all_shall_stop_has_not_failed(tmp_path):
    ends = execute_by(Deadly(1), tmp_path, should_stop=lambda: True)
    assert {end.outcome for end in ends} == {"interrupted"}
    assert find_runs(tmp_path) == []
    assert {end.outcome for end in execute_by(Deadly(1), tmp_path)} == {"failed"}


def test_ended_at_once_it_still_asks_those_at_work_to_stop(tmp_path, monkeypatch):
    class Impatient(Recorder):
        def on_end(self, end):
            raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as pool, pytest.raises(KeyboardInterrupt):
        execute_by(pool, tmp_path, listener=Impatient())
    assert len(find_runs(tmp_path)) < 3
    assert len(list(tmp_path.glob(".stop-*"))) == 1
    stop_file(tmp_path)
    assert len(list(tmp_path.glob(".stop-*"))) == 1
    monkeypatch.setattr(disk, "LONG_AGO", -1.0)
    stop_file(tmp_path)
    assert list(tmp_path.glob(".stop-*")) == []


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="signals cannot be held back")
def test_signals_do_not_end_a_process_that_is_being_started():
    with Processes(1) as pool:
        future = pool.submit(os.getpid)
        while not pool._all:
            time.sleep(0.001)
        (worker,) = pool._all
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(worker.process.pid, number)
        assert future.result(timeout=60) == worker.process.pid


def test_no_process_is_started_when_all_are_to_end_at_once():
    pool = Processes(1)
    pool.kill()
    with pytest.raises(ProcessEnded, match="no more processes are started"):
        pool._call(os.getpid, (), {})
