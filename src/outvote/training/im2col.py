"""im2col: the windows of a convolution as the rows of a matrix."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from outvote.ops import conv_windows

# Fast products need rows of a multiple of it.
ALIGNED_VALUES = 8


def padded(num_values: int) -> int:
    """Return how many values a window has with the zeros behind it."""
    return -(-num_values // ALIGNED_VALUES) * ALIGNED_VALUES


def with_zeros(rows: Tensor, num_values: int) -> Tensor:
    """Append the zeros to rows of so many values."""
    missing = padded(num_values) - num_values
    return F.pad(rows, (0, missing)) if missing else rows


def im2col(images: Tensor, size: int, stride: int, padding: int) -> Tensor:
    """Return the windows of a convolution, ``[models, batch, height, width, padded values]``."""
    channels = images.shape[-1]
    if size == 1 and padding == 0:
        return with_zeros(images[:, :, ::stride, ::stride], channels)
    found: Tensor = Im2Col.apply(images, size, stride, padding)  # type: ignore[no-untyped-call]
    return found


class Im2Col(Function):
    """Copies all windows; the backward pass adds up the gradients where windows overlap."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, size: int, stride: int, padding: int) -> Tensor:
        """Copy the windows of ``images [models, batch, height, width, channels]``."""
        ctx.sizes = (size, stride, padding)
        ctx.shape = images.shape
        models, batch, height, width, channels = images.shape
        high, wide = ((side + 2 * padding - size) // stride + 1 for side in (height, width))
        num_values = size * size * channels
        if conv_windows.is_usable(images, (models, batch, high, wide)):
            sides = (high, wide)
            return conv_windows.cut(images, size, stride, padding, sides, padded(num_values))
        framed = F.pad(images, (0, 0, padding, padding, padding, padding))
        windows = framed.unfold(2, size, stride).unfold(3, size, stride)
        rows = windows.movedim(4, -1).reshape(models, batch, high, wide, num_values)
        return with_zeros(rows, num_values)

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        """Add the gradients of all windows to the pixels that they were copied from."""
        (gradient,) = outer
        return add_up(gradient, ctx.shape, *ctx.sizes), None, None, None


def add_up(gradient: Tensor, shape: torch.Size, size: int, stride: int, padding: int) -> Tensor:
    """Add the gradients of windows to the pixels of images of a shape."""
    if conv_windows.is_usable(gradient, shape[:4]):
        return conv_windows.add_up(gradient, shape, size, stride, padding)
    models, batch, height, width, channels = shape
    high, wide = gradient.shape[2:4]
    values = gradient[..., : size * size * channels]
    taps = values.reshape(models, batch, high, wide, size, size, channels)
    total = gradient.new_zeros(models, batch, height + 2 * padding, width + 2 * padding, channels)
    for down in range(size):
        for right in range(size):
            rows = slice(down, down + stride * high, stride)
            columns = slice(right, right + stride * wide, stride)
            total[:, :, rows, columns] += taps[..., down, right, :]
    inside = total[:, :, padding : padding + height, padding : padding + width]
    return inside.contiguous()
