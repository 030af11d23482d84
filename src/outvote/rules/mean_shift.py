"""Mean shift clustering of a few points, as SignGuard uses it (flat kernel, seeds on a grid)."""

import torch
from torch import Tensor

MAX_STEPS = 300
QUANTILE = 0.5


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
    """Without a spread to measure by, alike means equal."""
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
    for place, _ in ranked:
        centre = torch.tensor(place, dtype=torch.float64)
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
