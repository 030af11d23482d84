"""Kernels of Triton compiled before they are needed, many at a time, in forked processes.

Threads that compile wait for each other: Python's lock is held for a quarter of the time. A process
compiles a kernel into Triton's cache on the disk, and beside it the C code that launches it, which
takes as long as a small kernel. Whoever needs the kernel reads both from there.
"""

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread, local
from types import SimpleNamespace
from typing import Any

from outvote.forked import IS_POSSIBLE, fork, leave_to_parent

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
"""Whether this thread compiles an order: `HERE.is_compiler`."""


@dataclass(frozen=True, slots=True)
class Order:
    """A kernel, and what it is compiled for."""

    module: str
    name: str
    data: str
    """What it is compiled for, as Triton writes it down."""
    signature: dict[str, Any]
    constants: dict[Any, Any]


class Compilers:
    """Processes that compile orders; where there are none, threads."""

    def __init__(self, compile_one: Callable[[Order], object]) -> None:
        """Fork as many as there are cores; `compile_one` is called for each order, in a child."""
        number = min(num_cores(), MOST_PROCESSES)
        self._compile_one = compile_one
        self._family = _Family(number, compile_one) if IS_POSSIBLE else None
        # None: no process, the thread itself.
        self._idle: SimpleQueue[Connection | None] = SimpleQueue()
        for process in self._family.connections if self._family else [None] * number:
            self._idle.put(process)
        self._urgent = ThreadPoolExecutor(number, thread_name_prefix="compilers")
        # A quarter of the processes is left for what is waited for.
        self._later = ThreadPoolExecutor(max(1, 3 * number // 4), thread_name_prefix="compilers")

    def order(self, order: Order, *, is_urgent: bool) -> Future[None]:
        """Have a kernel compiled; what fails is compiled, and reported, where it is needed."""
        return (self._urgent if is_urgent else self._later).submit(self._compile, order)

    def _compile(self, order: Order) -> None:
        process = self._idle.get()
        try:
            if process is None:
                HERE.is_compiler = True
                self._compile_one(order)
            else:
                _ask(process, order)
        except (OSError, EOFError):  # It was killed, or is stuck: this thread takes its place.
            process = None
        finally:
            self._idle.put(process)

    def close(self) -> None:
        """Wait for all orders, and end the processes."""
        for threads in (self._urgent, self._later):
            threads.shutdown(wait=True)
        if self._family is not None:
            self._family.close()


def _ask(process: Connection, order: Order) -> None:
    """Wait until an order is compiled, or has failed."""
    process.send(order)
    if not process.poll(LONGEST_WAIT):
        raise TimeoutError
    process.recv_bytes()


class _Family:
    """Forked processes, and one that forked them: it takes long where much memory is mapped."""

    def __init__(self, number: int, compile_one: Callable[[Order], object]) -> None:
        pairs = [Pipe() for _ in range(number)]
        self.connections = [ours for ours, _ in pairs]
        self._first = fork()
        if self._first == 0:
            _begin([theirs for _, theirs in pairs], compile_one)
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


def _begin(connections: list[Connection], compile_one: Callable[[Order], object]) -> None:
    """Fork a process for each connection, and wait for them; never return."""
    try:
        os.setpgid(0, 0)  # Their compilers can be killed with them.
        for connection in connections:
            if fork() == 0:
                _live(connection, compile_one)
        leave_to_parent(())
        while True:
            os.wait()
    finally:
        os._exit(0)


def _live(orders: Connection, compile_one: Callable[[Order], object]) -> None:
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


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def for_target(target: Any, device: int, launcher: Any) -> Callable[[Order], None]:
    """Return what compiles an order for a GPU, which is not looked at: a child must not use it."""

    def compile_one(order: Order) -> None:
        if not getattr(HERE, "is_compiler", False):  # In a child.
            _forget_gpu(target, device)
            HERE.is_compiler = True
        kernel = getattr(import_module(order.module), order.name)
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
