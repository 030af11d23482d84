"""Triton kernels; called by `client_kernels`."""

from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor

from outvote.ops import cdiv, next_power_of_2
from outvote.ops.client_kernels import Positions

# Triton's sort works on powers of two; what is missing is filled with infinity, which goes last.


# Values that are read together, at most.
LARGEST_UNIT = 4
# Values that a program copies to their groups, its warps, and what their squares are added up in.
COPIED_AT_ONCE, COPY_WARPS = 4096, 4
SQUARED_IN = tl.float64
# What changes from call to call: a kernel that was compiled for one value would be compiled again.
AT_RUN_TIME = [
    "num_rows",
    "num_values",
    "num_smallest",
    "num_clients",
    "groups_per_run",
    "group_stride",
    "row_stride",
    "threshold",
]


@triton.jit(do_not_specialize=AT_RUN_TIME)
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
    width = max(2, next_power_of_2(num_values))
    rows = max(1, 512 // width)
    _sum_of_smallest[(cdiv(num_rows, rows),)](
        source, result, num_rows, num_values, num_smallest, ROWS=rows, VALUES=width, num_warps=1
    )


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


@triton.jit(do_not_specialize=["end", "small", "dim", "num_clients", "num_rows", "num_columns"])
def _scatter(
    source,
    table,
    end,
    small,
    num_rows,
    num_columns,
    middle,
    target,
    squares,
    dim,
    num_clients,
    dim_stride,
    client_stride,
    UNIT: tl.constexpr,
    WIDTH: tl.constexpr,
    IS_PERMUTED: tl.constexpr,
    ROUNDS: tl.constexpr,
    IS_CENTRED: tl.constexpr,
    HAS_SQUARES: tl.constexpr,
    SQUARED_IN: tl.constexpr,
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
    if IS_CENTRED:
        offset = tl.load(middle).to(tl.int64) * client_stride * UNIT + coordinate * dim_stride
        offset = tl.load(source + offset, mask=is_there, other=0.0)
        tile = tl.where(inside, tile - offset[None, :], 0.0)
    if IS_PERMUTED:
        if ROUNDS > 0:
            start = tl.where(coordinate < dim, coordinate, 0).to(tl.int32)
            to = _moved_back(start, table, num_rows, num_columns, ROUNDS)
            # Few are moved to cells beyond the last coordinate; these are moved on.
            beyond = tl.max((to >= dim).to(tl.int32), axis=0)
            while beyond > 0:
                moved = _moved_back(to, table, num_rows, num_columns, ROUNDS)
                to = tl.where(to >= dim, moved, to)
                beyond = tl.max((to >= dim).to(tl.int32), axis=0)
            to = tl.where(coordinate < dim, to, -1)
        else:
            to = tl.load(table + coordinate, mask=coordinate < dim, other=-1)
        num_before = tl.maximum(to - end, 0) // small
        is_before_gap = to - end == (num_before + 1) * small - 1
        to = (to + num_before).to(tl.int64)
    else:
        to = tl.where(coordinate < dim, coordinate, -1)
    wanted = (to >= 0)[:, None] & (client < WIDTH)[None, :]
    tl.store(target + to[:, None] * WIDTH + client[None, :], tl.trans(tile), mask=wanted)
    if HAS_SQUARES:  # Last: positions are looked up while values are on their way.
        wide = tile.to(SQUARED_IN)
        total = tl.sum(wide * wide, axis=1).to(tl.float64)
        own = squares + tl.program_id(0).to(tl.int64) * num_clients + client
        tl.store(own, total, mask=client < num_clients)
    if IS_PERMUTED:
        # Few programs have a gap to clear: one value after another takes no registers from all.
        num_gaps = tl.sum(is_before_gap.to(tl.int32), axis=0)
        for number in range(tl.where(num_gaps > 0, WIDTH, 0)):
            tl.store(target + (to + 1) * WIDTH + number, 0.0, mask=is_before_gap)


def scattered_at_once(width: int) -> int:
    """Return how many coordinates of `width` values a program copies."""
    return max(32, COPIED_AT_ONCE // max(16, next_power_of_2(width)))


def scatter(
    source: Tensor,
    positions: Positions | None,
    middle: Tensor | None,
    target: Tensor,
    squares: Tensor | None = None,
) -> None:
    """Copy each coordinate of ``source [dim, clients]`` to its row of `target`.

    The gaps that `positions` has become zeros, and so does what is beyond the clients.
    ``squares [pieces, clients]``, if it is given, becomes the sums of the squares of the clients in
    pieces of `scattered_at_once` coordinates, float64.
    """
    table, end, small, num_columns = positions or (source, 0, 1, 0)
    dim, num_clients = source.shape
    dim_stride, client_stride = source.stride()
    unit = gcd(client_stride, dim, LARGEST_UNIT) if dim_stride == 1 else 1
    tile = max(16, next_power_of_2(target.shape[-1]))
    step = scattered_at_once(target.shape[-1])
    _scatter[(cdiv(dim, step),)](
        source,
        table,
        end,
        small,
        -(-dim // max(1, num_columns)),
        num_columns,
        source if middle is None else middle,
        target,
        source if squares is None else squares,
        dim,
        num_clients,
        dim_stride,
        client_stride // unit,
        UNIT=unit,
        WIDTH=target.shape[-1],
        IS_PERMUTED=positions is not None,
        ROUNDS=len(table) if num_columns else 0,
        IS_CENTRED=middle is not None,
        HAS_SQUARES=squares is not None,
        SQUARED_IN=SQUARED_IN,
        DIM=step,
        CLIENTS=tile,
        num_warps=COPY_WARPS,
    )


@triton.jit
def _distances(
    products,
    originals,
    group,
    left,
    right,
    inside,
    num_clients,
    groups_per_run,
    group_stride,
    row_stride,
    threshold,
    HAS_COPIES: tl.constexpr,
):
    """Return the squared distances of pairs, and which of those above the diagonal are inexact."""
    is_above = left < right
    if HAS_COPIES:
        own = originals + (group // groups_per_run) * num_clients
        left = tl.load(own + left, mask=inside, other=0)
        right = tl.load(own + right, mask=inside, other=0)
    start = products + group * group_stride
    inner = tl.load(start + left * row_stride + right, mask=inside, other=0.0).to(tl.float64)
    inner += tl.load(start + right * row_stride + left, mask=inside, other=0.0).to(tl.float64)
    one = tl.load(start + left * (row_stride + 1), mask=inside, other=0.0).to(tl.float64)
    two = tl.load(start + right * (row_stride + 1), mask=inside, other=0.0).to(tl.float64)
    far = (one + two) - inner
    # What overflowed is infinite or not a number somewhere in here.
    is_number = (far >= 0.0) | (far < 0.0)
    far = tl.where((far > 0.0) & (left != right), far, 0.0)
    larger = tl.where(one > two, one, two)
    is_exact = is_number & (far >= larger * threshold) & (larger < float("inf"))
    return far, inside & is_above & (left != right) & (is_exact == 0)


@triton.jit(do_not_specialize=AT_RUN_TIME)
def _squared_distances(
    products,
    originals,
    result,
    inexact,
    num_values,
    num_clients,
    groups_per_run,
    group_stride,
    row_stride,
    threshold,
    HAS_COPIES: tl.constexpr,
    COUNTS: tl.constexpr,
    VALUES: tl.constexpr,
):
    value = tl.program_id(0).to(tl.int64) * VALUES + tl.arange(0, VALUES)
    inside = value < num_values
    group = value // (num_clients * num_clients)
    pair = value % (num_clients * num_clients)
    left = pair // num_clients
    right = pair % num_clients
    far, is_inexact = _distances(
        products,
        originals,
        group,
        left,
        right,
        inside,
        num_clients,
        groups_per_run,
        group_stride,
        row_stride,
        threshold,
        HAS_COPIES,
    )
    tl.store(result + value, far, mask=inside)
    if COUNTS:
        count = tl.sum(is_inexact.to(tl.int32), axis=0)
        tl.atomic_add(inexact, count, mask=count > 0, sem="relaxed")
    else:
        tl.store(inexact + value, is_inexact.to(tl.int8), mask=inside)


def squared_distances(
    products: Tensor, originals: Tensor | None, result: Tensor, inexact: Tensor, threshold: float
) -> None:
    """Turn inner products ``[groups, clients, clients]`` into squared distances.

    Copies of a client, see `originals [runs, clients]`, get its distances. `inexact` is a mask, or
    an integer that the number of inexact results is added to.
    """
    num_clients = products.shape[-1]
    num_values = result.numel()
    counts = inexact.dtype == torch.int32
    _squared_distances[(cdiv(num_values, 1024),)](
        products,
        products if originals is None else originals.contiguous(),
        result,
        inexact if counts else inexact.view(torch.int8),
        num_values,
        num_clients,
        len(products) if originals is None else len(products) // len(originals),
        products.stride(0),
        products.stride(1),
        threshold,
        HAS_COPIES=originals is not None,
        COUNTS=counts,
        VALUES=1024,
        num_warps=4,
    )


@triton.jit(do_not_specialize=AT_RUN_TIME)
def _sums_of_smallest_distances(
    products,
    originals,
    result,
    inexact,
    num_rows,
    num_clients,
    num_smallest,
    groups_per_run,
    group_stride,
    row_stride,
    threshold,
    HAS_COPIES: tl.constexpr,
    ROWS: tl.constexpr,
    CLIENTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    client = tl.arange(0, CLIENTS)
    inside = (row < num_rows)[:, None] & (client < num_clients)[None, :]
    group = row // num_clients
    left = (row - group * num_clients).to(tl.int32)
    far, is_inexact = _distances(
        products,
        originals,
        tl.broadcast_to(group[:, None], (ROWS, CLIENTS)),
        tl.broadcast_to(left[:, None], (ROWS, CLIENTS)),
        tl.broadcast_to(client[None, :], (ROWS, CLIENTS)),
        inside,
        num_clients,
        groups_per_run,
        group_stride,
        row_stride,
        threshold,
        HAS_COPIES,
    )
    ranked = tl.sort(tl.where(inside, far, float("inf")), dim=1)
    total = tl.sum(tl.where((client < num_smallest)[None, :], ranked, 0.0), axis=1)
    tl.store(result + row, total, mask=row < num_rows)
    count = tl.sum(tl.sum(is_inexact.to(tl.int32), axis=1), axis=0)
    tl.atomic_add(inexact, count, mask=count > 0, sem="relaxed")


def sums_of_smallest_distances(
    products: Tensor,
    originals: Tensor | None,
    result: Tensor,
    count: Tensor,
    num_smallest: int,
    threshold: float,
) -> None:
    """Add up the smallest distances of each client: `squared_distances`, then `sum_of_smallest`."""
    num_groups, num_clients, _ = products.shape
    width = max(2, next_power_of_2(num_clients))
    rows = max(1, 512 // width)
    _sums_of_smallest_distances[(cdiv(num_groups * num_clients, rows),)](
        products,
        products if originals is None else originals.contiguous(),
        result,
        count,
        num_groups * num_clients,
        num_clients,
        num_smallest,
        num_groups if originals is None else num_groups // len(originals),
        products.stride(0),
        products.stride(1),
        threshold,
        HAS_COPIES=originals is not None,
        ROWS=rows,
        CLIENTS=width,
        num_warps=1,
    )


@triton.jit(do_not_specialize=AT_RUN_TIME)
def _squared_distances_to_average(
    products,
    weights,
    originals,
    result,
    inexact,
    num_clients,
    groups_per_run,
    group_stride,
    row_stride,
    threshold,
    HAS_COPIES: tl.constexpr,
    COUNTS: tl.constexpr,
    CLIENTS: tl.constexpr,
    OTHERS: tl.constexpr,
):
    group = tl.program_id(0).to(tl.int64)
    client = tl.arange(0, CLIENTS)
    known = client < num_clients
    start = products + group * group_stride
    norms = tl.load(start + client * (row_stride + 1), mask=known, other=0.0).to(tl.float64)
    weights += group * num_clients
    weight = tl.load(weights + client, mask=known, other=0.0)
    along = tl.zeros((CLIENTS,), tl.float64)
    for first in range(0, num_clients, OTHERS):
        other = first + tl.arange(0, OTHERS)
        inside = known[:, None] & (other < num_clients)[None, :]
        at = client[:, None] * row_stride + other[None, :]
        inner = tl.load(start + at, mask=inside, other=0.0).to(tl.float64)
        share = tl.load(weights + other, mask=other < num_clients, other=0.0)
        along += tl.sum(inner * share[None, :], axis=1)
    of_average = tl.sum(weight * along, axis=0)
    far = norms - 2.0 * along + of_average
    # An average of one client alone is that client: exactly 0.
    is_itself = weight == 1.0
    if HAS_COPIES:
        own = originals + (group // groups_per_run) * num_clients
        original = tl.load(own + client, mask=known, other=-1)
        is_itself = is_itself | (original == tl.max(tl.where(is_itself, original, -1), axis=0))
    far = tl.where(is_itself, 0.0, far)
    is_exact = (far >= (norms + of_average) * threshold) & (far < float("inf"))
    is_exact = is_exact | (client >= num_clients) | is_itself
    tl.store(result + group * num_clients + client, far, mask=known)
    count = tl.sum((is_exact == 0).to(tl.int32), axis=0)
    if COUNTS:
        tl.atomic_add(inexact, count, mask=count > 0, sem="relaxed")
    else:
        tl.store(inexact + group, (count > 0).to(tl.int8))


def squared_distances_to_average(
    products: Tensor,
    weights: Tensor,
    originals: Tensor | None,
    result: Tensor,
    inexact: Tensor,
    threshold: float,
) -> None:
    """Measure each client against the weighted average of its group, one program per group.

    `originals [runs, clients]` has the first client equal to each.
    """
    num_groups, num_clients, _ = products.shape
    counts = inexact.dtype == torch.int32
    size = max(2, next_power_of_2(num_clients))
    _squared_distances_to_average[(num_groups,)](
        products,
        weights,
        products if originals is None else originals.contiguous(),
        result,
        inexact if counts else inexact.view(torch.int8),
        num_clients,
        num_groups if originals is None else num_groups // len(originals),
        products.stride(0),
        products.stride(1),
        threshold,
        HAS_COPIES=originals is not None,
        COUNTS=counts,
        CLIENTS=size,
        OTHERS=min(size, 32, 8192 // size),
        num_warps=2 if size <= 64 else 8,
    )


@triton.jit(do_not_specialize=AT_RUN_TIME)
def _smallest(scores, result, num_clients, num_smallest, CLIENTS: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * num_clients
    client = tl.arange(0, CLIENTS)
    known = client < num_clients
    score = tl.load(scores + start + client, mask=known, other=float("inf"))
    is_before = (score[None, :] < score[:, None]) | (
        (score[None, :] == score[:, None]) & (client[None, :] < client[:, None])
    )
    rank = tl.sum(is_before.to(tl.int32), axis=1)
    tl.store(result + start + client, (rank < num_smallest).to(tl.int8), mask=known)


def smallest(scores: Tensor, result: Tensor, num_smallest: int) -> None:
    """Mark the smallest scores of each row of a contiguous matrix, lower index first."""
    num_rows, num_clients = scores.shape
    _smallest[(num_rows,)](
        scores,
        result.view(torch.int8),
        num_clients,
        num_smallest,
        CLIENTS=max(2, next_power_of_2(num_clients)),
        num_warps=1,
    )
