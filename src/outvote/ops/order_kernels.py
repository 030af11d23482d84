"""Order statistics over the clients on NVIDIA GPUs, by Triton kernels.

`rules.order_statistics` has the same in plain torch, which tests compare with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from outvote.ops import is_for_kernels, load_kernels

if TYPE_CHECKING:
    from outvote.axes import Columns, PerClient, PerCoordinate

MOST_CLIENTS = 1024
# Coordinates are numbered by 32 bits, some past the last one.
LARGEST_INDEX = 2**31 - 2**16


def _kernels() -> Any:
    return load_kernels("outvote.ops.triton.order")


def comparators(num: int) -> list[tuple[int, int]]:
    """Return the pairs that Batcher's odd-even merge sort puts in order, one after the other."""
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


def can_select(columns: Columns) -> bool:
    """Return whether the kernels can work on these values."""
    return (
        is_for_kernels(columns)
        and columns.dtype == torch.float32
        and columns.dim() <= 4
        and columns.shape[-1] <= MOST_CLIENTS
        and columns.numel() > 0
        and columns.shape[:-1].numel() < LARGEST_INDEX
        and _kernels() is not None
    )


def mean_of_ranks(columns: Columns, first: int, last: int) -> PerCoordinate:
    """Return the mean of the sorted values `first` up to, not with, `last` per coordinate."""
    mean = _per_coordinate(columns)
    _kernels().ranks(_four_axes(columns), first, last, mean, (), None)
    return mean


def values_at_ranks(columns: Columns, first: int, last: int) -> tuple[PerCoordinate, PerCoordinate]:
    """Return the first and the last of the sorted values `first` up to `last`."""
    bounds = _per_coordinate(columns), _per_coordinate(columns)
    _kernels().ranks(_four_axes(columns), first, last, None, bounds, None)
    return bounds


def mean_of_ranks_and_shares(
    columns: Columns, first: int, last: int
) -> tuple[PerCoordinate, PerClient]:
    """Return the mean, and the share of coordinates where each client is between the bounds."""
    mean, counts = _per_coordinate(columns), _counts(columns)
    _kernels().ranks(_four_axes(columns), first, last, mean, (), counts)
    return mean, _shares(columns, counts)


def mean_nearest(
    columns: Columns, ranks_of_median: tuple[int, int], num_nearest: int, among: Tensor | None
) -> PerCoordinate:
    """Return the mean of the values nearest to the median; of all clients, or those in `among`."""
    mean = _per_coordinate(columns)
    given = _four_axes(columns), _marked(among), ranks_of_median, num_nearest
    _kernels().nearest(*given, mean, (), None)
    return mean


def bounds_nearest(
    columns: Columns, ranks_of_median: tuple[int, int], num_nearest: int, among: Tensor | None
) -> tuple[PerCoordinate, PerCoordinate]:
    """Return the smallest and the largest of the values nearest to the median."""
    bounds = _per_coordinate(columns), _per_coordinate(columns)
    given = _four_axes(columns), _marked(among), ranks_of_median, num_nearest
    _kernels().nearest(*given, None, bounds, None)
    return bounds


def mean_nearest_and_shares(
    columns: Columns, ranks_of_median: tuple[int, int], num_nearest: int, among: Tensor | None
) -> tuple[PerCoordinate, PerClient]:
    """Return the mean, and the share of coordinates where each client is between the bounds."""
    mean, counts = _per_coordinate(columns), _counts(columns)
    given = _four_axes(columns), _marked(among), ranks_of_median, num_nearest
    _kernels().nearest(*given, mean, (), counts)
    return mean, _shares(columns, counts)


def can_count(columns: Columns) -> bool:
    """Return whether the kernels can count while they select: in one matrix per run."""
    return columns.dim() <= 3 and can_select(columns)


def _counts(columns: Columns) -> Tensor:
    """Return memory for what every program counts, ``[runs, programs, clients or more]``."""
    shape = _kernels().shape_of_counts(_four_axes(columns))
    return torch.empty(shape, dtype=torch.uint8, device=columns.device)


def _shares(columns: Columns, counts: Tensor) -> PerClient:
    num_clients = columns.shape[-1]
    total = counts.sum(dim=1)[:, :num_clients].reshape(*columns.shape[:-2], num_clients)
    return total.double() / columns.shape[-2]


def _per_coordinate(columns: Columns) -> Tensor:
    return torch.empty(columns.shape[:-1], dtype=torch.float32, device=columns.device)


def _four_axes(columns: Columns) -> Tensor:
    """View as ``[runs, groups, width, clients]``."""
    shape = columns.shape
    if columns.dim() == 4:
        return columns
    if columns.dim() == 3:
        return columns.unsqueeze(1)
    return columns.view(1, 1, *shape) if columns.dim() == 2 else columns.view(1, 1, 1, *shape)


def _marked(among: Tensor | None) -> Tensor | None:
    """Return which clients count, in the form that the kernels read."""
    if among is None:
        return None
    num_clients = among.shape[-1]
    marks = among.reshape(-1, num_clients)
    if not _kernels().has_network(num_clients):
        return marks.to(torch.int8)
    bits = torch.arange(num_clients, device=among.device)
    return (marks.long() << bits).sum(dim=-1)
