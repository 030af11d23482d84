"""Order statistics of the clients' values, coordinate by coordinate.

On a CPU, numpy's vectorised sort of short contiguous rows is many times faster than torch's; for a
handful of clients a sorting network of elementwise minima and maxima is faster still.
"""

import numpy as np
import torch
from torch import Tensor

from outvote.axes import Columns, PerClient, PerCoordinate
from outvote.rules import cuda, linalg
from outvote.rules.threads import in_pieces

LARGEST_NETWORK = 8


def mean_of_ranks(columns: Columns, first: int, last: int) -> PerCoordinate:
    """Return, per coordinate, the mean of the sorted values number `first` up to, not with, `last`.

    $$ \\frac{1}{last - first} \\sum_{k=first}^{last-1} x_{(k)} $$
    """
    if cuda.is_usable(columns, columns.shape[-1]):
        return cuda.mean_of_ranks(columns, first, last)
    parts = [_mean_of_ranks(tile, first, last) for _, tile in linalg.tiles(columns)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def _mean_of_ranks(tile: Columns, first: int, last: int) -> PerCoordinate:
    share = 1 / (last - first)
    if tile.shape[-1] <= LARGEST_NETWORK and tile.device.type == "cpu":
        ranked = sorting_network(list(tile.movedim(-1, 0).contiguous()))
        mean = ranked[first] * share
        for values in ranked[first + 1 : last]:
            mean.add_(values, alpha=share)
        return mean
    # Weights instead of a sum: nothing overflows, and a huge value outside the range counts 0.
    weights = tile.new_zeros(tile.shape[-1])
    weights[first:last] = share
    with linalg.exact_products():
        return torch.matmul(sort_clients(tile), weights)


def sorting_network(values: list[Tensor]) -> list[Tensor]:
    """Sort a few tensors elementwise (Batcher's odd-even merge sort)."""
    values = list(values)
    num = len(values)
    for low, high in _comparators(num):
        values[low], values[high] = (
            torch.minimum(values[low], values[high]),
            torch.maximum(values[low], values[high]),
        )
    return values


def _comparators(num: int) -> list[tuple[int, int]]:
    pairs = []
    run = 1
    while run < num:
        step = run
        while step >= 1:
            for start in range(step % run, num - step, 2 * step):
                for k in range(start, min(start + step, num - step)):
                    if k // (2 * run) == (k + step) // (2 * run):
                        pairs.append((k, k + step))
            step //= 2
        run *= 2
    return pairs


def sort_clients(tile: Columns) -> Columns:
    """Sort the values of every coordinate over the clients."""
    if tile.device.type != "cpu":
        return tile.sort(dim=-1).values
    source = tile.numpy()
    values = np.empty(source.shape, source.dtype)
    while source.ndim > 2 and len(source) == 1:
        source, values = source[0], values[0]

    def sort(piece: slice) -> None:
        values[piece] = source[piece]
        values[piece].sort(axis=-1)

    in_pieces(sort, len(source), source[0].size)
    return torch.from_numpy(values).view(tile.shape)


def sum_of_smallest(values: Tensor, num_smallest: int) -> Tensor:
    """Return the sum of the smallest values along the last axis."""
    if cuda.can_sort(values):
        return cuda.sum_of_smallest(values, num_smallest)
    weights = values.new_zeros(values.shape[-1])
    weights[:num_smallest] = 1
    return torch.matmul(sort_clients(values), weights)


def median_ranks(num_clients: int, even: str) -> tuple[int, int]:
    """Return the ranks whose mean is the median: the two middle ones, or the lower of them."""
    lower = (num_clients - 1) // 2
    return (lower, lower + 1) if even == "lower" else (lower, num_clients // 2 + 1)


def mean_nearest_median(columns: Columns, num_nearest: int, even: str = "mean") -> PerCoordinate:
    """Return, per coordinate, the mean of the values nearest to the median (ties: lower index)."""
    parts = [_nearest(tile, num_nearest, even)[0] for _, tile in linalg.tiles(columns)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def bounds_nearest_median(
    columns: Columns, num_nearest: int, even: str = "mean"
) -> tuple[PerCoordinate, PerCoordinate]:
    """Return the smallest and the largest of the values nearest to the median."""
    parts = [_nearest(tile, num_nearest, even)[1:] for _, tile in linalg.tiles(columns)]
    lows, highs = zip(*parts, strict=True)
    return torch.cat(lows, dim=-1), torch.cat(highs, dim=-1)


def _nearest(tile: Columns, num_nearest: int, even: str) -> tuple[Tensor, Tensor, Tensor]:
    """Slide a window over the sorted values: the nearest ones lie side by side."""
    ranked = sort_clients(tile)
    first, last = median_ranks(tile.shape[-1], even)
    median = ranked[..., first] * 0.5 + ranked[..., last - 1] * 0.5
    num_starts = tile.shape[-1] - num_nearest + 1
    below = median.unsqueeze(-1) - ranked[..., :num_starts]
    above = ranked[..., num_nearest - 1 :] - median.unsqueeze(-1)
    start = torch.maximum(below, above).argmin(dim=-1, keepdim=True)
    rank = torch.arange(tile.shape[-1], device=tile.device)
    inside = (rank >= start) & (rank < start + num_nearest)
    mean = torch.where(inside, ranked / num_nearest, 0).sum(dim=-1)
    low = ranked.gather(-1, start).squeeze(-1)
    high = ranked.gather(-1, start + num_nearest - 1).squeeze(-1)
    _settle_ties(tile, ranked, median, start.squeeze(-1), num_nearest, (mean, low, high))
    return mean, low, high


def _settle_ties(
    tile: Columns,
    ranked: Tensor,
    median: Tensor,
    start: Tensor,
    width: int,
    found: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Where a value left out is just as near as one taken, take the lower client index."""
    mean, low, high = found
    num_clients = tile.shape[-1]
    reach = torch.maximum(median - low, high - median)
    left = ranked.gather(-1, (start - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1)
    right_at = (start + width).clamp(max=num_clients - 1).unsqueeze(-1)
    right = ranked.gather(-1, right_at).squeeze(-1)
    tied = ((start > 0) & (median - left <= reach) & (left < low)) | (
        (start + width < num_clients) & (right - median <= reach) & (right > high)
    )
    if not bool(tied.any()):
        return
    values = tile[tied]
    order = (values - median[tied].unsqueeze(-1)).abs().argsort(dim=-1, stable=True)
    taken = values.gather(-1, order[..., :width])
    mean[tied] = (taken / width).sum(dim=-1)
    low[tied], high[tied] = taken.amin(dim=-1), taken.amax(dim=-1)


def shares_between(columns: Columns, low: PerCoordinate, high: PerCoordinate) -> PerClient:
    """Return, per client, the share of coordinates where its value lies between two bounds."""
    total = columns.new_zeros(*columns.shape[:-2], columns.shape[-1], dtype=torch.float64)
    for piece, tile in linalg.tiles(columns):
        entered = (tile >= low[..., piece, None]) & (tile <= high[..., piece, None])
        total += entered.sum(dim=-2)
    return total / columns.shape[-2]
