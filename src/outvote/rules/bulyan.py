"""Bulyan: Krum selects, then the values nearest to the median are averaged."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from outvote.errors import check_choice
from outvote.ops.order import (
    Among,
    mean_nearest_median,
    mean_nearest_median_and_counts,
    nearest_portions,
    select_one_by_one,
    smallest,
    weighted_reduction,
)
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
            vector, shares = matrix.by_coordinate_with_shares(
                lambda columns: weighted_reduction(columns, counts, portions)
            )
            return Aggregation(vector=vector, weights=shares)
        num_nearest = num_selected - 2 * num_byzantine
        among = Among(is_selected, num_selected)
        given = num_nearest, self.even, among
        if not info.wants_weights:
            vector = matrix.values.by_coordinate(
                lambda columns: mean_nearest_median(columns, *given)
            )
            return Aggregation(vector=vector)
        vector, shares = matrix.by_coordinate_with_shares(
            lambda columns: mean_nearest_median_and_counts(columns, *given)
        )
        return Aggregation(vector=vector, weights=shares)

    def _select(self, matrix: ClientMatrix, num_selected: int, num_byzantine: int) -> Tensor:
        if num_byzantine == 0:
            shape = (*matrix.batch, matrix.num_clients)
            return torch.ones(shape, dtype=torch.bool, device=matrix.device)
        if self.selection == "one-shot":
            num_neighbours = max(1, matrix.num_clients - num_byzantine - 2)
            scores = krum_scores(matrix, num_neighbours)
            return smallest(scores, num_selected)
        return select_one_by_one(matrix.squared_distances, num_selected, num_byzantine)
