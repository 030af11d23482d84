"""Batch normalisation in many models at once, with its own backward pass, in plain torch.

`fused_layers` has the same by kernels for GPUs.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from outvote.training.local_sgd import LocalSGD

OVER = (1, 2, 3)
# A single sample has no variance.
MIN_BATCH = 2


def has_batch_norm(module: nn.Module) -> bool:
    """Return whether a network has batch normalisation."""
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())


def check_batch_size(module: nn.Module, training: LocalSGD) -> None:
    """Refuse batches that cannot be normalised."""
    if has_batch_norm(module) and training.batch_size < MIN_BATCH:
        raise ValueError(
            f"training.batch_size must be at least {MIN_BATCH} for a network with batch "
            f"normalisation, got {training.batch_size}; raise it, or take another network."
        )


class Normalise(Function):
    """Samples ``[models, batch, height, width, channels]`` normalised by their own moments.

    Padding is normalised too, but does not enter the moments. The gradients of factors and offsets
    are written, not returned.
    """

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        factor: Tensor,
        offset: Tensor,
        is_there: Tensor | None,
        epsilon: float,
        targets: tuple[Tensor, Tensor],
        anchor: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the samples, and mean, variance and count, ``[models, channels or 1]``.

        `anchor` requires a gradient: without one, torch would skip the backward pass.
        """
        del anchor
        mean, variance, size = moments(images, is_there)
        inv_std = (variance + epsilon).rsqrt()
        scale = factor * inv_std
        ctx.save_for_backward(images, factor, mean, inv_std, size, is_there)
        ctx.targets = targets
        ctx.mark_non_differentiable(mean, variance, size)
        return affine(images, scale, offset - mean * scale), mean, variance, size

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        """Return the gradient of the samples."""
        images, factor, mean, inv_std, size, is_there = ctx.saved_tensors
        gradient = _wide(outer[0])
        centred = (_wide(images) - per_channel(mean)) * per_channel(inv_std)
        sums, along = gradient.sum(dim=OVER), (gradient * centred).sum(dim=OVER)
        to_factor, to_offset = ctx.targets
        to_factor.copy_(along)
        to_offset.copy_(sums)
        pull = per_channel(sums / size) + centred * per_channel(along / size)
        if is_there is not None:
            pull = pull * is_there.to(pull.dtype)[:, :, None, None, None]
        inner = ((gradient - pull) * per_channel(factor * inv_std)).to(images.dtype)
        return inner, None, None, None, None, None, None


def moments(images: Tensor, is_there: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, variance and count per channel over the samples that are no padding."""
    exact = _wide(images)
    if is_there is None:
        size = exact.new_full((len(images), 1), float(prod(images.shape[1:4])))
        variance, mean = torch.var_mean(exact, dim=OVER, correction=0)
        return mean, variance, size
    there = is_there.to(exact.dtype)[:, :, None, None, None]
    size = (there.sum(dim=OVER) * (images.shape[2] * images.shape[3])).clamp(min=1)
    mean = (exact * there).sum(dim=OVER) / size
    centred = (exact - per_channel(mean)) * there
    return mean, centred.square().sum(dim=OVER) / size, size


def affine(images: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return ``images * scale + shift``, both ``[models, channels]``."""
    return (_wide(images) * per_channel(scale) + per_channel(shift)).to(images.dtype)


def per_channel(values: Tensor) -> Tensor:
    """Give ``values [models, channels]`` the axes of samples."""
    return values[:, None, None, None, :]


def _wide(values: Tensor) -> Tensor:
    """Convert bfloat16 to float32: moments are sums of many small numbers."""
    return values if values.dtype == torch.float64 else values.float()
