"""Triton kernels for batch normalisation; called by batch normalisation.

Samples are ``[models, rows, channels]`` here, `per_image` rows each. A program takes a strip of
rows and some channels; what it adds up is added up over the strips outside.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

VALUES, NUM_TILES = 4096, 8
# Batches differ in size from step to step: no size is compiled for.
AT_RUN_TIME = ["num_rows"]


@triton.jit(do_not_specialize=AT_RUN_TIME)
def _moments(
    images,
    is_there,
    means,
    squares,
    sizes,
    num_rows,
    per_image,
    channels: tl.constexpr,
    HAS_MASK: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    TILES: tl.constexpr,
):
    strip = tl.program_id(0)
    model = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < channels
    size = 0.0
    mean = tl.zeros((CHANNELS,), dtype=tl.float32)
    square = tl.zeros((CHANNELS,), dtype=tl.float32)
    for tile in range(TILES):
        row = (strip * TILES + tile) * ROWS + tl.arange(0, ROWS)
        counts = row < num_rows
        if HAS_MASK:
            image = model * (num_rows // per_image) + row // per_image
            counts = counts & (tl.load(is_there + image, mask=counts, other=0) != 0)
        wanted = counts[:, None] & is_channel[None, :]
        at = (model * num_rows + row[:, None]) * channels + channel[None, :]
        values = tl.load(images + at, mask=wanted, other=0.0).to(tl.float32)
        here = tl.sum(counts.to(tl.float32), axis=0)
        middle = tl.sum(values, axis=0) / tl.maximum(here, 1.0)
        centred = tl.where(wanted, values - middle[None, :], 0.0)
        total = size + here
        share = here / tl.maximum(total, 1.0)
        apart = middle - mean
        square += tl.sum(centred * centred, axis=0) + apart * apart * size * share
        mean += apart * share
        size = total
    out = (model * tl.num_programs(0) + strip) * channels + channel
    tl.store(means + out, mean, mask=is_channel)
    tl.store(squares + out, square, mask=is_channel)
    if tl.program_id(1) == 0:
        tl.store(sizes + model * tl.num_programs(0) + strip, size)


def moments(images: Tensor, is_there: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the means, the sums of squares around them, and the counts, of strips of rows."""
    models, num_rows, channels, per_image = _sizes(images)
    rows, per_block = _tile(channels)
    num_strips = triton.cdiv(num_rows, rows * NUM_TILES)
    means = _empty(images, models, num_strips, channels)
    squares, sizes = torch.empty_like(means), _empty(images, models, num_strips)
    _moments[(num_strips, triton.cdiv(channels, per_block), models)](
        images,
        images if is_there is None else is_there.contiguous().to(torch.uint8),
        means,
        squares,
        sizes,
        num_rows,
        per_image,
        channels,
        HAS_MASK=is_there is not None,
        ROWS=rows,
        CHANNELS=per_block,
        TILES=NUM_TILES,
        num_warps=4,
    )
    return means, squares, sizes


@triton.jit(do_not_specialize=AT_RUN_TIME)
def _affine(
    images,
    scale,
    shift,
    result,
    num_rows,
    channels: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    model = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_channel = channel < channels
    wanted = (row < num_rows)[:, None] & is_channel[None, :]
    at = (model * num_rows + row[:, None]) * channels + channel[None, :]
    factor = tl.load(scale + model * channels + channel, mask=is_channel, other=0.0)
    offset = tl.load(shift + model * channels + channel, mask=is_channel, other=0.0)
    values = tl.load(images + at, mask=wanted, other=0.0).to(tl.float32)
    moved = values * factor[None, :] + offset[None, :]
    tl.store(result + at, moved.to(result.dtype.element_ty), mask=wanted)


def affine(images: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return ``images * scale + shift``."""
    models, num_rows, channels, _ = _sizes(images)
    rows, per_block = _tile(channels)
    result = torch.empty_like(images)
    _affine[(triton.cdiv(num_rows, rows), triton.cdiv(channels, per_block), models)](
        images,
        scale.float().contiguous(),
        shift.float().contiguous(),
        result,
        num_rows,
        channels,
        ROWS=rows,
        CHANNELS=per_block,
        num_warps=4,
    )
    return result


@triton.jit(do_not_specialize=AT_RUN_TIME)
def _gradient_sums(
    gradient,
    images,
    mean,
    inv_std,
    sums,
    along,
    num_rows,
    channels: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    TILES: tl.constexpr,
):
    strip = tl.program_id(0)
    model = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < channels
    middle = tl.load(mean + model * channels + channel, mask=is_channel, other=0.0)
    total = tl.zeros((CHANNELS,), dtype=tl.float32)
    product = tl.zeros((CHANNELS,), dtype=tl.float32)
    for tile in range(TILES):
        row = (strip * TILES + tile) * ROWS + tl.arange(0, ROWS)
        wanted = (row < num_rows)[:, None] & is_channel[None, :]
        at = (model * num_rows + row[:, None]) * channels + channel[None, :]
        values = tl.load(images + at, mask=wanted, other=0.0).to(tl.float32)
        outer = tl.load(gradient + at, mask=wanted, other=0.0).to(tl.float32)
        total += tl.sum(outer, axis=0)
        product += tl.sum(outer * (values - middle[None, :]), axis=0)
    factor = tl.load(inv_std + model * channels + channel, mask=is_channel, other=0.0)
    out = (model * tl.num_programs(0) + strip) * channels + channel
    tl.store(sums + out, total, mask=is_channel)
    tl.store(along + out, product * factor, mask=is_channel)


def gradient_sums(
    gradient: Tensor, images: Tensor, mean: Tensor, inv_std: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the sums of gradients, and of them times the normalised samples, of strips."""
    models, num_rows, channels, _ = _sizes(images)
    rows, per_block = _tile(channels)
    num_strips = triton.cdiv(num_rows, rows * NUM_TILES)
    sums = _empty(images, models, num_strips, channels)
    along = torch.empty_like(sums)
    _gradient_sums[(num_strips, triton.cdiv(channels, per_block), models)](
        gradient,
        images,
        mean.contiguous(),
        inv_std.contiguous(),
        sums,
        along,
        num_rows,
        channels,
        ROWS=rows,
        CHANNELS=per_block,
        TILES=NUM_TILES,
        num_warps=4,
    )
    return sums, along


@triton.jit(do_not_specialize=AT_RUN_TIME)
def _inner_gradient(
    gradient,
    images,
    is_there,
    mean,
    inv_std,
    scale,
    average,
    along,
    result,
    num_rows,
    per_image,
    channels: tl.constexpr,
    HAS_MASK: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    model = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_channel = channel < channels
    is_row = row < num_rows
    wanted = is_row[:, None] & is_channel[None, :]
    at = (model * num_rows + row[:, None]) * channels + channel[None, :]
    here = model * channels + channel
    middle = tl.load(mean + here, mask=is_channel, other=0.0)
    scaled = tl.load(along + here, mask=is_channel, other=0.0)
    scaled *= tl.load(inv_std + here, mask=is_channel, other=0.0)
    values = tl.load(images + at, mask=wanted, other=0.0).to(tl.float32)
    outer = tl.load(gradient + at, mask=wanted, other=0.0).to(tl.float32)
    pull = tl.load(average + here, mask=is_channel, other=0.0)[None, :]
    pull = pull + (values - middle[None, :]) * scaled[None, :]
    if HAS_MASK:
        image = model * (num_rows // per_image) + row // per_image
        counts = tl.load(is_there + image, mask=is_row, other=0) != 0
        pull = tl.where(counts[:, None], pull, 0.0)
    factor = tl.load(scale + here, mask=is_channel, other=0.0)
    found = (outer - pull) * factor[None, :]
    tl.store(result + at, found.to(result.dtype.element_ty), mask=wanted)


def inner_gradient(
    gradient: Tensor, images: Tensor, by_channel: tuple[Tensor, ...], is_there: Tensor | None
) -> Tensor:
    """Return the gradient of the samples."""
    models, num_rows, channels, per_image = _sizes(images)
    rows, per_block = _tile(channels)
    result = torch.empty_like(gradient)
    _inner_gradient[(triton.cdiv(num_rows, rows), triton.cdiv(channels, per_block), models)](
        gradient,
        images,
        images if is_there is None else is_there.contiguous().to(torch.uint8),
        *(values.float().contiguous() for values in by_channel),
        result,
        num_rows,
        per_image,
        channels,
        HAS_MASK=is_there is not None,
        ROWS=rows,
        CHANNELS=per_block,
        num_warps=4,
    )
    return result


def _sizes(images: Tensor) -> tuple[int, int, int, int]:
    models, batch, height, width, channels = images.shape
    return models, batch * height * width, channels, height * width


def _tile(channels: int) -> tuple[int, int]:
    """Return how many rows and channels a program works on at once."""
    per_block = min(128, triton.next_power_of_2(channels))
    return VALUES // per_block, per_block


def _empty(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)
