"""Processes on this machine as an executor: one that is killed takes only its own work with it."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from threading import Event, Lock, Thread
from types import FrameType
from typing import Any, ParamSpec, TypeVar, final

Given = ParamSpec("Given")
Aggregation = TypeVar("Aggregation")
ASKED_TO_STOP = Event()
"""Set in a process that was asked to end: the unit that it plays finishes its round and saves."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
CAN_HOLD_BACK = hasattr(signal, "pthread_sigmask")


class ProcessEnded(RuntimeError):  # noqa: N818  (it tells what happened)
    """The process ended before it answered: killed, or out of memory."""


@final
class Processes(Executor):
    """So many processes; they stay, so that torch and the pictures are loaded once in each.

    A ProcessPoolExecutor would end all processes when one of them is killed.
    """

    def __init__(self, num_processes: int) -> None:
        """Start none: a process is started when there is work for it."""
        self._threads = ThreadPoolExecutor(num_processes, "outvote-process")
        self._free: SimpleQueue[_Worker | None] = SimpleQueue()
        self._all: set[_Worker] = set()
        self._lock = Lock()
        self._is_killed = False
        for _ in range(num_processes):
            self._free.put(None)

    def submit(
        self, fn: Callable[Given, Aggregation], /, *args: Given.args, **kwargs: Given.kwargs
    ) -> Future[Aggregation]:
        """Let the next free process call a function that can be imported."""
        return self._threads.submit(self._call, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the processes end when their work is done."""
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        if wait:
            for lane in self._all:
                lane.close()

    def kill(self) -> None:
        """End all processes at once; what they worked on fails."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._is_killed = True
            for lane in self._all:
                lane.process.kill()

    def _call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        lane = self._free.get()
        try:
            if lane is None:
                lane = self._started()
            return lane.call(function, args, kwargs)
        except ProcessEnded:
            if lane is not None:
                lane.close()
                with self._lock:
                    self._all.discard(lane)
            lane = None
            raise
        finally:
            self._free.put(lane)

    def _started(self) -> "_Worker":
        with self._lock:
            if self._is_killed:
                raise ProcessEnded("no more processes are started")
            lane = _Worker()
            self._all.add(lane)
        return lane


@final
class _Worker:
    """One process, and the pipe to it."""

    def __init__(self) -> None:
        # Not forked: threads and CUDA do not survive that.
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs,), daemon=True)
        with _held_back():
            self.process.start()
        theirs.close()

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        try:
            self.connection.send((function, args, kwargs))
            # Its end of the pipe is closed if it ends, however that comes.
            wait([self.connection, self.process.sentinel])
            is_fine, answer = self.connection.recv()
        except (EOFError, OSError) as error:
            self.process.join()
            code = self.process.exitcode
            raise ProcessEnded(f"its process ended with the exit code {code}") from error
        if not is_fine:
            raise RuntimeError(answer)
        return answer

    def close(self) -> None:
        self.connection.close()
        self.process.join()


def _serve(connection: Connection) -> None:
    """Aggregation calls until the other side is gone."""
    # Ctrl-C goes to all processes of a terminal: the first one decides, and tells by a file.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    if CAN_HOLD_BACK:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            function, args, kwargs = connection.recv()
        except (EOFError, OSError):
            return
        try:
            answer = (True, function(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  (whatever it is, it is told on the other side)
            answer = (False, f"{type(error).__name__}: {error}")
        connection.send(answer)


@contextmanager
def _held_back() -> Iterator[None]:
    """Start a process that no signal ends before it can say what it does with them."""
    if not CAN_HOLD_BACK:
        yield
        return
    resource_tracker.ensure_running()  # When it is started, it lets signals through again.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stop(number: int, frame: FrameType | None) -> None:
    del number, frame
    ASKED_TO_STOP.set()


def _end_with_parent() -> None:
    """Let go of all runs when the first process was killed: the next command wants them."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
