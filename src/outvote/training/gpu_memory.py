"""How much work fits into the memory of a GPU at once."""

from collections.abc import Callable
from functools import partial
from math import ceil
from typing import TypeVar

import torch

from outvote.ops.process import is_out_of_memory

Result = TypeVar("Result")

# The rest is for fragmentation, and for other programs on the device.
SHARE = 0.8
# Of that, the least that is used, whatever memory is to be spared.
LEAST = 0.25


def how_many_fit(
    work: Callable[[int], object],
    device: torch.device,
    *,
    several: int = 4,
    spare: int = 0,
    most: int | None = None,
) -> int | None:
    """Return how many units of work fit at once; None: the device is no GPU.

    One unit is done, and `several` together: what every further one needs is what counts, not what
    they share. `spare` bytes are left for what follows, if that leaves a part of the memory for the
    work. At most `most` bytes are used.
    """
    if device.type != "cuda":
        return None
    first = _bytes_of(lambda: work(1), device)
    each, shared = first, 0
    several, more = _bytes_of_several(work, several, device)
    if several > 1:
        each = max(1, ceil((more - first) / (several - 1)))
        shared = max(0, first - each)
    usable = SHARE * free_on_gpu(device)
    usable = max(usable - spare, LEAST * usable)
    return max(1, int(((usable if most is None else min(most, usable)) - shared) / each))


def _bytes_of_several(
    work: Callable[[int], object], several: int, device: torch.device
) -> tuple[int, int]:
    """Return what several units of work need together; as many as fit, if those do not."""
    while several > 1:
        try:
            return several, _bytes_of(partial(work, several), device)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            several //= 2
        # Only here, after the handler, are the tensors of what failed gone.
        torch.cuda.empty_cache()
    return 1, 0


def _bytes_of(work: Callable[[], object], device: torch.device) -> int:
    """Return the most memory that some work used at once."""
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    torch.cuda.synchronize(device)
    return max(1, torch.cuda.max_memory_allocated(device) - before)


def even_size(num_items: int, most: int) -> int:
    """Return the size of the fewest chunks of at most `most` items that are about equal.

    >>> even_size(100, 45)
    34
    """
    num_chunks = max(1, ceil(num_items / most))
    return max(1, ceil(num_items / num_chunks))


def free_on_gpu(device: torch.device) -> int:
    """Return the free memory in bytes, including what torch has reserved and does not use."""
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + idle


def in_chunks(
    work: Callable[[slice], Result], num_items: int, size: int
) -> tuple[list[Result], int]:
    """Do the work in chunks of `size` items; return the results and the size that fitted.

    A chunk for which the memory is too small is done again in halves.
    """
    found: list[Result] = []
    start = 0
    while start < num_items:
        try:
            found.append(work(slice(start, min(start + size, num_items))))
        except Exception as error:
            size = min(size, num_items - start) // 2
            if size == 0 or not is_out_of_memory(error):
                raise
        else:
            start += size
            continue
        # Only here, after the handler, are the tensors of the failed chunk gone.
        torch.cuda.empty_cache()
    return found, size
