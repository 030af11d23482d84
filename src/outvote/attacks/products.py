"""Sums and inner products over tiles, by the routines that are fastest for each shape."""

import torch

from outvote.axes import Pairs, PerClient, PerCoordinate, Rows
from outvote.kernels.long_products import long_products

# Matrix products work on blocks of rows; a block with less than this many is mostly wasted.
BLOCK, FEW = 16, 4
# From so many rows on it pays to take a quarter of the products from their mirror images.
MANY = 40


def weighted_sum(weights: PerClient, values: Rows) -> PerCoordinate:
    """Return the sum of the rows with the given weights, [runs, width]."""
    if len(values) == 1 and not values.is_cuda:
        # On rows that lie far apart in memory three times as fast as a sum over an axis.
        return torch.mv(values[0].mT, weights[0]).unsqueeze(0)
    return (weights.unsqueeze(1) @ values).squeeze(1)


def column_sums(values: Rows) -> PerCoordinate:
    """Return the sum of the rows, [runs, width]."""
    if len(values) == 1 and not values.is_cuda:
        return weighted_sum(values.new_ones(values.shape[:2]), values)
    return values.sum(dim=1)


def along(values: Rows, vectors: PerCoordinate) -> PerClient:
    """Return the inner products of the rows with the vector of their run."""
    if len(values) == 1 and not values.is_cuda:
        return torch.mv(values[0], vectors[0]).unsqueeze(0)
    return long_products(values, vectors.unsqueeze(-2)).squeeze(-1)


def inner_products(values: Rows) -> Pairs:
    """Return the inner products of all rows with each other."""
    num_rows = values.shape[1]
    if values.is_cuda or len(values) > 1 or num_rows < BLOCK:
        return long_products(values, values)
    num_last = num_rows % BLOCK
    if not 0 < num_last <= FEW:
        if num_rows < MANY:
            return values @ values.mT
        # About half, in whole strips of half a block.
        num_last = num_rows - BLOCK // 2 * -(-num_rows // BLOCK)
    found = values.new_empty(1, num_rows, num_rows)
    main, rest = values[0, :-num_last], values[0, -num_last:]
    torch.mm(main, main.mT, out=found[0, :-num_last, :-num_last])
    torch.mm(rest, values[0].mT, out=found[0, -num_last:])
    found[0, :-num_last, -num_last:] = found[0, -num_last:, :-num_last].mT
    return found


def extreme(values: Rows, half: Rows, *, largest: bool) -> PerCoordinate:
    """Return the smallest or largest values over the rows, by halves: faster than over an axis.

    `half` is memory for half of the rows, at least one.
    """
    pick = torch.maximum if largest else torch.minimum
    if values.shape[1] == 1:
        return values[:, 0]
    while (num_rows := values.shape[1]) > 1:
        best = half[:, : num_rows // 2]
        pick(values[:, : num_rows // 2], values[:, num_rows // 2 : num_rows // 2 * 2], out=best)
        if num_rows % 2:
            pick(best[:, 0], values[:, -1], out=best[:, 0])
        values = best
    return values[:, 0]
