"""Convolutions under vmap as batched matrix products.

torch turns a vmapped convolution into one with as many groups as there are models, which is slow.
Here it is one product of windows and the weights, as in the hand-stacked networks.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F
from torch.nn import grad as gradients

from outvote.ops.convolution import Window, add_up_windows, cut_windows
from outvote.training.stacked_model import is_plain


def use_products(module: nn.Module) -> set[int]:
    """Make the plain 2-d convolutions of a network products; return the ids of their weights."""
    layers = [part for part in module.modules() if type(part) is nn.Conv2d and is_plain(part)]
    for layer in layers:
        layer.forward = _forward_of(layer)  # type: ignore[method-assign, assignment]
    if layers:
        # The products leave the channels last in memory; group norm would ask vmap for the layout.
        for part in module.modules():
            if isinstance(part, nn.GroupNorm):
                part.register_forward_pre_hook(_make_contiguous)
    return {id(layer.weight) for layer in layers}


def _make_contiguous(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(values.contiguous() for values in inputs)


def _forward_of(layer: nn.Conv2d) -> Callable[[Tensor], Tensor]:
    stride, padding = layer.stride[0], int(layer.padding[0])

    def forward(images: Tensor) -> Tensor:
        if images.dim() != 4:
            return F.conv2d(images, layer.weight, layer.bias, stride, padding)
        found: Tensor = Convolution.apply(  # type: ignore[no-untyped-call]
            images, layer.weight, layer.bias, stride, padding
        )
        return found

    return forward


class Convolution(Function):
    """A convolution; under vmap, one batched product for all models."""

    @staticmethod
    def forward(
        images: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int
    ) -> Tensor:
        """Convolve ``images [batch, channels, height, width]``."""
        return F.conv2d(images, weight, bias, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep what the backward pass needs."""
        images, weight, _, *ctx.sizes = inputs
        ctx.save_for_backward(images, weight)

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        """Return the gradients of one model."""
        (gradient,) = outer
        images, weight = ctx.saved_tensors
        return (
            gradients.conv2d_input(images.shape, weight, gradient, *ctx.sizes),
            gradients.conv2d_weight(images, weight.shape, gradient, *ctx.sizes),
            gradient.sum(dim=(0, 2, 3)) if ctx.needs_input_grad[2] else None,
            None,
            None,
        )

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        images: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: int,
        padding: int,
    ) -> tuple[Tensor, int]:
        """Convolve the images of all models; autograd sees the steps of this product."""
        num = info.batch_size
        weight = _models_first(weight, in_dims[1], num)
        # Samples that all models share need one copy of their windows.
        shared = images.unsqueeze(0) if in_dims[0] is None else images.movedim(in_dims[0], 0)
        windows: Tensor = Windows.apply(  # type: ignore[no-untyped-call]
            shared.to(weight.dtype).movedim(2, -1), (weight.shape[-1], stride, padding)
        )
        rows = windows.flatten(1, 3).expand(num, -1, -1)
        # [models, filters, channels, height, width] -> [models, height * width * channels, filters]
        product = weight.permute(0, 3, 4, 2, 1).flatten(1, 3)
        product = F.pad(product, (0, 0, 0, rows.shape[-1] - product.shape[1]))
        if bias is None:
            found = torch.bmm(rows, product)
        else:
            found = torch.baddbmm(_models_first(bias, in_dims[2], num).unsqueeze(1), rows, product)
        return found.view(num, *windows.shape[1:4], -1).movedim(-1, 2), 0


class Windows(Function):
    """All windows of images; the backward pass adds up the gradients where windows overlap."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, window: Window) -> Tensor:
        """Copy the windows of ``images [models, batch, height, width, channels]``."""
        ctx.window, ctx.shape = window, images.shape
        return cut_windows(images, window)

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        """Add the gradients of all windows to the pixels that they were copied from."""
        return add_up_windows(outer[0], ctx.shape, ctx.window), None


def _models_first(values: Tensor, dim: int | None, num_models: int) -> Tensor:
    if dim is None:
        return values.expand(num_models, *values.shape)
    return values.movedim(dim, 0)
