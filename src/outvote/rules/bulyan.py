"""Bulyan: Krum selects, then the values nearest to the median are averaged."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from outvote.axes import Pairs
from outvote.errors import check_choice
from outvote.ops import distances, matrix_kernels, native
from outvote.ops.order_statistics import (
    Among,
    mean_nearest_median,
    mean_nearest_median_and_shares,
)
from outvote.ops.weighted_order import nearest_portions, weighted_reduction
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.krum import krum_scores
from outvote.rules.rule import Aggregation, RoundInfo, Rule, Traits


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Bulyan(Rule):
    r"""Krum applied again and again selects n - 2f clients; of each coordinate the middle counts.

    $$ |S| = \theta = n - 2f, \qquad \frac{1}{\theta - 2f} \sum_{i \in N_j} g_{ij}, \quad
       N_j \subset S \text{ nearest to } \operatorname{med}_{i \in S} g_{ij} $$

    Needs: the distances between the clients, then one pass over the coordinates.
    Tolerates: n >= 4f + 3. Differs from the paper: nothing; selection="one-shot" ranks once.
    Reference: Guerraoui et al., ICML 2018.

    >>> Bulyan()([[1.0], [1.0], [1.5], [0.5], [1.0], [1.0], [50.0]], num_byzantine=1)
    array([1.])
    """

    name: ClassVar[str] = "bulyan"
    traits = Traits(uses_sample_counts=True, can_stream=True)

    selection: str = "iterative"
    """"iterative" runs Krum on what is left after each choice, "one-shot" ranks all once."""
    even: str = "mean"
    """For an even number of selected clients: the "mean" of the two middle values, or "lower"."""

    def __post_init__(self) -> None:
        check_choice("bulyan: selection", self.selection, ("iterative", "one-shot"))
        check_choice("bulyan: even", self.even, ("mean", "lower"))

    def max_byzantine(self, num_clients: int) -> int:
        """Return the largest f with n >= 4f + 3."""
        return max(0, (num_clients - 3) // 4)

    def ignores_zeros(self, dim: int) -> bool:
        """Return True: it selects by distances, and each coordinate is averaged alone."""
        del dim
        return True

    def compute(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Select clients by their distances, then average the middle of each coordinate."""
        num_byzantine = info.num_byzantine
        num_selected = matrix.num_clients - 2 * num_byzantine
        is_selected = self._select(matrix, num_selected, num_byzantine)
        if info.counts is not None:
            portions = nearest_portions(2 * num_byzantine, self.even)
            selected = is_selected * info.counts
            # Selected clients who report nothing count alike.
            is_none = selected.sum(dim=-1, keepdim=True) == 0
            counts = torch.where(is_none, is_selected.double(), selected)
            vector, weights = weighted_reduction(matrix.columns, counts, portions)
            return Aggregation(vector=vector, weights=weights)
        num_nearest = num_selected - 2 * num_byzantine
        among = Among(is_selected, num_selected)
        given = matrix.columns, num_nearest, self.even, among
        if not info.wants_weights:
            return Aggregation(vector=mean_nearest_median(*given))
        vector, weights = mean_nearest_median_and_shares(*given)
        return Aggregation(vector=vector, weights=weights)

    def _select(self, matrix: ClientMatrix, num_selected: int, num_byzantine: int) -> Tensor:
        if num_byzantine == 0:
            shape = (*matrix.batch, matrix.num_clients)
            return torch.ones(shape, dtype=torch.bool, device=matrix.device)
        if self.selection == "one-shot":
            num_neighbours = max(1, matrix.num_clients - num_byzantine - 2)
            scores = krum_scores(matrix.squared_distances, num_neighbours, 2)
            return distances.smallest(scores, num_selected)
        return select_one_by_one(matrix.squared_distances, num_selected, num_byzantine)


def select_one_by_one(squared_distances: Pairs, num_selected: int, num_byzantine: int) -> Tensor:
    """Move Krum's choice among the remaining clients to the selected ones, again and again."""
    if matrix_kernels.can_work_on(squared_distances):
        return matrix_kernels.select_one_by_one(squared_distances, num_selected, num_byzantine)
    if native.can_work_on(squared_distances):
        return native.select_one_by_one(squared_distances, num_selected, num_byzantine)
    num_clients = squared_distances.shape[-1]
    others = squared_distances.clone()
    others.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
    far, who = others.sort(dim=-1)
    is_left = torch.ones(squared_distances.shape[:-1], dtype=torch.bool, device=far.device)
    for num_left in range(num_clients, num_clients - num_selected, -1):
        num_neighbours = max(1, num_left - num_byzantine - 2)
        counts = is_left.unsqueeze(-2).expand_as(who).gather(-1, who) & far.isfinite()
        counts &= counts.cumsum(dim=-1) <= num_neighbours
        scores = torch.where(counts, far, 0).sum(dim=-1, dtype=torch.float64)
        scores = scores.masked_fill(~is_left, torch.inf)
        is_left.scatter_(-1, scores.argmin(dim=-1, keepdim=True), value=False)
    return ~is_left
