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


def mean_of_ranks(columns: Columns, first: int, last: int) -> PerCoordinate:
    """Return the mean of the sorted values `first` up to `last` per coordinate."""
    if not columns.is_contiguous():
        everything = torch.arange(columns.shape[-2], device=columns.device).view(1, 1, -1)
        if columns.dim() == 3:
            columns = scattered(columns, everything)[:, 0]
        columns = columns.contiguous()
    flat = columns.view(-1, columns.shape[-1])
    result = torch.empty(len(flat), device=flat.device)
    _kernels().mean_of_ranks(flat, result, first, last)
    return result.view(columns.shape[:-1])


def sum_of_smallest(values: Tensor, num_smallest: int) -> Tensor:
    """Return the sum of the smallest values along the last axis."""
    flat = values.reshape(-1, values.shape[-1])
    result = torch.empty(len(flat), dtype=values.dtype, device=values.device)
    _kernels().sum_of_smallest(flat, result, num_smallest)
    return result.view(values.shape[:-1])


def scattered(columns: Columns, block: Tensor, centre: Tensor | None = None) -> Columns:
    """Copy the coordinates of a block of groups, ``[runs, groups, width, clients]``.

    `columns` is ``[runs, dim, clients]`` of any strides, `block` ``[runs, groups, width]`` with -1
    for padding, which becomes 0. With `centre`, that client's values are subtracted.
    """
    runs, dim, num_clients = columns.shape
    result = torch.empty(runs, *block.shape[1:], num_clients, device=columns.device)
    for run in range(runs):
        index = block[run % len(block)].reshape(-1)
        place = torch.full((dim + 1,), -1, dtype=torch.int32, device=columns.device)
        slots = torch.arange(len(index), dtype=torch.int32, device=columns.device)
        # A negative index becomes the last place, which no coordinate has.
        place[torch.where(index < 0, dim, index).long()] = slots
        middle = None if centre is None else centre[run % len(centre)]
        _kernels().scatter(columns[run], place, middle, result[run].view(-1, num_clients))
        _kernels().clear(index, result[run].view(-1, num_clients))
    return result


def squared_distances(products: Pairs, doubt: float) -> tuple[Pairs, Tensor]:
    """Return the squared distances (float64), and where they cannot be trusted."""
    num_clients = products.shape[-1]
    flat = products.reshape(-1, num_clients, num_clients)
    result = torch.empty(flat.shape, dtype=torch.float64, device=flat.device)
    doubtful = torch.empty(flat.shape, dtype=torch.bool, device=flat.device)
    _kernels().squared_distances(flat, result, doubtful, doubt)
    return result.view(products.shape), doubtful.view(products.shape)
