"""Weighted order statistics: medians and trimmed means of clients that do not count alike.

Every one is an average of a coordinate's values with portions of their weights. Plain torch on
every device: the kernels count clients, they do not weigh them.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from outvote.axes import Columns, PerClient, PerCoordinate
from outvote.ops import order_statistics

Portions = Callable[[Tensor, Tensor], Tensor]
"""Of values ``[..., dim, clients]`` and weights ``[..., 1, clients]`` that sum to 1."""
ROUNDING = 1e-12
# What is left of the weight at least, so that an average is of something.
LEAST_LEFT = 1e-9
# Values at once: positions and portions take eight bytes each.
AT_ONCE = 1 << 24


def weighted_reduction(
    columns: Columns, counts: Tensor, portions: Portions
) -> tuple[PerCoordinate, PerClient]:
    """Average every coordinate with the portions of its values.

    Also return the share of coordinates where each client's value entered. The
    ``counts [..., clients]`` need not sum to 1.
    """
    weights = (counts / counts.sum(dim=-1, keepdim=True)).unsqueeze(-2)

    def reduce(tile: Columns) -> tuple[PerCoordinate, Tensor]:
        values = tile.double()
        entered = portions(values, weights)
        entered = entered / entered.sum(dim=-1, keepdim=True)
        is_in = entered > 0
        mean = (values * entered).sum(dim=-1)
        # Rounding may carry the mean of equal values away from them.
        low = values.masked_fill(~is_in, torch.inf).amin(dim=-1)
        high = values.masked_fill(~is_in, -torch.inf).amax(dim=-1)
        return mean.clamp(min=low, max=high).to(tile.dtype), is_in.sum(dim=-2)

    def in_parts(tile: Columns) -> list[tuple[PerCoordinate, Tensor]]:
        per_coordinate = max(1, tile.numel() // max(1, tile.shape[-2]))
        return [reduce(part) for part in tile.split(max(1, AT_ONCE // per_coordinate), dim=-2)]

    found = [one for parts in order_statistics.over_tiles(in_parts, columns) for one in parts]
    vectors, numbers = zip(*found, strict=True)
    return torch.cat(vectors, dim=-1), torch.stack(numbers).sum(dim=0).double() / columns.shape[-2]


def median_portions(even: str) -> Portions:
    """Return all the weight to the value in the middle, or half of it to each of two."""

    def portions(values: Tensor, weights: Tensor) -> Tensor:
        order = values.argsort(dim=-1, stable=True)
        low, high = _middle(_in_order(weights, order), even)
        ranked = torch.zeros_like(values)
        ranked.scatter_add_(-1, low, torch.full_like(low, 0.5, dtype=values.dtype))
        ranked.scatter_add_(-1, high, torch.full_like(high, 0.5, dtype=values.dtype))
        return torch.zeros_like(values).scatter_(-1, order, ranked)

    return portions


def trimmed_portions(num_trimmed: int) -> Portions:
    """Cut off, at either end, the most weight that so many clients can have."""

    def portions(values: Tensor, weights: Tensor) -> Tensor:
        order = values.argsort(dim=-1, stable=True)
        own = _in_order(weights, order)
        cut = _heaviest(weights, num_trimmed).clamp(max=(1 - LEAST_LEFT) / 2)
        upto = own.cumsum(dim=-1)
        left = torch.minimum(upto, 1 - cut) - torch.maximum(upto - own, cut)
        return torch.zeros_like(values).scatter_(-1, order, _without_rounding(left, own))

    return portions


def nearest_portions(num_left_out: int, even: str = "mean") -> Portions:
    """Leave out, of the values farthest from the median, the most weight of so many clients."""

    def portions(values: Tensor, weights: Tensor) -> Tensor:
        ranked = values.argsort(dim=-1, stable=True)
        low, high = _middle(_in_order(weights, ranked), even)
        in_order = values.gather(-1, ranked)
        # As the two values around the median: their mean would be rounded.
        far = (values - in_order.gather(-1, low)) + (values - in_order.gather(-1, high))
        order = far.abs().argsort(dim=-1, stable=True)
        own = _in_order(weights, order)
        upto = own.cumsum(dim=-1)
        wanted = (1 - _heaviest(weights, num_left_out)).clamp(min=LEAST_LEFT)
        left = torch.minimum(upto, wanted) - (upto - own)
        return torch.zeros_like(values).scatter_(-1, order, _without_rounding(left, own))

    return portions


def _in_order(weights: Tensor, order: Tensor) -> Tensor:
    return weights.expand(order.shape).gather(-1, order)


def _middle(ranked_weights: Tensor, even: str) -> tuple[Tensor, Tensor]:
    """Return the ranks where half of the weight is reached, and where it is exceeded."""
    upto = ranked_weights.cumsum(dim=-1)
    last = ranked_weights.shape[-1] - 1
    low = (upto < 0.5 - ROUNDING).sum(dim=-1, keepdim=True).clamp(max=last)
    high = (upto <= 0.5 + ROUNDING).sum(dim=-1, keepdim=True).clamp(max=last)
    return low, (low if even == "lower" else high)


def _heaviest(weights: Tensor, number: int) -> Tensor:
    """Return the most weight that so many clients have together, ``[..., 1, 1]``."""
    number = min(number, weights.shape[-1])
    return weights.topk(number, dim=-1).values.sum(dim=-1, keepdim=True)


def _without_rounding(left: Tensor, own: Tensor) -> Tensor:
    """Return portions that are not negative; what rounding alone has left is 0."""
    return left.masked_fill(left <= ROUNDING * own, 0)
