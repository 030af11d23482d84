"""Multi-Krum: the mean of the clients that lie closest to their neighbours."""

from dataclasses import dataclass
from typing import ClassVar, final

from outvote.rules import linalg
from outvote.rules.aggregation import Aggregation
from outvote.rules.base import AffineRule, RoundInfo
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.krum import (
    average_of,
    check_score_parameters,
    count_neighbours,
    krum_scores,
    lowered,
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MultiKrum(AffineRule):
    r"""Average of the n - f clients closest to their neighbours.

    $$ s_i = \sum_{j \in N_i} \|g_i - g_j\|^2, \quad |N_i| = n - f - 2, \qquad
       \frac{1}{n - f} \sum_{i \in S} g_i, \quad S = \text{the } n - f \text{ smallest } s_i $$

    Needs: the distances between the clients. Tolerates: n >= 2f + 3.
    Differs from the paper: m = n - f clients are averaged, as the authors of GAS do.
    Reference: Blanchard et al., NeurIPS 2017.

    >>> MultiKrum()([[1.0], [1.25], [0.75], [1.0], [50.0]], num_byzantine=1)
    array([1.])
    """

    name: ClassVar[str] = "multi-krum"

    num_selected: int | None = None
    """How many clients are averaged; None: n - f."""
    num_neighbours: int | None = None
    """How many nearest clients count in the score; None: n - f - 2."""
    power: float = 2
    """The power of the distances in the score."""

    def __post_init__(self) -> None:
        """Check the parameters."""
        check_score_parameters(self.name, self.num_neighbours, self.power)
        if self.num_selected is not None and self.num_selected < 1:
            raise ValueError(
                f"multi-krum: num_selected must be at least 1, got {self.num_selected}."
            )

    def max_byzantine(self, num_clients: int) -> int:
        """Return the largest f with n >= 2f + 3."""
        return max(0, (num_clients - 3) // 2)

    def weigh(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Average the clients with the smallest scores."""
        neighbours = count_neighbours(self.num_neighbours, matrix, info)
        scores = krum_scores(matrix.squared_distances, neighbours, self.power)
        num_selected = self._count_selected(matrix.num_clients, info.num_byzantine)
        is_selected = linalg.smallest(scores, num_selected)
        notes = lowered("num_neighbours", self.num_neighbours, matrix, info, 1)
        return Aggregation(
            weights=average_of(is_selected, num_selected),
            scores=scores,
            notes=notes + lowered("num_selected", self.num_selected, matrix, info, 0),
        )

    def _count_selected(self, num_clients: int, num_byzantine: int) -> int:
        if self.num_selected is None:
            return num_clients - num_byzantine
        return min(self.num_selected, num_clients)
