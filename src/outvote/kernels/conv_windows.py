"""Windows of convolutions on NVIDIA GPUs; `windows` has the same in plain torch."""

from typing import Any

import torch
from torch import Tensor

from outvote.kernels import is_for_kernels, load_kernels


def _kernels() -> Any:
    return load_kernels("outvote.kernels.conv_windows_triton")


def is_usable(values: Tensor) -> bool:
    """Tell whether the kernels can work on these values."""
    return is_for_kernels(values) and _kernels() is not None


def cut(images: Tensor, size: int, stride: int, padding: int, sides: tuple[int, int]) -> Tensor:
    """Copy all windows."""
    images = images.contiguous()
    models, batch, _, _, channels = images.shape
    shape = (models, batch, *sides, size * size * channels)
    windows = torch.empty(shape, dtype=images.dtype, device=images.device)
    _kernels().cut(images, windows, size, stride, padding)
    return windows


def add_up(gradient: Tensor, shape: torch.Size, size: int, stride: int, padding: int) -> Tensor:
    """Add up the windows where they overlap."""
    total = torch.empty(shape, dtype=gradient.dtype, device=gradient.device)
    _kernels().add_up(gradient.contiguous(), total, size, stride, padding)
    return total
