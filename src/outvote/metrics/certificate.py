"""The diagnostics of a round: how honest clients differ, and what bounds follow from that."""

from math import sqrt
from typing import final

import torch
from torch import Tensor


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


def heterogeneity(means: Tensor) -> float:
    """Return how far the farthest of ``means [clients, dim]`` is from their mean."""
    apart = means - means.mean(dim=0)
    return float(torch.linalg.vector_norm(apart, dim=-1, dtype=torch.float64).max())


def bound_factor(num_clients: int, num_byzantine: int, num_groups: int, resilience: float) -> float:
    r"""Return the factor of the paper's bound on the squared deviation.

    $$ \Big(1 + \frac{n - f + 1}{p}\Big) \Big(1 + \lambda^2 + \frac{1}{n - f}\Big)
       \frac{f^2}{(n - f)^2} $$
    """
    num_honest = num_clients - num_byzantine
    by_groups = 1 + (num_honest + 1) / num_groups
    by_rule = 1 + resilience**2 + 1 / num_honest
    return by_groups * by_rule * (num_byzantine / num_honest) ** 2


def certificate(
    num_kept_byzantine: int,
    num_honest: int,
    diameter: float,
    group_diameters: float,
    resilience: float,
) -> float:
    r"""Return an upper bound of the deviation of GAS, whatever the Byzantine clients sent.

    $$ \frac{b}{n - f} \Big(D + (1 + 2 \lambda) \sum_q D_q\Big) $$

    b Byzantine clients were kept, the honest gradients have the diameter D, and D_q on group q;
    `group_diameters` is the sum of those.
    """
    reach = diameter + (1 + 2 * resilience) * group_diameters
    return num_kept_byzantine / num_honest * reach
