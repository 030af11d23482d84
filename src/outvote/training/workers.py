"""Forked processes in which clients train: threads of one process wait for Python's lock.

A step of a small network is dozens of operations of some microseconds each, and two threads get no
more of them done than one. A forked process has the network and the samples of its parent without a
copy; weights go to it, and gradients come back, through memory that both map.
"""

import ctypes
import mmap
import os
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from multiprocessing.connection import Connection, wait
from threading import Thread
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from outvote.forked import end, fork, leave_to_parent
from outvote.ops.process import free_cores, stay_on_one_core
from outvote.training.batches import Batches
from outvote.training.local_sgd import LocalSGD
from outvote.training.trainer import ClientTask, LocalUpdates, TrainOne, count_samples

MOST_BYTES = 256 << 20
"""More weights and gradients than this are not shared: such networks train in threads."""
SECONDS_TO_START = 20.0
"""A worker that has not trained a batch by then is given up."""
SECONDS_BETWEEN_LOOKS = 0.5
# Memory that is freed stays with the process: to get it from the system again is a fault a page.
# glibc comes to the same numbers by itself once a program has freed a block of 32 MiB.
_KEPT_BYTES = 64 << 20
_LARGEST_KEPT = 32 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_TOKEN = struct.Struct("i")
_END = -1


class WorkersEnded(RuntimeError):  # noqa: N818  (an event, not a mistake)
    """A worker was killed, failed or did not start."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much a call trains."""

    num_runs: int
    num_tasks: int
    dim: int
    num_buffers: int
    dtype: torch.dtype

    @property
    def shapes(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Of weights, buffers, gradients, buffers after training, and losses."""
        return [
            ((self.num_runs, self.num_buffers), torch.float64),
            ((self.num_tasks, self.num_buffers), torch.float64),
            ((self.num_tasks,), torch.float64),
            ((self.num_runs, self.dim), self.dtype),
            ((self.num_tasks, self.dim), self.dtype),
        ]

    @property
    def num_bytes(self) -> int:
        """How much memory is shared."""
        return sum(prod(shape) * dtype.itemsize for shape, dtype in self.shapes)

    def views(self, memory: mmap.mmap) -> list[Tensor]:
        """Return the shared arrays, those of 8 bytes a number first."""
        found, start = [], 0
        for shape, dtype in self.shapes:
            count = prod(shape)
            if count:
                flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=start)
            else:
                flat = torch.empty(0, dtype=dtype)
            found.append(flat.view(shape))
            start += count * dtype.itemsize
        return found


@final
class Workers:
    """A fixed number of forked processes that train tasks together."""

    def __init__(
        self, num_workers: int, num_bytes: int, train_one: TrainOne, warm_up: Callable[[], object]
    ) -> None:
        """Fork them, and wait until each has called `warm_up`."""
        self.num_workers = num_workers
        self.num_bytes = num_bytes
        self._memory = mmap.mmap(-1, max(1, num_bytes))
        self._owner = os.getpid()
        self._processes: list[int] = []
        self._connections: list[Connection] = []
        # Numbers of tasks that nobody has begun: a worker that is free reads the next one.
        waiting, self._waiting = os.pipe()
        try:
            for _ in range(num_workers):
                self._fork(waiting, train_one, warm_up)
            self._collect(SECONDS_TO_START)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(waiting)

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of the processes."""
        return tuple(self._processes)

    def _fork(self, waiting: int, train_one: TrainOne, warm_up: Callable[[], object]) -> None:
        theirs, results = os.pipe()
        orders, ours = os.pipe()
        cores = _cores_of(len(self._processes), self.num_workers)
        process = fork()
        if process == 0:
            files = orders, results, waiting
            _live(self._memory, files, self._owner, cores, train_one, warm_up)
        os.close(orders)
        os.close(results)
        self._processes.append(process)
        self._connections += [Connection(ours, readable=False), Connection(theirs, writable=False)]

    def train(
        self,
        weights: Tensor,
        buffers: Tensor,
        tasks: Sequence[ClientTask],
        training: LocalSGD,
        learning_rate: float,
    ) -> LocalUpdates:
        """Train all tasks; `WorkersEnded` if a worker fails or is killed, and then all end."""
        sizes = Sizes(len(weights), len(tasks), weights.shape[1], buffers.shape[1], weights.dtype)
        shared_buffers, after, losses, shared_weights, gradients = sizes.views(self._memory)
        shared_weights.copy_(weights)
        shared_buffers.copy_(buffers)
        # The rate is known, and a callable one cannot be sent.
        training = replace(training, learning_rate=learning_rate, schedule=())
        order = (sizes, training, learning_rate, [_packed(task) for task in tasks])
        # The longest tasks first: none of them is left for the end.
        first = sorted(range(len(tasks)), key=lambda k: -tasks[k].batches.num_samples)
        free_cores()
        try:
            for connection in self._connections[::2]:
                connection.send(order)
            numbers = [*first, *[_END] * self.num_workers]
            _write(self._waiting, b"".join(map(_TOKEN.pack, numbers)))
            self._collect()
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise WorkersEnded("a worker was killed") from error
            raise
        return LocalUpdates(
            gradients=gradients.clone(),
            losses=losses.clone(),
            buffers=after.clone(),
            num_samples=count_samples(tasks),
        )

    def _collect(self, timeout: float | None = None) -> None:
        """Wait until every worker has reported that it is done."""
        left = set(self._connections[1::2])
        end = None if timeout is None else time.monotonic() + timeout
        while left:
            ready = wait(list(left), None if end is None else max(0, end - time.monotonic()))
            if not ready:
                raise WorkersEnded(f"a worker did not start within {timeout:g} s")
            for connection in ready:
                assert isinstance(connection, Connection)
                try:
                    failed = connection.recv_bytes()
                except EOFError:
                    raise WorkersEnded("a worker was killed") from None
                if failed:
                    raise WorkersEnded(failed.decode())
                left.discard(connection)

    def close(self) -> None:
        """End the processes; a copy of this object in a child does nothing."""
        if os.getpid() != self._owner:
            return
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            end(process)
        if self._waiting >= 0:
            os.close(self._waiting)
        self._connections, self._processes, self._waiting = [], [], -1


def _write(file: int, content: bytes) -> None:
    while content:
        content = content[os.write(file, content) :]


def _packed(task: ClientTask) -> tuple[Any, ...]:
    """Return a task as arrays: torch would send its tensors as files of shared memory."""
    batches = task.batches
    moves = None if batches.moves is None else batches.moves.numpy()
    labels = None if task.label_map is None else task.label_map.numpy()
    return task.run, batches.index.numpy(), batches.sizes, moves, labels, task.seed


def _unpacked(
    run: int,
    index: np.ndarray,
    sizes: list[int],
    moves: np.ndarray | None,
    labels: np.ndarray | None,
    seed: int,
) -> ClientTask:
    batches = Batches(
        torch.from_numpy(index), sizes, None if moves is None else torch.from_numpy(moves)
    )
    label_map = None if labels is None else torch.from_numpy(labels)
    return ClientTask(run, batches, label_map, seed=seed)


def _live(
    memory: mmap.mmap,
    files: tuple[int, int, int],
    parent: int,
    cores: set[int],
    train_one: TrainOne,
    warm_up: Callable[[], object],
) -> None:
    """Be a worker until the parent ends; never return."""
    try:
        leave_to_parent(files)
        _keep_memory()
        Thread(target=_end_with, args=(parent,), daemon=True).start()
        stay_on_one_core()
        torch.set_autocast_enabled("cpu", False)  # The parent's caller may be in it.
        with suppress(OSError):  # It may be forbidden; a worker does without.
            os.sched_setaffinity(0, cores)
        orders, results = Connection(files[0], writable=False), Connection(files[1], readable=False)
        failed = _failure(warm_up)
        while True:
            results.send_bytes(failed)
            order = orders.recv()
            failed = _failure(lambda: _train(memory, files[2], train_one, *order))  # noqa: B023
    finally:
        os._exit(1)


def _cores_of(number: int, num_workers: int) -> set[int]:
    """Return the cores of a worker: one of its own, if there is one for each.

    Workers that are woken together are often put on one core, and the other one stays idle for
    some milliseconds.
    """
    cores = sorted(os.sched_getaffinity(0))
    return {cores[number]} if len(cores) == num_workers else set(cores)


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, however that came."""
    while os.getppid() == parent:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    os._exit(1)


def _keep_memory() -> None:
    """Let this process keep some of the memory that it frees: pages need not be cleared again."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it.
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)


def _failure(call: Callable[[], object]) -> bytes:
    """Call a function; return what it raised, or nothing."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  (the parent trains again, and raises it)
        return f"{type(error).__name__}: {error}".encode()
    return b""


def _train(
    memory: mmap.mmap,
    waiting: int,
    train_one: TrainOne,
    sizes: Sizes,
    training: LocalSGD,
    learning_rate: float,
    packed: list[tuple[Any, ...]],
) -> None:
    buffers, after, losses, weights, gradients = sizes.views(memory)
    while True:
        (number,) = _TOKEN.unpack(os.read(waiting, _TOKEN.size))
        if number == _END:
            return
        task = _unpacked(*packed[number])
        start = weights[task.run], buffers[task.run]
        losses[number] = train_one(
            task, *start, training, learning_rate, gradients[number], after[number]
        )
