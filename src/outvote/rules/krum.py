"""Krum and Multi-Krum: the client, or the mean of the clients, closest to their neighbours."""

from dataclasses import dataclass
from typing import ClassVar, final

from outvote.axes import PerClient
from outvote.ops.order import average_of_smallest, sum_of_smallest
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.rule import AffineRule, Aggregation, RoundInfo

HUGE = 1e300


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Krum(AffineRule):
    r"""The gradient of the client closest to its neighbours.

    $$ s_i = \sum_{j \in N_i} \|g_i - g_j\|^2, \quad |N_i| = n - f - 2, \qquad
       g_{\arg\min_i s_i} $$

    Needs: the distances between the clients. Tolerates: n >= 2f + 3.
    Differs from the paper: nothing; two clients have one neighbour each.
    Reference: Blanchard et al., NeurIPS 2017.

    >>> Krum()([[1.0], [1.1], [0.9], [1.0], [50.0]], num_byzantine=1)
    array([1.])
    """

    name: ClassVar[str] = "krum"

    num_neighbours: int | None = None
    """How many nearest clients count in the score; None: n - f - 2."""
    power: float = 2
    """The power of the distances in the score."""

    def __post_init__(self) -> None:
        check_score_parameters(self.name, self.num_neighbours, self.power)

    def max_byzantine(self, num_clients: int) -> int:
        """Return the largest f with n >= 2f + 3."""
        return max(0, (num_clients - 3) // 2)

    def weigh(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Give all the weight to the client with the smallest score."""
        neighbours = count_neighbours(self.num_neighbours, matrix, info)
        scores = krum_scores(matrix, neighbours, self.power)
        return Aggregation(
            weights=average_of_smallest(scores, 1),
            scores=scores,
            notes=lowered("num_neighbours", self.num_neighbours, matrix, info, 1),
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
        scores = krum_scores(matrix, neighbours, self.power)
        num_selected = self._count_selected(matrix.num_clients, info.num_byzantine)
        notes = lowered("num_neighbours", self.num_neighbours, matrix, info, 1)
        return Aggregation(
            weights=average_of_smallest(scores, num_selected),
            scores=scores,
            notes=notes + lowered("num_selected", self.num_selected, matrix, info, 0),
        )

    def _count_selected(self, num_clients: int, num_byzantine: int) -> int:
        if self.num_selected is None:
            return num_clients - num_byzantine
        return min(self.num_selected, num_clients)


def krum_scores(matrix: ClientMatrix, num_neighbours: int, power: float = 2) -> PerClient:
    """Add up the distances of every client to the nearest others."""
    # The distance to oneself is exactly 0, so it is first in line and adds nothing.
    if power == 2:
        return matrix.sums_of_smallest_distances(num_neighbours + 1)
    # A high power of a huge distance is not finite, and 0 times infinity is not 0.
    far = matrix.squared_distances.double().pow(power / 2).clamp(max=HUGE)
    return sum_of_smallest(far, num_neighbours + 1)


def count_neighbours(asked: int | None, matrix: ClientMatrix, info: RoundInfo) -> int:
    """Return how many neighbours to count: n - f - 2, and at least one."""
    if asked is None:
        return max(1, matrix.num_clients - info.num_byzantine - 2)
    return min(asked, matrix.num_clients - 1)


def lowered(
    name: str, asked: int | None, matrix: ClientMatrix, info: RoundInfo, others: int
) -> tuple[str, ...]:
    """Return a note if a parameter asks for more clients than are left after some were rejected.

    `others` are the clients that cannot be asked for. If there never were enough, that is an error.
    """
    most = matrix.num_clients - others
    if asked is None or asked <= most:
        return ()
    if asked > info.num_received - others:
        raise ValueError(
            f"{name} must be at most {info.num_received - others} for {info.num_received} "
            f"clients, got {asked}; lower it or leave it out."
        )
    return (f"{name}={asked} is more than there are clients for; used {most}",)


def check_score_parameters(name: str, num_neighbours: int | None, power: float) -> None:
    """Raise a ValueError unless the parameters of the score make sense."""
    if num_neighbours is not None and num_neighbours < 1:
        raise ValueError(f"{name}: num_neighbours must be at least 1, got {num_neighbours}.")
    if not 0 < power < float("inf"):
        raise ValueError(f"{name}: power must be positive and finite, got {power}.")
