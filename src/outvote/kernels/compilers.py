"""Kernels compiled by processes: those of one process wait for each other on Python's lock.

`start_compilers` starts one process that imports Triton and waits. Each kernel that is to be
compiled from then on is described to it; it forks, the fork compiles the kernel into Triton's
cache on disk and exits, and the kernel is loaded from there. Where anything fails, Triton compiles
in this process as it always does.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from threading import Lock, Thread
from typing import Any

PACKAGE = "outvote.kernels."
# A sort takes some seconds, and more where all cores are busy.
LONGEST_SECONDS = 60.0
COMMAND = (sys.executable, "-m", "outvote.kernels.compile_server")


class Compilers:
    """A process that compiles kernels in forks of itself."""

    def __init__(self) -> None:
        """Start the process; it needs a second or two until it takes orders."""
        self._lock = Lock()
        self._orders: dict[str, Future[bool]] = {}
        self._numbers: list[Future[bool]] = []
        self._server = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._reader = Thread(target=self._read_answers, daemon=True, name="compilers")
        self._reader.start()

    def compile(self, order: dict[str, Any]) -> bool:
        """Have a kernel compiled, once for all who ask; return whether it is in the cache."""
        text = json.dumps(order, sort_keys=True)
        with self._lock:
            if text not in self._orders:
                self._orders[text] = self._send(text)
            answer = self._orders[text]
        with suppress(Exception):
            return answer.result(timeout=LONGEST_SECONDS)
        return False

    def stop(self) -> None:
        """End the process, and whoever waits for it."""
        self._server.kill()
        self._server.wait()
        self._reader.join()
        for pipe in (self._server.stdin, self._server.stdout):
            if pipe is not None:
                with suppress(OSError), self._lock:
                    pipe.close()

    def _send(self, text: str) -> "Future[bool]":
        answer: Future[bool] = Future()
        self._numbers.append(answer)
        pipe = self._server.stdin
        assert pipe is not None
        try:
            pipe.write(f"{len(self._numbers) - 1} {text}\n".encode())
            pipe.flush()
        except (OSError, ValueError):  # The process has ended, or the pipe is closed.
            answer.set_result(False)
        return answer

    def _read_answers(self) -> None:
        assert self._server.stdout is not None
        for line in self._server.stdout:
            number, is_done = map(int, line.split())
            self._numbers[number].set_result(bool(is_done))
        self._server.wait()
        with self._lock:
            for answer in self._numbers:
                if not answer.done():
                    answer.set_result(False)


_STARTED: list[Compilers] = []


def start_compilers() -> None:
    """Start the process of compilers, if there is none and kernels may have to be compiled."""
    if not _STARTED and hasattr(os, "fork") and find_spec("triton") is not None:
        with suppress(OSError):
            _STARTED.append(Compilers())


@contextmanager
def compiled_elsewhere() -> Iterator[bool]:
    """Let the process that was started compile the kernels meanwhile, and end it.

    Gives whether it does.
    """
    compilers = _STARTED.pop() if _STARTED else None
    knobs = _knobs()
    is_ours = compilers is not None and knobs is not None and knobs.jit_cache_hook is None
    try:
        if is_ours and compilers is not None:
            knobs.jit_cache_hook = _Hook(compilers)
        yield is_ours
    finally:
        if is_ours:
            knobs.jit_cache_hook = None
        if compilers is not None:
            compilers.stop()


def _knobs() -> Any:
    """Return Triton's settings at run time, where this release has a hook before compilation."""
    try:
        from triton import knobs
    except ImportError:
        return None
    runtime = getattr(knobs, "runtime", None)
    return runtime if hasattr(runtime, "jit_cache_hook") else None


class _Hook:
    """What Triton calls before it compiles a kernel."""

    def __init__(self, compilers: Compilers) -> None:
        self._compilers = compilers

    def __call__(self, *, fn: Any, compile: dict[str, Any], **_: Any) -> bool:  # noqa: A002
        """Wait until the kernel is in the cache on disk; Triton goes on and finds it there."""
        with suppress(Exception):
            if fn.module.startswith(PACKAGE):
                from triton.runtime import driver

                order = {
                    "module": fn.module,
                    "name": fn.name,
                    "data": compile["specialization_data"],
                    "target": vars(driver.active.get_current_target()),
                }
                self._compilers.compile(order)
        return False
