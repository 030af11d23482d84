"""Operations on tensors. Each is a function with a contract and a plain torch form: the truth.

Faster backends stand behind `door`, which alone chooses: `native` calls kernels in C for a CPU,
built when outvote is installed; `triton` has those for a GPU. With TRITON_INTERPRET=1, Triton runs
its kernels on a CPU in one thread (OMP_NUM_THREADS=1), slowly: this tests them without a GPU.
"""

import importlib
import importlib.util
import os
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

IS_AMD = torch.version.hip is not None
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def is_for_kernels(values: Tensor) -> bool:
    """Return whether a tensor is on a device where kernels run."""
    return values.is_cuda or (IS_INTERPRETED and not values.is_meta)


@cache
def load_kernels(module: str) -> ModuleType | None:
    """Return a module of kernels by its name, or None without Triton."""
    has_triton = importlib.util.find_spec("triton") is not None
    return importlib.import_module(module) if has_triton else None


def cdiv(number: int, divisor: int) -> int:
    """Divide and round up. `triton.cdiv` does more, and takes ten times as long on the host."""
    return -(-number // divisor)


def next_power_of_2(number: int) -> int:
    """Return the smallest power of two that is not smaller."""
    return 1 << max(0, number - 1).bit_length()


def block_of(size: int, largest: int) -> int:
    """Return the largest power of two, up to `largest`, that covers a size with little to spare.

    What is beyond the size is computed in vain: at most an eighth of it, or less than 16 values.
    """
    block = 1
    while block < min(size, largest):
        block *= 2
    while block > 16 and -size % block > size // 8:
        block //= 2
    return block
