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
def _turn(
    source, target, dim, num_clients, dim_stride, client_stride,
    DIM: tl.constexpr, CLIENTS: tl.constexpr,
):
    coordinate = tl.program_id(0).to(tl.int64) * DIM + tl.arange(0, DIM)
    client = tl.arange(0, CLIENTS).to(tl.int64)
    inside = (client < num_clients)[:, None] & (coordinate < dim)[None, :]
    at = client[:, None] * client_stride + coordinate[None, :] * dim_stride
    tile = tl.load(source + at, mask=inside)
    to = coordinate[:, None] * num_clients + client[None, :]
    tl.store(target + to, tl.trans(tile), mask=tl.trans(inside))


def turn(source: Tensor, target: Tensor) -> None:
    """Copy a matrix ``[dim, clients]`` of any strides into one with the clients side by side."""
    dim, num_clients = source.shape
    width = max(16, triton.next_power_of_2(num_clients))
    step = max(32, 8192 // width)
    _turn[(triton.cdiv(dim, step),)](
        source, target, dim, num_clients, *source.stride(), DIM=step, CLIENTS=width, num_warps=8
    )


@triton.jit
def _grouped_gram(
    columns, index, centre, result, num_clients, width,
    STEP: tl.constexpr, CLIENTS: tl.constexpr, PRECISION: tl.constexpr,
):
    group = tl.program_id(0).to(tl.int64)
    client = tl.arange(0, CLIENTS)
    middle = tl.load(centre)
    total = tl.zeros((CLIENTS, CLIENTS), dtype=tl.float32)
    for start in range(0, width, STEP):
        at = start + tl.arange(0, STEP)
        place = tl.load(index + group * width + at, mask=at < width, other=0).to(tl.int64)
        inside = (at < width)[:, None] & (client < num_clients)[None, :]
        values = tl.load(columns + place[:, None] * num_clients + client[None, :], mask=inside, other=0.0)
        offset = tl.load(columns + place * num_clients + middle, mask=at < width, other=0.0)
        centred = tl.where(inside, values - offset[:, None], 0.0)
        total = tl.dot(tl.trans(centred), centred, total, input_precision=PRECISION)
    to = group * num_clients * num_clients + client[:, None] * num_clients + client[None, :]
    inside = (client < num_clients)[:, None] & (client < num_clients)[None, :]
    tl.store(result + to, total, mask=inside)


def grouped_gram(columns: Tensor, index: Tensor, centre: Tensor, result: Tensor) -> None:
    """Multiply the gathered, centred columns of every group with themselves."""
    num_groups, width = index.shape
    num_clients = columns.shape[-1]
    tile = max(16, triton.next_power_of_2(num_clients))
    _grouped_gram[(num_groups,)](
        columns, index, centre, result, num_clients, width,
        STEP=32, CLIENTS=tile, PRECISION=PRECISION, num_warps=4, num_stages=3,
    )


PRECISION = "ieee"
DTYPES = (torch.float32,)
