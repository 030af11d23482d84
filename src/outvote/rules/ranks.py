"""The values at given places of the sorted order, coordinate by coordinate."""

import torch

from outvote.axes import Columns, PerCoordinate
from outvote.precision import exact_products
from outvote.rules import cuda
from outvote.rules.order import LARGEST_NETWORK, over_tiles, sorted_for_now, sorting_network


def mean_of_ranks(columns: Columns, first: int, last: int) -> PerCoordinate:
    """Return, per coordinate, the mean of the sorted values `first` up to, not with, `last`."""
    if cuda.is_usable(columns, columns.shape[-1]):
        return cuda.mean_of_ranks(columns, first, last)
    parts = over_tiles(lambda tile: _mean_of_ranks(tile, first, last), columns)
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def values_at_ranks(columns: Columns, first: int, last: int) -> tuple[PerCoordinate, PerCoordinate]:
    """Return, per coordinate, the first and the last of the sorted values that a mean is of."""
    if last - first == 1 or cuda.is_usable(columns, columns.shape[-1]):
        low = mean_of_ranks(columns, first, first + 1)
        return low, low if last - first == 1 else mean_of_ranks(columns, last - 1, last)
    parts = over_tiles(lambda tile: _values_at_ranks(tile, first, last), columns)
    lows, highs = zip(*parts, strict=True)
    return torch.cat(lows, dim=-1), torch.cat(highs, dim=-1)


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
    with exact_products():
        return torch.matmul(sorted_for_now(tile), weights)


def _values_at_ranks(tile: Columns, first: int, last: int) -> tuple[PerCoordinate, PerCoordinate]:
    if tile.shape[-1] <= LARGEST_NETWORK and tile.device.type == "cpu":
        ranked = sorting_network(list(tile.movedim(-1, 0).contiguous()))
        return ranked[first], ranked[last - 1]
    values = sorted_for_now(tile)
    return values[..., first].clone(), values[..., last - 1].clone()
