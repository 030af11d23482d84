"""Random groups of coordinates: copying in the order of the groups, and sums without a copy.

A split is given by a random order of the coordinates for each run (or one for all runs), which is
cut into groups.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np
import torch
from torch import Tensor

from outvote.axes import Columns, Pairs, Rows
from outvote.ops.door import backend
from outvote.ops.keyed_order import KeyedOrder, SortedOrder
from outvote.ops.threads import mapped

Orders = Sequence[KeyedOrder | SortedOrder]
Sizes = tuple[int, int, int, int]
"""(Number, width) of the larger groups, which come first in the order, then of the smaller."""

# Sums over pairs beat reading the groups where there are few clients, and groups neither so few
# that sums wait for each other nor so many that they do not fit the cache.
MOST_CLIENTS, FEWEST_GROUPS, MOST_GROUPS, SHORTEST_GROUP = 9, 16, 1 << 14, 32


def in_order(rows: Rows, orders: Orders | Tensor) -> Columns:
    """Copy ``rows [runs, clients, dim]`` so that coordinates lie in a random order.

    There is an order for each run, or one for all; or an index of coordinates, ``[runs, k]``. The
    result is ``[runs, k, clients]``: groups are slices of it.
    """
    if not isinstance(orders, Tensor):
        kernel = backend("in_order", rows, rows.shape[-2])
        if kernel is not None and all(isinstance(order, KeyedOrder) for order in orders):
            copied: Columns = kernel(rows, orders)
            return copied
        orders = torch.stack([order.index(rows.device) for order in orders])
    runs, num_clients, _ = rows.shape
    result = rows.new_empty(runs, num_clients, orders.shape[-1])
    # One client's row stays in the cache of a core while it is read at random.
    clients = [slice(k, k + 1) for k in range(num_clients)] if rows.is_cpu else [slice(None)]

    def copy(own: tuple[int, slice]) -> None:
        index = orders[own[0] % len(orders)]
        torch.index_select(rows[own], -1, index, out=result[own])

    mapped(copy, list(product(range(runs), clients)), rows.device)
    columns: Columns = result.mT
    return columns


def groups_at(positions: np.ndarray, sizes: Sizes) -> np.ndarray:
    """Return the group of each position of an order that is cut so."""
    num_large, large, num_small, small = sizes
    if num_large == 0 or num_small == 0:
        found: np.ndarray = positions // (large if num_large else small)
        return found
    # The smaller groups are narrower: among the larger this is too low, and then the other is.
    after = (positions - num_large * large) // small + num_large
    larger: np.ndarray = np.maximum(positions // large, after)
    return larger


def are_sums_faster(rows: Rows, num_groups: int) -> bool:
    """Return whether `pair_sums` takes less time than to copy such rows into groups."""
    return (
        rows.shape[-2] <= MOST_CLIENTS
        and FEWEST_GROUPS <= num_groups <= MOST_GROUPS
        and rows.shape[-1] >= SHORTEST_GROUP * num_groups
        and backend("pair_sums", rows, rows.shape[-2]) is not None
    )


def pair_sums(rows: Rows, orders: Orders, sizes: Sizes, start: int = 0) -> Pairs:
    """Return the squared distances in the groups, ``[runs, groups, clients, clients]``, float64.

    ``rows [runs, clients, width]`` are the coordinates from `start` on, as many as there are: sums
    of pieces add up. All are read in their own order, and the squared difference of each pair is
    added to its group. Nothing cancels, and nothing is copied.
    """
    kernel = backend("pair_sums", rows, rows.shape[-2])
    if kernel is not None and all(isinstance(order, KeyedOrder) for order in orders):
        found: Tensor = kernel(rows, orders, sizes, start)
        return found
    num_clients, width = rows.shape[-2:]
    num_groups = sizes[0] + sizes[2]
    values = rows.cpu().double()
    result = values.new_zeros(len(rows), num_groups, num_clients, num_clients)
    for run, own in enumerate(values):
        positions = orders[run % len(orders)].positions_between(start, start + width)
        groups = torch.from_numpy(groups_at(positions, sizes)).long()
        for i in range(1, num_clients):
            for j in range(i):
                squared = (own[i] - own[j]).square_()
                total = torch.bincount(groups, squared, minlength=num_groups)
                result[run, :, i, j] = result[run, :, j, i] = total
    return result.to(rows.device)
