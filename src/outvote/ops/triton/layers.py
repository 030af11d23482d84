"""Triton kernels for what comes after products: batch normalisation, biases, ReLU, pooling.

Called by `layers`. Samples are ``[models, rows, channels]`` here: a row is a pixel,
`per_image` rows make an image. A program takes a strip of rows and some channels of one model;
what it adds up is added up over the strips by a second, small kernel. Memory decides how long they
take, so every kernel does all that can be done while a value is at hand.

Sizes are run-time arguments: another network or batch compiles nothing.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from outvote.ops.triton import block_of, cdiv

VALUES, NUM_TILES = 4096, 8
# Warps of the programs that add up, and of those that write.
SUM_WARPS, WRITE_WARPS = 4, 4


@triton.jit(do_not_specialize=["num_rows", "per_image"])
def _moments(
    images,
    is_there,
    sums,
    squares,
    sizes,
    num_rows,
    per_image,
    channels,
    HAS_MASK: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    TILES: tl.constexpr,
):
    strip = tl.program_id(0)
    model = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < channels
    start = images + model * num_rows * channels
    # Around a value of the model itself, squares do not cancel.
    pivot = tl.load(start + channel, mask=is_channel, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    square = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    size = tl.zeros((ROWS,), dtype=tl.float32)
    for tile in range(TILES):
        row = (strip * TILES + tile) * ROWS + tl.arange(0, ROWS)
        counts = row < num_rows
        if HAS_MASK:
            image = model * (num_rows // per_image) + row // per_image
            counts = counts & (tl.load(is_there + image, mask=counts, other=0) != 0)
            size += counts.to(tl.float32)
        wanted = counts[:, None] & is_channel[None, :]
        at = row[:, None].to(tl.int64) * channels + channel[None, :]
        values = tl.load(start + at, mask=wanted, other=0.0).to(tl.float32)
        centred = tl.where(wanted, values - pivot[None, :], 0.0)
        total += centred
        square += centred * centred
    out = (model * tl.num_programs(0) + strip) * channels + channel
    tl.store(sums + out, tl.sum(total, axis=0), mask=is_channel)
    tl.store(squares + out, tl.sum(square, axis=0), mask=is_channel)
    if HAS_MASK:
        # Every block of channels stores the same.
        tl.store(sizes + model * tl.num_programs(0) + strip, tl.sum(size, axis=0))


@triton.jit(do_not_specialize=["num_strips", "num_rows", "parameter_stride", "bias_stride"])
def _finish_moments(
    images,
    sums,
    squares,
    sizes,
    factor,
    offset,
    bias,
    running_mean,
    running_variance,
    shares,
    mean,
    inv_std,
    scale,
    shift,
    counts,
    num_strips,
    num_rows,
    channels,
    parameter_stride,
    bias_stride,
    epsilon,
    HAS_MASK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    model = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < channels
    total = tl.zeros((CHANNELS,), dtype=tl.float64)
    square = tl.zeros((CHANNELS,), dtype=tl.float64)
    size = tl.zeros((CHANNELS,), dtype=tl.float64)
    for strip in range(num_strips):
        at = (model * num_strips + strip) * channels + channel
        total += tl.load(sums + at, mask=inside, other=0.0).to(tl.float64)
        square += tl.load(squares + at, mask=inside, other=0.0).to(tl.float64)
        if HAS_MASK:
            size += tl.load(sizes + model * num_strips + strip).to(tl.float64)
    if HAS_MASK:
        size = tl.maximum(size, 1.0)
    else:
        size += num_rows
    pivot = tl.load(images + model * num_rows * channels + channel, mask=inside, other=0.0)
    apart = total / size
    middle = pivot.to(tl.float64) + apart
    variance = tl.maximum(square / size - apart * apart, 0.0)
    inverse = (1.0 / tl.sqrt(variance + epsilon)).to(tl.float32)
    parameter = model * parameter_stride + channel
    factors = tl.load(factor + parameter, mask=inside, other=0.0).to(tl.float32) * inverse
    offsets = tl.load(offset + parameter, mask=inside, other=0.0).to(tl.float32)
    here = model * channels + channel
    tl.store(mean + here, middle.to(tl.float32), mask=inside)
    tl.store(inv_std + here, inverse, mask=inside)
    tl.store(scale + here, factors, mask=inside)
    tl.store(shift + here, offsets - middle.to(tl.float32) * factors, mask=inside)
    tl.store(counts + here, size.to(tl.float32), mask=inside)
    # The product left out its bias, which changes the mean alone.
    if HAS_BIAS:
        own = tl.load(bias + model * bias_stride + channel, mask=inside, other=0.0)
        middle += own.to(tl.float64)
    share = tl.load(shares + model).to(tl.float32)
    before = tl.load(running_mean + here, mask=inside, other=0.0)
    tl.store(running_mean + here, before + (middle.to(tl.float32) - before) * share, mask=inside)
    unbiased = (variance * (size / tl.maximum(size - 1.0, 1.0))).to(tl.float32)
    before = tl.load(running_variance + here, mask=inside, other=0.0)
    tl.store(running_variance + here, before + (unbiased - before) * share, mask=inside)


def norm_moments(
    images: Tensor,
    is_there: Tensor | None,
    parameters: tuple[Tensor, Tensor, Tensor | None],
    running: tuple[Tensor, Tensor, Tensor],
    epsilon: float,
) -> tuple[Tensor, ...]:
    """Return mean, inverse deviation, scale, shift and count, ``[models, channels]`` each.

    `parameters` are factor, offset and the bias that the samples were computed without, `running`
    the running mean and variance, which change, and the share of the new ones per model.
    """
    models, num_rows, channels, per_image = _sizes(images)
    rows, per_block = _tile(channels)
    num_strips = cdiv(num_rows, rows * NUM_TILES)
    num_blocks = cdiv(channels, per_block)
    sums = _empty(images, models, num_strips, channels)
    squares, sizes = torch.empty_like(sums), _empty(images, models, num_strips)
    has_mask = is_there is not None
    _moments[(num_strips, num_blocks, models)](
        images,
        is_there.contiguous().view(torch.uint8) if is_there is not None else images,
        sums,
        squares,
        sizes,
        num_rows,
        per_image,
        channels,
        HAS_MASK=has_mask,
        ROWS=rows,
        CHANNELS=per_block,
        TILES=NUM_TILES,
        num_warps=SUM_WARPS,
    )
    factor, offset, bias = parameters
    found = _empty(images, 5, models, channels).unbind()
    _finish_moments[(num_blocks, models)](
        images,
        sums,
        squares,
        sizes,
        factor,
        offset,
        factor if bias is None else bias,
        *running,
        *found,
        num_strips,
        num_rows,
        channels,
        factor.stride(0),
        factor.stride(0) if bias is None else bias.stride(0),
        epsilon,
        HAS_MASK=has_mask,
        HAS_BIAS=bias is not None,
        CHANNELS=per_block,
        num_warps=1,
    )
    return found


@triton.jit(do_not_specialize=["num_rows"])
def _affine(
    images,
    scale,
    shift,
    plus,
    result,
    num_rows,
    channels,
    shift_stride,
    model_stride,
    row_stride,
    plus_model_stride,
    plus_row_stride,
    HAS_SCALE: tl.constexpr,
    HAS_RELU: tl.constexpr,
    HAS_PLUS: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    model = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    is_channel = channel < channels
    wanted = (row < num_rows)[:, None] & is_channel[None, :]
    at = row[:, None] * channels + channel[None, :]
    found = tl.load(images + model * num_rows * channels + at, mask=wanted, other=0.0)
    found = found.to(tl.float32)
    if HAS_SCALE:
        factor = tl.load(scale + model * channels + channel, mask=is_channel, other=0.0)
        found *= factor[None, :]
    offset = tl.load(shift + model * shift_stride + channel, mask=is_channel, other=0.0)
    found += offset.to(tl.float32)[None, :]
    if HAS_RELU:
        found = tl.maximum(found, 0.0)
    if HAS_PLUS:
        more = model * plus_model_stride + row[:, None] * plus_row_stride + channel[None, :]
        found += tl.load(plus + more, mask=wanted, other=0.0).to(tl.float32)
    to = result + model * model_stride + row[:, None] * row_stride + channel[None, :]
    tl.store(to, found.to(result.dtype.element_ty), mask=wanted)


def affine(
    images: Tensor,
    scale: Tensor | None,
    shift: Tensor,
    result: Tensor,
    *,
    relu: bool,
    plus: Tensor | None = None,
) -> None:
    """Write ``images * scale + shift``, or its positive part, into `result`, of any row stride.

    `plus` is added to it.
    """
    more = result if plus is None else plus
    models, num_rows, channels, _ = _sizes(images)
    rows, per_block = _tile(channels)
    _affine[(cdiv(num_rows, rows), cdiv(channels, per_block), models)](
        images,
        shift if scale is None else scale,
        shift,
        more,
        result,
        num_rows,
        channels,
        shift.stride(0),
        result.stride(0),
        result.stride(-2),
        more.stride(0),
        more.stride(-2),
        HAS_SCALE=scale is not None,
        HAS_RELU=relu,
        HAS_PLUS=plus is not None,
        ROWS=rows,
        CHANNELS=per_block,
        num_warps=WRITE_WARPS,
    )


@triton.jit(do_not_specialize=["num_rows", "wide"])
def _affine_pooled(
    images,
    scale,
    shift,
    result,
    index,
    num_rows,
    wide,
    channels,
    shift_stride,
    model_stride,
    row_stride,
    HAS_SCALE: tl.constexpr,
    HAS_INDEX: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    model = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    short = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = short.to(tl.int64)
    is_channel = channel < channels
    wanted = (row < num_rows)[:, None] & is_channel[None, :]
    # The window of a row begins at twice its position in an image twice as wide.
    line = short // wide
    first = line.to(tl.int64) * (4 * wide) + (short - line * wide) * 2
    start = images + model * num_rows * 4 * channels
    offset = tl.load(shift + model * shift_stride + channel, mask=is_channel, other=0.0)
    offset = offset.to(tl.float32)
    if HAS_SCALE:
        factor = tl.load(scale + model * channels + channel, mask=is_channel, other=0.0)
    best = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    which = tl.zeros((ROWS, CHANNELS), dtype=tl.int32)
    for tap in tl.static_range(4):
        at = (first + (tap // 2) * (2 * wide) + tap % 2)[:, None] * channels + channel[None, :]
        found = tl.load(start + at, mask=wanted, other=0.0).to(tl.float32)
        if HAS_SCALE:
            found *= factor[None, :]
        found += offset[None, :]
        # A negative value is no better than the 0 of the ReLU.
        is_better = found > best
        best = tl.where(is_better, found, best)
        which = tl.where(is_better, tap, which)
    to = model * model_stride + row[:, None] * row_stride + channel[None, :]
    tl.store(result + to, best.to(result.dtype.element_ty), mask=wanted)
    if HAS_INDEX:
        own = (model * num_rows + row[:, None]) * channels + channel[None, :]
        tl.store(index + own, which.to(tl.int8), mask=wanted)


def affine_pooled(
    images: Tensor, scale: Tensor | None, shift: Tensor, result: Tensor, index: Tensor | None
) -> None:
    """Write the largest positive part of ``images * scale + shift`` of every 2 x 2 pixels.

    `index` receives which of the four it is, the first if several are.
    """
    models, num_rows, channels, _ = _sizes(result)
    rows, per_block = _tile(channels, VALUES // 4)
    _affine_pooled[(cdiv(num_rows, rows), cdiv(channels, per_block), models)](
        images,
        shift if scale is None else scale,
        shift,
        result,
        images if index is None else index,
        num_rows,
        result.shape[-2],
        channels,
        shift.stride(0),
        result.stride(0),
        result.stride(-2),
        HAS_SCALE=scale is not None,
        HAS_INDEX=index is not None,
        ROWS=rows,
        CHANNELS=per_block,
        num_warps=WRITE_WARPS,
    )


@triton.jit
def _outer(
    gradient,
    index,
    model,
    row,
    channel,
    wanted,
    num_rows,
    wide,
    channels,
    model_stride,
    row_stride,
    IS_POOLED: tl.constexpr,
):
    """Read the gradient of a tile; a pooled one reaches the pixel that was the largest."""
    if IS_POOLED:
        # In 32 bits, where a division takes a fraction of the time.
        short = row.to(tl.int32)
        line = short // wide
        x = short - line * wide
        # Two lines of pixels, each `wide`, share one line of pooled ones, half as wide.
        pooled = ((line >> 1) * (wide >> 1) + (x >> 1)).to(tl.int64)
        tap = (line & 1) * 2 + (x & 1)
        own = (model * (num_rows // 4) + pooled[:, None]) * channels + channel[None, :]
        which = tl.load(index + own, mask=wanted, other=0).to(tl.int32)
        at = model * model_stride + pooled[:, None] * row_stride + channel[None, :]
        found = tl.load(gradient + at, mask=wanted, other=0.0).to(tl.float32)
        found = tl.where(which == tap[:, None], found, 0.0)
    else:
        at = model * model_stride + row[:, None] * row_stride + channel[None, :]
        found = tl.load(gradient + at, mask=wanted, other=0.0).to(tl.float32)
    return found


@triton.jit(do_not_specialize=["num_rows", "wide"])
def _gradient_sums(
    gradient,
    index,
    images,
    mean,
    scale,
    shift,
    sums,
    along,
    num_rows,
    wide,
    channels,
    model_stride,
    row_stride,
    HAS_RELU: tl.constexpr,
    IS_POOLED: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    TILES: tl.constexpr,
):
    strip = tl.program_id(0)
    model = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < channels
    here = model * channels + channel
    middle = tl.load(mean + here, mask=is_channel, other=0.0)
    factor = tl.load(scale + here, mask=is_channel, other=0.0)
    offset = tl.load(shift + here, mask=is_channel, other=0.0)
    total = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    product = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    for tile in range(TILES):
        row = ((strip * TILES + tile) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        wanted = (row < num_rows)[:, None] & is_channel[None, :]
        at = (model * num_rows + row[:, None]) * channels + channel[None, :]
        values = tl.load(images + at, mask=wanted, other=0.0).to(tl.float32)
        outer = _outer(
            gradient,
            index,
            model,
            row,
            channel,
            wanted,
            num_rows,
            wide,
            channels,
            model_stride,
            row_stride,
            IS_POOLED,
        )
        if HAS_RELU:
            outer = tl.where(values * factor[None, :] + offset[None, :] > 0.0, outer, 0.0)
        total += outer
        product += tl.where(wanted, outer * (values - middle[None, :]), 0.0)
    out = (model * tl.num_programs(0) + strip) * channels + channel
    tl.store(sums + out, tl.sum(total, axis=0), mask=is_channel)
    tl.store(along + out, tl.sum(product, axis=0), mask=is_channel)


@triton.jit(do_not_specialize=["num_strips", "target_stride"])
def _finish_sums(
    sums,
    along,
    inv_std,
    counts,
    to_factor,
    to_offset,
    average,
    pull,
    num_strips,
    channels,
    target_stride,
    CHANNELS: tl.constexpr,
):
    model = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < channels
    total = tl.zeros((CHANNELS,), dtype=tl.float64)
    product = tl.zeros((CHANNELS,), dtype=tl.float64)
    for strip in range(num_strips):
        at = (model * num_strips + strip) * channels + channel
        total += tl.load(sums + at, mask=inside, other=0.0).to(tl.float64)
        product += tl.load(along + at, mask=inside, other=0.0).to(tl.float64)
    here = model * channels + channel
    inverse = tl.load(inv_std + here, mask=inside, other=0.0).to(tl.float64)
    size = tl.load(counts + here, mask=inside, other=1.0).to(tl.float64)
    product *= inverse
    target = model * target_stride + channel
    tl.store(to_factor + target, product.to(tl.float32).to(to_factor.dtype.element_ty), mask=inside)
    tl.store(to_offset + target, total.to(tl.float32).to(to_offset.dtype.element_ty), mask=inside)
    tl.store(average + here, (total / size).to(tl.float32), mask=inside)
    tl.store(pull + here, (product * inverse / size).to(tl.float32), mask=inside)


@triton.jit(do_not_specialize=["num_rows", "per_image", "wide"])
def _inner_gradient(
    gradient,
    index,
    images,
    is_there,
    mean,
    scale,
    shift,
    average,
    pull,
    result,
    num_rows,
    per_image,
    wide,
    channels,
    model_stride,
    row_stride,
    HAS_MASK: tl.constexpr,
    HAS_RELU: tl.constexpr,
    IS_POOLED: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    model = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    is_channel = channel < channels
    is_row = row < num_rows
    wanted = is_row[:, None] & is_channel[None, :]
    at = (model * num_rows + row[:, None]) * channels + channel[None, :]
    here = model * channels + channel
    middle = tl.load(mean + here, mask=is_channel, other=0.0)
    factor = tl.load(scale + here, mask=is_channel, other=0.0)
    values = tl.load(images + at, mask=wanted, other=0.0).to(tl.float32)
    outer = _outer(
        gradient,
        index,
        model,
        row,
        channel,
        wanted,
        num_rows,
        wide,
        channels,
        model_stride,
        row_stride,
        IS_POOLED,
    )
    if HAS_RELU:
        offset = tl.load(shift + here, mask=is_channel, other=0.0)
        outer = tl.where(values * factor[None, :] + offset[None, :] > 0.0, outer, 0.0)
    shared = tl.load(average + here, mask=is_channel, other=0.0)[None, :]
    tilt = tl.load(pull + here, mask=is_channel, other=0.0)
    shared = shared + (values - middle[None, :]) * tilt[None, :]
    if HAS_MASK:
        image = model * (num_rows // per_image) + row // per_image
        counts = tl.load(is_there + image, mask=is_row, other=0) != 0
        shared = tl.where(counts[:, None], shared, 0.0)
    found = (outer - shared) * factor[None, :]
    tl.store(result + at, found.to(result.dtype.element_ty), mask=wanted)


def inner_gradient(
    gradient: Tensor,
    index: Tensor | None,
    images: Tensor,
    is_there: Tensor | None,
    found: tuple[Tensor, ...],
    targets: tuple[Tensor, Tensor],
    *,
    relu: bool,
) -> Tensor:
    """Return the gradient of normalised samples, and write those of the factors and offsets.

    `found` is what `norm_moments` returned; `index` belongs to a pooled gradient.
    """
    mean, inv_std, scale, shift, counts = found
    models, num_rows, channels, per_image = _sizes(images)
    rows, per_block = _tile(channels)
    num_strips = cdiv(num_rows, rows * NUM_TILES)
    num_blocks = cdiv(channels, per_block)
    sums = _empty(images, models, num_strips, channels)
    along = torch.empty_like(sums)
    _gradient_sums[(num_strips, num_blocks, models)](
        gradient,
        images if index is None else index,
        images,
        mean,
        scale,
        shift,
        sums,
        along,
        num_rows,
        images.shape[-2],
        channels,
        gradient.stride(0),
        gradient.stride(-2),
        HAS_RELU=relu,
        IS_POOLED=index is not None,
        ROWS=rows,
        CHANNELS=per_block,
        TILES=NUM_TILES,
        num_warps=SUM_WARPS,
    )
    average, pull = _empty(images, 2, models, channels).unbind()
    _finish_sums[(num_blocks, models)](
        sums,
        along,
        inv_std,
        counts,
        *targets,
        average,
        pull,
        num_strips,
        channels,
        targets[0].stride(0),
        CHANNELS=per_block,
        num_warps=1,
    )
    result = torch.empty_like(images)
    _inner_gradient[(cdiv(num_rows, rows), num_blocks, models)](
        gradient,
        images if index is None else index,
        images,
        images if is_there is None else is_there.contiguous().view(torch.uint8),
        mean,
        scale,
        shift,
        average,
        pull,
        result,
        num_rows,
        per_image,
        images.shape[-2],
        channels,
        gradient.stride(0),
        gradient.stride(-2),
        HAS_MASK=is_there is not None,
        HAS_RELU=relu,
        IS_POOLED=index is not None,
        ROWS=rows,
        CHANNELS=per_block,
        num_warps=WRITE_WARPS,
    )
    return result


@triton.jit(do_not_specialize=["num_rows", "wide"])
def _relu_gradient(
    gradient,
    index,
    outputs,
    result,
    sums,
    num_rows,
    wide,
    channels,
    model_stride,
    row_stride,
    IS_POOLED: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    TILES: tl.constexpr,
):
    strip = tl.program_id(0)
    model = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < channels
    total = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    for tile in range(TILES):
        row = ((strip * TILES + tile) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        wanted = (row < num_rows)[:, None] & is_channel[None, :]
        outer = _outer(
            gradient,
            index,
            model,
            row,
            channel,
            wanted,
            num_rows,
            wide,
            channels,
            model_stride,
            row_stride,
            IS_POOLED,
        )
        at = (model * num_rows + row[:, None]) * channels + channel[None, :]
        if IS_POOLED:
            short = row.to(tl.int32)
            line = short // wide
            pooled = (line >> 1) * (wide >> 1) + ((short - line * wide) >> 1)
            own = (model * (num_rows // 4) + pooled[:, None]) * channels + channel[None, :]
            passed = tl.load(outputs + own, mask=wanted, other=0.0)
        else:
            passed = tl.load(outputs + at, mask=wanted, other=0.0)
        outer = tl.where(passed.to(tl.float32) > 0.0, outer, 0.0)
        tl.store(result + at, outer.to(result.dtype.element_ty), mask=wanted)
        total += outer
    out = (model * tl.num_programs(0) + strip) * channels + channel
    tl.store(sums + out, tl.sum(total, axis=0), mask=is_channel)


@triton.jit(do_not_specialize=["num_strips", "target_stride"])
def _finish_bias(sums, target, num_strips, channels, target_stride, CHANNELS: tl.constexpr):
    model = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < channels
    total = tl.zeros((CHANNELS,), dtype=tl.float64)
    for strip in range(num_strips):
        at = (model * num_strips + strip) * channels + channel
        total += tl.load(sums + at, mask=inside, other=0.0).to(tl.float64)
    at = model * target_stride + channel
    tl.store(target + at, total.to(tl.float32).to(target.dtype.element_ty), mask=inside)


def relu_gradient(
    gradient: Tensor,
    index: Tensor | None,
    outputs: Tensor,
    shape: torch.Size,
    to_bias: Tensor,
) -> Tensor:
    """Return the gradient before ReLU (and pooling) for samples of a shape; write the bias's.

    `outputs` is what came after them: where it is 0, nothing passed.
    """
    result = torch.empty(shape, dtype=outputs.dtype, device=outputs.device)
    models, num_rows, channels, _ = _sizes(result)
    rows, per_block = _tile(channels)
    num_strips = cdiv(num_rows, rows * NUM_TILES)
    num_blocks = cdiv(channels, per_block)
    sums = _empty(result, models, num_strips, channels)
    _relu_gradient[(num_strips, num_blocks, models)](
        gradient,
        outputs if index is None else index,
        outputs,
        result,
        sums,
        num_rows,
        result.shape[-2],
        channels,
        gradient.stride(0),
        gradient.stride(-2),
        IS_POOLED=index is not None,
        ROWS=rows,
        CHANNELS=per_block,
        TILES=NUM_TILES,
        num_warps=SUM_WARPS,
    )
    _finish_bias[(num_blocks, models)](
        sums, to_bias, num_strips, channels, to_bias.stride(0), CHANNELS=per_block, num_warps=1
    )
    return result


@triton.jit(do_not_specialize=["num_values"])
def _add_relu(left, right, result, num_values, VALUES: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * VALUES + tl.arange(0, VALUES)
    inside = at < num_values
    found = tl.load(left + at, mask=inside, other=0.0).to(tl.float32)
    found += tl.load(right + at, mask=inside, other=0.0).to(tl.float32)
    found = tl.maximum(found, 0.0)
    tl.store(result + at, found.to(result.dtype.element_ty), mask=inside)


def add_relu(left: Tensor, right: Tensor) -> Tensor:
    """Return the positive part of a sum."""
    result = torch.empty_like(left)
    num_values = result.numel()
    _add_relu[(cdiv(num_values, VALUES),)](
        left, right, result, num_values, VALUES=VALUES, num_warps=8
    )
    return result


def _sizes(images: Tensor) -> tuple[int, int, int, int]:
    """Return the numbers of models, rows and channels, and of rows of an image."""
    models, *sides, channels = images.shape
    num_rows = 1
    for side in sides:
        num_rows *= side
    return models, num_rows, channels, num_rows // sides[0]


def _tile(channels: int, values: int = VALUES) -> tuple[int, int]:
    """Return how many rows and channels a program works on at once."""
    per_block = block_of(channels, 128)
    return values // per_block, per_block


def _empty(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)
