"""Triton kernels for windows; called by `conv_windows`."""

import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["num_rows"])
def _cut(
    images,
    windows,
    num_rows,
    height: tl.constexpr,
    width: tl.constexpr,
    channels: tl.constexpr,
    high: tl.constexpr,
    wide: tl.constexpr,
    stride: tl.constexpr,
    padding: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    VALUES: tl.constexpr,
):
    num_values: tl.constexpr = SIZE * SIZE * channels
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    value = tl.program_id(1) * VALUES + tl.arange(0, VALUES)
    channel = value % channels
    tap = value // channels
    down = tap // SIZE
    right = tap % SIZE
    x = (row % wide).to(tl.int32) * stride - padding
    rest = row // wide
    y = (rest % high).to(tl.int32) * stride - padding
    image = rest // high
    at_y = y[:, None] + down[None, :]
    at_x = x[:, None] + right[None, :]
    wanted = (row < num_rows)[:, None] & (value < num_values)[None, :]
    inside = wanted & (at_y >= 0) & (at_y < height) & (at_x >= 0) & (at_x < width)
    pixel = (image[:, None] * height + at_y) * width + at_x
    loaded = tl.load(images + pixel * channels + channel[None, :], mask=inside, other=0.0)
    tl.store(windows + row[:, None] * num_values + value[None, :], loaded, mask=wanted)


def cut(images: Tensor, windows: Tensor, size: int, stride: int, padding: int) -> None:
    """Fill ``windows [models, batch, high, wide, size * size * channels]``."""
    height, width, channels = images.shape[2:]
    high, wide, num_values = windows.shape[2:]
    num_rows = windows.numel() // num_values
    values = min(512, triton.next_power_of_2(num_values))
    rows = max(1, 2048 // values)
    grid = (triton.cdiv(num_rows, rows), triton.cdiv(num_values, values))
    _cut[grid](
        images,
        windows,
        num_rows,
        height,
        width,
        channels,
        high,
        wide,
        stride,
        padding,
        SIZE=size,
        ROWS=rows,
        VALUES=values,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["num_pixels"])
def _add_up(
    gradient,
    total,
    num_pixels,
    height: tl.constexpr,
    width: tl.constexpr,
    channels: tl.constexpr,
    high: tl.constexpr,
    wide: tl.constexpr,
    stride: tl.constexpr,
    padding: tl.constexpr,
    SIZE: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    pixel = tl.program_id(0).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    x = (pixel % width).to(tl.int32) + padding
    rest = pixel // width
    y = (rest % height).to(tl.int32) + padding
    image = rest // height
    wanted = (pixel < num_pixels)[:, None] & (channel < channels)[None, :]
    found = tl.zeros((PIXELS, CHANNELS), dtype=tl.float32)
    for down in range(SIZE):
        at_y = (y - down) // stride
        is_row = (y >= down) & ((y - down) % stride == 0) & (at_y < high)
        for right in range(SIZE):
            at_x = (x - right) // stride
            is_there = is_row & (x >= right) & ((x - right) % stride == 0) & (at_x < wide)
            row = (image * high + at_y) * wide + at_x
            start = row * (SIZE * SIZE * channels) + (down * SIZE + right) * channels
            mask = wanted & is_there[:, None]
            at = start[:, None] + channel[None, :]
            found += tl.load(gradient + at, mask=mask, other=0.0).to(tl.float32)
    at = pixel[:, None] * channels + channel[None, :]
    tl.store(total + at, found.to(total.dtype.element_ty), mask=wanted)


def add_up(gradient: Tensor, total: Tensor, size: int, stride: int, padding: int) -> None:
    """Add up ``gradient [models, batch, high, wide, values]`` into the pixels of `total`."""
    height, width, channels = total.shape[2:]
    high, wide = gradient.shape[2:4]
    num_pixels = total.numel() // channels
    per_block = min(256, triton.next_power_of_2(channels))
    pixels = max(1, 1024 // per_block)
    _add_up[(triton.cdiv(num_pixels, pixels), triton.cdiv(channels, per_block))](
        gradient,
        total,
        num_pixels,
        height,
        width,
        channels,
        high,
        wide,
        stride,
        padding,
        SIZE=size,
        PIXELS=pixels,
        CHANNELS=per_block,
        num_warps=4,
    )
