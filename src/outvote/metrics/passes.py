"""Passes of clients over all their samples, and what follows from those of a round."""

from dataclasses import replace
from math import sqrt
from typing import NamedTuple, final

import torch
from torch import Tensor

from outvote.metrics.theory import descent_bound
from outvote.results.round import Diagnostics, Theory


@final
class LocalPass:
    """Adds up the gradients of a client's batches, one after the other, in float64."""

    def __init__(self, like: Tensor) -> None:
        """Start at 0; `like` is a vector of the gradients' size."""
        self._sum = torch.zeros_like(like, dtype=torch.float64)
        self._weighted = torch.zeros_like(self._sum)
        self._squares = self._losses = 0.0
        self._num_samples = self._num_batches = 0

    def add(self, gradient: Tensor, num_samples: int, loss: float = 0.0) -> None:
        """Count the gradient and the mean loss of one batch."""
        self._sum += gradient
        self._weighted.add_(gradient, alpha=num_samples)
        self._squares += float(torch.linalg.vector_norm(gradient, dtype=torch.float64)) ** 2
        self._losses += loss * num_samples
        self._num_samples += num_samples
        self._num_batches += 1

    @property
    def mean(self) -> Tensor:
        """The gradient over all samples."""
        return self._weighted / self._num_samples

    @property
    def loss(self) -> float:
        """The mean loss over all samples."""
        return self._losses / self._num_samples

    @property
    def noise(self) -> float:
        """The root mean square distance of a batch's gradient to it."""
        mean = self.mean
        cross = float(mean @ self._sum) / self._num_batches
        squared = self._squares / self._num_batches - 2 * cross + float(mean @ mean)
        return sqrt(max(0.0, squared))


class ClientPass(NamedTuple):
    """One pass of a client over all its samples, at fixed weights."""

    gradient: Tensor
    noise: float
    """The root mean square distance of a batch's gradient to it."""
    loss: float


def heterogeneity(means: Tensor) -> float:
    """Return how far the farthest of ``means [clients, dim]`` is from their mean."""
    apart = means - means.mean(dim=0)
    return float(torch.linalg.vector_norm(apart, dim=-1, dtype=torch.float64).max())


def compare_clients(passes: list[ClientPass]) -> Diagnostics:
    """Measure how much the honest clients of a run differ, and how much the batches of one do."""
    if not passes:
        return Diagnostics()
    kappa = heterogeneity(torch.stack([each.gradient for each in passes]))
    return Diagnostics(kappa=kappa, sigma=max(each.noise for each in passes))


def measure_theory(
    before: list[ClientPass], after: list[ClientPass], moved: Tensor, learning_rate: float
) -> Theory:
    """Measure a round: the passes of all honest clients at both its ends, and the way between.

    `moved` is the weights before minus those after, in one step of the learning rate.
    """
    if not before:
        return Theory()
    first, second = _mean_gradient(before), _mean_gradient(after)
    losses = [sum(each.loss for each in passes) / len(passes) for passes in (before, after)]
    length = float(moved.norm())
    secant = float((first - second).norm()) / length if length > 0 else None
    norm = float(first.norm())
    deviation = float((moved / learning_rate - first).norm()) if learning_rate > 0 else None
    found = Theory(
        full_loss=losses[0],
        gradient_norm=norm,
        gradient_deviation=deviation,
        lipschitz=secant,
        descent=losses[0] - losses[1],
    )
    if secant is None or deviation is None:
        return found
    return replace(found, descent_bound=descent_bound(learning_rate, secant, norm, deviation))


def _mean_gradient(passes: list[ClientPass]) -> Tensor:
    return torch.stack([each.gradient for each in passes]).double().mean(dim=0)
