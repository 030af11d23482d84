"""One step of clipped SGD in every model of a stack, on parameters that lie in one room."""

from typing import Any

import torch
from torch import Tensor

from outvote.clients.training import Training
from outvote.kernels import is_for_kernels, load_kernels

# The same guard against a norm of 0 that torch's own clipping has.
TINY = 1e-6


def _kernels() -> Any:
    return load_kernels("outvote.kernels.sgd_step_triton")


@torch.no_grad()
def take_step(
    weights: Tensor,
    gradients: Tensor,
    velocities: Tensor,
    copy: Tensor | None,
    training: Training,
    learning_rate: float,
) -> None:
    """Change ``weights`` and ``velocities [models, places]``; `gradients` may be overwritten.

    `copy` has the weights in the precision that products are formed in, if that is another.
    """
    if is_for_kernels(weights) and _kernels() is not None:
        _kernels().take_step(weights, gradients, velocities, copy, training, learning_rate)
        return
    step = gradients.to(weights.dtype)
    if training.max_norm is not None:
        norms = torch.linalg.vector_norm(step, dim=1, keepdim=True)
        step = step.mul_((training.max_norm / (norms + TINY)).clamp(max=1.0))
    step.add_(weights, alpha=training.weight_decay)
    velocities.mul_(training.momentum).add_(step)
    weights.sub_(velocities, alpha=learning_rate)
    if copy is not None:
        copy.copy_(weights)
