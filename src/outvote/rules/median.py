"""The coordinate-wise median."""

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from outvote.axes import Columns, PerClient, PerCoordinate
from outvote.errors import check_choice
from outvote.ops.order import (
    mean_of_ranks,
    mean_of_ranks_and_counts,
    median_portions,
    median_ranks,
    values_at_ranks,
    weighted_reduction,
)
from outvote.rules.rule import CoordinatewiseRule, Traits


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Median(CoordinatewiseRule):
    r"""Median of every coordinate.

    $$ \operatorname{med}(g_{1j}, \dots, g_{nj}) $$

    Needs: one pass over the coordinates. Tolerates: n >= 2f + 1. Differs from the paper: nothing;
    even="lower" takes the lower of two middle values, as the code that the authors of GAS released.
    Reference: Yin et al., ICML 2018.

    >>> Median()([[1.0, 2.0], [3.0, 4.0], [100.0, 3.0]])
    array([3., 3.])
    """

    name: ClassVar[str] = "median"
    traits = Traits(uses_num_byzantine=False, uses_sample_counts=True)

    even: str = "mean"
    """For an even number of clients: the "mean" of the two middle values, or the "lower"."""

    def __post_init__(self) -> None:
        check_choice("median: even", self.even, ("mean", "lower"))

    def max_byzantine(self, num_clients: int) -> int:
        """Return the largest f with n >= 2f + 1."""
        return max(0, (num_clients - 1) // 2)

    def reduce(self, columns: Columns, num_byzantine: int) -> PerCoordinate:
        """Take the middle of the sorted values."""
        del num_byzantine
        return mean_of_ranks(columns, *median_ranks(columns.shape[-1], self.even))

    def bounds(self, columns: Columns, num_byzantine: int) -> tuple[PerCoordinate, PerCoordinate]:
        """Return the middle value or values."""
        del num_byzantine
        return values_at_ranks(columns, *median_ranks(columns.shape[-1], self.even))

    def reduce_with_counts(
        self, columns: Columns, num_byzantine: int
    ) -> tuple[PerCoordinate, PerClient]:
        """Return both from one pass over the coordinates."""
        del num_byzantine
        return mean_of_ranks_and_counts(columns, *median_ranks(columns.shape[-1], self.even))

    def reduce_weighted(
        self, columns: Columns, counts: Tensor, num_byzantine: int
    ) -> tuple[PerCoordinate, PerClient]:
        """Take the value where half of the weight is reached."""
        del num_byzantine
        return weighted_reduction(columns, counts, median_portions(self.even))
