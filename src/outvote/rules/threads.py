"""Several cores without waiting for each other.

torch splits every single operation over the cores and waits for the slowest; where another program
wants a core too, that wait is as long as its time slice. Here whole pieces of work go to threads
that run torch and numpy on one core each.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from threading import Lock
from typing import TypeVar, cast

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")
# Handing a piece to another thread costs about as much as working on this many values.
GRAIN = 1 << 16
CPU = torch.device("cpu")


@lru_cache(maxsize=1)
def _pool(num_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_threads, "outvote")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)


class _Share:
    """How many callers are sharing the cores out, and how many threads torch had before."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.num_inside = 0
        self.num_threads = 1


_SHARE = _Share()


@contextmanager
def one_core_each() -> Iterator[int]:
    """Make torch work on one core per thread, and restore the setting; yields how many it had.

    torch keeps the number per thread, and hands the last one set to new threads. So the first
    caller in looks it up, and every caller puts it back for its own thread.
    """
    with _SHARE.lock:
        if _SHARE.num_inside == 0:
            _SHARE.num_threads = torch.get_num_threads()
        _SHARE.num_inside += 1
        num_threads = _SHARE.num_threads
    try:
        torch.set_num_threads(1)
        yield num_threads
    finally:
        torch.set_num_threads(num_threads)
        with _SHARE.lock:
            _SHARE.num_inside -= 1


def mapped(
    work: Callable[[Item], Result], items: Iterable[Item], device: torch.device = CPU
) -> list[Result]:
    """Return ``[work(item) for item in items]``; on a CPU, on as many cores as torch may use."""
    if device.type != "cpu" or torch.get_num_threads() == 1:
        return [work(item) for item in items]
    # What makes the items may want all cores, and so may a single one.
    items = list(items)
    if len(items) == 1:
        return [work(items[0])]

    def run(number: int) -> Result:
        # An item keeps what was worked out about it: let go of it when it is done.
        item, waiting[number] = waiting[number], None
        return work(cast("Item", item))

    waiting: list[Item | None] = list(items)
    del items
    with one_core_each() as num_threads:
        return list(_pool(num_threads).map(run, range(len(waiting))))


def in_pieces(work: Callable[[slice], object], num_items: int, values_per_item: int) -> None:
    """Run `work` on slices that together cover ``range(num_items)``."""
    num_pieces = min(torch.get_num_threads(), max(1, num_items * values_per_item // GRAIN))
    if num_pieces == 1:
        work(slice(0, num_items))
        return
    cuts = [num_items * k // num_pieces for k in range(num_pieces + 1)]
    mapped(work, [slice(a, b) for a, b in pairwise(cuts)])
