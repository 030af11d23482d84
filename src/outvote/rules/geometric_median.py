"""The geometric median, to convergence."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from outvote.axes import Pairs, PerClient
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.mean import equal_weights
from outvote.rules.rule import AffineRule, Aggregation, RoundInfo, Traits

TINY = 1e-150
# Where some client is so many times farther away than most, only small steps are safe.
TAME = 1e6
FIRST_STEPS = 50
NEWTON_STEPS = 30
STEP_SHARES = (1.0, 0.5, 0.25, 0.1, 0.03, 0.01)
SURE_CHANGE = 1e-10


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GeometricMedian(AffineRule):
    r"""The point with the smallest sum of distances to the clients.

    $$ \arg\min_z \sum_i \|g_i - z\| $$

    Needs: the distances between the clients. Tolerates: n >= 2f + 1 (f is not used).
    Differs from the paper: Weiszfeld's iteration, then Newton's, with a test whether a client's own
    gradient is the median. Not unique for an even number on one line.
    Reference: Weiszfeld, 1937; Chen et al., 2017.

    >>> GeometricMedian()([[1.0, 2.0], [1.5, 1.0], [0.5, 1.5], [2.0, 2.5], [-6.0, 8.0]])
    array([1., 2.])
    """

    name: ClassVar[str] = "geometric-median"
    traits = Traits(uses_num_byzantine=False, uses_sample_counts=True)

    tolerance: float = 1e-13
    """Stop when no client's weight changes by more than this share of it."""
    max_iterations: int = 1000
    """Stop after so many steps at the latest."""

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise ValueError(
                f"geometric-median: tolerance must be between 0 and 1, got {self.tolerance}."
            )
        if self.max_iterations < 1:
            raise ValueError(
                f"geometric-median: max_iterations must be at least 1, got {self.max_iterations}."
            )

    def max_byzantine(self, num_clients: int) -> int:
        """Return the largest f with n >= 2f + 1."""
        return max(0, (num_clients - 1) // 2)

    def weigh(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Iterate, then put all weight on a client that is the median itself."""
        counts = info.counts
        is_client, client = median_client(matrix.squared_distances.double(), counts)
        weights = equal_weights(matrix, counts)
        # Between two clients every point is a median; steps would stop wherever rounding leads.
        if matrix.num_clients > 2 and not bool(is_client.all()):
            weights = self._iterate(matrix, weights, counts)
        alone = torch.zeros_like(weights).scatter_(-1, client.unsqueeze(-1), 1.0)
        return Aggregation(weights=torch.where(is_client.unsqueeze(-1), alone, weights))

    def _iterate(
        self, matrix: ClientMatrix, weights: PerClient, counts: Tensor | None
    ) -> PerClient:
        """Come near by Weiszfeld's steps, then use Newton's, which do not crawl near a client.

        Every run stops by itself, so its result does not depend on the runs beside it.
        """
        num_steps = min(FIRST_STEPS, self.max_iterations)
        weights, is_done = self._weiszfeld(matrix, weights, num_steps, counts)
        if bool(is_done.all()):
            return weights
        polished, change = weights, torch.full_like(weights[..., :1], torch.inf)
        for _ in range(NEWTON_STEPS):
            rests = is_done | (change <= self.tolerance)
            if bool(rests.all()):
                break
            updated = torch.where(rests, polished, descend(matrix, polished, counts))
            moved = (updated - polished).abs().amax(dim=-1, keepdim=True)
            polished, change = updated, torch.where(rests, change, moved)
        # Many weights make the same point; the next step of Weiszfeld's has none below 0.
        far = matrix.distances_to(Aggregation(weights=polished)).clamp(min=TINY)
        # A weight of 1e-17 still moves the point by 1e13 if its client is at 1e30.
        is_tame = far.amax(dim=-1, keepdim=True) <= TAME * far.median(dim=-1, keepdim=True).values
        is_polished = is_tame & (change <= SURE_CHANGE) & ~is_done
        if not bool((is_polished | is_done).all()):
            weights, _ = self._weiszfeld(matrix, weights, self.max_iterations, counts, is_done)
        return torch.where(is_polished, weiszfeld_weights(far, counts), weights)

    def _weiszfeld(
        self,
        matrix: ClientMatrix,
        weights: PerClient,
        num_steps: int,
        counts: Tensor | None,
        is_done: Tensor | None = None,
    ) -> tuple[PerClient, Tensor]:
        """Take so many steps, or until the weights rest; return them, and which runs rest."""
        if is_done is None:
            is_done = torch.zeros_like(weights[..., :1], dtype=torch.bool)
        for _ in range(num_steps):
            far = matrix.distances_to(Aggregation(weights=weights)).clamp(min=TINY)
            updated = torch.where(is_done, weights, weiszfeld_weights(far, counts))
            # Relative to each weight: a client at 1e30 matters until its weight is below 1e-30.
            change = (updated - weights).abs() / updated.clamp(min=TINY)
            weights = updated
            is_done = is_done | (change.amax(dim=-1, keepdim=True) <= self.tolerance)
            if bool(is_done.all()):
                break
        return weights, is_done


def weiszfeld_weights(far: PerClient, counts: Tensor | None = None) -> PerClient:
    """Weigh every client by the reciprocal of its distance, times its count."""
    # Relative to the nearest client, so that the reciprocals cannot overflow.
    closeness = far.amin(dim=-1, keepdim=True) / far
    if counts is not None:
        closeness = closeness * counts
    return closeness / closeness.sum(dim=-1, keepdim=True)


def descend(matrix: ClientMatrix, weights: PerClient, counts: Tensor | None = None) -> PerClient:
    """Take the longest of some shares of Newton's step that does not increase the objective."""
    far = matrix.distances_to(Aggregation(weights=weights)).clamp(min=TINY)
    step = newton_step(matrix.squared_distances.double(), weights, far, counts) - weights
    allowed = _total(far, counts) * (1 + 1e-14)
    updated, is_set = weiszfeld_weights(far, counts), torch.zeros_like(allowed, dtype=torch.bool)
    for share in STEP_SHARES:
        tried = weights + share * step
        reached = _total(matrix.distances_to(Aggregation(weights=tried)), counts)
        is_good = ~is_set & (reached <= allowed)
        updated = torch.where(is_good, tried, updated)
        is_set |= is_good
        if bool(is_set.all()):
            break
    return updated


def _total(far: PerClient, counts: Tensor | None) -> Tensor:
    """Return the objective: the sum of the distances, each times the client's count."""
    return (far if counts is None else far * counts).sum(dim=-1, keepdim=True)


def newton_step(
    squared_distances: Pairs, weights: PerClient, far: PerClient, counts: Tensor | None = None
) -> PerClient:
    r"""Move the weights by Newton's step for the sum of distances.

    With $d_i = \|g_i - z\|$, $\rho_i = m_i / d_i$ for the counts m (1 without them), and the inner
    products G of the rows around z:
    $$ c = \big(\textstyle\sum \rho\, I - \operatorname{diag}(\rho / d^2) G\big)^{-1} \rho, \qquad
       w \leftarrow w + c - w \textstyle\sum c $$
    """
    unit = far.amin(dim=-1, keepdim=True)
    far, squared_distances = far / unit, squared_distances / unit.unsqueeze(-1).square()
    rho = 1 / far
    bend = rho.pow(3)
    if counts is not None:
        rho, bend = rho * counts, bend * counts
    total = rho.sum(dim=-1)
    gram = 0.5 * (far.square().unsqueeze(-1) + far.square().unsqueeze(-2) - squared_distances)
    matrix = torch.diag_embed(total.unsqueeze(-1).expand_as(far)) - bend.unsqueeze(-1) * gram
    step, _ = torch.linalg.solve_ex(matrix, rho.unsqueeze(-1))
    step = step.squeeze(-1)
    moved: Tensor = weights + step - weights * step.sum(dim=-1, keepdim=True)
    return moved


def median_client(squared_distances: Pairs, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    r"""Return whether the client with the smallest sum of distances is the geometric median.

    It is if the unit vectors from the others add up to less than its multiplicity (both weighed by
    the counts of the clients):
    $$ \Big\| \sum_{j: g_j \ne g_k} \frac{g_k - g_j}{\|g_k - g_j\|} \Big\| < |\{j: g_j = g_k\}| $$
    """
    distances = squared_distances.sqrt()
    client = _total(distances, counts).squeeze(-1).argmin(dim=-1)
    row = client.view(*client.shape, 1, 1).expand(*client.shape, 1, distances.shape[-1])
    far = distances.gather(-2, row).squeeze(-2)
    # Rows that differ by rounding alone (after mixing) are one point.
    typical = far.kthvalue(3 * (far.shape[-1] - 1) // 4 + 1, dim=-1, keepdim=True).values
    is_same = far <= 1e-9 * typical
    closeness = torch.where(is_same, 0, 1 / far.masked_fill(is_same, 1))
    # <g_k - g_i, g_k - g_j> by the law of cosines, scaled to unit vectors before it can overflow.
    left, right = closeness.unsqueeze(-1), closeness.unsqueeze(-2)
    ratio = far.unsqueeze(-1) * right
    cosines = 0.5 * (
        torch.where(is_same.unsqueeze(-1), 0, ratio)
        + torch.where(is_same.unsqueeze(-2), 0, ratio.mT)
        - distances * left * (distances * right)
    )
    pull = cosines.masked_fill(is_same.unsqueeze(-1) | is_same.unsqueeze(-2), 0)
    if counts is not None:
        pull = pull * counts.unsqueeze(-1) * counts
    squared_pull = pull.sum(dim=-1).sum(dim=-1)
    # In float64: a whole number times 1 - 1e-9 would be rounded to itself.
    multiplicity = is_same.double() if counts is None else is_same * counts
    multiplicity = multiplicity.sum(dim=-1)
    return squared_pull.clamp(min=0) < multiplicity.square() * (1 - 1e-9), client
