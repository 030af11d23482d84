"""Order statistics of the clients' values, coordinate by coordinate.

On a CPU, a kernel in C sorts up to 64 clients by a network of minima and maxima. Without it,
numpy's vectorised sort of short contiguous rows is many times faster than torch's; for a handful of
clients a network of elementwise minima and maxima is faster still.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import local
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from outvote.axes import Columns, PerClient, PerCoordinate
from outvote.ops import client_kernels, distances, native, order_kernels
from outvote.ops.precision import exact_products
from outvote.ops.threads import in_pieces, mapped

LARGEST_NETWORK = 8
LARGEST_BUFFER = 1 << 24
Result = TypeVar("Result")


def over_tiles(work: Callable[[Columns], Result], columns: Columns) -> list[Result]:
    """Work on pieces of the coordinates that fit the cache."""
    return mapped(lambda tile: work(tile[1]), distances.tiles(columns), columns.device)


def sorting_network(values: list[Tensor]) -> list[Tensor]:
    """Sort a few tensors elementwise (Batcher's odd-even merge sort)."""
    values = list(values)
    num = len(values)
    for low, high in order_kernels.comparators(num):
        values[low], values[high] = (
            torch.minimum(values[low], values[high]),
            torch.maximum(values[low], values[high]),
        )
    return values


def sort_clients(tile: Columns, buffer: np.ndarray | None = None) -> Columns:
    """Sort the values of every coordinate over the clients, into `buffer` if it is given."""
    if tile.device.type != "cpu":
        return tile.sort(dim=-1).values
    source = tile.numpy()
    values = (
        np.empty(source.shape, source.dtype) if buffer is None else buffer.reshape(source.shape)
    )
    while source.ndim > 2 and len(source) == 1:
        source, values = source[0], values[0]

    in_pieces(lambda piece: _sort(source[piece], values[piece]), len(source), source[0].size)
    return torch.from_numpy(values).view(tile.shape)


def _sort(source: np.ndarray, to: np.ndarray) -> None:
    if native.can_sort(source):
        native.sort(source, to)
    elif source.ndim > 2 and len(source) > 0 and native.can_sort(source[0]):
        for own, own_to in zip(source, to, strict=True):
            _sort(own, own_to)
    else:
        to[...] = source
        to.sort(axis=-1)


_BUFFERS = local()


def sorted_in_buffer(tile: Columns) -> Columns:
    """Sort into a buffer of this thread, which lasts until the thread sorts again."""
    if tile.device.type != "cpu":
        return sort_clients(tile)
    kept = getattr(_BUFFERS, "bytes", None)
    num_bytes = tile.numel() * tile.element_size()
    if num_bytes > LARGEST_BUFFER:
        return sort_clients(tile)
    if kept is None or kept.size < num_bytes:
        kept = _BUFFERS.bytes = np.empty(num_bytes, np.uint8)
    dtype = np.float64 if tile.dtype == torch.float64 else np.float32
    return sort_clients(tile, kept[:num_bytes].view(dtype))


def sum_of_smallest(values: Tensor, num_smallest: int) -> Tensor:
    """Return the sum of the smallest values along the last axis."""
    if client_kernels.can_sort(values):
        return client_kernels.sum_of_smallest(values, num_smallest)
    return sorted_in_buffer(values)[..., :num_smallest].sum(dim=-1, dtype=torch.float64)


def median_ranks(num_clients: int, even: str) -> tuple[int, int]:
    """Return the ranks whose mean is the median: the two middle ones, or the lower of them."""
    lower = (num_clients - 1) // 2
    return (lower, lower + 1) if even == "lower" else (lower, num_clients // 2 + 1)


def mean_of_ranks(columns: Columns, first: int, last: int) -> PerCoordinate:
    """Return, per coordinate, the mean of the sorted values `first` up to, not with, `last`."""
    if order_kernels.can_select(columns):
        return order_kernels.mean_of_ranks(columns, first, last)
    parts = over_tiles(lambda tile: _mean_of_ranks(tile, first, last), columns)
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def values_at_ranks(columns: Columns, first: int, last: int) -> tuple[PerCoordinate, PerCoordinate]:
    """Return, per coordinate, the first and the last of the sorted values that a mean is of."""
    if last - first == 1:
        low = mean_of_ranks(columns, first, last)
        return low, low
    if order_kernels.can_select(columns):
        return order_kernels.values_at_ranks(columns, first, last)
    parts = over_tiles(lambda tile: _values_at_ranks(tile, first, last), columns)
    lows, highs = zip(*parts, strict=True)
    return torch.cat(lows, dim=-1), torch.cat(highs, dim=-1)


def _mean_of_ranks(tile: Columns, first: int, last: int) -> PerCoordinate:
    count = last - first
    if tile.shape[-1] <= LARGEST_NETWORK and tile.device.type == "cpu":
        ranked = sorting_network(list(tile.movedim(-1, 0).contiguous()))[first:last]
        low, high = ranked[0], ranked[-1]
        total = low if count == 1 else low + ranked[1]
        for values in ranked[2:]:
            total.add_(values)
    else:
        ranks = sorted_in_buffer(tile)
        low, high = ranks[..., first], ranks[..., last - 1]
        weights = tile.new_zeros(tile.shape[-1])
        weights[first:last] = 1
        with exact_products():
            total = torch.matmul(ranks, weights)
        ranked = [ranks[..., rank] for rank in range(first, last)]
    if count == 1:
        return low.clone()
    mean = total.div_(count)
    if not bool(mean.isfinite().all()):
        mean = _mean(torch.stack(ranked, dim=-1), count)
    # Rounding may carry the mean of equal values away from them.
    return torch.clamp(mean, low, high)


def _mean(values: Tensor, count: int) -> Tensor:
    """Return the sum over the last axis divided by a count; it may overflow only with the mean."""
    mean = values.sum(dim=-1) / count
    return mean if bool(mean.isfinite().all()) else (values / count).sum(dim=-1)


def _values_at_ranks(tile: Columns, first: int, last: int) -> tuple[PerCoordinate, PerCoordinate]:
    if tile.shape[-1] <= LARGEST_NETWORK and tile.device.type == "cpu":
        ranked = sorting_network(list(tile.movedim(-1, 0).contiguous()))
        return ranked[first], ranked[last - 1]
    values = sorted_in_buffer(tile)
    return values[..., first].clone(), values[..., last - 1].clone()


def mean_of_ranks_and_shares(
    columns: Columns, first: int, last: int
) -> tuple[PerCoordinate, PerClient]:
    """Return `mean_of_ranks`, and the share of coordinates where each client's value entered."""
    if order_kernels.can_count(columns):
        return order_kernels.mean_of_ranks_and_shares(columns, first, last)
    mean = mean_of_ranks(columns, first, last)
    return mean, shares_between(columns, *values_at_ranks(columns, first, last))


@dataclass(frozen=True, slots=True)
class Among:
    """Some of the clients, as many in every run and group, marked in ``[runs, *groups, n]``."""

    is_among: Tensor
    num: int

    @property
    def index(self) -> Tensor:
        """The indices of these clients, ``[runs, *groups, num]``."""
        return self.is_among.nonzero()[:, -1].view(*self.is_among.shape[:-1], self.num)


def mean_nearest_median(
    columns: Columns, num_nearest: int, even: str = "mean", among: Among | None = None
) -> PerCoordinate:
    """Return, per coordinate, the mean of the values nearest to the median (ties: lower index).

    With `among`, of the values of those clients.
    """
    if order_kernels.can_select(columns):
        return order_kernels.mean_nearest(columns, *_for_kernels(columns, num_nearest, even, among))
    parts = [found[0] for found in _nearest_of_tiles(columns, num_nearest, even, among)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def bounds_nearest_median(
    columns: Columns, num_nearest: int, even: str = "mean", among: Among | None = None
) -> tuple[PerCoordinate, PerCoordinate]:
    """Return the smallest and the largest of the values nearest to the median."""
    if order_kernels.can_select(columns):
        given = _for_kernels(columns, num_nearest, even, among)
        return order_kernels.bounds_nearest(columns, *given)
    _, lows, highs = zip(*_nearest_of_tiles(columns, num_nearest, even, among), strict=True)
    return torch.cat(lows, dim=-1), torch.cat(highs, dim=-1)


def mean_nearest_median_and_shares(
    columns: Columns, num_nearest: int, even: str = "mean", among: Among | None = None
) -> tuple[PerCoordinate, PerClient]:
    """Return `mean_nearest_median`, and the share of coordinates where each client's value entered.

    The share of clients that are not in `among` is 0.
    """
    if order_kernels.can_count(columns):
        given = _for_kernels(columns, num_nearest, even, among)
        return order_kernels.mean_nearest_and_shares(columns, *given)
    if order_kernels.can_select(columns):
        mean = mean_nearest_median(columns, num_nearest, even, among)
        low, high = bounds_nearest_median(columns, num_nearest, even, among)
    else:
        parts = zip(*_nearest_of_tiles(columns, num_nearest, even, among), strict=True)
        mean, low, high = (torch.cat(part, dim=-1) for part in parts)
    shares = shares_between(columns, low, high)
    return mean, shares if among is None else torch.where(among.is_among, shares, 0)


def _nearest_of_tiles(
    columns: Columns, num_nearest: int, even: str, among: Among | None
) -> "list[Nearest]":
    """Find the values nearest to the median, tile by tile."""
    index = None if among is None else among.index
    # A kernel skips the clients that do not count; without it, the others are copied.
    if index is not None and not native.can_find_nearest(columns):
        columns, index = of_clients(columns, index), None
    return over_tiles(lambda tile: _nearest(tile, num_nearest, even, index), columns)


def _for_kernels(
    columns: Columns, num_nearest: int, even: str, among: Among | None
) -> tuple[tuple[int, int], int, Tensor | None]:
    num = columns.shape[-1] if among is None else among.num
    return median_ranks(num, even), num_nearest, None if among is None else among.is_among


def of_clients(columns: Columns, index: Tensor) -> Columns:
    """Return the values of some clients per run and group, ``index [runs, *groups, k]``."""
    if index.numel() == index.shape[-1]:
        return columns.index_select(-1, index.flatten())
    index = index.unsqueeze(-2).expand(*columns.shape[:-1], index.shape[-1])
    return columns.gather(-1, index)


Nearest = tuple[PerCoordinate, PerCoordinate, PerCoordinate]
"""The mean of the values nearest to the median, the smallest and the largest of them."""


def _nearest(tile: Columns, num_nearest: int, even: str, index: Tensor | None) -> Nearest:
    """Find the values nearest to the median; `index` has the clients that count, None: all."""
    if native.can_find_nearest(tile):
        num = tile.shape[-1] if index is None else index.shape[-1]
        ranks = median_ranks(num, even)
        mean, low, high, unknown = native.nearest(tile, ranks, num_nearest, index)
    else:
        assert index is None
        mean, low, high, unknown = _in_window(tile, num_nearest, even)
    if bool(unknown.any()):
        values = tile[unknown]
        if index is not None:
            of_these = index.unsqueeze(-2).expand(*tile.shape[:-1], index.shape[-1])[unknown]
            values = values.gather(-1, of_these)
        mean[unknown], low[unknown], high[unknown] = _lower_index_first(values, num_nearest, even)
    return mean, low, high


def _in_window(tile: Columns, num_nearest: int, even: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Slide a window over the sorted values: the nearest lie side by side; mark where more do."""
    ranked = sort_clients(tile)
    middle = _Middle(ranked, even)
    num_clients = tile.shape[-1]
    below = middle.deviation(ranked[..., : num_clients - num_nearest + 1])
    above = middle.deviation(ranked[..., num_nearest - 1 :])
    start = torch.maximum(below, above).argmin(dim=-1, keepdim=True)
    rank = torch.arange(num_clients, device=tile.device)
    inside = (rank >= start) & (rank < start + num_nearest)
    mean = _mean(torch.where(inside, ranked, 0), num_nearest)
    low = ranked.gather(-1, start).squeeze(-1)
    high = ranked.gather(-1, start + num_nearest - 1).squeeze(-1)
    tied = _is_tied(ranked, middle, start, num_nearest).squeeze(-1)
    return mean.clamp(min=low, max=high), low, high, tied


def _lower_index_first(values: Tensor, num_nearest: int, even: str) -> Nearest:
    """Find them where a value left out is just as near as one taken."""
    order = _Middle(sort_clients(values), even).deviation(values).argsort(dim=-1, stable=True)
    taken = values.gather(-1, order[..., :num_nearest])
    low, high = taken.amin(dim=-1), taken.amax(dim=-1)
    return _mean(taken, num_nearest).clamp(min=low, max=high), low, high


class _Middle:
    """The median as the two values around it: their mean would be rounded, differences are not."""

    def __init__(self, ranked: Tensor, even: str) -> None:
        first, last = median_ranks(ranked.shape[-1], even)
        self.low, self.high = ranked[..., first : first + 1], ranked[..., last - 1 : last]
        extreme = torch.maximum(ranked[..., -1:].abs(), ranked[..., :1].abs())
        # Twice a difference of numbers near the largest float would overflow.
        is_extreme = extreme > torch.finfo(ranked.dtype).max / 16
        self.scale = torch.where(is_extreme, 0.25, 1.0).to(ranked) if is_extreme.any() else None

    def deviation(self, values: Tensor) -> Tensor:
        """Return twice the distance of values from the median, up to a factor per coordinate."""
        if self.scale is None:
            return ((values - self.low) + (values - self.high)).abs_()
        values, low, high = (x * self.scale for x in (values, self.low, self.high))
        return ((values - low) + (values - high)).abs_()


def _is_tied(ranked: Tensor, middle: _Middle, start: Tensor, width: int) -> Tensor:
    """Mark where a value next to the window is as near as the farthest in it, and it matters."""
    low, high = ranked.gather(-1, start), ranked.gather(-1, start + width - 1)
    to_low, to_high = middle.deviation(low), middle.deviation(high)
    reach = torch.maximum(to_low, to_high)
    last = ranked.shape[-1] - 1
    left = ranked.gather(-1, (start - 1).clamp(min=0))
    right = ranked.gather(-1, (start + width).clamp(max=last))
    # Equal values may be exchanged, unless both ends of the window are tied.
    left_matters = (left != low) | (to_high == reach)
    right_matters = (right != high) | (to_low == reach)
    is_left = (start > 0) & (middle.deviation(left) <= reach) & left_matters
    is_right = (start + width <= last) & (middle.deviation(right) <= reach) & right_matters
    return is_left | is_right


def shares_between(columns: Columns, low: PerCoordinate, high: PerCoordinate) -> PerClient:
    """Return, per client, the share of coordinates where its value is between two bounds."""

    def count(numbered: tuple[slice, Columns]) -> Tensor:
        piece, tile = numbered
        entered = (tile >= low[..., piece, None]) & (tile <= high[..., piece, None])
        return entered.sum(dim=-2)

    counts = mapped(count, distances.tiles(columns), columns.device)
    return torch.stack(counts).sum(dim=0).double() / columns.shape[-2]
