"""Triton kernels that read whole rows once, see `ops.rows`.

Squares and sums are float64: finite for all finite float32 values, the same to the last bit for
equal rows, and from one run to the next.
"""

from math import gcd

import torch
import triton
import triton.language as tl

from outvote.axes import Columns, PerClient, PerCoordinate, Rows
from outvote.ops.triton import cdiv, next_power_of_2
from outvote.ops.triton.layout import WIDEST, grouped, layout_of

# Values that a program reads at once.
AT_ONCE = 2048
# Rows that share what they are compared with, which is then read once for all of them.
ROWS_AT_ONCE = 4
NUM_WARPS = 4
# Coordinates of one program that adds up squares, of one client or a few, and of all.
SQUARED_PIECE, MEASURED_PIECE = 8192, 4096
# Groups whose distances one program adds up.
ADDED_GROUPS = 4096
# Values that are read together, at most; coordinates of a program that adds up clients, its warps.
LARGEST_UNIT = 4
SUMMED_AT_ONCE, SUM_WARPS = 1024, 4
LARGEST = tl.constexpr(3.4028234663852886e38)


@triton.jit(
    do_not_specialize=[
        "num_clients",
        "dim",
        "num_pieces",
        "run_stride",
        "client_stride",
        "minus_stride",
    ]
)
def _square_sums(
    rows,
    minus,
    result,
    num_clients,
    dim,
    num_pieces,
    run_stride,
    client_stride,
    minus_stride,
    HAS_MINUS: tl.constexpr,
    UNIT: tl.constexpr,
    PIECE: tl.constexpr,
    CLIENTS: tl.constexpr,
    STEP: tl.constexpr,
):
    # Programs that compare with the same values run side by side.
    num_blocks = tl.cdiv(num_clients, CLIENTS)
    number = tl.program_id(0).to(tl.int64)
    client = (number % num_blocks) * CLIENTS + tl.arange(0, CLIENTS)
    number = number // num_blocks
    part = number % num_pieces
    run = number // num_pieces
    own = rows + (run * run_stride + client * client_stride) * UNIT
    minus += run * minus_stride * UNIT
    known = client < num_clients
    first = part * PIECE
    last = tl.minimum(first + PIECE, dim)
    total = tl.zeros([CLIENTS, STEP], dtype=tl.float64)
    for at in range(first, last, STEP):
        coordinate = at + tl.arange(0, STEP)
        # Written so that the compiler sees which coordinates are read together.
        inside = coordinate // UNIT < last // UNIT
        wanted = known[:, None] & inside[None, :]
        value = tl.load(own[:, None] + coordinate[None, :], mask=wanted, other=0.0).to(tl.float64)
        if HAS_MINUS:
            other = tl.load(minus + coordinate, mask=inside, other=0.0).to(tl.float64)
            value -= other[None, :]
        total += value * value
    to = result + number * num_clients + client
    tl.store(to, tl.sum(total, axis=1), mask=known)


def row_norms(rows: Rows) -> PerClient:
    """Return the lengths of ``rows [*batch, clients, dim]``."""
    return _square_sums_of(rows.reshape(-1, *rows.shape[-2:]), None).sqrt_().view(rows.shape[:-1])


def _square_sums_of(rows: Rows, minus: PerCoordinate | None) -> PerClient:
    """Add up the squares of ``rows [runs, clients, dim]``, or of their differences to a vector."""
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    runs, num_clients, dim = rows.shape
    num_pieces = max(1, cdiv(dim, SQUARED_PIECE))
    layout = layout_of(rows.mT.unsqueeze(1))
    result = torch.empty(runs, num_pieces, num_clients, dtype=torch.float64, device=rows.device)
    clients = 1 if minus is None else ROWS_AT_ONCE
    run_stride, _, _, client_stride = layout.strides
    _square_sums[(cdiv(num_clients, clients) * num_pieces * runs,)](
        rows,
        rows if minus is None else minus,
        result,
        num_clients,
        dim,
        num_pieces,
        run_stride if runs > 1 else 0,  # Of one long run it would be an integer of 64 bits.
        client_stride,
        dim // layout.unit,
        HAS_MINUS=minus is not None,
        UNIT=layout.unit,
        PIECE=SQUARED_PIECE,
        CLIENTS=clients,
        STEP=AT_ONCE // clients,
        num_warps=NUM_WARPS,
    )
    return result[:, 0] if num_pieces == 1 else result.sum(dim=1)


@triton.jit(
    do_not_specialize=[
        "num_clients",
        "dim",
        "num_pieces",
        "groups_per_run",
        "run_stride",
        "group_stride",
    ]
)
def _distances_to_vector(
    columns,
    vector,
    result,
    num_clients,
    dim,
    num_pieces,
    groups_per_run,
    run_stride,
    group_stride,
    coordinate_stride,
    client_stride,
    UNIT: tl.constexpr,
    WIDTH: tl.constexpr,
    PIECE: tl.constexpr,
    CLIENTS: tl.constexpr,
    STEP: tl.constexpr,
):
    number = tl.program_id(0).to(tl.int64)
    part = number % num_pieces
    group = number // num_pieces
    run = group // groups_per_run
    start = run * run_stride + (group - run * groups_per_run) * group_stride
    start = columns + start * UNIT
    client = tl.arange(0, CLIENTS)
    if WIDTH > 0:
        known = client < WIDTH
    else:
        known = client < num_clients
    first = part * PIECE
    last = tl.minimum(first + PIECE, dim)
    total = tl.zeros([STEP, CLIENTS], dtype=tl.float64)
    for at in range(first, last, STEP):
        coordinate = at + tl.arange(0, STEP)
        inside = coordinate < last
        if WIDTH > 0:
            offset = (coordinate * WIDTH)[:, None] + client[None, :]
        else:
            offset = (coordinate * coordinate_stride)[:, None] + (client * client_stride)[None, :]
        wanted = inside[:, None] & known[None, :]
        value = tl.load(start + offset, mask=wanted, other=0.0).to(tl.float64)
        other = tl.load(vector + group * dim + coordinate, mask=inside, other=0.0).to(tl.float64)
        value -= other[:, None]
        total += value * value
    to = result + number * num_clients + client
    tl.store(to, tl.sum(total, axis=0), mask=client < num_clients)


def squared_distances_to_vector(columns: Columns, vector: PerCoordinate) -> PerClient:
    """Measure ``columns [*batch, dim, clients]``, whichever of the two are side by side."""
    vector = vector.to(torch.promote_types(columns.dtype, torch.float32))
    vector = vector.expand(columns.shape[:-1]).contiguous()
    if columns.stride(-2) == 1:
        rows = columns.mT.reshape(-1, *columns.mT.shape[-2:])
        found = _square_sums_of(rows, vector)
        return found.view(*columns.shape[:-2], columns.shape[-1])
    groups = grouped(columns)
    if groups.stride(-1) != 1 or groups.shape[-1] > WIDEST:
        groups = groups.contiguous()
    runs, num_groups, dim, num_clients = groups.shape
    num_pieces = max(1, cdiv(dim, MEASURED_PIECE))
    shape = (runs * num_groups, num_pieces, num_clients)
    result = torch.empty(shape, dtype=torch.float64, device=columns.device)
    layout = layout_of(groups)
    clients = max(2, next_power_of_2(num_clients))
    _distances_to_vector[(runs * num_groups * num_pieces,)](
        groups,
        vector,
        result,
        num_clients,
        dim,
        num_pieces,
        num_groups,
        *layout.strides,
        UNIT=layout.unit,
        WIDTH=layout.width,
        PIECE=MEASURED_PIECE,
        CLIENTS=clients,
        STEP=max(1, AT_ONCE // clients),
        num_warps=NUM_WARPS,
    )
    found = result[:, 0] if num_pieces == 1 else result.sum(dim=1)
    return found.view(*columns.shape[:-2], num_clients)


@triton.jit(do_not_specialize=["num_groups", "num_clients"])
def _sums_of_roots(
    squared,
    result,
    num_groups,
    num_clients,
    PIECE: tl.constexpr,
    GROUPS: tl.constexpr,
    CLIENTS: tl.constexpr,
):
    client = tl.program_id(0) * CLIENTS + tl.arange(0, CLIENTS)
    known = client < num_clients
    piece = tl.program_id(1)
    run = tl.program_id(2).to(tl.int64)
    own = squared + run * num_groups * num_clients + client
    total = tl.zeros([GROUPS, CLIENTS], dtype=tl.float64)
    last = tl.minimum((piece + 1) * PIECE, num_groups)
    for first in range(piece * PIECE, last, GROUPS):
        group = first + tl.arange(0, GROUPS)
        at = group.to(tl.int64) * num_clients
        wanted = (group < last)[:, None] & known[None, :]
        value = tl.load(own[None, :] + at[:, None], mask=wanted, other=0.0)
        # Written so that what is not a number stays so.
        total += tl.sqrt(tl.where(value < 0.0, 0.0, value))
    to = result + (run * tl.num_programs(1) + piece) * num_clients + client
    tl.store(to, tl.sum(total, axis=0), mask=known)


def sums_of_roots(squared: PerClient) -> PerClient:
    """Add up the roots of ``squared [runs, groups, clients]``; of equal clients in one order."""
    runs, num_groups, num_clients = squared.shape
    num_pieces = cdiv(num_groups, ADDED_GROUPS)
    result = squared.new_empty(runs, num_pieces, num_clients)
    _sums_of_roots[(cdiv(num_clients, ROWS_AT_ONCE), num_pieces, runs)](
        squared.contiguous(),
        result,
        num_groups,
        num_clients,
        PIECE=ADDED_GROUPS,
        GROUPS=AT_ONCE // ROWS_AT_ONCE,
        CLIENTS=ROWS_AT_ONCE,
        num_warps=NUM_WARPS,
    )
    return result[:, 0] if num_pieces == 1 else result.sum(dim=1)


@triton.jit(do_not_specialize=["num_clients", "num_units", "run_stride", "client_stride"])
def _weighted_sum(
    rows,
    weights,
    result,
    num_clients,
    num_units,
    run_stride,
    client_stride,
    UNIT: tl.constexpr,
    DIM: tl.constexpr,
):
    run = tl.program_id(1).to(tl.int64)
    coordinate = tl.program_id(0).to(tl.int64) * DIM + tl.arange(0, DIM)
    # Written so that the compiler sees which coordinates are read together.
    unit = coordinate // UNIT
    inside = unit < num_units
    at = rows + run * run_stride * UNIT + coordinate
    total = tl.zeros([DIM], dtype=tl.float64)
    for client in range(num_clients):
        weight = tl.load(weights + run * num_clients + client)
        # Rows without a weight are not read.
        wanted = unit < tl.where(weight != 0.0, num_units, 0)
        value = tl.load(at, mask=wanted, other=0.0)
        total += value.to(tl.float64) * weight
        at += client_stride.to(tl.int64) * UNIT
    # Weights sum to 1 but for rounding: an average of the largest numbers does not overflow.
    total = tl.minimum(tl.maximum(total, -LARGEST), LARGEST)
    to = result + run * num_units * UNIT + coordinate
    tl.store(to, total.to(tl.float32), mask=inside)


def weighted_sum(rows: Rows, weights: PerClient) -> PerCoordinate:
    """Add up the clients of ``rows [*batch, clients, dim]`` that have a weight, in float64."""
    batch, dim = rows.shape[:-2], rows.shape[-1]
    weights = weights.double().expand(rows.shape[:-1])
    rows = rows.reshape(-1, *rows.shape[-2:])
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    result = torch.empty(len(rows), dim, dtype=torch.float32, device=rows.device)
    run_stride, client_stride, _ = rows.stride()
    unit = gcd(run_stride, client_stride, dim, LARGEST_UNIT)
    _weighted_sum[(cdiv(dim, SUMMED_AT_ONCE), len(rows))](
        rows,
        weights.contiguous(),
        result,
        rows.shape[1],
        dim // unit,
        run_stride // unit,
        client_stride // unit,
        UNIT=unit,
        DIM=SUMMED_AT_ONCE,
        num_warps=SUM_WARPS,
    )
    return result.view(*batch, dim)
