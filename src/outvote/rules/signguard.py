"""SignGuard: filter by norm and by the shares of positive, zero and negative signs."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from outvote.ops.rows import row_norms, sign_counts
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.rule import Aggregation, RoundInfo, Rule, Traits

# Mean shift clustering, as the authors use it: flat kernel, seeds on a grid.
MAX_STEPS = 300
QUANTILE = 0.5


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SignGuard(Rule):
    r"""Mean of the clients with usual norms and usual signs, clipped to the median norm.

    $$ S_1 = \{i : L\,m < \|g_i\| < R\,m\}, \quad S_2 = \text{largest cluster of sign shares}, \quad
       \frac{1}{|S_1 \cap S_2|} \sum_{i \in S_1 \cap S_2} g_i \min\Big(1, \frac{m}{\|g_i\|}\Big) $$

    m is the median norm. Needs: norms, and the signs in a random window of coordinates.
    Tolerates: n >= 2f + 1 (f is not used). Differs from the paper: clients that are not finite are
    rejected; if nobody passes both filters the norm filter alone decides, then nobody is dropped.
    Reference: Xu et al., ICDCS 2022.

    >>> SignGuard()([[1.0], [1.0], [1.0], [-1.0]], seed=0)
    array([1.])
    """

    name: ClassVar[str] = "signguard"
    traits = Traits(
        uses_num_byzantine=False, can_be_wrapped=False, uses_sample_counts=True, can_stream=True
    )

    lower: float = 0.1
    """Norms up to this times the median are suspicious."""
    upper: float = 3.0
    """Norms from this times the median on are suspicious."""
    window: float = 0.1
    """The share of coordinates whose signs are looked at."""

    def __post_init__(self) -> None:
        if not 0 <= self.lower < self.upper:
            raise ValueError(
                f"signguard: lower must be below upper and not negative, got lower={self.lower}, "
                f"upper={self.upper}."
            )
        if not 0 < self.window <= 1:
            raise ValueError(f"signguard: window must be in (0, 1], got {self.window}.")

    def max_byzantine(self, num_clients: int) -> int:
        """Return the largest f with n >= 2f + 1."""
        return max(0, (num_clients - 1) // 2)

    def compute(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Filter run by run: clustering is a search."""
        width = int(matrix.dim * self.window) or matrix.dim
        num_starts = matrix.dim - width + 1
        starts = [
            int(torch.randint(num_starts, (), generator=generator, device="cpu"))
            for generator in info.stream.fold_in("signguard").generators(torch.device("cpu"))
        ]
        filtered = [
            _filter(
                matrix.norms[run],
                matrix.values.within(run, slice(start, start + width)).total(sign_counts)[0]
                / width,
                self.lower,
                self.upper,
            )
            for run, start in enumerate(starts)
        ]
        weights = torch.stack([weights for weights, _ in filtered])
        is_kept = torch.stack([kept for _, kept in filtered])
        if info.counts is not None:
            weights = weights * _relative(info.counts, is_kept)
        vector = matrix.vector(Aggregation(weights=weights))
        return Aggregation(vector=vector, weights=weights * is_kept)


def _relative(counts: Tensor, is_kept: Tensor) -> Tensor:
    """Return counts relative to the mean of those kept; 1 for all if these have none."""
    mean = (counts * is_kept).sum(dim=-1, keepdim=True) / is_kept.sum(dim=-1, keepdim=True)
    return torch.where(mean > 0, counts / mean.clamp(min=1e-300), 1)


def filter_rows(
    X: Tensor, start: int, window: int, lower: float, upper: float
) -> tuple[Tensor, Tensor]:
    """Return the update and who was kept, for rows ``[clients, dim]`` and a given window."""
    signs = sign_counts(X.mT[start : start + window]) / window
    weights, is_kept = _filter(row_norms(X), signs, lower, upper)
    return ClientMatrix.from_rows(X.unsqueeze(0)).vector(Aggregation(weights=weights.unsqueeze(0)))[
        0
    ], is_kept


def _filter(norms: Tensor, shares: Tensor, lower: float, upper: float) -> tuple[Tensor, Tensor]:
    median = norms.quantile(0.5)
    is_usual = (norms > lower * median) & (norms < upper * median)
    is_alike = largest_cluster(relative(shares))
    is_kept = is_usual & is_alike.to(is_usual.device)
    for fallback in (is_usual, torch.ones_like(is_usual)):
        if not bool(is_kept.any()):
            is_kept = fallback
    # Who sent nothing is not longer than the median, even where that is 0.
    clipped = torch.where(norms > median, median / norms, 1)
    return is_kept * clipped / is_kept.sum(), is_kept


def relative(shares: Tensor) -> Tensor:
    """Return the shares of +, 0 and - signs per client, each relative to its largest."""
    return shares / (shares.amax(dim=-2, keepdim=True) + 1e-8)


def largest_cluster(features: Tensor) -> Tensor:
    """Mark the members of the largest cluster of ``features [points, dim]``."""
    points = features.double().cpu()
    bandwidth = estimate_bandwidth(points)
    if bandwidth <= 0:
        return _most_common(points)
    centres = _shifted_centres(points, bandwidth)
    if len(centres) == 0:
        return torch.ones(len(points), dtype=torch.bool)
    far = torch.cdist(points, centres, compute_mode="donot_use_mm_for_euclid_dist")
    nearest, label = far.min(dim=-1)
    label = label.masked_fill(nearest > bandwidth, -1)
    sizes = torch.bincount(label[label >= 0], minlength=len(centres))
    return label == sizes.argmax()


def estimate_bandwidth(points: Tensor) -> float:
    """Return the mean distance to the neighbour that closes in half of the points."""
    num_neighbours = max(1, int(len(points) * QUANTILE))
    far = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    return float(far.sort(dim=-1).values[:, num_neighbours - 1].mean())


def _most_common(points: Tensor) -> Tensor:
    """Without a bandwidth, alike means equal."""
    _, label, counts = points.unique(dim=0, return_inverse=True, return_counts=True)
    is_member: Tensor = label == counts.argmax()
    return is_member


def _shifted_centres(points: Tensor, bandwidth: float) -> Tensor:
    """Shift every seed to the mean of its surroundings until it rests; merge what meets."""
    found: dict[tuple[float, ...], int] = {}
    seeds = (points / bandwidth).round().unique(dim=0) * bandwidth
    for seed in points if len(seeds) == len(points) else seeds:
        centre, num_near = _shift(seed, points, bandwidth)
        if num_near:
            found[tuple(centre.tolist())] = num_near
    ranked = sorted(found.items(), key=lambda item: (item[1], item[0]), reverse=True)
    kept: list[Tensor] = []
    for found_at, _ in ranked:
        centre = torch.tensor(found_at, dtype=torch.float64)
        if all(float((centre - other).norm()) > bandwidth for other in kept):
            kept.append(centre)
    return torch.stack(kept) if kept else points[:0]


def _shift(seed: Tensor, points: Tensor, bandwidth: float) -> tuple[Tensor, int]:
    centre = seed
    num_near = 0
    for _ in range(MAX_STEPS):
        is_near = (points - centre).norm(dim=-1) <= bandwidth
        num_near = int(is_near.sum())
        if num_near == 0:
            break
        moved = points[is_near].mean(dim=0)
        step = float((moved - centre).norm())
        centre = moved
        if step <= 1e-3 * bandwidth:
            break
    return centre, num_near
