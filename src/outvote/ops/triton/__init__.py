"""Kernels in Triton: each module is loaded where Triton is installed and a GPU is used."""

import torch

IS_AMD = torch.version.hip is not None


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
