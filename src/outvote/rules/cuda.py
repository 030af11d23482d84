"""The same work on NVIDIA GPUs, by Triton kernels.

Each function here has a plain torch twin (in `linalg`, `order` and `reorder`) that is used where
Triton, the precision or the number of clients does not fit, and that tests compare with.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from outvote.axes import Columns, Pairs, PerCoordinate

LARGEST_TILE = 128
FEWEST_GROUPS = 64


@lru_cache(maxsize=1)
def _kernels() -> Any:
    if importlib.util.find_spec("triton") is None:
        return None
    from outvote.rules import cuda_kernels  # noqa: PLC0415  (needs Triton)

    return cuda_kernels


def is_usable(values: Tensor, num_clients: int) -> bool:
    """Tell whether the kernels can work on these values."""
    return (
        values.is_cuda
        and values.dtype == torch.float32
        and num_clients <= LARGEST_TILE
        and _kernels() is not None
    )


def can_sort(values: Tensor) -> bool:
    """Tell whether rows of these values can be sorted by a kernel."""
    return values.is_cuda and values.shape[-1] <= LARGEST_TILE and _kernels() is not None


def can_multiply(columns: Tensor, index: Tensor) -> bool:
    """Tell whether groups of these columns can be multiplied by a kernel."""
    enough = index.shape[1] >= FEWEST_GROUPS and columns.shape[-1] <= LARGEST_TILE // 2
    return is_usable(columns, columns.shape[-1]) and enough


def mean_of_ranks(columns: Columns, first: int, last: int) -> PerCoordinate:
    """Return the mean of the sorted values `first` up to `last` per coordinate."""
    flat = _as_matrix(columns)
    result = torch.empty(len(flat), device=flat.device)
    _kernels().mean_of_ranks(flat, result, first, last)
    return result.view(columns.shape[:-1])


def sum_of_smallest(values: Tensor, num_smallest: int) -> Tensor:
    """Return the sum of the smallest values along the last axis."""
    flat = values.reshape(-1, values.shape[-1])
    result = torch.empty(len(flat), dtype=values.dtype, device=values.device)
    _kernels().sum_of_smallest(flat, result, num_smallest)
    return result.view(values.shape[:-1])


def clients_last(columns: Columns) -> Columns:
    """Turn ``[runs, clients, dim]`` memory so that the clients of a coordinate are neighbours."""
    result = torch.empty(columns.shape, device=columns.device)
    for source, target in zip(columns, result, strict=True):
        _kernels().turn(source, target)
    return result


def grouped_gram(columns: Columns, index: Tensor, centre: Tensor) -> Pairs:
    """Return the Gram matrices of groups of coordinates, without copying the groups.

    `columns` is ``[runs, dim, clients]`` with the clients last in memory, `index` ``[runs, groups,
    width]``, `centre` the central client of each run.
    """
    runs, _, num_clients = columns.shape
    num_groups = index.shape[1]
    shape = (runs, num_groups, num_clients, num_clients)
    result = torch.empty(shape, device=columns.device)
    for run in range(runs):
        order = index[run % len(index)].contiguous()
        _kernels().grouped_gram(columns[run], order, centre[run : run + 1], result[run])
    return result


def _as_matrix(columns: Columns) -> Tensor:
    """View ``[..., dim, clients]`` as a matrix of coordinates by clients, of any strides."""
    if columns.shape[:-2].numel() == 1:
        return columns.view(columns.shape[-2:]) if columns.is_contiguous() else columns.flatten(0, -3)[0]
    return columns.reshape(-1, columns.shape[-1])
