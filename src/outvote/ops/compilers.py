"""Kernels of Triton compiled before they are needed, many at a time, in forked processes.

Threads that compile wait for each other: Python's lock is held for a quarter of the time. A process
compiles a kernel into Triton's cache on the disk, and beside it the C code that launches it, which
takes as long as a small kernel. Whoever needs the kernel reads both from there.
"""

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from threading import Condition, Thread, local
from types import SimpleNamespace
from typing import Any

from outvote.forked import IS_POSSIBLE, fork, leave_to_parent
from outvote.ops.threads import num_cores

MOST_PROCESSES = 16
# In seconds. The slowest kernel takes three.
LONGEST_WAIT, LONGEST_END, SHORT_WAIT = 60.0, 5.0, 0.01
# What Triton's launcher asks of a compiled kernel, besides its arguments: nothing that shows in its
# C code.
_NO_SCRATCH = {
    "global_scratch_size": 0,
    "global_scratch_align": 1,
    "profile_scratch_size": 0,
    "profile_scratch_align": 1,
    "launch_cooperative_grid": False,
    "launch_pdl": False,
}

HERE = local()


def is_compiler() -> bool:
    """Return whether this thread compiles an order."""
    return getattr(HERE, "is_compiler", False)


@dataclass(frozen=True, slots=True)
class Order:
    """A kernel, and what it is compiled for."""

    module: str
    name: str
    data: str
    """What it is compiled for, as Triton writes it down."""
    signature: dict[str, Any]
    constants: dict[Any, Any]


_Job = tuple[Order, "Future[None]"]


class Compilers:
    """Processes that compile orders; where there are none, threads."""

    def __init__(self, compile_one: Callable[[Order], object]) -> None:
        """Fork as many as there are cores; `compile_one` is called for each order, in a child."""
        number = min(num_cores(), MOST_PROCESSES)
        self._compile_one = compile_one
        self._processes = _Processes(number, compile_one) if IS_POSSIBLE else None
        self._changed = Condition()
        self._urgent: deque[_Job] = deque()
        self._later: deque[_Job] = deque()
        self._num_open, self._is_closed = 0, False
        connections = self._processes.connections if self._processes else [None] * number
        for k, connection in enumerate(connections):
            # A quarter of the processes is left for what is waited for, where there are several.
            takes_all = k < max(1, 3 * number // 4)
            # Daemons: who ends the program does not wait for what nobody waits for.
            Thread(target=self._work, args=(connection, takes_all), daemon=True).start()

    def order(self, order: Order, *, is_urgent: bool) -> Future[None]:
        """Have a kernel compiled; what fails is compiled, and reported, where it is needed."""
        done: Future[None] = Future()
        with self._changed:
            (self._urgent if is_urgent else self._later).append((order, done))
            self._num_open += 1
            self._changed.notify_all()
        return done

    def _work(self, process: Connection | None, takes_all: bool) -> None:
        """Compile one order after the other, by a process; None: in this thread."""
        while (job := self._next(takes_all)) is not None:
            order, done = job
            with suppress(Exception):  # The kernel is compiled again where it is needed.
                process = self._compile(process, order)
            done.set_result(None)
            with self._changed:
                self._num_open -= 1
                self._changed.notify_all()

    def _compile(self, process: Connection | None, order: Order) -> Connection | None:
        if process is not None:
            try:
                _ask(process, order)
            except (OSError, EOFError):  # It was killed, or is stuck: this thread takes its place.
                return None
            return process
        HERE.is_compiler = True
        self._compile_one(order)
        return None

    def _next(self, takes_all: bool) -> "_Job | None":
        with self._changed:
            while True:
                if self._urgent:
                    return self._urgent.popleft()
                if self._later and takes_all:
                    return self._later.popleft()
                if self._is_closed:
                    return None
                self._changed.wait()

    def close(self) -> None:
        """Wait for all orders, and end the processes."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_open == 0)
            self._is_closed = True
            self._changed.notify_all()
        if self._processes is not None:
            self._processes.close()


def _ask(process: Connection, order: Order) -> None:
    """Wait until an order is compiled, or has failed."""
    process.send(order)
    if not process.poll(LONGEST_WAIT):
        raise TimeoutError
    process.recv_bytes()


class _Processes:
    """Forked processes, and one that forked them: it takes long where much memory is mapped."""

    def __init__(self, number: int, compile_one: Callable[[Order], object]) -> None:
        pairs = [Pipe() for _ in range(number)]
        self.connections = [ours for ours, _ in pairs]
        parent = os.getpid()
        self._first = fork()
        if self._first == 0:
            _begin([theirs for _, theirs in pairs], compile_one, parent)
        for _, theirs in pairs:
            theirs.close()

    def close(self) -> None:
        """Let the processes end; those that are stuck are killed."""
        for connection in self.connections:
            connection.close()
        until = time.monotonic() + LONGEST_END
        with suppress(ChildProcessError, ProcessLookupError):  # They were waited for elsewhere.
            while os.waitpid(self._first, os.WNOHANG) == (0, 0):
                if time.monotonic() > until:
                    os.killpg(self._first, signal.SIGKILL)
                time.sleep(SHORT_WAIT)


def _begin(
    connections: list[Connection], compile_one: Callable[[Order], object], parent: int
) -> None:
    """Fork a process for each connection, and stay while they and the parent are there."""
    try:
        os.setpgid(0, 0)  # Their compilers can be killed with them.
        for connection in connections:
            if fork() == 0:
                _serve(connection, compile_one)
        leave_to_parent(())
        while os.getppid() == parent:  # Until there is no child: an error then.
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(SHORT_WAIT)
        # Who compiles, or is stuck, does not notice that the parent was killed.
        os.killpg(0, signal.SIGKILL)
    finally:
        os._exit(0)


def _serve(orders: Connection, compile_one: Callable[[Order], object]) -> None:
    """Be a process that compiles until the parent ends; never return."""
    try:
        leave_to_parent((orders.fileno(),))
        while True:
            order = orders.recv()
            with suppress(Exception):  # The kernel is compiled again where it is needed.
                compile_one(order)
            orders.send_bytes(b"")
    finally:
        os._exit(0)


def for_target(target: Any, device: int, launcher: Any) -> Callable[[Order], None]:
    """Return what compiles an order for a GPU, which is not looked at: a child must not use it."""

    def compile_one(order: Order) -> None:
        if not is_compiler():  # In a child.
            _forget_gpu(target, device)
            HERE.is_compiler = True
        # Not imported: at the fork, a thread may have held the lock of an import.
        kernel = getattr(sys.modules[order.module], order.name)
        kernel = getattr(kernel, "kernel", kernel)
        building = Thread(target=_build_launcher, args=(launcher, kernel, order))
        building.start()
        kernel.preload(order.data)
        building.join()

    return compile_one


def _forget_gpu(target: Any, device: int) -> None:
    from triton import knobs
    from triton.runtime.driver import driver

    knobs.runtime.jit_cache_hook = knobs.runtime.jit_post_compile_hook = None
    knobs.compilation.listener = None
    driver.set_active(
        SimpleNamespace(get_current_device=lambda: device, get_current_target=lambda: target)
    )


def _build_launcher(launcher: Any, kernel: Any, order: Order) -> None:
    """Compile the C code that launches a kernel, which Triton leaves to the first launch."""
    source = SimpleNamespace(fn=kernel, signature=order.signature, constants=order.constants)
    with suppress(Exception):  # It is built at the first launch then.
        launcher(source, SimpleNamespace(**_NO_SCRATCH))
