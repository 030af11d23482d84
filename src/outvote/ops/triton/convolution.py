"""Triton kernels for convolutions without im2col; called by `convolution`.

A convolution is the product of windows and filters. A program computes some pixels of the result
and some channels, for one model: it loads the part of each window where it is in the images,
instead of from a copy of all windows, which for 3 x 3 pixels is nine times as large. Sizes are
run-time arguments: another layer compiles nothing, as long as its tile has the same size.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from outvote.ops.convolution import After
from outvote.ops.triton import cdiv

PIXELS, STAGES = 128, 3
# Of the gradient of weights: programs that keep a GPU busy, pixels of a step, and of a short strip.
ENOUGH, STEP, SHORTEST = 528, 64, 2048


@triton.jit(
    do_not_specialize=[
        "num_pixels",
        "height",
        "width",
        "high",
        "wide",
        "size",
        "stride",
        "padding",
    ]
)
def _convolve(
    images,
    weights,
    scale,
    shift,
    plus,
    result,
    num_pixels,
    height,
    width,
    channels,
    high,
    wide,
    filters,
    size,
    stride,
    padding,
    image_stride,
    weight_stride,
    shift_stride,
    result_stride,
    row_stride,
    plus_stride,
    plus_row_stride,
    IS_BACKWARD: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    HAS_SHIFT: tl.constexpr,
    HAS_RELU: tl.constexpr,
    HAS_PLUS: tl.constexpr,
    IS_POOLED: tl.constexpr,
    PIXELS: tl.constexpr,
    FILTERS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    model = tl.program_id(1).to(tl.int64)
    num_blocks = tl.cdiv(filters, FILTERS)
    first = tl.program_id(0) // num_blocks * PIXELS
    filter_ = tl.program_id(0) % num_blocks * FILTERS + tl.arange(0, FILTERS)
    is_filter = filter_ < filters
    pixel = first + tl.arange(0, PIXELS)
    is_pixel = pixel < num_pixels
    if IS_POOLED:
        # Four pixels that follow each other are pooled: they are a square of 2 x 2.
        cell = pixel // 4
        line = cell // (wide // 2)
        right = (cell - line * (wide // 2)) * 2 + pixel % 2
        image = line // (high // 2)
        down = (line - image * (high // 2)) * 2 + pixel // 2 % 2
    else:
        line = pixel // wide
        right = pixel - line * wide
        image = line // high
        down = line - image * high
    top, left = down * stride - padding, right * stride - padding
    row = (image.to(tl.int64) * height + top) * width + left
    start = images + model * image_stride + row * channels
    own = weights + model * weight_stride
    channel = tl.arange(0, CHANNELS)
    parts = tl.cdiv(channels, CHANNELS)
    total = tl.zeros((PIXELS, FILTERS), dtype=tl.float32)
    for number in range(size * size * parts):
        tap = number // parts
        at = (number - tap * parts) * CHANNELS + channel
        is_channel = at < channels
        tap_y = tap // size
        tap_x = tap - tap_y * size
        y, x = top + tap_y, left + tap_x
        inside = is_pixel & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        along = (tap_y * width + tap_x) * channels + at
        windows = tl.load(
            start[:, None] + along[None, :], mask=inside[:, None] & is_channel[None, :], other=0.0
        )
        wanted = is_channel[:, None] & is_filter[None, :]
        if IS_BACKWARD:
            # The filters are read backwards, and what was a filter is a channel.
            there = (size * size - 1 - tap) * filters * channels
            of = there + filter_[None, :] * channels + at[:, None]
        else:
            of = (tap * channels + at)[:, None] * filters + filter_[None, :]
        total = tl.dot(windows, tl.load(own + of, mask=wanted, other=0.0), total)
    # As if the product had been stored.
    total = total.to(result.dtype.element_ty).to(tl.float32)
    if HAS_SCALE:
        factor = tl.load(scale + model * filters + filter_, mask=is_filter, other=0.0)
        total *= factor[None, :]
    if HAS_SHIFT:
        offset = tl.load(shift + model * shift_stride + filter_, mask=is_filter, other=0.0)
        total += offset.to(tl.float32)[None, :]
    if HAS_RELU:
        total = tl.maximum(total, 0.0)
    if IS_POOLED:
        total = tl.max(tl.reshape(total, (PIXELS // 4, 4, FILTERS)), axis=1)
        to = first // 4 + tl.arange(0, PIXELS // 4)
        stored = (to < num_pixels // 4)[:, None] & is_filter[None, :]
    else:
        to = pixel
        stored = is_pixel[:, None] & is_filter[None, :]
    to = to.to(tl.int64)[:, None]
    if HAS_PLUS:
        more = model * plus_stride + to * plus_row_stride + filter_[None, :]
        total += tl.load(plus + more, mask=stored, other=0.0).to(tl.float32)
    place = result + model * result_stride + to * row_stride + filter_[None, :]
    tl.store(place, total.to(result.dtype.element_ty), mask=stored)


def convolve(
    images: Tensor,
    weights: Tensor,
    result: Tensor,
    window: tuple[int, int, int],
    after: After,
    *,
    is_backward: bool = False,
) -> None:
    """Write ``images [models, batch, height, width, channels]`` times filters into `result`.

    `weights` are ``[models, size * size * channels or more, filters]``, `window` is size, stride
    and padding; see `After` for what comes after it. Backward, the images are
    the gradient of a result, and its channels the filters.
    """
    size, stride, padding = window
    scale, shift, relu, is_pooled, plus, _ = after
    models, batch, height, width, channels = images.shape
    high, wide = (2 * side if is_pooled else side for side in result.shape[2:4])
    filters = result.shape[-1]
    num_pixels = batch * high * wide
    per_block = _block(filters, 128)
    grid = (cdiv(num_pixels, PIXELS) * cdiv(filters, per_block), models)
    more = result if plus is None else plus
    offset = weights if shift is None else shift
    _convolve[grid](
        images,
        weights,
        offset if scale is None else scale,
        offset,
        more,
        result,
        num_pixels,
        height,
        width,
        channels,
        high,
        wide,
        filters,
        size,
        stride,
        padding,
        images.stride(0),
        weights.stride(0),
        offset.stride(0),
        result.stride(0),
        result.stride(-2),
        more.stride(0),
        more.stride(-2),
        IS_BACKWARD=is_backward,
        HAS_SCALE=scale is not None,
        HAS_SHIFT=shift is not None,
        HAS_RELU=relu or is_pooled,
        HAS_PLUS=plus is not None,
        IS_POOLED=is_pooled,
        PIXELS=PIXELS,
        FILTERS=per_block,
        CHANNELS=_block(channels, 64),
        num_warps=8 if per_block == 128 else 4,
        num_stages=STAGES,
    )


def image_gradient(
    gradient: Tensor, weights: Tensor, shape: tuple[int, ...], window: tuple[int, int, int]
) -> Tensor:
    """Return the gradient of images of a shape, for windows with a stride of 1."""
    size, _, padding = window
    result = gradient.new_empty(shape)
    back = (size, 1, size - 1 - padding)
    convolve(gradient, weights, result, back, After(), is_backward=True)
    return result


@triton.jit(
    do_not_specialize=[
        "num_pixels",
        "height",
        "width",
        "high",
        "wide",
        "size",
        "stride",
        "padding",
        "num_values",
        "per_strip",
    ]
)
def _weight_gradient(
    images,
    gradient,
    result,
    num_pixels,
    height,
    width,
    channels,
    high,
    wide,
    filters,
    size,
    stride,
    padding,
    num_values,
    per_strip,
    image_stride,
    result_stride,
    strip_stride,
    PIXELS: tl.constexpr,
    VALUES: tl.constexpr,
    FILTERS: tl.constexpr,
):
    model = tl.program_id(1).to(tl.int64)
    strip = tl.program_id(2)
    num_blocks = tl.cdiv(filters, FILTERS)
    filter_ = tl.program_id(0) % num_blocks * FILTERS + tl.arange(0, FILTERS)
    is_filter = filter_ < filters
    value = tl.program_id(0) // num_blocks * VALUES + tl.arange(0, VALUES)
    tap = value // channels
    tap_y = tap // size
    tap_x = tap - tap_y * size
    # Channels come in eights, so that eight values that follow each other have the same tap.
    along = (tap_y * width + tap_x) * channels + (value - tap * channels)
    along = tl.max_contiguous(tl.multiple_of(along, 8), 8)
    tap_y, tap_x = tl.max_constancy(tap_y, 8), tl.max_constancy(tap_x, 8)
    is_value = tap < size * size
    is_value = tl.max_constancy(is_value, 8)
    of_model = images + model * image_stride
    rows = gradient + model * num_pixels * filters
    total = tl.zeros((VALUES, FILTERS), dtype=tl.float32)
    begin = strip * per_strip
    for start in range(begin, tl.minimum(begin + per_strip, num_pixels), PIXELS):
        pixel = start + tl.arange(0, PIXELS)
        is_pixel = pixel < num_pixels
        line = pixel // wide
        image = line // high
        top = (line - image * high) * stride - padding
        left = (pixel - line * wide) * stride - padding
        row = (image.to(tl.int64) * height + top) * width + left
        y, x = top[:, None] + tap_y[None, :], left[:, None] + tap_x[None, :]
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        inside = inside & is_pixel[:, None] & is_value[None, :]
        at = of_model + (row * channels)[:, None] + along[None, :]
        windows = tl.load(at, mask=inside, other=0.0)
        outer = tl.load(
            rows + pixel.to(tl.int64)[:, None] * filters + filter_[None, :],
            mask=is_pixel[:, None] & is_filter[None, :],
            other=0.0,
        )
        total = tl.dot(tl.trans(windows), outer, total)
    # Rows of the result beyond the taps are padding, with the gradient 0.
    stored = (value < num_values)[:, None] & is_filter[None, :]
    to = model * result_stride + strip * strip_stride
    place = result + to + value.to(tl.int64)[:, None] * filters + filter_[None, :]
    tl.store(place, total.to(result.dtype.element_ty), mask=stored)


def weight_gradient(
    images: Tensor, gradient: Tensor, result: Tensor, window: tuple[int, int, int]
) -> None:
    """Write the gradient of the filters, ``[models, size * size * channels or more, filters]``."""
    size, stride, padding = window
    models, batch, height, width, channels = images.shape
    high, wide, filters = gradient.shape[2:]
    num_pixels, num_values = batch * high * wide, result.shape[1]
    values, per_block = _block(num_values, 128), _block(filters, 128)
    tiles = cdiv(num_values, values) * cdiv(filters, per_block)
    # With few models, a strip of the pixels each: enough programs for the GPU.
    num_strips = max(1, min(ENOUGH // (tiles * models), num_pixels // SHORTEST))
    per_strip = cdiv(cdiv(num_pixels, num_strips), STEP) * STEP
    num_strips = cdiv(num_pixels, per_strip)
    sizes = num_pixels, height, width, channels, high, wide, filters, size, stride, padding

    def launch(target: Tensor, strip_stride: int) -> None:
        _weight_gradient[(tiles, models, num_strips)](
            images,
            gradient,
            target,
            *sizes,
            num_values,
            per_strip,
            images.stride(0),
            target.stride(-3),
            strip_stride,
            PIXELS=STEP,
            VALUES=values,
            FILTERS=per_block,
            num_warps=8 if per_block == 128 else 4,
            num_stages=STAGES,
        )

    if num_strips == 1:
        launch(result, 0)
    else:
        shape = (num_strips, models, num_values, filters)
        strips = torch.empty(shape, dtype=torch.float32, device=images.device)
        launch(strips, strips.stride(0))
        result.copy_(strips.sum(dim=0))


def _block(size: int, largest: int) -> int:
    """Return the block for a size: one for all of a small size, or with at most a quarter unused.

    Blocks of fewer than 16 cannot be multiplied, and small ones are read more often.
    """
    if size <= largest:
        return max(16, 1 << (size - 1).bit_length())
    return largest if -size % largest <= size // 4 else largest // 2
