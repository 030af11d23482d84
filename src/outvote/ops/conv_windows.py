"""Windows of convolutions on NVIDIA GPUs; `training.im2col` has the same in plain torch."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from outvote.ops import is_for_kernels, load_kernels


def _kernels() -> Any:
    return load_kernels("outvote.ops.triton.conv_windows")


def is_usable(values: Tensor, sides: Sequence[int]) -> bool:
    """Return whether the kernels can work on these values, and count windows in 32 bits."""
    return is_for_kernels(values) and prod(sides) < 2**31 and _kernels() is not None


def cut(
    images: Tensor, size: int, stride: int, padding: int, sides: tuple[int, int], num_values: int
) -> Tensor:
    """Copy all windows, zeros behind them up to `num_values`."""
    images = images.contiguous()
    models, batch = images.shape[:2]
    shape = (models, batch, *sides, num_values)
    windows = torch.empty(shape, dtype=images.dtype, device=images.device)
    _kernels().cut(images, windows, size, stride, padding)
    return windows


def add_up(gradient: Tensor, shape: torch.Size, size: int, stride: int, padding: int) -> Tensor:
    """Add up the windows where they overlap."""
    total = torch.empty(shape, dtype=gradient.dtype, device=gradient.device)
    _kernels().add_up(gradient.contiguous(), total, size, stride, padding)
    return total
