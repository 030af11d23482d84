"""Order statistics over the clients on NVIDIA GPUs, by Triton kernels.

`rules.order_statistics` has the same in plain torch, which tests compare with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from outvote.kernels import is_for_kernels, load_kernels

if TYPE_CHECKING:
    from outvote.axes import Columns, PerCoordinate

MOST_CLIENTS = 1024


def _kernels() -> Any:
    return load_kernels("outvote.kernels.order_triton")


def can_select(columns: Columns) -> bool:
    """Return whether the kernels can work on these values."""
    return (
        is_for_kernels(columns)
        and columns.dtype == torch.float32
        and columns.dim() <= 4
        and columns.shape[-1] <= MOST_CLIENTS
        and columns.numel() > 0
        and _kernels() is not None
    )


def mean_of_ranks(columns: Columns, first: int, last: int) -> PerCoordinate:
    """Return the mean of the sorted values `first` up to, not with, `last` per coordinate."""
    mean = _per_coordinate(columns)
    _kernels().ranks(_four_axes(columns), first, last, mean, ())
    return mean


def values_at_ranks(columns: Columns, first: int, last: int) -> tuple[PerCoordinate, PerCoordinate]:
    """Return the first and the last of the sorted values `first` up to `last`."""
    bounds = _per_coordinate(columns), _per_coordinate(columns)
    _kernels().ranks(_four_axes(columns), first, last, None, bounds)
    return bounds


def mean_nearest(
    columns: Columns, ranks_of_median: tuple[int, int], num_nearest: int, index: Tensor | None
) -> PerCoordinate:
    """Return the mean of the values nearest to the median; of all clients, or those in `index`."""
    mean = _per_coordinate(columns)
    columns, index = _four_axes(columns), _of_matrices(index)
    _kernels().nearest(columns, index, ranks_of_median, num_nearest, mean, ())
    return mean


def bounds_nearest(
    columns: Columns, ranks_of_median: tuple[int, int], num_nearest: int, index: Tensor | None
) -> tuple[PerCoordinate, PerCoordinate]:
    """Return the smallest and the largest of the values nearest to the median."""
    bounds = _per_coordinate(columns), _per_coordinate(columns)
    columns, index = _four_axes(columns), _of_matrices(index)
    _kernels().nearest(columns, index, ranks_of_median, num_nearest, None, bounds)
    return bounds


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


def _of_matrices(index: Tensor | None) -> Tensor | None:
    return None if index is None else index.reshape(-1, index.shape[-1])
