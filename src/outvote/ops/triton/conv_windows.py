"""Triton kernels for windows; called by `convolution`."""

import triton
import triton.language as tl
from torch import Tensor

from outvote.ops.triton import block_of, cdiv, next_power_of_2

# Sizes are run-time arguments: another layer compiles nothing. A program works on whole lines of
# pixels, so that it divides once for a line, not for a pixel.
LINES, VALUES = 4, 4096


@triton.jit(do_not_specialize=["num_lines", "height", "width", "high", "wide", "stride", "padding"])
def _cut(
    images,
    windows,
    num_lines,
    height,
    width,
    channels,
    high,
    wide,
    stride,
    padding,
    num_padded,
    SIZE: tl.constexpr,
    LINES: tl.constexpr,
    WIDE: tl.constexpr,
    VALUES: tl.constexpr,
):
    x = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    value = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    channel = value % channels
    tap = value // channels
    down = tap // SIZE
    at_x = (x * stride - padding)[:, None] + (tap % SIZE)[None, :]
    is_x = (at_x >= 0) & (at_x < width) & (x < wide)[:, None]
    # What is beyond the window is 0, so that products have an aligned size.
    is_x = is_x & (tap < SIZE * SIZE)[None, :]
    stored = (x < wide)[:, None] & (value < num_padded)[None, :]
    along = at_x * channels + channel[None, :]
    for number in range(LINES):
        line = tl.program_id(0) * LINES + number
        image = (line // high).to(tl.int64)
        at_y = line % high * stride - padding + down
        is_line = (tl.zeros_like(x) + line < num_lines)[:, None]
        inside = is_x & ((at_y >= 0) & (at_y < height))[None, :] & is_line
        start = image * height * width * channels + at_y * (width * channels)
        loaded = tl.load(images + start[None, :] + along, mask=inside, other=0.0)
        to = (line.to(tl.int64) * wide + x)[:, None] * num_padded + value[None, :]
        tl.store(windows + to, loaded, mask=stored & is_line)


def cut_windows(images: Tensor, shape: tuple[int, ...], window: tuple[int, int, int]) -> Tensor:
    """Return windows ``[models, batch, high, wide, values]``, zeros behind the last value."""
    size, stride, padding = window
    windows = images.new_empty(shape)
    height, width, channels = images.shape[2:]
    high, wide, num_padded = windows.shape[2:]
    num_lines = windows.shape[0] * windows.shape[1] * high
    values = block_of(num_padded, 512)
    side = min(next_power_of_2(wide), max(1, VALUES // values))
    grid = (
        cdiv(num_lines, LINES),
        cdiv(wide, side),
        cdiv(num_padded, values),
    )
    _cut[grid](
        images,
        windows,
        num_lines,
        height,
        width,
        channels,
        high,
        wide,
        stride,
        padding,
        num_padded,
        SIZE=size,
        LINES=LINES,
        WIDE=side,
        VALUES=values,
        num_warps=4,
    )
    return windows


@triton.jit(do_not_specialize=["num_lines", "height", "width", "high", "wide", "stride", "padding"])
def _add_up(
    gradient,
    total,
    num_lines,
    height,
    width,
    channels,
    high,
    wide,
    stride,
    padding,
    num_padded,
    SIZE: tl.constexpr,
    WIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    line = tl.program_id(0)
    image = (line // height).to(tl.int64)
    y = line % height + padding
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    x = column + padding
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    wanted = (column < width)[:, None] & (channel < channels)[None, :]
    found = tl.zeros((WIDE, CHANNELS), dtype=tl.float32)
    for down in range(SIZE):
        at_y = (y - down) // stride
        same = tl.zeros_like(x) + at_y
        is_row = (same >= 0) & (same * stride == y - down) & (same < high)
        first = (image * high + at_y) * wide
        for right in range(SIZE):
            at_x = (x - right) // stride
            is_there = is_row & (x >= right) & (at_x * stride == x - right) & (at_x < wide)
            start = (first + at_x) * num_padded + (down * SIZE + right) * channels
            mask = wanted & is_there[:, None]
            at = start[:, None] + channel[None, :]
            found += tl.load(gradient + at, mask=mask, other=0.0).to(tl.float32)
    at = (line.to(tl.int64) * width + column)[:, None] * channels + channel[None, :]
    tl.store(total + at, found.to(total.dtype.element_ty), mask=wanted)


def add_up_windows(
    gradient: Tensor, shape: tuple[int, ...], window: tuple[int, int, int]
) -> Tensor:
    """Add up ``gradient [models, batch, high, wide, values]`` at the pixels of images."""
    size, stride, padding = window
    total = gradient.new_empty(shape)
    height, width, channels = total.shape[2:]
    high, wide = gradient.shape[2:4]
    num_lines = total.shape[0] * total.shape[1] * height
    per_block = block_of(channels, 128)
    side = min(next_power_of_2(width), max(1, VALUES // 4 // per_block))
    grid = (num_lines, cdiv(width, side), cdiv(channels, per_block))
    _add_up[grid](
        gradient,
        total,
        num_lines,
        height,
        width,
        channels,
        high,
        wide,
        stride,
        padding,
        gradient.shape[-1],
        SIZE=size,
        WIDE=side,
        CHANNELS=per_block,
        num_warps=4,
    )
    return total
