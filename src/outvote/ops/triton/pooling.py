"""Triton kernels for max pooling with windows that may overlap; called by `pooling`.

Images are ``[images, height, width, channels]``. Sizes are run-time arguments, but for the size of
a window.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function

from outvote.ops.triton import block_of, cdiv

VALUES = 2048


@triton.jit(do_not_specialize=["num_rows", "height", "width", "high", "wide", "stride", "padding"])
def _max_pool(
    images,
    result,
    index,
    num_rows,
    height,
    width,
    channels,
    high,
    wide,
    stride,
    padding,
    HAS_INDEX: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    wanted = (row < num_rows)[:, None] & (channel < channels)[None, :]
    line = row // wide
    image = line // high
    top = (line - image * high) * stride - padding
    left = (row - line * wide) * stride - padding
    start = (image.to(tl.int64) * height + top) * width + left
    best = tl.full((ROWS, CHANNELS), float("-inf"), dtype=tl.float32)
    which = tl.zeros((ROWS, CHANNELS), dtype=tl.int32)
    for tap in tl.static_range(SIZE * SIZE):
        y, x = top + tap // SIZE, left + tap % SIZE
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        at = (start + (tap // SIZE) * width + tap % SIZE)[:, None] * channels + channel[None, :]
        found = tl.load(images + at, mask=wanted & inside[:, None], other=float("-inf"))
        found = found.to(tl.float32)
        # NaN is larger than everything, as in torch.
        is_better = (found > best) | (found != found)  # noqa: PLR0124
        best = tl.where(is_better, found, best)
        which = tl.where(is_better, tap, which)
    to = row.to(tl.int64)[:, None] * channels + channel[None, :]
    tl.store(result + to, best.to(result.dtype.element_ty), mask=wanted)
    if HAS_INDEX:
        tl.store(index + to, which.to(tl.int8), mask=wanted)


def _pool(
    images: Tensor, result: Tensor, index: Tensor | None, size: int, stride: int, padding: int
) -> None:
    """Write the largest value of every window, and which of its values it is."""
    height, width, channels = images.shape[-3:]
    high, wide = result.shape[-3:-1]
    num_rows = result.numel() // channels
    per_block = block_of(channels, 128)
    rows = max(1, VALUES // per_block)
    _max_pool[(cdiv(num_rows, rows), cdiv(channels, per_block))](
        images,
        result,
        result if index is None else index,
        num_rows,
        height,
        width,
        channels,
        high,
        wide,
        stride,
        padding,
        HAS_INDEX=index is not None,
        SIZE=size,
        ROWS=rows,
        CHANNELS=per_block,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["num_rows", "height", "width", "high", "wide", "stride", "padding"])
def _max_pool_gradient(
    gradient,
    index,
    result,
    num_rows,
    height,
    width,
    channels,
    high,
    wide,
    stride,
    padding,
    SIZE: tl.constexpr,
    WINDOWS: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    wanted = (row < num_rows)[:, None] & (channel < channels)[None, :]
    line = row // width
    image = line // height
    y = line - image * height + padding
    x = row - line * width + padding
    total = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    # The windows that this pixel is part of.
    for number in tl.static_range(WINDOWS * WINDOWS):
        down, right = y // stride - number // WINDOWS, x // stride - number % WINDOWS
        tap_y, tap_x = y - down * stride, x - right * stride
        inside = (down >= 0) & (down < high) & (right >= 0) & (right < wide)
        inside = inside & (tap_y < SIZE) & (tap_x < SIZE)
        mask = wanted & inside[:, None]
        of = ((image.to(tl.int64) * high + down) * wide + right)[:, None] * channels
        of = of + channel[None, :]
        which = tl.load(index + of, mask=mask, other=-1).to(tl.int32)
        found = tl.load(gradient + of, mask=mask, other=0.0).to(tl.float32)
        total += tl.where(which == (tap_y * SIZE + tap_x)[:, None], found, 0.0)
    to = row.to(tl.int64)[:, None] * channels + channel[None, :]
    tl.store(result + to, total.to(result.dtype.element_ty), mask=wanted)


def _gradient(
    gradient: Tensor, index: Tensor, result: Tensor, size: int, stride: int, padding: int
) -> None:
    """Write the gradient of the images."""
    height, width, channels = result.shape[-3:]
    high, wide = gradient.shape[-3:-1]
    num_rows = result.numel() // channels
    per_block = block_of(channels, 128)
    rows = max(1, VALUES // per_block)
    _max_pool_gradient[(cdiv(num_rows, rows), cdiv(channels, per_block))](
        gradient,
        index,
        result,
        num_rows,
        height,
        width,
        channels,
        high,
        wide,
        stride,
        padding,
        SIZE=size,
        WINDOWS=cdiv(size, stride),
        ROWS=rows,
        CHANNELS=per_block,
        num_warps=4,
    )


def max_pool(images: Tensor, window: tuple[int, int, int]) -> Tensor:
    """Return ``images [models, batch, height, width, channels]`` pooled, with their gradient."""
    found: Tensor = MaxPool.apply(images, window, torch.is_grad_enabled())
    return found


class MaxPool(Function):
    """The largest value of every window of pixels."""

    @staticmethod
    def forward(ctx, images, window, has_index):
        """Pool; `has_index` where a backward pass follows."""
        images = images.contiguous()
        size, stride, padding = window
        sides = ((side + 2 * padding - size) // stride + 1 for side in images.shape[2:4])
        result = images.new_empty(*images.shape[:2], *sides, images.shape[-1])
        index = torch.empty_like(result, dtype=torch.int8) if has_index else None
        _pool(images, result, index, *window)
        ctx.window, ctx.shape = window, images.shape
        ctx.save_for_backward(index)
        return result

    @staticmethod
    def backward(ctx, *outer):
        """Return the gradient of the images."""
        (index,) = ctx.saved_tensors
        result = outer[0].new_empty(ctx.shape)
        _gradient(outer[0].contiguous(), index, result, *ctx.window)
        return result, None, None
