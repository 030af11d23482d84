"""Sorting, scattering and distances over the clients on NVIDIA GPUs, by Triton kernels.

Each function here has an equivalent in plain torch (in `rules.distances`, `rules.order_statistics`
and `rules.split`), which is used where Triton, the precision or the number of clients does not fit,
and which tests compare with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from outvote.ops import cdiv, is_for_kernels, load_kernels

if TYPE_CHECKING:
    from outvote.axes import Columns, Pairs, PerClient

LARGEST_TILE = 128
MOST_CLIENTS = 1024
# Eight floats: memory is written in pieces of 32 bytes. Whole lines of 128 bytes are copied faster:
# 50 clients in 0.33 instead of 0.41 ms on an H200, though 64 are more bytes than 56.
SECTOR, LINE = 8, 32
# By how much of their length rows may grow to be whole lines.
MOST_ADDED = 0.2


class Positions(NamedTuple):
    """The position of each coordinate among groups."""

    table: Tensor
    """Of each coordinate ``[dim]`` (-1: none), or the shifts of a `KeyedOrder`; int32."""
    end: int
    """From this position on, every `small` coordinates are followed by an empty position."""
    small: int
    num_columns: int = 0
    """Of the matrix of a `KeyedOrder`; 0: the table has the positions."""


class Targets(Protocol):
    """Groups ``[runs, groups, width]``, given by the position that each coordinate takes."""

    shape: torch.Size

    def positions(self, run: int, dim: int) -> Positions:
        """Return the position of each coordinate."""


def _kernels() -> Any:
    return load_kernels("outvote.ops.triton.clients")


def is_usable(values: Tensor, num_clients: int) -> bool:
    """Return whether the kernels can work on these values."""
    return (
        is_for_kernels(values)
        and values.dtype == torch.float32
        and num_clients <= LARGEST_TILE
        and _kernels() is not None
    )


def can_sort(values: Tensor) -> bool:
    """Return whether rows of these values can be sorted by a kernel."""
    return is_for_kernels(values) and values.shape[-1] <= LARGEST_TILE and _kernels() is not None


def can_measure(products: Pairs) -> bool:
    """Return whether distances can be taken from these inner products by a kernel."""
    return is_for_kernels(products) and _kernels() is not None


def can_average(products: Pairs) -> bool:
    """Return whether distances to an average can be taken from these products by a kernel."""
    return can_measure(products) and products.shape[-1] <= MOST_CLIENTS


def can_compare(values: Tensor) -> bool:
    """Return whether all pairs of the last axis fit into one program of a kernel."""
    return (
        is_for_kernels(values) and values.shape[-1] <= LARGEST_TILE // 2 and _kernels() is not None
    )


def can_draw(table: Tensor) -> bool:
    """Return whether a kernel draws the shifts of an order into this table."""
    return is_for_kernels(table) and _kernels() is not None


def draw_shifts(seed: int, num_rows: int, table: Tensor) -> None:
    """Draw the shifts of a `KeyedOrder` into its table ``[rounds, columns]``."""
    load_kernels("outvote.ops.triton.shifts").shifts(seed, num_rows, table)  # type: ignore[union-attr]


def sum_of_smallest(values: Tensor, num_smallest: int) -> Tensor:
    """Return the sum of the smallest values along the last axis."""
    flat = values.reshape(-1, values.shape[-1])
    result = torch.empty(len(flat), dtype=values.dtype, device=values.device)
    _kernels().sum_of_smallest(flat, result, num_smallest)
    return result.view(values.shape[:-1])


def scattered(columns: Columns, targets: Targets, centre: Tensor | None = None) -> Tensor:
    """Copy coordinates to the positions of their groups, ``[runs, groups, width, clients]``.

    The clients are padded with zeros to whole lines or sectors of memory, and so are positions that
    no coordinate takes. With `centre`, that client's values are subtracted.
    """
    dim = columns.shape[1]
    result = _empty_groups(columns, targets)
    for run, (source, target) in enumerate(zip(columns, result, strict=True)):
        middle = None if centre is None else centre[run % len(centre)]
        positions = targets.positions(run, dim)
        _kernels().scatter(source, positions, middle, target.flatten(0, 1))
    return result


def scattered_and_squared(columns: Columns, targets: Targets) -> tuple[Tensor, Tensor]:
    """Return `scattered` for one run, and what its clients' squares sum up to, read once for both.

    The second is ``[pieces, clients]``, float64: the sums of pieces of the coordinates.
    """
    _, dim, num_clients = columns.shape
    result = _empty_groups(columns, targets)
    kernels = _kernels()
    shape = (cdiv(dim, kernels.scattered_at_once(result.shape[-1])), num_clients)
    squares = torch.empty(shape, dtype=torch.float64, device=columns.device)
    target = result.view(-1, result.shape[-1])
    kernels.scatter(columns[0], targets.positions(0, dim), None, target, squares)
    return result, squares


def _empty_groups(columns: Columns, targets: Targets) -> Tensor:
    runs, _, num_clients = columns.shape
    shape = (runs, *targets.shape[1:], padded_clients(num_clients))
    return torch.empty(shape, dtype=torch.float32, device=columns.device)


def padded_clients(num_clients: int) -> int:
    """Return how many values a copied coordinate has: whole lines of clients, or whole sectors."""
    sectors, lines = (cdiv(num_clients, unit) * unit for unit in (SECTOR, LINE))
    return lines if lines <= (1 + MOST_ADDED) * sectors else sectors


def squared_distances(
    products: Pairs, threshold: float, originals: Tensor | None, count: Tensor | None
) -> tuple[Pairs, Tensor]:
    """Return the squared distances (float64), and where cancellation makes them inexact.

    With `count`, inexact results are only added to it, and the second value means nothing.
    """
    flat = products.flatten(0, -3)
    result = torch.empty(flat.shape, dtype=torch.float64, device=flat.device)
    inexact = _mask_or_count(flat.shape, count, flat.device)
    _kernels().squared_distances(flat, _by_group(originals), result, inexact, threshold)
    return result.view(products.shape), inexact if count is not None else inexact.view(
        products.shape
    )


def sums_of_smallest_distances(
    products: Pairs, num_smallest: int, threshold: float, originals: Tensor | None, count: Tensor
) -> PerClient:
    """Return the sum of every client's smallest squared distances, float64.

    Inexact distances are added to `count`, as by `squared_distances`.
    """
    shape = products.shape[:-1]
    result = torch.empty(shape, dtype=torch.float64, device=products.device)
    flat = products.flatten(0, -3)
    _kernels().sums_of_smallest_distances(
        flat, _by_group(originals), result, count, num_smallest, threshold
    )
    return result


def squared_distances_to_average(
    products: Pairs,
    weights: PerClient,
    originals: Tensor | None,
    threshold: float,
    count: Tensor | None,
) -> tuple[PerClient, Tensor]:
    """Return the squared distances to an average (float64), and the groups that are inexact.

    Copies of a client that is the average alone are exactly at 0. With `count`, inexact groups are
    only added to it, and the second value means nothing.
    """
    flat = products.flatten(0, -3)
    shape = products.shape[:-1]
    result = torch.empty(shape, dtype=torch.float64, device=products.device)
    inexact = _mask_or_count(shape[:-1], count, products.device)
    _kernels().squared_distances_to_average(
        flat, weights.contiguous(), _by_group(originals), result, inexact, threshold
    )
    return result, inexact


def _by_group(originals: Tensor | None) -> Tensor | None:
    """Return the first client equal to each, one row per run, or per group where they differ."""
    return None if originals is None else originals.flatten(0, -2)


def _mask_or_count(shape: torch.Size, count: Tensor | None, device: torch.device) -> Tensor:
    return torch.empty(shape, dtype=torch.bool, device=device) if count is None else count


def smallest(scores: PerClient, num_smallest: int) -> Tensor:
    """Mark the smallest scores along the last axis; equal scores go to the lower index."""
    result = torch.empty(scores.shape, dtype=torch.bool, device=scores.device)
    flat = scores.contiguous().view(-1, scores.shape[-1])
    _kernels().smallest(flat, result.view(flat.shape), num_smallest)
    return result
