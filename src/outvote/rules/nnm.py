"""NNM (nearest neighbour mixing): replace every client by the mean of those nearest to it."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from outvote.axes import Mixture, Pairs
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.rule import Mixing, RoundInfo


@final
@dataclass(frozen=True, slots=True)
class NNM(Mixing):
    r"""Average every client with its nearest ones, n - f in all, before a rule aggregates.

    $$ y_i = \frac{1}{n - f} \sum_{j \in N_i} g_j, \quad i \in N_i, \quad |N_i| = n - f $$

    Needs: the distances between the clients, and what the rule inside needs.
    Tolerates: n >= 2f + 1, and what the rule inside tolerates. Differs from the paper: nothing.
    Reference: Allouah et al., AISTATS 2023.

    >>> from outvote import Median
    >>> NNM(Median())([[1.0], [2.0], [900.0]], num_byzantine=1)
    array([1.5])
    """

    name: ClassVar[str] = "nnm"

    def max_byzantine(self, num_clients: int) -> int:
        """Return the smaller of n >= 2f + 1 and the limit of the rule inside."""
        return max(0, min((num_clients - 1) // 2, self.rule.max_byzantine(num_clients)))

    def mixture(self, matrix: ClientMatrix, info: RoundInfo) -> Mixture:
        """Average the nearest clients."""
        return neighbour_matrix(matrix.squared_distances, info.num_byzantine)


def neighbour_matrix(squared_distances: Pairs, num_byzantine: int) -> Mixture:
    """Return the averaging matrix of every client's n - f nearest, itself included."""
    num_nearest = squared_distances.shape[-1] - num_byzantine
    far = squared_distances.clone()
    # Before any duplicate of lower index: one is one's own nearest.
    far.diagonal(dim1=-2, dim2=-1).fill_(-1)
    nearest = far.argsort(dim=-1, stable=True)[..., :num_nearest]
    # In float64 whatever the distances: weights sum to 1, and an average of copies is the copy.
    return torch.zeros_like(far, dtype=torch.float64).scatter_(-1, nearest, 1 / num_nearest)
