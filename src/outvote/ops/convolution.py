"""Convolutions of many models at once, and the products that they are made of.

Images are ``[models, batch, height, width, channels]``; models may share them (stride 0). Filters
are ``[models, size * size * channels or more, filters]``: the layout of a product with windows,
with zeros behind it where a window has them. A `Window` is size, stride and padding.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from outvote.ops.door import backend
from outvote.ops.layers import affine, affine_pooled, evenly_spaced

Window = tuple[int, int, int]
POINT: Window = (1, 1, 0)
"""The window of a product: of one pixel."""
# Fast products need rows of a multiple of it.
ALIGNED_VALUES = 8


class After(NamedTuple):
    """What follows a product: scale, shift, ReLU or pooling, and something is added."""

    scale: Tensor | None = None
    """``[models, filters]``, as the shift."""
    shift: Tensor | None = None
    relu: bool = False
    is_pooled: bool = False
    """Whether every 2 x 2 pixels become their largest positive part; height and width are even."""
    plus: Tensor | None = None
    out: Tensor | None = None
    """Where it is written, with any stride between pixels; None: to new memory."""


def padded(num_values: int) -> int:
    """Return how many values a window has with the zeros behind it."""
    return -(-num_values // ALIGNED_VALUES) * ALIGNED_VALUES


def sides(images: Tensor, window: Window) -> tuple[int, int]:
    """Return the height and width of the result."""
    size, stride, padding = window
    high, wide = ((side + 2 * padding - size) // stride + 1 for side in images.shape[2:4])
    return high, wide


def cut_windows(images: Tensor, window: Window) -> Tensor:
    """Return all windows, ``[models, batch, height, width, padded values]`` (im2col); exact.

    Models that share their images share the windows too.
    """
    if images.stride(0) == 0 and len(images) > 1:
        return cut_windows(images[:1], window).expand(len(images), -1, -1, -1, -1)
    size, stride, padding = window
    if size == 1 and padding == 0:
        return _with_zeros(images[:, :, ::stride, ::stride])
    shape = (*images.shape[:2], *sides(images, window))
    run = backend("cut_windows", images, _product(shape))
    if run is not None:
        found: Tensor = run(
            images.contiguous(), (*shape, padded(size**2 * images.shape[-1])), window
        )
        return found
    framed = F.pad(images, (0, 0, padding, padding, padding, padding))
    windows = framed.unfold(2, size, stride).unfold(3, size, stride)
    return _with_zeros(windows.movedim(4, -1).reshape(*shape, -1))


def add_up_windows(gradient: Tensor, shape: torch.Size, window: Window) -> Tensor:
    """Add the gradients of windows to the pixels of images of a shape."""
    size, stride, padding = window
    run = backend("add_up_windows", gradient, _product(shape[:4]))
    if run is not None:
        found: Tensor = run(gradient.contiguous(), shape, window)
        return found
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


def lowered(images: Tensor, window: Window) -> tuple[Tensor, Window]:
    """Return what training multiplies: images, where windows are read from them, else the windows.

    Of one pixel, windows need no copy, and products of torch are the fastest.
    """
    if window[0] > 1 and _reads_images(images):
        return images, window
    return cut_windows(images, window), POINT


def convolve(images: Tensor, weights: Tensor, window: Window, after: After | None = None) -> Tensor:
    """Return the convolution with all filters, in the dtype of the images, and what follows it."""
    after = after or After()
    if not _reads_images(images):
        images, window = cut_windows(images, window), POINT
    run = backend("convolve", images, _alignment(images))
    if run is None:
        return finished(multiply(images, weights), after)
    out = after.out
    if out is None:
        high, wide = (side // 2 if after.is_pooled else side for side in sides(images, window))
        out = images.new_empty(*images.shape[:2], high, wide, weights.shape[-1])
    # Models may share the images.
    images = images if images[0].is_contiguous() else images.contiguous()
    plus = None if after.plus is None else evenly_spaced(after.plus)
    run(images, weights, out, window, after._replace(plus=plus))
    return out


def multiply(rows: Tensor, weights: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``rows [models, ..., inputs]`` times ``weights [models, inputs, outputs]``."""
    flat, found = rows.flatten(1, -2), rows.new_empty(*rows.shape[:-1], weights.shape[-1])
    # No view: autograd lets nobody write over a view that a function of ours returns.
    if bias is None:
        torch.bmm(flat, weights, out=found.flatten(1, -2))
    else:
        torch.baddbmm(bias.unsqueeze(1), flat, weights, out=found.flatten(1, -2))
    return found


def finished(product: Tensor, after: After) -> Tensor:
    """Return a product and what follows it; it may be written over."""
    scale, shift, relu, is_pooled, plus, out = after
    if shift is None:
        shift = product.new_zeros(len(product), product.shape[-1])
    if is_pooled:
        return affine_pooled(product, scale, shift, out, plus=plus)[0]
    return affine(product, scale, shift, product if out is None else out, relu=relu, plus=plus)


def weight_gradient(images: Tensor, gradient: Tensor, target: Tensor, window: Window) -> None:
    """Write the gradient of the filters into `target`, which may be a transposed view.

    With windows of one `POINT`, what is multiplied is given: rows, with zeros behind them or not.
    """
    run = backend("weight_gradient", images, _alignment(images)) if window != POINT else None
    if run is not None:
        run(images, gradient.contiguous(), target, window)
        return
    rows = images if window == POINT else cut_windows(images, window)
    left, right = rows.flatten(1, -2).mT, gradient.flatten(1, -2)
    if target.stride(-1) == 1:
        torch.bmm(left, right, out=target)
    else:
        torch.bmm(right.mT, left.mT, out=target.mT)


def image_gradient(gradient: Tensor, weights: Tensor, shape: torch.Size, window: Window) -> Tensor:
    """Return the gradient of images of a shape."""
    is_known = window[0] > 1 and window[1] == 1
    run = backend("image_gradient", gradient, _alignment(gradient)) if is_known else None
    if run is not None:
        found: Tensor = run(gradient.contiguous(), weights, shape, window)
        return found
    windows = multiply(gradient, weights.mT)
    if window == POINT:
        return windows[..., : shape[-1]]
    return add_up_windows(windows, shape, window)


def _reads_images(images: Tensor) -> bool:
    """Return whether a backend reads the windows of these images where they lie."""
    is_shared = images.stride(0) == 0 and len(images) > 1  # One copy of the windows is enough.
    return not is_shared and backend("convolve", images, _alignment(images)) is not None


def _alignment(images: Tensor) -> int:
    """Return the largest power of two that divides the number of channels."""
    return images.shape[-1] & -images.shape[-1]


def _with_zeros(rows: Tensor) -> Tensor:
    missing = padded(rows.shape[-1]) - rows.shape[-1]
    return F.pad(rows, (0, missing)) if missing else rows


def _product(sizes: tuple[int, ...]) -> int:
    found = 1
    for size in sizes:
        found *= size
    return found
