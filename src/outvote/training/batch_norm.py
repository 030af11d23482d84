"""Batch normalisation in many models at once, with its own backward pass.

torch's autograd would take a dozen passes over the samples in float32. On a GPU this takes two
forward and two backward, in the precision of the samples, with sums in float32 or better.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from outvote.kernels import is_for_kernels, load_kernels
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


def _kernels() -> Any:
    return load_kernels("outvote.kernels.normalisation_triton")


def is_usable(images: Tensor) -> bool:
    """Return whether the kernels can work on these samples; their sums are float32."""
    return is_for_kernels(images) and images.dtype != torch.float64 and _kernels() is not None


class Normalise(Function):
    """Samples ``[models, batch, height, width, channels]`` normalised by their own moments.

    Padding is normalised too, but does not enter the moments.
    """

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        factor: Tensor,
        offset: Tensor,
        is_there: Tensor | None,
        epsilon: float,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the samples, and mean, variance and count, ``[models, channels or 1]``."""
        images = images.contiguous()
        mean, variance, size = moments(images, is_there)
        inv_std = (variance + epsilon).rsqrt()
        scale = factor * inv_std
        ctx.save_for_backward(images, factor, mean, inv_std, size, is_there)
        ctx.mark_non_differentiable(mean, variance, size)
        return affine(images, scale, offset - mean * scale), mean, variance, size

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        """Return the gradients of the samples, the factors and the offsets."""
        images, factor, mean, inv_std, size, is_there = ctx.saved_tensors
        gradient = outer[0].contiguous()
        sums, along = _gradient_sums(gradient, images, mean, inv_std)
        inner = _inner_gradient(
            gradient,
            images,
            (mean, inv_std, factor * inv_std, sums / size, along / size),
            is_there,
        )
        return inner, along.to(factor.dtype), sums.to(factor.dtype), None, None


def moments(images: Tensor, is_there: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, variance and count per channel over the samples that are no padding."""
    if is_usable(images):
        means, squares, sizes = _kernels().moments(images, is_there)
        size = sizes.double().sum(dim=1).clamp(min=1).unsqueeze(-1)
        share = sizes.double().unsqueeze(-1)
        mean = (means * share).sum(dim=1) / size
        apart = (means - mean.unsqueeze(1)).square() * share
        variance = (squares.double().sum(dim=1) + apart.sum(dim=1)) / size
        return mean.float(), variance.float(), size.float()
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
    wants_gradient = any(values.requires_grad for values in (images, scale, shift))
    if is_usable(images) and not (torch.is_grad_enabled() and wants_gradient):
        found: Tensor = _kernels().affine(images.contiguous(), scale, shift)
        return found
    return (_wide(images) * per_channel(scale) + per_channel(shift)).to(images.dtype)


def _gradient_sums(
    gradient: Tensor, images: Tensor, mean: Tensor, inv_std: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the sums of the gradients, and of them times the normalised samples."""
    if is_usable(images):
        sums, along = _kernels().gradient_sums(gradient, images, mean, inv_std)
        return sums.sum(dim=1), along.sum(dim=1)
    exact = _wide(gradient)
    centred = (_wide(images) - per_channel(mean)) * per_channel(inv_std)
    return exact.sum(dim=OVER), (exact * centred).sum(dim=OVER)


def _inner_gradient(
    gradient: Tensor, images: Tensor, by_channel: tuple[Tensor, ...], is_there: Tensor | None
) -> Tensor:
    """Return the gradient of the samples; padding did not enter the moments."""
    if is_usable(images):
        found: Tensor = _kernels().inner_gradient(gradient, images, by_channel, is_there)
        return found
    mean, inv_std, scale, average, along = (per_channel(values) for values in by_channel)
    pull = average + (_wide(images) - mean) * inv_std * along
    if is_there is not None:
        pull = pull * is_there.to(pull.dtype)[:, :, None, None, None]
    return ((_wide(gradient) - pull) * scale).to(gradient.dtype)


def per_channel(values: Tensor) -> Tensor:
    """Give ``values [models, channels]`` the axes of samples."""
    return values[:, None, None, None, :]


def _wide(values: Tensor) -> Tensor:
    """Convert bfloat16 to float32: moments are sums of many small numbers."""
    return values if values.dtype == torch.float64 else values.float()
