"""Layers of many models with their gradients, by the operations of `outvote.ops`.

A product leaves its bias to the next step. Batch normalisation, ReLU and pooling of 2 x 2 pixels
are one step; branches write side by side. The gradients of weights, biases, factors and offsets are
written where the step of SGD reads them: returned ones would be allocated in every step, and copied
once more. An `anchor` requires a gradient: without one, torch would skip a backward pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from outvote.ops.convolution import (
    POINT,
    After,
    Window,
    convolve,
    finished,
    image_gradient,
    lowered,
    multiply,
    sides,
    weight_gradient,
)
from outvote.ops.layers import (
    add_relu,
    affine,
    affine_pooled,
    inner_gradient,
    norm_moments,
    relu_gradient,
)


class Joined:
    """The channels of several branches side by side, each written by its last layer."""

    def __init__(self, num_channels: int, plus: Tensor | None = None) -> None:
        """Take the number of channels of all branches, and what is added to them."""
        self.num_channels = num_channels
        self.plus = None if plus is None else plus.detach()
        self.whole: Tensor | None = None
        self._used = 0

    def place(self, like: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """Return where the next branch writes samples of a shape, and what to add to them."""
        if self.whole is None:
            size = (*shape[:-1], self.num_channels)
            self.whole = torch.empty(size, dtype=like.dtype, device=like.device)
        start, self._used = self._used, self._used + shape[-1]
        plus = None if self.plus is None else self.plus[..., start : self._used]
        # Autograd must not see that the parts share memory: what one writes is not the other's.
        return self.whole.data[..., start : self._used], plus


class Join(Function):
    """The joined branches as one tensor; the gradient of each is a view of the whole."""

    @staticmethod
    def forward(ctx: Any, joined: Joined, plus: Tensor | None, *parts: Tensor) -> Tensor:
        """Return what the branches wrote; `plus` was added to it."""
        ctx.sizes = [part.shape[-1] for part in parts]
        ctx.has_plus = plus is not None
        assert joined.whole is not None
        return joined.whole

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        """Return the gradient of each branch."""
        (gradient,) = outer
        return None, gradient if ctx.has_plus else None, *gradient.split(ctx.sizes, dim=-1)


def placed(images: Tensor, joined: Joined) -> Tensor:
    """Copy samples to their place among the branches."""
    place, plus = joined.place(images, images.shape)
    place.copy_(images.detach() if plus is None else images.detach() + plus)
    return images


@dataclass(slots=True, eq=False)
class Norm:
    """Batch normalisation of many models: its parameters, statistics and what follows it."""

    factor: Tensor
    offset: Tensor
    bias: Tensor | None
    """The bias of the product before it, which changes nothing but the running mean."""
    running: tuple[Tensor, Tensor, Tensor]
    """Running mean and variance, which change, and the share of the new ones per model."""
    targets: tuple[Tensor, Tensor]
    """Where the gradients of factor and offset are written."""
    is_there: Tensor | None
    epsilon: float
    relu: bool = False
    pool: bool = False
    joined: Joined | None = None


class FusedNorm(Function):
    """Samples ``[models, batch, height, width, channels]`` normalised by their own moments.

    Padding is normalised too, but does not enter the moments.
    """

    @staticmethod
    def forward(ctx: Any, images: Tensor, norm: Norm, anchor: Tensor) -> Tensor:
        """Normalise, and do what follows."""
        del anchor
        images = images.contiguous()
        parameters = (norm.factor, norm.offset, norm.bias)
        moments = norm_moments(images, norm.is_there, parameters, norm.running, norm.epsilon)
        _, _, scale, shift, _ = moments
        index = None
        if norm.pool:
            out, plus = _place(norm.joined, images, pooled(images.shape))
            result, index = affine_pooled(images, scale, shift, out, plus=plus, has_index=True)
        else:
            out, plus = _place(norm.joined, images, images.shape)
            result = affine(images, scale, shift, out, relu=norm.relu, plus=plus)
        norm.joined = None  # Its graph ends in this step: torch would never free the two.
        ctx.norm = norm
        ctx.save_for_backward(images, index, *moments)
        return result

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        """Return the gradient of the samples."""
        images, index, *moments = ctx.saved_tensors
        norm: Norm = ctx.norm
        inner = inner_gradient(
            outer[0],
            index,
            images,
            norm.is_there,
            tuple(moments),
            norm.targets,
            relu=norm.relu,
        )
        return inner, None, None


class Product(Function):
    """A convolution, or rows times weights where there is no window, for many models."""

    @staticmethod
    def forward(
        ctx: Any,
        samples: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: tuple[Tensor, Tensor | None],
        window: Window | None,
        anchor: Tensor,
    ) -> Tensor:
        """Multiply ``samples [models, batch, ..., inputs]``; `targets` are of weight and bias."""
        del anchor
        read, inner = (samples, POINT) if window is None else lowered(samples, window)
        if inner != POINT:
            read = read.contiguous()
        ctx.save_for_backward(read, weight)
        ctx.targets, ctx.window, ctx.inner, ctx.shape = targets, window, inner, samples.shape
        if inner == POINT:
            return multiply(read, weight, bias)
        return convolve(read, weight, inner, After(shift=bias))

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        """Write the gradients of the parameters, return that of the samples."""
        read, weight = ctx.saved_tensors
        to_weight, to_bias = ctx.targets
        gradient = outer[0].contiguous()
        weight_gradient(read, gradient, to_weight, ctx.inner)
        if to_bias is not None:
            torch.sum(gradient.flatten(1, -2), dim=1, out=to_bias)
        inner = None
        if ctx.needs_input_grad[0]:
            inner = image_gradient(gradient, weight, ctx.shape, ctx.window or POINT)
        return inner, None, None, None, None, None


class BiasRelu(Function):
    """``relu(product + bias)`` for many models, pooled if wanted; it may write over the product."""

    @staticmethod
    def forward(
        ctx: Any, product: Tensor, bias: Tensor, to_bias: Tensor, is_pooled: bool
    ) -> Tensor:
        """Add the bias of each model."""
        if is_pooled:
            result, index = affine_pooled(product, None, bias, has_index=True)
        else:
            result, index = affine(product, None, bias, product, relu=True), None
            ctx.mark_dirty(product)
        ctx.save_for_backward(result, index)
        ctx.to_bias, ctx.shape = to_bias, product.shape
        return result

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        """Write the gradient of the bias, return that of the product."""
        result, index = ctx.saved_tensors
        return relu_gradient(outer[0], index, result, ctx.shape, ctx.to_bias), None, None, None


class AddRelu(Function):
    """``relu(left + right)``."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        """Add in one pass."""
        result = add_relu(left, right)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        """Return the gradient of both."""
        (result,) = ctx.saved_tensors
        gradient = torch.ops.aten.threshold_backward(outer[0], result, 0)
        return gradient, gradient


def evaluated(
    samples: Tensor, weight: Tensor, window: Window | None, after: After, joined: Joined | None
) -> Tensor:
    """Return a product in evaluation, and what follows it."""
    if window is None:
        return finished(multiply(samples, weight), after)
    shape = (*samples.shape[:2], *sides(samples, window), weight.shape[-1])
    out, plus = _place(joined, samples, pooled(shape) if after.is_pooled else shape)
    return convolve(samples, weight, window, after._replace(plus=plus, out=out))


def normalised(images: Tensor, after: After, joined: Joined | None) -> Tensor:
    """Return samples scaled and shifted in evaluation, and what follows."""
    shape = pooled(images.shape) if after.is_pooled else images.shape
    out, plus = _place(joined, images, shape)
    if out is None and not after.is_pooled:
        out = torch.empty_like(images)  # Others may read the samples.
    return finished(images.contiguous(), after._replace(plus=plus, out=out))


def _place(
    joined: Joined | None, like: Tensor, shape: Sequence[int]
) -> tuple[Tensor | None, Tensor | None]:
    """Return where samples of a shape are written among branches, and what is added to them."""
    return (None, None) if joined is None else joined.place(like, shape)


def pooled(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of samples after pooling."""
    models, batch, height, width, channels = shape
    return models, batch, height // 2, width // 2, channels
