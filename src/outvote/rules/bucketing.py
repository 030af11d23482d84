"""Bucketing: average random pairs of clients first, so that they look more alike."""

from dataclasses import KW_ONLY, dataclass, replace
from math import ceil
from typing import ClassVar, final

import torch
from torch import Tensor

from outvote.axes import Mixture
from outvote.errors import check_choice, check_kind
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.rule import Mixing, RoundInfo, Traits


@final
@dataclass(frozen=True, slots=True)
class Bucketing(Mixing):
    r"""Shuffle the clients, average them in buckets of s, and let a rule aggregate the buckets.

    $$ y_b = \frac{1}{|B_b|} \sum_{i \in B_b} g_{\pi(i)}, \qquad
       A(y_1, \dots, y_{\lceil n/s \rceil}) $$

    Needs: what the rule inside needs. Tolerates: what the rule inside tolerates among ceil(n/s)
    clients. One shuffle per call, also inside GAS. Differs from the paper: nothing; f_rule="ceil"
    assumes that Byzantine clients share buckets, which they need not: around a rule that uses f it
    tolerates one. Reference: Karimireddy et al., ICLR 2022.

    >>> from outvote import Median
    >>> Bucketing(Median(), size=1)([[1.0], [2.0], [900.0]])
    array([2.])
    """

    name: ClassVar[str] = "bucketing"

    _: KW_ONLY
    size: int = 2
    """How many clients share a bucket (the last one may be smaller)."""
    f_rule: str = "same"
    """Byzantine buckets assumed: "same" as Byzantine clients (safe), or "ceil" of f / size."""

    def __post_init__(self) -> None:
        super(Bucketing, self).__post_init__()
        check_choice("bucketing: f_rule", self.f_rule, ("same", "ceil"))
        check_kind("bucketing: size", self.size, int)
        if self.size < 1:
            raise ValueError(f"bucketing: size must be at least 1, got {self.size}.")

    @property
    def traits(self) -> Traits:
        """The number of Byzantine clients matters only to the rule inside."""
        return replace(self.rule.traits, has_state=False, uses_sample_counts=True)

    def max_byzantine(self, num_clients: int) -> int:
        """Return what the rule inside tolerates among the buckets, each client in its own."""
        limit = self.rule.max_byzantine(self.inside_num_clients(num_clients))
        if self.f_rule == "same" or self.size == 1 or not self.rule.traits.uses_num_byzantine:
            return limit
        # f clients may spoil f buckets; the rule inside would assume ceil(f / size).
        return min(limit, 1)

    def inside_num_clients(self, num_clients: int) -> int:
        """Return the number of buckets."""
        return ceil(num_clients / self.size)

    def inside_num_byzantine(self, num_byzantine: int, num_clients: int) -> int:
        """Return how many buckets may be spoiled, within the limit of the rule inside."""
        spoiled = num_byzantine if self.f_rule == "same" else ceil(num_byzantine / self.size)
        return super(Bucketing, self).inside_num_byzantine(spoiled, num_clients)

    def mixture(self, matrix: ClientMatrix, info: RoundInfo) -> Mixture:
        """Average the shuffled clients bucket by bucket."""
        stream = info.stream.fold_in("bucketing-shuffle")
        orders = stream.permutations(matrix.num_clients, torch.device("cpu"))
        matrices = torch.stack([bucket_matrix(order, self.size) for order in orders])
        groups = [1] * (len(matrix.batch) - 1)
        return matrices.to(matrix.device).view(len(orders), *groups, *matrices.shape[-2:])


def bucket_matrix(permutation: Tensor, size: int) -> Tensor:
    """Return the averaging matrix ``[buckets, clients]`` for an order of the clients."""
    num_clients = len(permutation)
    matrix = torch.zeros(
        ceil(num_clients / size), num_clients, dtype=torch.float64, device=permutation.device
    )
    for bucket, members in enumerate(permutation.long().split(min(size, num_clients))):
        matrix[bucket, members] = 1 / len(members)
    return matrix
