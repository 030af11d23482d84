"""Distances, products and averages of the clients in groups of coordinates, by Triton kernels.

Each function has an equivalent in plain torch in `rules.distances` and `rules.client_matrix`.
"""

from __future__ import annotations

from math import ceil, frexp, gcd, inf, ldexp, prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from outvote.ops import client_kernels, is_for_kernels, load_kernels

if TYPE_CHECKING:
    from outvote.axes import Columns, Pairs, PerClient, PerCoordinate, Rows

# Squares of twice this are finite in float32.
SAFE_NORM = 1e18
# Of the longest client and of a factor, in powers of two: squares of twice 2 ** 61 are finite.
LARGEST_EXPONENT, LARGEST_SCALE = 61, 120
# Up to this many coordinates, differences of all pairs take less time than products and checks.
FEW_COORDINATES = 32
# Coordinates of one program that forms products, and programs that keep every processor busy.
SHORTEST_PIECE, LONGEST_PIECE = 1024, 4096
PIECE_UNIT = 32
ENOUGH_PROGRAMS = 768
# Up to this many clients, a kernel forms products; of more, and of all but `FEW_CLIENTS` where it
# is not to use tensor cores, the matrix product of a library on values that are centred before.
FEW_CLIENTS, MOST_MULTIPLIED = 8, 64
USES_TENSOR_CORES = True
# Coordinates of one program that adds up squares, of one client or a few, and of all.
SQUARED_PIECE, MEASURED_PIECE = 8192, 4096
# Groups whose distances one program adds up.
ADDED_GROUPS = 4096
# Sums of pieces that one program adds up, and that are added up before where there are more.
FEW_PIECES, LARGER_PIECE = 512, 256
# Values that are read together, at most.
LARGEST_UNIT = 16
NARROW_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


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


def _narrow() -> Any:
    return load_kernels("outvote.ops.triton.groups")


def _gram() -> Any:
    return load_kernels("outvote.ops.triton.gram")


def _rows() -> Any:
    return load_kernels("outvote.ops.triton.rows")


def are_few(num_coordinates: int, kind: Tensor, num_clients: int) -> bool:
    """Return whether distances in so many coordinates are taken from differences, by a kernel."""
    return num_coordinates <= FEW_COORDINATES and client_kernels.is_usable(kind, num_clients)


def is_usable(columns: Columns) -> bool:
    """Return whether the kernels can read these values, as they are."""
    return can_add(columns.mT, of_any_stride=True) and (
        columns.shape[-1] <= client_kernels.LARGEST_TILE
    )


def can_multiply(columns: Columns) -> bool:
    """Return whether a kernel forms the inner products of these clients."""
    most = MOST_MULTIPLIED if USES_TENSOR_CORES else FEW_CLIENTS
    return columns.shape[-1] <= most and is_usable(columns)


def can_compare(columns: Columns) -> bool:
    """Return whether these are few enough coordinates to be worked on one after another."""
    return 0 < columns.shape[-2] <= client_kernels.LARGEST_TILE and is_usable(columns)


def can_add(rows: Rows, *, of_any_stride: bool = False) -> bool:
    """Return whether a kernel can add up these rows, coordinates side by side."""
    return (
        is_for_kernels(rows)
        and rows.dtype in NARROW_FLOATS
        and (of_any_stride or (rows.dim() == 3 and rows.stride(-1) == 1))
        and _narrow() is not None
    )


def sums_of_smallest(columns: Columns, num_smallest: int, largest_norm: float = inf) -> PerClient:
    """Return the sum of the smallest squared distances of every client, itself one of them.

    Where no client is longer than `largest_norm` and that is below `SAFE_NORM`, distances are taken
    in float32: in 32 coordinates a sum has a relative error of 3e-6 at most, unless clients that
    differ do so by less than 1e-36 of that norm. Else they are taken in float64.
    """
    groups, result = _grouped(columns), _per_client(columns)
    if largest_norm < SAFE_NORM:
        _narrow().sums_of_smallest(groups, result, num_smallest, scale_for(largest_norm))
    else:
        # Every value is compared with all clients: it is converted once, not for each of them.
        _narrow().exact_sums_of_smallest(groups.double(), result, num_smallest)
    return result


def scale_for(largest_norm: float) -> float:
    """Return the power of two that makes squared distances as large as is safe in float32."""
    exponent = frexp(largest_norm)[1]
    return ldexp(1.0, min(LARGEST_EXPONENT - exponent, LARGEST_SCALE))


def pairwise_differences(columns: Columns) -> Pairs:
    """Return the squared distances between all pairs, float64."""
    num_clients = columns.shape[-1]
    shape = (*columns.shape[:-2], num_clients, num_clients)
    result = torch.empty(shape, dtype=torch.float64, device=columns.device)
    _narrow().pairwise_differences(_grouped(columns), result)
    return result


def distances_to_average(columns: Columns, weights: PerClient) -> PerClient:
    """Return the squared distances to a weighted average of the clients, float64."""
    result = _per_client(columns)
    _narrow().distances_to_average(_grouped(columns), weights.contiguous(), result)
    return result


def average_of_smallest(scores: PerClient, num_smallest: int) -> PerClient:
    """Return equal weights for the clients with the smallest scores, float64."""
    result = torch.empty(scores.shape, dtype=torch.float64, device=scores.device)
    flat = scores.contiguous().view(-1, scores.shape[-1])
    _narrow().average_of_smallest(flat, result, num_smallest)
    return result


def can_add_roots(squared: PerClient) -> bool:
    """Return whether a kernel adds up the roots of these numbers, ``[runs, groups, clients]``."""
    is_kind = squared.dtype == torch.float64 and squared.dim() == 3 and squared.numel() > 0
    return is_kind and is_for_kernels(squared) and _rows() is not None


def sums_of_roots(squared: PerClient) -> PerClient:
    """Return the sums over the groups of the roots, float64; numbers below 0 count as 0."""
    runs, num_groups, num_clients = squared.shape
    shape = (runs, ceil(num_groups / ADDED_GROUPS), num_clients)
    parts = torch.empty(shape, dtype=torch.float64, device=squared.device)
    _rows().sums_of_roots(squared.contiguous(), parts, ADDED_GROUPS)
    return parts[:, 0] if shape[1] == 1 else parts.sum(dim=1)


def weighted_sum(rows: Rows, weights: PerClient) -> PerCoordinate:
    """Return the sum of ``rows [runs, clients, dim]``, float32, added up in float64."""
    shape = (rows.shape[0], rows.shape[-1])
    result = torch.empty(shape, dtype=torch.float32, device=rows.device)
    _narrow().weighted_sum(rows, weights.contiguous(), result)
    return result


def square_sums(rows: Rows, minus: PerCoordinate | None = None) -> PerClient:
    """Return the squared norms of ``rows [runs, clients, dim]``, or of ``rows - minus``, float64.

    Coordinates are side by side; `minus` is a vector per run.
    """
    if minus is not None:
        minus = minus.expand(rows.shape[0], rows.shape[2]).contiguous()
    parts = square_sums_of_pieces(rows, minus)
    return parts[:, 0] if parts.shape[1] == 1 else parts.sum(dim=1)


def square_sums_of_pieces(rows: Rows, minus: PerCoordinate | None = None) -> Tensor:
    """Return `square_sums` of pieces of the coordinates, ``[runs, pieces, clients]``."""
    runs, num_clients, dim = rows.shape
    shape = (runs, ceil(dim / SQUARED_PIECE), num_clients)
    parts = torch.empty(shape, dtype=torch.float64, device=rows.device)
    layout = layout_of(rows.mT.unsqueeze(1))
    _rows().square_sums(rows, minus, parts, SQUARED_PIECE, layout)
    return parts


def lengths(pieces: Tensor, shortest: float, longest: float) -> tuple[Tensor, Tensor]:
    """Return the lengths of the clients from sums of their squares ``[pieces, clients]``.

    The first result goes on with how many clients are unusual, that is not shorter than `longest`,
    of the same length as another, or, the median one, shorter than `shortest`. Its last number, at
    an aligned address, is 0: to count something else in. The second result is the client of median
    length, ``[1]``.
    """
    if len(pieces) > FEW_PIECES:
        larger = pieces.new_empty(ceil(len(pieces) / LARGER_PIECE), pieces.shape[1])
        _rows().larger_pieces(pieces, larger, LARGER_PIECE)
        pieces = larger
    last = (pieces.shape[1] + 2) // 2 * 2
    found = torch.empty(last + 1, dtype=torch.float64, device=pieces.device)
    centre = torch.empty(1, dtype=torch.int64, device=pieces.device)
    _rows().lengths(pieces, found, centre, shortest, longest)
    return found, centre


def can_measure(columns: Columns) -> bool:
    """Return whether a kernel measures these clients against a vector, read in order."""
    if columns.numel() == 0 or columns.dim() < 3 or not can_add(columns.mT, of_any_stride=True):
        return False
    are_rows = columns.dim() == 3 and columns.stride(-2) == 1
    are_columns = columns.stride(-1) == 1 and columns.shape[-1] <= client_kernels.LARGEST_TILE
    return are_rows or are_columns


def squared_distances_to_vector(columns: Columns, vector: PerCoordinate) -> PerClient:
    """Return how far every client is from a vector of its run and group, squared, float64."""
    if columns.dim() == 3 and columns.stride(-2) == 1:
        return square_sums(columns.mT, vector)
    groups = _grouped(columns)
    runs, num_groups, dim, num_clients = groups.shape
    shape = (runs * num_groups, ceil(dim / MEASURED_PIECE), num_clients)
    parts = torch.empty(shape, dtype=torch.float64, device=columns.device)
    point = vector.expand(columns.shape[:-1]).contiguous()
    _rows().distances_to_vector(groups, point, parts, MEASURED_PIECE, layout_of(groups))
    found = parts[:, 0] if shape[1] == 1 else parts.sum(dim=1)
    return found.reshape(*columns.shape[:-2], num_clients)


def products(columns: Columns, centre: Tensor) -> Pairs:
    """Return the inner products of the clients relative to the central one of their run.

    In float32, or, from pieces of many coordinates, in float64. Every group may have a centre of
    its own, ``[runs, groups]``.
    """
    groups = _grouped(columns)
    if centre.dim() > 1:
        groups = groups.flatten(0, 1).unsqueeze(1)
        centre = centre.flatten()
    dim, num_clients = columns.shape[-2:]
    num_matrices = prod(groups.shape[:2])
    piece = piece_length(num_matrices, dim)
    shape = (*groups.shape[:2], ceil(dim / piece), num_clients, num_clients)
    parts = torch.empty(shape, dtype=torch.float32, device=columns.device)
    middle = centre.expand(len(groups)).contiguous()
    _gram().products(groups, middle, parts, piece, layout_of(groups))
    found = parts[:, :, 0] if shape[2] == 1 else parts.sum(dim=2, dtype=torch.float64)
    return found.view(*columns.shape[:-2], num_clients, num_clients)


def piece_length(num_matrices: int, dim: int) -> int:
    """Return how many coordinates one program multiplies."""
    num_pieces = ceil(ENOUGH_PROGRAMS / num_matrices)
    piece = min(max(ceil(dim / num_pieces), SHORTEST_PIECE), LONGEST_PIECE)
    return ceil(dim / ceil(dim / piece) / PIECE_UNIT) * PIECE_UNIT


def layout_of(columns: Columns) -> Layout:
    """Return how ``columns [runs, groups, dim, clients]`` lie in memory."""
    run, group, coordinate, client = columns.stride()
    dim, num_clients = columns.shape[-2:]
    if coordinate == 1:
        unit = gcd(run, group, client, dim, LARGEST_UNIT)
        return Layout((run // unit, group // unit, 1, client // unit), unit, 0, are_rows=True)
    is_padded = (
        coordinate % client_kernels.SECTOR == 0 and coordinate <= client_kernels.LARGEST_TILE
    )
    if client == 1 and num_clients <= coordinate and is_padded and _has_last_padding(columns):
        unit = gcd(run, group, coordinate, LARGEST_UNIT)
        strides = (run // unit, group // unit, coordinate // unit, 1)
        return Layout(strides, unit, coordinate, are_rows=False)
    return Layout((run, group, coordinate, client), 1, 0, are_rows=False)


def _per_client(columns: Columns) -> PerClient:
    shape = (*columns.shape[:-2], columns.shape[-1])
    return torch.empty(shape, dtype=torch.float64, device=columns.device)


def _grouped(columns: Columns) -> Columns:
    """View as ``[runs, groups, dim, clients]``."""
    return columns.unsqueeze(1) if columns.dim() == 3 else columns.flatten(1, -3)


def _has_last_padding(columns: Columns) -> bool:
    """Return whether there is memory for what is between the coordinates, after the last one."""
    sizes = zip(columns.shape[:-1], columns.stride()[:-1], strict=True)
    last = columns.storage_offset() + sum((size - 1) * stride for size, stride in sizes)
    num_values = columns.untyped_storage().nbytes() // columns.element_size()
    return last + columns.stride(-2) <= num_values
