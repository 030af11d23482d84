"""A step of SGD for many models at once."""

from typing import Protocol

import torch
from torch import Tensor

from outvote.ops.door import backend

# torch's own clipping guards against a norm of 0 with the same number.
TINY = 1e-6


class Settings(Protocol):
    """What a step is made of."""

    @property
    def momentum(self) -> float:
        """The share of the last step in this one."""

    @property
    def weight_decay(self) -> float:
        """The share of the weights that is added to the gradient."""

    @property
    def max_norm(self) -> float | None:
        """The norm that the gradient is clipped to; None: no clipping."""


@torch.no_grad()
def take_step(  # noqa: PLR0913  (all that a step reads and writes)
    weights: Tensor,
    gradients: Tensor,
    velocities: Tensor,
    copy: Tensor | None,
    settings: Settings,
    learning_rate: float,
    *,
    is_first: bool = False,
    start: tuple[Tensor, Tensor] | None = None,
    num_going: int | None = None,
) -> None:
    """Change ``weights`` and ``velocities [models, dim]`` in place; `gradients` may be overwritten.

    All four have equal strides; `gradients` and `copy` may have fewer digits than the weights, and
    `copy` receives the new weights. With `is_first`, velocities need not be set before. With
    ``start``, ``(rows, index)``, model k stands at ``rows[index[k]]``, and its weights need not be
    set. Only the first `num_going` models take another step: the velocities and copies of the
    others may be left undefined.
    """
    run = backend("take_step", weights)
    if run is not None:
        run(
            weights,
            gradients,
            velocities,
            copy,
            settings,
            learning_rate,
            is_first=is_first,
            start=start,
            num_going=num_going,
        )
        return
    if start is not None:
        weights.copy_(start[0][start[1]])
    if is_first:
        velocities.zero_()
    step = gradients.to(weights.dtype)
    if settings.max_norm is not None:
        norms = torch.linalg.vector_norm(step, dim=1, keepdim=True)
        step = step.mul_((settings.max_norm / (norms + TINY)).clamp(max=1.0))
    step.add_(weights, alpha=settings.weight_decay)
    velocities.mul_(settings.momentum).add_(step)
    weights.sub_(velocities, alpha=learning_rate)
    if copy is not None:
        copy.copy_(weights)
