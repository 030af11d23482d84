"""Convolutions without im2col on NVIDIA GPUs; `training.im2col` is the way for everything else."""

from typing import Any

import torch
from torch import Tensor

from outvote.ops import IS_INTERPRETED, is_for_kernels, load_kernels

Window = tuple[int, int, int]
"""Size, stride and padding."""


def _kernels() -> Any:
    return load_kernels("outvote.ops.triton.convolution")


def is_usable(images: Tensor) -> bool:
    """Return whether the kernels can work on images of this kind: 16-bit numbers on a GPU."""
    # Triton's interpreter cannot multiply bfloat16.
    narrow = {torch.float16} if IS_INTERPRETED else {torch.float16, torch.bfloat16}
    return images.dtype in narrow and is_for_kernels(images) and _kernels() is not None


def is_readable(images: Tensor) -> bool:
    """Return whether the kernels can work on these images: their channels come in eights."""
    return images.shape[-1] % 8 == 0 and is_usable(images)


def sides(images: Tensor, window: Window) -> tuple[int, int]:
    """Return the height and width of the result."""
    size, stride, padding = window
    high, wide = ((side + 2 * padding - size) // stride + 1 for side in images.shape[2:4])
    return high, wide


def convolve(images: Tensor, weights: Tensor, window: Window) -> Tensor:
    """Return ``images [models, batch, height, width, channels]`` convolved with all filters.

    `weights` are ``[models, size * size * channels or more, filters]``.
    """
    shape = (*images.shape[:2], *sides(images, window), weights.shape[-1])
    result = torch.empty(shape, dtype=images.dtype, device=images.device)
    convolve_into(result, images, weights, window)
    return result


def convolve_into(
    result: Tensor, images: Tensor, weights: Tensor, window: Window, **after: Any
) -> None:
    """Write a convolution and what comes `after` it into `result`, of any row stride.

    These are `scale` and `shift` by channel, `relu`, `is_pooled` (2 x 2 pixels), and `plus`, which
    is added; see `convolution_triton.convolve`.
    """
    # Models may share the images.
    images = images if images[0].is_contiguous() else images.contiguous()
    _kernels().convolve(images, weights, result, window, **after)


def image_gradient(
    gradient: Tensor, weights: Tensor, shape: torch.Size, window: Window
) -> Tensor | None:
    """Return the gradient of the images, of a shape; None: the kernels know no such stride."""
    size, stride, padding = window
    if stride != 1 or not is_readable(gradient):
        return None
    result = torch.empty(shape, dtype=gradient.dtype, device=gradient.device)
    back = (size, 1, size - 1 - padding)
    _kernels().convolve(gradient.contiguous(), weights, result, back, is_backward=True)
    return result


def weight_gradient(images: Tensor, gradient: Tensor, target: Tensor, window: Window) -> None:
    """Write the gradient of the weights into `target`."""
    _kernels().weight_gradient(images, gradient.contiguous(), target, window)
