"""Centered clipping: step from the last update towards clients, no step longer than a radius."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.rule import Aggregation, RoundInfo, Rule, Traits


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CenteredClipping(Rule):
    r"""Average of the differences to a centre, clipped to a radius, repeated.

    $$ v \leftarrow v + \frac{1}{n} \sum_i (g_i - v) \min\Big(1, \frac{\tau}{\|g_i - v\|}\Big) $$

    Needs: the distances between the clients, the centre and the origin. Tolerates: n >= 2f + 1
    (f is not used). Has state: v starts at the previous update (`state`), at 0 without one;
    inside a wrapper always at 0. Differs from the paper: nothing.
    Reference: Karimireddy et al., ICML 2021.

    >>> CenteredClipping(radius=2.0)([[1.0], [1.5], [500.0]]).round(3)
    array([2.167])
    """

    name: ClassVar[str] = "centered-clipping"
    traits = Traits(
        uses_num_byzantine=False, has_state=True, uses_sample_counts=True, can_stream=True
    )

    radius: float = 10.0
    """No client moves the centre by more than this divided by n in one iteration."""
    num_iterations: int = 3
    """How often the centre is moved."""

    def __post_init__(self) -> None:
        if not 0 < self.radius < float("inf"):
            raise ValueError(
                f"centered-clipping: radius must be positive and finite, got {self.radius}."
            )
        if self.num_iterations < 1:
            raise ValueError(
                f"centered-clipping: num_iterations must be at least 1, got {self.num_iterations}."
            )

    def max_byzantine(self, num_clients: int) -> int:
        """Return the largest f with n >= 2f + 1."""
        return max(0, (num_clients - 1) // 2)

    def compute(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Move the centre, as a weighted average of the clients and the old centre."""
        start = None if info.state is None else info.to_vector(info.state)
        around = matrix.with_point(None if start is None else start.expand(matrix.shape[:-1]))
        shape = (*around.batch, around.num_clients)
        weights = torch.zeros(shape, dtype=torch.float64, device=matrix.device)
        weights[..., -1] = 1
        own = None if info.counts is None else info.counts / info.counts.sum()
        for _ in range(self.num_iterations):
            far = around.distances_to(Aggregation(weights=weights))[..., :-1]
            share = self.radius / far.clamp(min=self.radius)
            share = share / matrix.num_clients if own is None else share * own
            weights = weights * (1 - share.sum(dim=-1, keepdim=True))
            weights[..., :-1] += share
        vector = matrix.vector(Aggregation(weights=weights[..., :-1]))
        if start is not None:
            vector = vector + weights[..., -1:].to(vector) * start.to(vector)
        return Aggregation(vector=vector, weights=weights[..., :-1], state=vector[0])
