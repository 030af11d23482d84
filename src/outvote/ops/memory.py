"""New memory: for many numbers, for a few on a device, and whether there was none."""

import mmap
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

# torch has a class for what its own allocator refuses. What Triton, cuBLAS, cuDNN and the CPU's
# allocator refuse are plain errors.
_NO_MEMORY = re.compile(
    r"out of memory|_ALLOC(ATION)?_FAILED|bad_alloc|(can't allocate|not enough) memory"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory was too small, of a GPU or of the machine.

    >>> is_out_of_memory(RuntimeError("Triton Error [CUDA]: out of memory"))
    True
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and bool(_NO_MEMORY.search(str(error)))


def fresh(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return memory that holds anything; on a CPU it comes in large pages where there are any.

    Fetching small pages from the system takes three times as long as writing to them; numpy asks
    for large ones, torch does not.
    """
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    size = int(np.prod(shape, dtype=np.int64))
    return torch.from_numpy(np.empty(size * dtype.itemsize, np.uint8)).view(dtype).view(shape)


# Less than this the allocator keeps by itself. Memory is cut in pages of this size.
SMALLEST_KEPT, LARGE_PAGE = 1 << 24, 1 << 21
# Groups of two widths are copied at a time, so that two pieces are kept.
MOST_KEPT = 2
_KEPT: list[mmap.mmap] = []


def scratch(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return memory that holds anything, for values that no caller ever sees.

    On a CPU it is kept when nobody uses it any more, and used again: the system zeroes all new
    memory, which takes longer than to read the gradients. What is kept is marked as free, so that
    the system takes it back as soon as any program needs it.
    """
    num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if device.type != "cpu" or num_bytes < SMALLEST_KEPT or not hasattr(mmap, "MADV_FREE"):
        return fresh(shape, dtype, device)
    memory = _kept(num_bytes)
    array = np.frombuffer(memory, np.uint8, num_bytes)
    finalize(array, _keep, memory).atexit = False
    return torch.from_numpy(array).view(dtype).view(shape)


def _kept(num_bytes: int) -> mmap.mmap:
    """Return memory that was kept if some is of about this size, else new memory."""
    for memory in tuple(_KEPT):
        if num_bytes <= len(memory) <= 2 * num_bytes:
            with suppress(ValueError):  # Another thread was faster.
                _KEPT.remove(memory)
                return memory
    _KEPT.clear()  # Given back before more is asked for.
    size = -(-num_bytes // LARGE_PAGE) * LARGE_PAGE
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{size:,} bytes for copies of gradients: {error}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # A system without large pages.
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _keep(memory: mmap.mmap) -> None:
    """Keep memory that is no longer used, the latest pieces, and let the system take it back."""
    with suppress(OSError):  # A system that cannot: it is not kept.
        memory.madvise(mmap.MADV_FREE)
        _KEPT.append(memory)
        del _KEPT[:-MOST_KEPT]


def on_device(
    values: Sequence[Any], device: torch.device, dtype: torch.dtype | None = None
) -> Tensor:
    """Return a few numbers on a device; `torch.tensor(..., device=...)` would wait for a GPU."""
    return torch.tensor(values, dtype=dtype, device="cpu").to(device, non_blocking=True)


def run_index(numbers: Sequence[int], device: torch.device) -> slice | Tensor:
    """Return the index of some runs: a slice, which copies nothing, if they are consecutive."""
    first, stop = numbers[0], numbers[0] + len(numbers)
    if list(numbers) == list(range(first, stop)):
        return slice(first, stop)
    return on_device(numbers, device)
