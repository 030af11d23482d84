"""Layers that do in one pass what torch does in several, for many models at once, on a GPU.

A product leaves its bias to the next step. Batch normalisation, ReLU and pooling of 2 x 2 pixels
are computed while the values are read once; branches write side by side. The gradients of weights,
biases, factors and offsets are written where the step of SGD reads them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from outvote.ops import convolution, is_for_kernels, load_kernels
from outvote.training.im2col import add_up

# The side of a window whose values are numbered in 8 bits.
LARGEST_POOLED = 11


def _kernels() -> Any:
    return load_kernels("outvote.ops.triton.layers")


def _pooling() -> Any:
    return load_kernels("outvote.ops.triton.pooling")


def is_usable(images: Tensor) -> bool:
    """Return whether the kernels can work on these samples; their sums are float32."""
    return is_for_kernels(images) and images.dtype != torch.float64 and _kernels() is not None


def can_pool(sides: Sequence[int]) -> bool:
    """Return whether 2 x 2 pixels cover samples of ``(batch, height, width)``."""
    return len(sides) == 3 and sides[1] % 2 == 0 and sides[2] % 2 == 0


class Joined:
    """The channels of several branches side by side, each written by its last layer."""

    def __init__(self, num_channels: int, plus: Tensor | None = None) -> None:
        """Take the number of channels of all branches, and what is added to them."""
        self.num_channels = num_channels
        # Of a contiguous tensor, an axis of one pixel may have any stride; here kernels read it.
        self.plus = None if plus is None else plus.detach().reshape(-1).view(plus.shape)
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
    owns_input: bool = True
    """Whether nobody else reads the samples, so that evaluation may write over them."""


class FusedNorm(Function):
    """Samples ``[models, batch, height, width, channels]`` normalised by their own moments.

    Padding is normalised too, but does not enter the moments.
    """

    @staticmethod
    def forward(ctx: Any, images: Tensor, norm: Norm, anchor: Tensor) -> Tensor:
        """Normalise; `anchor` requires a gradient: without one, torch would skip the rest."""
        del anchor
        images = images.contiguous()
        parameters = (norm.factor, norm.offset, norm.bias)
        found = _kernels().moments(images, norm.is_there, parameters, norm.running, norm.epsilon)
        result, index = _affine(images, found[2], found[3], norm, needs_index=True)
        norm.joined = None  # Its graph ends in this step: torch would never free the two.
        ctx.norm = norm
        ctx.save_for_backward(images, index, *found)
        return result

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        """Return the gradient of the samples."""
        images, index, *found = ctx.saved_tensors
        norm: Norm = ctx.norm
        inner = _kernels().inner_gradient(
            _evenly_spaced(outer[0]),
            index,
            images,
            norm.is_there,
            tuple(found),
            norm.targets,
            relu=norm.relu,
        )
        return inner, None, None


def normalised(images: Tensor, scale: Tensor, shift: Tensor, norm: Norm) -> Tensor:
    """Return ``images * scale + shift`` in evaluation, and what follows."""
    return _affine(images.contiguous(), scale, shift, norm, needs_index=False)[0]


def convolved(
    images: Tensor,
    weight: Tensor,
    window: convolution.Window,
    scale: Tensor | None,
    shift: Tensor,
    *,
    relu: bool,
    is_pooled: bool,
    joined: Joined | None = None,
) -> Tensor:
    """Return a convolution in evaluation with what follows: scale, shift, ReLU and pooling."""
    high, wide = convolution.sides(images, window)
    shape = (*images.shape[:2], high, wide, weight.shape[-1])
    shape = _pooled(torch.Size(shape)) if is_pooled else shape
    if joined is None:
        result, plus = torch.empty(shape, dtype=images.dtype, device=images.device), None
    else:
        result, plus = joined.place(images, shape)
    convolution.convolve_into(
        result,
        images,
        weight,
        window,
        scale=scale,
        shift=shift,
        plus=plus,
        relu=relu,
        is_pooled=is_pooled,
    )
    return result


def _affine(
    images: Tensor, scale: Tensor | None, shift: Tensor, norm: Norm, *, needs_index: bool
) -> tuple[Tensor, Tensor | None]:
    shape = _pooled(images.shape) if norm.pool else tuple(images.shape)
    plus: Tensor | None = None
    if norm.joined is not None:
        result, plus = norm.joined.place(images, shape)
    elif norm.pool or needs_index or not norm.owns_input:
        result = torch.empty(shape, dtype=images.dtype, device=images.device)
    else:
        result = images
    if not norm.pool:
        _kernels().affine(images, scale, shift, result, relu=norm.relu, plus=plus)
        return result, None
    index = None
    if needs_index:
        index = torch.empty(shape, dtype=torch.int8, device=images.device)
    _kernels().affine_pooled(images, scale, shift, result, index)
    return result, index


class Convolution(Function):
    """The convolutions of many models, without a copy of the windows."""

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        weight: Tensor,
        to_weight: Tensor,
        window: convolution.Window,
        anchor: Tensor,
    ) -> Tensor:
        """Convolve; `anchor` requires a gradient: without one, torch would skip the rest."""
        del anchor
        images = images.contiguous()
        ctx.save_for_backward(images, weight)
        ctx.to_weight, ctx.window = to_weight, window
        return convolution.convolve(images, weight, window)

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        """Write the gradient of the weights, return that of the images."""
        images, weight = ctx.saved_tensors
        gradient = outer[0].contiguous()
        convolution.weight_gradient(images, gradient, ctx.to_weight, ctx.window)
        inner = None
        if ctx.needs_input_grad[0]:
            inner = convolution.image_gradient(gradient, weight, images.shape, ctx.window)
            if inner is None:
                windows = torch.bmm(gradient.flatten(1, 3), weight.mT)
                windows = windows.view(*gradient.shape[:4], -1)
                inner = add_up(windows, images.shape, *ctx.window)
        return inner, None, None, None, None


class BiasRelu(Function):
    """``relu(product + bias)`` for many models, pooled if wanted; it may write over the product."""

    @staticmethod
    def forward(
        ctx: Any, product: Tensor, bias: Tensor, to_bias: Tensor, is_pooled: bool
    ) -> Tensor:
        """Add the bias of each model."""
        result, index = with_bias(product, bias, is_pooled=is_pooled, needs_index=True)
        if not is_pooled:
            ctx.mark_dirty(product)
        ctx.save_for_backward(result, index)
        ctx.to_bias, ctx.shape = to_bias, product.shape
        return result

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        """Write the gradient of the bias, return that of the product."""
        result, index = ctx.saved_tensors
        gradient = _kernels().relu_gradient(
            _evenly_spaced(outer[0]), index, result, ctx.shape, ctx.to_bias
        )
        return gradient.view(ctx.shape), None, None, None


def with_bias(
    product: Tensor, bias: Tensor, *, is_pooled: bool, needs_index: bool
) -> tuple[Tensor, Tensor | None]:
    """Return ``relu(product + bias)``, pooled if wanted, and which pixels were the largest."""
    if not is_pooled:
        _kernels().affine(product, None, bias, product, relu=True)
        return product, None
    shape = _pooled(product.shape)
    result = torch.empty(shape, dtype=product.dtype, device=product.device)
    index = None
    if needs_index:
        index = torch.empty(shape, dtype=torch.int8, device=product.device)
    _kernels().affine_pooled(product, None, bias, result, index)
    return result, index


def can_pool_windows(images: Tensor, module: nn.MaxPool2d) -> bool:
    """Return whether a kernel pools these images as a module does."""
    settings = (module.kernel_size, module.stride, module.padding, module.dilation)
    is_square = all(isinstance(each, int) or len({*each}) == 1 for each in settings)
    is_plain = _side(module.dilation) == 1 and not (module.ceil_mode or module.return_indices)
    is_short = _side(module.kernel_size) <= LARGEST_POOLED
    rows = images[..., 0].numel()
    return is_square and is_plain and is_short and rows < 2**31 and is_usable(images)


class MaxPool(Function):
    """The largest value of every window of pixels."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, module: nn.MaxPool2d, needs_index: bool) -> Tensor:
        """Pool; `needs_index` where a backward pass follows."""
        images = images.contiguous()
        size, stride, padding = window = (
            _side(module.kernel_size),
            _side(module.stride),
            _side(module.padding),
        )
        sides = ((side + 2 * padding - size) // stride + 1 for side in images.shape[2:4])
        shape = (*images.shape[:2], *sides, images.shape[-1])
        result = torch.empty(shape, dtype=images.dtype, device=images.device)
        index = None
        if needs_index:
            index = torch.empty(shape, dtype=torch.int8, device=images.device)
        _pooling().max_pool(images, result, index, *window)
        ctx.window, ctx.shape = window, images.shape
        ctx.save_for_backward(index)
        return result

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        """Return the gradient of the images."""
        (index,) = ctx.saved_tensors
        result = torch.empty(ctx.shape, dtype=outer[0].dtype, device=outer[0].device)
        _pooling().max_pool_gradient(outer[0].contiguous(), index, result, *ctx.window)
        return result, None, None


def _side(value: Any) -> int:
    return value if isinstance(value, int) else int(value[0])


class AddRelu(Function):
    """``relu(left + right)``."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        """Add in one pass."""
        result: Tensor = _kernels().add_relu(left.contiguous(), right.contiguous())
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        """Return the gradient of both."""
        (result,) = ctx.saved_tensors
        gradient = torch.ops.aten.threshold_backward(outer[0], result, 0)
        return gradient, gradient


def multiply_into(left: Tensor, right: Tensor, target: Tensor) -> None:
    """Write ``left @ right`` into `target`, which may be a transposed view."""
    if target.stride(-1) == 1:
        torch.bmm(left, right, out=target)
    else:
        torch.bmm(right.mT, left.mT, out=target.mT)


def _pooled(shape: torch.Size) -> tuple[int, ...]:
    models, batch, height, width, channels = shape
    return models, batch, height // 2, width // 2, channels


def _evenly_spaced(gradient: Tensor) -> Tensor:
    """Return a gradient as ``[models, rows, channels]``, its rows at equal distances.

    One axis of rows has the distance as its stride. An axis of one pixel has any stride, even in
    what torch calls contiguous, so kernels must not read the distance there.
    """
    rows = gradient.flatten(1, -2)
    return rows if rows.stride(-1) == 1 else rows.contiguous()
