"""How values lie in memory, for kernels that read them as they are."""

from math import gcd
from typing import NamedTuple

from torch import Tensor

from outvote.axes import Columns

# Values that are read together, at most.
LARGEST_UNIT = 16
# Eight floats: memory is read and written in pieces of 32 bytes. The widest coordinate.
SECTOR, WIDEST = 8, 128


class Layout(NamedTuple):
    """How ``columns [runs, groups, dim, clients]`` lie in memory."""

    strides: tuple[int, int, int, int]
    """In units; the stride of what is side by side is 1."""
    unit: int
    """So many values are at an address that is a multiple of their size."""
    width: int
    """Of a coordinate: clients side by side and padding that may be read; 0: any other order."""
    are_rows: bool
    """Whether coordinates are side by side."""


def layout_of(columns: Columns) -> Layout:
    """Return how ``columns [runs, groups, dim, clients]`` lie in memory."""
    run, group, coordinate, client = columns.stride()
    dim, num_clients = columns.shape[-2:]
    if coordinate == 1:
        unit = gcd(run, group, client, dim, LARGEST_UNIT)
        return Layout((run // unit, group // unit, 1, client // unit), unit, 0, are_rows=True)
    is_padded = coordinate % SECTOR == 0 and num_clients <= coordinate <= WIDEST
    if client == 1 and is_padded and _has_last_padding(columns):
        unit = gcd(run, group, coordinate, LARGEST_UNIT)
        strides = (run // unit, group // unit, coordinate // unit, 1)
        return Layout(strides, unit, coordinate, are_rows=False)
    return Layout((run, group, coordinate, client), 1, 0, are_rows=False)


def grouped(columns: Columns) -> Columns:
    """View as ``[runs, groups, dim, clients]``."""
    return columns.unsqueeze(1) if columns.dim() == 3 else columns.flatten(1, -3)


def _has_last_padding(columns: Tensor) -> bool:
    """Return whether there is memory for what is between the coordinates, after the last one."""
    sizes = zip(columns.shape[:-1], columns.stride()[:-1], strict=True)
    last = columns.storage_offset() + sum((size - 1) * stride for size, stride in sizes)
    num_values = columns.untyped_storage().nbytes() // columns.element_size()
    return last + columns.stride(-2) <= num_values
