"""Mean around median."""

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from outvote.axes import Columns, PerClient, PerCoordinate
from outvote.ops.order import (
    bounds_nearest_median,
    mean_nearest_median,
    mean_nearest_median_and_counts,
    nearest_portions,
    weighted_reduction,
)
from outvote.rules.rule import CoordinatewiseRule, Traits


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MeaMed(CoordinatewiseRule):
    r"""Mean of the n - f values of every coordinate that are nearest to its median.

    $$ \frac{1}{n - f} \sum_{i \in N_j} g_{ij}, \quad N_j = \text{the } n - f
       \text{ values nearest to } \operatorname{med}_j $$

    Needs: one pass over the coordinates. Tolerates: n >= 2f + 1. Differs from the paper: nothing;
    of two values equally near, the one of the lower client index is taken.
    Reference: Xie et al., 2018 (generalized Byzantine-tolerant SGD).

    >>> MeaMed()([[1.0], [2.0], [4.0], [900.0]], num_byzantine=1).round(2)
    array([2.33])
    """

    name: ClassVar[str] = "meamed"
    traits = Traits(uses_sample_counts=True)

    def max_byzantine(self, num_clients: int) -> int:
        """Return the largest f with n >= 2f + 1."""
        return max(0, (num_clients - 1) // 2)

    def reduce(self, columns: Columns, num_byzantine: int) -> PerCoordinate:
        """Average the values nearest to the median."""
        return mean_nearest_median(columns, columns.shape[-1] - num_byzantine)

    def bounds(self, columns: Columns, num_byzantine: int) -> tuple[PerCoordinate, PerCoordinate]:
        """Return the smallest and the largest of the values nearest to the median."""
        return bounds_nearest_median(columns, columns.shape[-1] - num_byzantine)

    def reduce_with_counts(
        self, columns: Columns, num_byzantine: int
    ) -> tuple[PerCoordinate, PerClient]:
        """Return both from one pass over the coordinates."""
        return mean_nearest_median_and_counts(columns, columns.shape[-1] - num_byzantine)

    def reduce_weighted(
        self, columns: Columns, counts: Tensor, num_byzantine: int
    ) -> tuple[PerCoordinate, PerClient]:
        """Leave out the weight of the f clients that count most."""
        return weighted_reduction(columns, counts, nearest_portions(num_byzantine))
