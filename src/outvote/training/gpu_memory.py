"""How much work fits into the memory of a GPU at once."""

from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")

# The rest is for fragmentation, and for other programs on the device.
SHARE = 0.7


def how_many_fit(work: Callable[[], object], device: torch.device) -> int | None:
    """Do one unit of work, and return how many fit at once; None: the device is no GPU."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    torch.cuda.synchronize(device)
    each = max(1, torch.cuda.max_memory_allocated(device) - before)
    return max(1, int(SHARE * free_on_gpu(device) / each))


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
        except torch.cuda.OutOfMemoryError:
            size = min(size, num_items - start) // 2
            if size == 0:
                raise
        else:
            start += size
            continue
        # Only here, after the handler, are the tensors of the failed chunk gone.
        torch.cuda.empty_cache()
    return found, size
