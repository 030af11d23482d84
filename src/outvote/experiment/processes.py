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
Returned = TypeVar("Returned")
ASKED_TO_STOP = Event()
"""Set in a process that was asked to end: its unit finishes the round and saves."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
CAN_BLOCK = hasattr(signal, "pthread_sigmask")


class ProcessEnded(RuntimeError):  # noqa: N818  (an event, not a mistake)
    """The process ended before it returned: killed, or out of memory."""


@final
class Processes(Executor):
    """A fixed number of processes; they stay, so that each loads torch and the data once.

    A ProcessPoolExecutor would end all processes when one of them is killed.
    """

    def __init__(self, num_processes: int) -> None:
        """Start none: a process starts when there is work for it."""
        self._threads = ThreadPoolExecutor(num_processes, "outvote-process")
        self._free: SimpleQueue[_Worker | None] = SimpleQueue()
        self._all: set[_Worker] = set()
        self._lock = Lock()
        self._is_killed = False
        for _ in range(num_processes):
            self._free.put(None)

    def submit(
        self, fn: Callable[Given, Returned], /, *args: Given.args, **kwargs: Given.kwargs
    ) -> Future[Returned]:
        """Let the next free process call a function that can be imported."""
        return self._threads.submit(self._call, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the processes end when their work is done."""
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        if wait:
            for worker in self._all:
                worker.close()

    def kill(self) -> None:
        """End all processes at once; what they worked on fails."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._is_killed = True
            for worker in self._all:
                worker.process.kill()

    def _call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        worker = self._free.get()
        try:
            if worker is None:
                worker = self._started()
            return worker.call(function, args, kwargs)
        except ProcessEnded:
            if worker is not None:
                worker.close()
                with self._lock:
                    self._all.discard(worker)
            worker = None
            raise
        finally:
            self._free.put(worker)

    def _started(self) -> "_Worker":
        with self._lock:
            if self._is_killed:
                raise ProcessEnded("no more processes are started")
            worker = _Worker()
            self._all.add(worker)
        return worker


@final
class _Worker:
    """One process, and the pipe to it."""

    def __init__(self) -> None:
        # Not forked: threads and CUDA do not survive that.
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs,), daemon=True)
        with _signals_blocked():
            self.process.start()
        theirs.close()

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        try:
            self.connection.send((function, args, kwargs))
            # Its end of the pipe is closed if it ends, however that comes.
            wait([self.connection, self.process.sentinel])
            is_fine, returned = self.connection.recv()
        except (EOFError, OSError) as error:
            self.process.join()
            code = self.process.exitcode
            raise ProcessEnded(f"its process ended with the exit code {code}") from error
        if not is_fine:
            raise RuntimeError(returned)
        return returned

    def close(self) -> None:
        self.connection.close()
        self.process.join()


def _serve(connection: Connection) -> None:
    """Execute calls until the other side is gone."""
    # Ctrl-C goes to all processes of a terminal: the first one decides, and writes the stop file.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    if CAN_BLOCK:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            function, args, kwargs = connection.recv()
        except (EOFError, OSError):
            return
        try:
            returned = (True, function(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  (it is raised on the other side)
            returned = (False, f"{type(error).__name__}: {error}")
        connection.send(returned)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals until a new process has set its handlers."""
    if not CAN_BLOCK:
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
    """Release all runs when the first process was killed: the next command needs them."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
