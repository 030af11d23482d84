"""Triton kernels; `cuda` is the way in."""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Triton's sort works on powers of two; what is missing is filled with infinity, which goes last.


@triton.jit
def _mean_of_ranks(
    source, result, num_rows, num_clients, row_stride, client_stride, first, last, share,
    ROWS: tl.constexpr, CLIENTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    client = tl.arange(0, CLIENTS)
    at = row[:, None] * row_stride + client[None, :].to(tl.int64) * client_stride
    inside = (row < num_rows)[:, None] & (client < num_clients)[None, :]
    ranked = tl.sort(tl.load(source + at, mask=inside, other=float("inf")), dim=1)
    counts = (client >= first) & (client < last)
    total = tl.sum(tl.where(counts[None, :], ranked * share, 0.0), axis=1)
    tl.store(result + row, total, mask=row < num_rows)


def mean_of_ranks(source: Tensor, result: Tensor, first: int, last: int) -> None:
    """Sort each row of a matrix of any strides and average some ranks."""
    num_rows, num_clients = source.shape
    width = max(2, triton.next_power_of_2(num_clients))
    rows = max(16, 4096 // width)
    _mean_of_ranks[(triton.cdiv(num_rows, rows),)](
        source, result, num_rows, num_clients, *source.stride(), first, last,
        1.0 / (last - first), ROWS=rows, CLIENTS=width, num_warps=4,
    )


@triton.jit
def _sum_of_smallest(
    source, result, num_rows, num_values, num_smallest, ROWS: tl.constexpr, VALUES: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    value = tl.arange(0, VALUES)
    at = row[:, None] * num_values + value[None, :]
    inside = (row < num_rows)[:, None] & (value < num_values)[None, :]
    ranked = tl.sort(tl.load(source + at, mask=inside, other=float("inf")), dim=1)
    counts = value < num_smallest
    total = tl.sum(tl.where(counts[None, :], ranked, 0.0), axis=1)
    tl.store(result + row, total, mask=row < num_rows)


def sum_of_smallest(source: Tensor, result: Tensor, num_smallest: int) -> None:
    """Add up the smallest values of each row of a contiguous matrix."""
    num_rows, num_values = source.shape
    width = max(2, triton.next_power_of_2(num_values))
    rows = max(8, 2048 // width)
    _sum_of_smallest[(triton.cdiv(num_rows, rows),)](
        source, result, num_rows, num_values, num_smallest, ROWS=rows, VALUES=width, num_warps=4
    )


@triton.jit
def _scatter(
    source, place, middle, target, dim, num_clients, dim_stride, client_stride,
    IS_CENTRED: tl.constexpr, DIM: tl.constexpr, CLIENTS: tl.constexpr,
):
    coordinate = tl.program_id(0).to(tl.int64) * DIM + tl.arange(0, DIM)
    client = tl.arange(0, CLIENTS).to(tl.int64)
    inside = (client < num_clients)[:, None] & (coordinate < dim)[None, :]
    at = client[:, None] * client_stride + coordinate[None, :] * dim_stride
    tile = tl.load(source + at, mask=inside)
    if IS_CENTRED:
        offset = tl.load(middle).to(tl.int64) * client_stride + coordinate * dim_stride
        tile -= tl.load(source + offset, mask=coordinate < dim)[None, :]
    to = tl.load(place + coordinate, mask=coordinate < dim, other=-1).to(tl.int64)
    wanted = (to >= 0)[:, None] & (client < num_clients)[None, :]
    tl.store(target + to[:, None] * num_clients + client[None, :], tl.trans(tile), mask=wanted)


def scatter(source: Tensor, place: Tensor, middle: Tensor | None, target: Tensor) -> None:
    """Copy each coordinate of ``source [dim, clients]`` to its place among the rows of `target`."""
    dim, num_clients = source.shape
    width = max(16, triton.next_power_of_2(num_clients))
    step = max(32, 8192 // width)
    _scatter[(triton.cdiv(dim, step),)](
        source, place, place if middle is None else middle, target, dim, num_clients,
        *source.stride(), IS_CENTRED=middle is not None, DIM=step, CLIENTS=width, num_warps=8,
    )


@triton.jit
def _clear(index, target, num_rows, num_clients, ROWS: tl.constexpr, CLIENTS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    client = tl.arange(0, CLIENTS)
    is_empty = tl.load(index + row, mask=row < num_rows, other=0) < 0
    mask = is_empty[:, None] & (client < num_clients)[None, :]
    zeros = tl.zeros((ROWS, CLIENTS), dtype=tl.float32)
    tl.store(target + row[:, None] * num_clients + client[None, :], zeros, mask=mask)


def clear(index: Tensor, target: Tensor) -> None:
    """Write zeros into the rows whose index is negative."""
    num_rows, num_clients = target.shape
    width = triton.next_power_of_2(num_clients)
    _clear[(triton.cdiv(num_rows, 128),)](
        index, target, num_rows, num_clients, ROWS=128, CLIENTS=width, num_warps=4
    )


@triton.jit
def _squared_distances(products, result, doubtful, num_clients, doubt, CLIENTS: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * num_clients * num_clients
    client = tl.arange(0, CLIENTS)
    known = client < num_clients
    inside = known[:, None] & known[None, :]
    at = start + client[:, None] * num_clients + client[None, :]
    norms = tl.load(products + start + client * (num_clients + 1), mask=known, other=0.0)
    norms = norms.to(tl.float64)
    inner = tl.load(products + at, mask=inside, other=0.0).to(tl.float64)
    far = norms[:, None] - 2.0 * inner + norms[None, :]
    far = tl.where(far > 0.0, far, 0.0)
    is_other = client[:, None] != client[None, :]
    larger = tl.where(norms[:, None] > norms[None, :], norms[:, None], norms[None, :])
    # What overflowed is not a number in one of these and fails the comparison.
    is_sure = (far >= larger * doubt) & (larger < float("inf"))
    tl.store(result + at, tl.where(is_other, far, 0.0), mask=inside)
    above = client[:, None] < client[None, :]
    tl.store(doubtful + at, (above & (is_sure == 0)).to(tl.int8), mask=inside)


def squared_distances(products: Tensor, result: Tensor, doubtful: Tensor, doubt: float) -> None:
    """Turn inner products into squared distances, one program per group."""
    num_groups, num_clients, _ = products.shape
    _squared_distances[(num_groups,)](
        products, result, doubtful.view(torch.int8), num_clients, doubt,
        CLIENTS=max(2, triton.next_power_of_2(num_clients)), num_warps=4,
    )
