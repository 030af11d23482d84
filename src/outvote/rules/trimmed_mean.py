"""The coordinate-wise trimmed mean, which is RBTM when there is a server."""

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from outvote.axes import Columns, PerClient, PerCoordinate
from outvote.ops.order import (
    mean_of_ranks,
    mean_of_ranks_and_counts,
    trimmed_portions,
    values_at_ranks,
    weighted_reduction,
)
from outvote.rules.rule import CoordinatewiseRule, Traits


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TrimmedMean(CoordinatewiseRule):
    r"""Mean of every coordinate without its f largest and f smallest values.

    $$ \frac{1}{n - 2f} \sum_{k=f+1}^{n-f} g_{(k)j} $$

    Needs: one pass over the coordinates. Tolerates: n >= 2f + 1. Differs from the paper: RBTM adds
    reliable broadcast and asks for n > 3f, which a server makes needless.
    Reference: Yin et al., ICML 2018; El-Mhamdi et al., NeurIPS 2021 (RBTM).

    >>> TrimmedMean()([[1.0], [2.0], [3.0], [900.0]], num_byzantine=1)
    array([2.5])
    """

    name: ClassVar[str] = "trimmed-mean"
    traits = Traits(uses_sample_counts=True)

    def max_byzantine(self, num_clients: int) -> int:
        """Return the largest f with n >= 2f + 1."""
        return max(0, (num_clients - 1) // 2)

    def reduce(self, columns: Columns, num_byzantine: int) -> PerCoordinate:
        """Average the values between the trimmed ones."""
        return mean_of_ranks(columns, num_byzantine, columns.shape[-1] - num_byzantine)

    def bounds(self, columns: Columns, num_byzantine: int) -> tuple[PerCoordinate, PerCoordinate]:
        """Return the smallest and the largest value that were not trimmed."""
        return values_at_ranks(columns, num_byzantine, columns.shape[-1] - num_byzantine)

    def reduce_with_counts(
        self, columns: Columns, num_byzantine: int
    ) -> tuple[PerCoordinate, PerClient]:
        """Return both from one pass over the coordinates."""
        return mean_of_ranks_and_counts(columns, num_byzantine, columns.shape[-1] - num_byzantine)

    def reduce_weighted(
        self, columns: Columns, counts: Tensor, num_byzantine: int
    ) -> tuple[PerCoordinate, PerClient]:
        """Trim, at either end, the weight of the f clients that count most."""
        return weighted_reduction(columns, counts, trimmed_portions(num_byzantine))
