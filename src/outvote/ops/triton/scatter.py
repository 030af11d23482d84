"""Triton kernels that copy coordinates in a random order, see `ops.groups.in_order`.

The shifts of a `KeyedOrder` are drawn on the GPU: by Philox with four words of 64 bits and ten
rounds, as numpy has it, to the last bit (Salmon et al., 2011, Parallel random numbers: as easy as
1, 2, 3). A GPU writes at random faster than it reads, whole lines of memory best.
"""

from collections.abc import Sequence
from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor

from outvote.axes import Columns, Rows
from outvote.ops.groups import KeyedOrder
from outvote.ops.triton import cdiv, next_power_of_2
from outvote.ops.triton.layout import SECTOR

# Programs draw so many times four numbers.
BLOCK = 128
FIRST_FACTOR, FIRST_STEP = tl.constexpr(0xD2E7470EE14C6C93), tl.constexpr(0x9E3779B97F4A7C15)
SECOND_FACTOR, SECOND_STEP = tl.constexpr(0xCA5A826395121157), tl.constexpr(0xBB67AE8584CAA73B)
# Memory is written in pieces of 32 bytes. Whole lines of 128 bytes are copied faster: 50 clients in
# 0.33 instead of 0.41 ms on an H200, though 64 are more bytes than 56. Rows may grow by this much.
LINE, MOST_ADDED = 32, 0.2
# Values that are read together, at most; values that a program copies, and its warps.
LARGEST_UNIT = 4
COPIED_AT_ONCE, COPY_WARPS = 4096, 4


@triton.jit
def _store_shift(result, at, drawn, num_values, num_rows, num_columns):
    """Store the upper half of a number as a fraction of the rows, or in even rounds columns."""
    bound = tl.where((at // num_columns) % 2 == 0, num_columns, num_rows).to(tl.uint64)
    shift = ((drawn >> 32) * bound) >> 32
    tl.store(result + at, shift.to(tl.int32), mask=at < num_values)


@triton.jit(do_not_specialize=["seed", "num_values", "num_rows", "num_columns"])
def _shifts(seed, result, num_values, num_rows, num_columns, BLOCK: tl.constexpr):
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    zero = tl.zeros([BLOCK], dtype=tl.uint64)
    # The first block of numbers has the counter 1.
    first, second, third, fourth = (number + 1).to(tl.uint64), zero, zero, zero
    key, other_key = zero + seed.to(tl.uint64), zero
    factor = tl.full([BLOCK], FIRST_FACTOR, dtype=tl.uint64)
    other_factor = tl.full([BLOCK], SECOND_FACTOR, dtype=tl.uint64)
    step = tl.full([BLOCK], FIRST_STEP, dtype=tl.uint64)
    other_step = tl.full([BLOCK], SECOND_STEP, dtype=tl.uint64)
    for _ in tl.static_range(10):
        low, high = first * factor, tl.umulhi(first, factor)
        other_low, other_high = third * other_factor, tl.umulhi(third, other_factor)
        first, second = other_high ^ second ^ key, other_low
        third, fourth = high ^ fourth ^ other_key, low
        key += step
        other_key += other_step
    _store_shift(result, 4 * number, first, num_values, num_rows, num_columns)
    _store_shift(result, 4 * number + 1, second, num_values, num_rows, num_columns)
    _store_shift(result, 4 * number + 2, third, num_values, num_rows, num_columns)
    _store_shift(result, 4 * number + 3, fourth, num_values, num_rows, num_columns)


def shifts(order: KeyedOrder, device: torch.device) -> Tensor:
    """Draw the table of an order ``[rounds, columns]``, int32, on a GPU."""
    shape = (order.num_rounds, order.num_columns)
    result = torch.empty(shape, dtype=torch.int32, device=device)
    num_values = result.numel()
    _shifts[(cdiv(num_values, 4 * BLOCK),)](
        order.seed, result, num_values, order.num_rows, shape[1], BLOCK=BLOCK, num_warps=4
    )
    return result


@triton.jit
def _moved_back(cell, shifts, num_rows, num_columns, ROUNDS: tl.constexpr):
    """Undo the rounds of a `KeyedOrder`: where the order has what is at these cells."""
    row = cell // num_columns
    column = cell - row * num_columns
    for number in tl.static_range(ROUNDS // 2):
        start = (ROUNDS - 2 - 2 * number) * num_columns
        row -= tl.load(shifts + (start + num_columns + column))
        row = tl.where(row < 0, row + num_rows, row)
        column -= tl.load(shifts + (start + row))
        column = tl.where(column < 0, column + num_columns, column)
    return row * num_columns + column


@triton.jit(do_not_specialize=["dim", "num_clients", "num_rows", "num_columns"])
def _scatter(
    source,
    shifts,
    num_rows,
    num_columns,
    target,
    dim,
    num_clients,
    dim_stride,
    client_stride,
    UNIT: tl.constexpr,
    WIDTH: tl.constexpr,
    ROUNDS: tl.constexpr,
    DIM: tl.constexpr,
    CLIENTS: tl.constexpr,
):
    coordinate = tl.program_id(0).to(tl.int64) * DIM + tl.arange(0, DIM)
    client = tl.arange(0, CLIENTS).to(tl.int64)
    # Written so that the compiler sees which coordinates are read together.
    is_there = coordinate // UNIT < dim // UNIT
    inside = (client < num_clients)[:, None] & is_there[None, :]
    at = client[:, None] * client_stride * UNIT + coordinate[None, :] * dim_stride
    tile = tl.load(source + at, mask=inside, other=0.0)
    # The assembler would read these values only after all look-ups of their positions.
    tl.debug_barrier()
    start = tl.where(coordinate < dim, coordinate, 0).to(tl.int32)
    to = _moved_back(start, shifts, num_rows, num_columns, ROUNDS)
    # Few are moved to cells beyond the last coordinate; these are moved on.
    beyond = tl.max((to >= dim).to(tl.int32), axis=0)
    while beyond > 0:
        moved = _moved_back(to, shifts, num_rows, num_columns, ROUNDS)
        to = tl.where(to >= dim, moved, to)
        beyond = tl.max((to >= dim).to(tl.int32), axis=0)
    to = tl.where(coordinate < dim, to, -1)
    to = to.to(tl.int64)
    wanted = (to >= 0)[:, None] & (client < WIDTH)[None, :]
    tl.store(target + to[:, None] * WIDTH + client[None, :], tl.trans(tile), mask=wanted)


def in_order(rows: Rows, orders: Sequence[KeyedOrder]) -> Columns:
    """Copy each coordinate of all clients to its position."""
    runs, num_clients, dim = rows.shape
    width = padded_clients(num_clients)
    result = torch.empty(runs, dim, width, dtype=rows.dtype, device=rows.device)
    client_stride, dim_stride = rows.stride()[1:]
    unit = gcd(client_stride, dim, LARGEST_UNIT) if dim_stride == 1 else 1
    tile = max(16, next_power_of_2(width))
    step = max(32, COPIED_AT_ONCE // tile)
    tables = [shifts(order, rows.device) for order in orders]
    for run, source in enumerate(rows):
        order = orders[run % len(orders)]
        _scatter[(cdiv(dim, step),)](
            source,
            tables[run % len(orders)],
            order.num_rows,
            order.num_columns,
            result[run],
            dim,
            num_clients,
            dim_stride,
            client_stride // unit,
            UNIT=unit,
            WIDTH=width,
            ROUNDS=order.num_rounds,
            DIM=step,
            CLIENTS=tile,
            num_warps=COPY_WARPS,
        )
    return result[..., :num_clients]


def padded_clients(num_clients: int) -> int:
    """Return how many values a copied coordinate has: whole lines of clients, or whole sectors."""
    sectors, lines = (cdiv(num_clients, unit) * unit for unit in (SECTOR, LINE))
    return lines if lines <= (1 + MOST_ADDED) * sectors else sectors
