"""Several cores without waiting for each other.

torch splits every single operation over the cores and waits for the slowest; where another program
wants a core too, that wait is as long as its time slice. Here whole pieces of work go to threads
that run torch and numpy on one core each.
"""

import ctypes
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from threading import Barrier, Lock, local
from typing import Any, Generic, TypeVar, cast, overload

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")
Value = TypeVar("Value")
# Handing a piece to another thread costs about as much as working on this many values.
GRAIN = 1 << 16
CPU = torch.device("cpu")


_HERE = local()
_LOCK = Lock()


@lru_cache(maxsize=1)
def _pool(num_threads: int) -> ThreadPoolExecutor:
    """Start threads in which torch uses one core each.

    torch keeps the number of cores per thread, and hands the last one set to threads that ask for
    the first time. So all threads are started and set at once, and then the caller's number is set
    again.
    """
    are_ready = Barrier(num_threads + 1)

    def start() -> None:
        torch.get_num_threads()
        torch.set_num_threads(1)
        _HERE.is_worker = True
        are_ready.wait()

    pool = ThreadPoolExecutor(num_threads, "outvote", start)
    for _ in range(num_threads):
        pool.submit(int)
    are_ready.wait()
    torch.set_num_threads(num_threads)
    return pool


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)


def stay_on_one_core() -> None:
    """Let this thread work on one core from now on, and hand no work to others."""
    torch.set_num_threads(1)
    _HERE.is_worker = True


def free_cores() -> None:
    """End the threads among which torch splits operations of this thread; the next one starts them.

    They wait for work by spinning: for 8 ms after an operation each of them takes a core from the
    processes and threads that are to work next. To start them again takes 0.1 ms.
    """
    pause = getattr(_openmp(), "omp_pause_resource_all", None)
    # A fork has no such threads, and would wait for them.
    if pause is not None and os.getpid() == _PROCESS:
        pause(_SOFT)


_SOFT = 1  # Of OpenMP: what a program has set stays.
_PROCESS = os.getpid()


@lru_cache(maxsize=1)
def _openmp() -> ctypes.CDLL:
    """Return the library of torch, where names of the libraries that it uses are found, too."""
    return ctypes.CDLL(torch._C.__file__)


def num_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def may_share() -> bool:
    """Return whether this thread may hand work to others: it is none of them, and has cores."""
    return not getattr(_HERE, "is_worker", False) and torch.get_num_threads() > 1


def mapped(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    device: torch.device = CPU,
    *,
    on_one_core: bool = False,
) -> list[Result]:
    """Return ``[work(item) for item in items]``; on a CPU, on as many cores as torch may use.

    A single item is worked on by all cores, or with `on_one_core` by one, as if there were more:
    then its result is the same to the last bit.
    """
    if device.type != "cpu" or not may_share():
        return [work(item) for item in items]
    # What makes the items may want all cores, and so may a single one.
    waiting: list[Item | None] = list(items)
    if len(waiting) == 1 and not on_one_core:
        return [work(cast("Item", waiting[0]))]

    def run(number: int) -> Result:
        # An item keeps what was worked out about it: let go of it when it is done.
        item, waiting[number] = waiting[number], None
        return work(cast("Item", item))

    with _LOCK:
        pool = _pool(torch.get_num_threads())
    return list(pool.map(run, range(len(waiting))))


def in_pieces(work: Callable[[slice], object], num_items: int, values_per_item: int) -> None:
    """Run `work` on slices that together cover ``range(num_items)``."""
    is_worker = getattr(_HERE, "is_worker", False)
    num_threads = 1 if is_worker else torch.get_num_threads()
    num_pieces = min(num_threads, max(1, num_items * values_per_item // GRAIN))
    if num_pieces == 1:
        work(slice(0, num_items))
        return
    cuts = [num_items * k // num_pieces for k in range(num_pieces + 1)]
    mapped(work, [slice(a, b) for a, b in pairwise(cuts)])


class lazy(Generic[Value]):  # noqa: N801  (used like a built-in decorator)
    """Like functools.cached_property, without the lock that Python 3.11 puts around all objects."""

    def __init__(self, work: Callable[[Any], Value]) -> None:
        self.work = work
        self.name = work.__name__
        self.__doc__ = work.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> "lazy[Value]": ...
    @overload
    def __get__(self, owner: object, kind: type) -> Value: ...
    def __get__(self, owner: object | None, kind: type) -> "Value | lazy[Value]":
        """Work the value out and put it in the way of this descriptor."""
        if owner is None:
            return self
        value = self.work(owner)
        # Of two threads that ask at once, both get what the first one found.
        return cast("Value", owner.__dict__.setdefault(self.name, value))


class once(lazy[Value]):  # noqa: N801  (used like a built-in decorator)
    """A lazy attribute that is worked out by one thread while others wait: its owner has a `lock`.

    For what takes much time or memory.
    """

    @overload
    def __get__(self, owner: None, kind: type) -> "lazy[Value]": ...
    @overload
    def __get__(self, owner: object, kind: type) -> Value: ...
    def __get__(self, owner: object | None, kind: type) -> "Value | lazy[Value]":
        """Work the value out, unless another thread has done so."""
        if owner is None:
            return self
        with cast("Any", owner).lock:
            if self.name not in owner.__dict__:
                owner.__dict__[self.name] = self.work(owner)
        return cast("Value", owner.__dict__[self.name])
