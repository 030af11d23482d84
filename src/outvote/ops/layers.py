"""What comes after products, for many models: batch normalisation, biases, ReLU, pooling by two.

Samples are ``[models, batch, ..., channels]``, and what all samples of a model share is ``[models,
channels]``. Sums are float32, or float64 of float64. An index says which of 2 x 2 pixels was the
largest, the first if several are: 0 and 1 above, 2 and 3 below.
"""

from math import prod

import torch
from torch import Tensor

from outvote.ops.door import backend

Moments = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""Mean, inverse deviation, scale, shift and count."""


def norm_moments(
    images: Tensor,
    is_there: Tensor | None,
    parameters: tuple[Tensor, Tensor, Tensor | None],
    running: tuple[Tensor, Tensor, Tensor],
    epsilon: float,
) -> Moments:
    """Return the moments of images per channel, and what normalises by them; change the running.

    Only samples that are there count, ``is_there [models, batch]``. `parameters` are factor, offset
    and the bias that the images were computed without, `running` the running mean and variance, and
    the share of the new ones per model.
    """
    run = backend("norm_moments", images)
    if run is not None:
        found: Moments = run(images, is_there, parameters, running, epsilon)
        return found
    mean, variance, size = _moments(images, is_there)
    factor, offset, bias = parameters
    inverse = (variance + epsilon).rsqrt()
    scale = factor * inverse
    running_mean, running_variance, share = running
    # The statistics have the precision of the stored samples, which may be higher.
    share = share.to(running_mean.dtype).unsqueeze(-1)
    running_mean.lerp_((mean if bias is None else mean + bias).to(running_mean.dtype), share)
    unbiased = variance * (size / (size - 1).clamp(min=1))
    running_variance.lerp_(unbiased.to(running_variance.dtype), share)
    return mean, inverse, scale, offset - mean * scale, size.expand_as(mean)


def _moments(images: Tensor, is_there: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, variance and count per channel."""
    exact, over = _wide(images), _over(images)
    if is_there is None:
        size = exact.new_full((len(images), 1), float(prod(images.shape[1:-1])))
        variance, mean = torch.var_mean(exact, dim=over, correction=0)
        return mean, variance, size
    there = _like(is_there.to(exact.dtype), images)
    size = (there.sum(dim=over) * prod(images.shape[2:-1])).clamp(min=1)
    mean = (exact * there).sum(dim=over) / size
    centred = (exact - _per_channel(mean, images)) * there
    return mean, centred.square().sum(dim=over) / size, size


def inner_gradient(
    gradient: Tensor,
    index: Tensor | None,
    images: Tensor,
    is_there: Tensor | None,
    moments: Moments,
    targets: tuple[Tensor, Tensor],
    *,
    relu: bool,
) -> Tensor:
    """Return the gradient of images that were normalised, and of ReLU or pooling after it.

    The gradients of factors and offsets are written to `targets`; `index` is that of pooling.
    """
    run = backend("inner_gradient", images)
    if run is not None:
        rows = evenly_spaced(gradient)
        found: Tensor = run(rows, index, images, is_there, moments, targets, relu=relu)
        return found
    mean, inverse, scale, shift, size = moments
    over = _over(images)
    outer = _wide(gradient if index is None else _spread(gradient, index))
    if relu:
        outer = outer.where(_affine(images, scale, shift) > 0, 0.0)
    centred = (_wide(images) - _per_channel(mean, images)) * _per_channel(inverse, images)
    sums, along = outer.sum(dim=over), (outer * centred).sum(dim=over)
    targets[0].copy_(along)
    targets[1].copy_(sums)
    pull = _per_channel(sums / size, images) + centred * _per_channel(along / size, images)
    if is_there is not None:
        pull = pull * _like(is_there.to(pull.dtype), images)
    return ((outer - pull) * _per_channel(scale, images)).to(images.dtype)


def affine(
    images: Tensor,
    scale: Tensor | None,
    shift: Tensor,
    out: Tensor | None = None,
    *,
    relu: bool = False,
    plus: Tensor | None = None,
) -> Tensor:
    """Return ``images * scale + shift``, its positive part with `relu`, plus something.

    `out` may be the images, or have any stride between its pixels.
    """
    if out is None:
        out = torch.empty_like(images)
    run = backend("affine", images)
    if run is not None:
        plus = None if plus is None else evenly_spaced(plus)
        run(images.contiguous(), scale, shift, out, relu=relu, plus=plus)
        return out
    found = _affine(images, scale, shift)
    found = found.clamp_(min=0) if relu else found
    return out.copy_(found if plus is None else found + plus)


def affine_pooled(
    images: Tensor,
    scale: Tensor | None,
    shift: Tensor,
    out: Tensor | None = None,
    *,
    plus: Tensor | None = None,
    has_index: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return the largest positive part of ``images * scale + shift`` of every 2 x 2 pixels.

    Height and width are even. The second result is the index, if wanted.
    """
    models, batch, height, width, channels = images.shape
    shape = (models, batch, height // 2, width // 2, channels)
    if out is None:
        out = images.new_empty(shape)
    run = backend("affine_pooled", images) if plus is None else None
    if run is not None:
        index = images.new_empty(shape, dtype=torch.int8) if has_index else None
        run(images.contiguous(), scale, shift, out, index)
        return out, index
    found = _affine(images, scale, shift).clamp_(min=0)
    squares = found.view(models, batch, height // 2, 2, width // 2, 2, channels)
    best, tap = squares.movedim(3, -3).flatten(-3, -2).max(dim=-2)
    out.copy_(best if plus is None else best + plus)
    return out, tap.to(torch.int8) if has_index else None


def relu_gradient(
    gradient: Tensor, index: Tensor | None, outputs: Tensor, shape: torch.Size, to_bias: Tensor
) -> Tensor:
    """Return the gradient before ReLU, of a shape, and write that of the bias before it.

    `outputs` is what came after ReLU, and after pooling with `index`.
    """
    run = backend("relu_gradient", outputs)
    if run is not None:
        found: Tensor = run(evenly_spaced(gradient), index, outputs, shape, to_bias)
        return found
    passed = gradient.where(outputs > 0, 0.0)
    passed = (passed if index is None else _spread(passed, index)).view(shape)
    to_bias.copy_(_wide(passed).sum(dim=_over(passed)))
    return passed


def add_relu(left: Tensor, right: Tensor) -> Tensor:
    """Return the positive part of a sum."""
    run = backend("add_relu", left)
    if run is not None:
        found: Tensor = run(left.contiguous(), right.contiguous())
        return found
    return (left + right).clamp_(min=0)


def _affine(images: Tensor, scale: Tensor | None, shift: Tensor) -> Tensor:
    wide = _wide(images)
    found = wide if scale is None else wide * _per_channel(scale, images)
    return found + _per_channel(shift, images)


def _spread(gradient: Tensor, index: Tensor) -> Tensor:
    """Return a pooled gradient where it came from, and 0 at the other three pixels."""
    models, batch, high, wide, channels = gradient.shape
    found = gradient.new_zeros(models, batch, high, 2, wide, 2, channels)
    for tap in range(4):
        found[:, :, :, tap // 2, :, tap % 2] = gradient.where(index == tap, 0.0)
    return found.view(models, batch, 2 * high, 2 * wide, channels)


def _wide(values: Tensor) -> Tensor:
    """Convert 16-bit numbers to float32: moments are sums of many small numbers."""
    return values if values.dtype == torch.float64 else values.float()


def _over(images: Tensor) -> tuple[int, ...]:
    return tuple(range(1, images.dim() - 1))


def _per_channel(values: Tensor, images: Tensor) -> Tensor:
    """Give ``values [models, channels]`` the axes of samples."""
    return values.view(len(values), *(1 for _ in _over(images)), -1)


def _like(values: Tensor, images: Tensor) -> Tensor:
    """Give ``values [models, batch]`` the axes of samples."""
    return values.view(*values.shape, *(1 for _ in images.shape[2:]))


def evenly_spaced(samples: Tensor) -> Tensor:
    """Return samples as ``[models, rows, channels]``, its rows at equal distances.

    One axis of rows has the distance as its stride. An axis of one pixel has any stride, even in
    what torch calls contiguous, so kernels must not read the distance there.
    """
    rows = samples.flatten(1, -2)
    return rows if rows.stride(-1) == 1 else rows.contiguous()
