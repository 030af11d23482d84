"""Numpy on several cores: sorting and row copies release the interpreter, torch's own are slower."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch

# Handing a piece to another thread costs about as much as working on this many values.
GRAIN = 1 << 16


@lru_cache(maxsize=1)
def _pool(num_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_threads, thread_name_prefix="outvote")


def in_pieces(work: Callable[[slice], object], num_items: int, values_per_item: int) -> None:
    """Run `work` on slices that together cover ``range(num_items)``, on torch's thread count."""
    num_threads = torch.get_num_threads()
    num_pieces = min(num_threads, max(1, num_items * values_per_item // GRAIN))
    if num_pieces == 1:
        work(slice(0, num_items))
        return
    cuts = [num_items * k // num_pieces for k in range(num_pieces + 1)]
    pieces = [slice(a, b) for a, b in zip(cuts, cuts[1:], strict=False)]
    for done in _pool(num_threads).map(work, pieces):
        del done
