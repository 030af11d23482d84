"""Triton kernels for the inner products of the clients, see `ops.pairs.gram`.

Of up to 8 clients, each thread multiplies all pairs. Of more, tensor cores form the products, from
three parts of 8 bits of each float32 number. What is left out is below 2^-26 of the product, less
than the rounding of float32. Tensor cores round sums down, so each sum of a few coordinates is
added to the others outside of them.
"""

from math import prod

import torch
import triton
import triton.language as tl
from torch import Tensor

from outvote.axes import Columns, Pairs
from outvote.ops.door import IS_INTERPRETED
from outvote.ops.triton import IS_AMD, cdiv, next_power_of_2
from outvote.ops.triton.layout import grouped, layout_of

# Coordinates of one program that forms products, and programs that keep every processor busy.
SHORTEST_PIECE, LONGEST_PIECE = 1024, 4096
PIECE_UNIT = 32
ENOUGH_PROGRAMS = 768

# The most clients whose pairs a thread multiplies, and coordinates that a warp reads at once.
FEW, FEW_STEP = 8, 64
# Coordinates at once, warps and the most registers of a thread, by the clients of a tile: of
# columns, and of rows. With 168 registers three programs of four warps share a processor, with 128
# registers four.
COLUMN_TILES = {16: (64, 1, None), 32: (32, 1, None), 64: (32, 4, 128)}
ROW_TILES = {16: (64, 1, None), 32: (32, 2, None), 64: (32, 4, 168)}
# What changes from call to call; addresses are known to be aligned by `UNIT`.
AT_RUN_TIME = [
    "num_clients",
    "dim",
    "piece",
    "num_pieces",
    "groups_per_run",
    "run_stride",
    "group_stride",
]
# Triton's interpreter does not multiply matrices of bfloat16.
PART = tl.float32 if IS_INTERPRETED else tl.bfloat16


@triton.jit
def _columns_of(tile, ROWS: tl.constexpr):
    """Return the 8 columns of a tile [rows, 8]."""
    even, odd = tl.split(tl.reshape(tile, (ROWS, 2, 2, 2)))
    x04, x26 = tl.split(even)
    x15, x37 = tl.split(odd)
    x0, x4 = tl.split(x04)
    x1, x5 = tl.split(x15)
    x2, x6 = tl.split(x26)
    x3, x7 = tl.split(x37)
    return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit(do_not_specialize=AT_RUN_TIME[1:])
def _products_of_few(
    columns,
    centre,
    result,
    dim,
    piece,
    num_pieces,
    groups_per_run,
    run_stride,
    group_stride,
    coordinate_stride,
    client_stride,
    UNIT: tl.constexpr,
    WIDTH: tl.constexpr,
    CLIENTS: tl.constexpr,
    STEP: tl.constexpr,
):
    number = tl.program_id(0).to(tl.int64)
    part = number % num_pieces
    group = number // num_pieces
    run = group // groups_per_run
    start = run * run_stride + (group - run * groups_per_run) * group_stride
    start = columns + start * UNIT
    middle = tl.load(centre + run)
    first = part * piece
    last = tl.minimum(first + piece, dim)
    sums = ()
    for _ in tl.static_range(CLIENTS * (CLIENTS + 1) // 2):
        sums += (tl.zeros([STEP], dtype=tl.float32),)
    for at in range(first, last, STEP):
        coordinate = at + tl.arange(0, STEP)
        inside = coordinate < last
        if WIDTH > 0:
            offset = coordinate[:, None] * WIDTH + tl.arange(0, 8)[None, :]
            tile = tl.load(start + offset, mask=inside[:, None], other=0.0)
            values = _columns_of(tile, STEP)
        else:
            offset = coordinate * coordinate_stride
            values = ()
            for k in tl.static_range(CLIENTS):
                apart = tl.full([], k, dtype=tl.int64) * client_stride * UNIT
                own = tl.load(start + (offset + apart), mask=inside, other=0.0)
                values += (own.to(tl.float32),)
        origin = values[0].to(tl.float32)
        for k in tl.static_range(1, CLIENTS):
            origin = tl.where(middle == k, values[k].to(tl.float32), origin)
        added = ()
        for i in tl.static_range(CLIENTS):
            left = values[i].to(tl.float32) - origin
            for j in tl.static_range(i, CLIENTS):
                right = values[j].to(tl.float32) - origin
                added += (sums[i * CLIENTS - i * (i - 1) // 2 + j - i] + left * right,)
        sums = added
    to = result + number * (CLIENTS * CLIENTS)
    for i in tl.static_range(CLIENTS):
        for j in tl.static_range(i, CLIENTS):
            total = tl.sum(sums[i * CLIENTS - i * (i - 1) // 2 + j - i], axis=0)
            tl.store(to + (i * CLIENTS + j), total)
            tl.store(to + (j * CLIENTS + i), total)


@triton.jit
def _read(
    start,
    middle,
    first,
    last,
    num_clients,
    coordinate_stride,
    client_stride,
    UNIT: tl.constexpr,
    WIDTH: tl.constexpr,
    ARE_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
):
    """Return some coordinates as they lie, [clients, step] or mirrored, and those of the centre."""
    coordinate = first + tl.arange(0, STEP)
    client = tl.arange(0, BLOCK).to(tl.int64)
    if WIDTH > 0:
        known = client < WIDTH
        offset = coordinate * WIDTH
        own = client
    else:
        known = client < num_clients
        offset = coordinate * coordinate_stride
        own = client * client_stride * UNIT
    if ARE_ROWS:
        # Written so that the compiler sees which coordinates are read together.
        inside = coordinate // UNIT < last // UNIT
        mask = known[:, None] & inside[None, :]
        at = own[:, None] + offset[None, :]
    else:
        inside = coordinate < last
        mask = inside[:, None] & known[None, :]
        at = offset[:, None] + own[None, :]
    value = tl.load(start + at, mask=mask, other=0.0)
    origin = tl.load(start + (middle + offset), mask=inside, other=0.0)
    return value.to(tl.float32), origin.to(tl.float32)


@triton.jit
def _rounded(x):
    """Round to 8 bits by adding integers: a GPU has few units that convert."""
    bits = x.to(tl.int32, bitcast=True) + 0x8000
    return (bits & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
def _part(x, PART: tl.constexpr):
    """Return numbers of 8 bits as bfloat16, which is the upper half of a float32."""
    if PART != tl.float32:  # noqa: SIM300  (Triton's own constant)
        upper = x.to(tl.int32, bitcast=True) >> 16
        x = upper.to(tl.int16).to(tl.bfloat16, bitcast=True)
    return x


@triton.jit
def _parts(value, origin, ARE_ROWS: tl.constexpr, PART: tl.constexpr):
    """Split values relative to the centre into three parts of 8 bits."""
    if ARE_ROWS:
        x = value - origin[None, :]
    else:
        x = value - origin[:, None]
    high = _rounded(x)
    rest = x - high
    mid = _rounded(rest)
    # What is left of 24 bits has no more than 8.
    low = _part(rest - mid, PART)
    return _part(high, PART), _part(mid, PART), low


@triton.jit
def _multiplied(high, mid, low, small, ARE_ROWS: tl.constexpr):
    """Return the products of equal parts, and `small` with those of unequal parts added."""
    if ARE_ROWS:
        some = tl.dot(mid, tl.trans(mid), input_precision="ieee")
        some = tl.dot(high, tl.trans(high), some, input_precision="ieee")
        small = tl.dot(high, tl.trans(mid), small, input_precision="ieee")
        small = tl.dot(high, tl.trans(low), small, input_precision="ieee")
    else:
        some = tl.dot(tl.trans(mid), mid, input_precision="ieee")
        some = tl.dot(tl.trans(high), high, some, input_precision="ieee")
        small = tl.dot(tl.trans(high), mid, small, input_precision="ieee")
        small = tl.dot(tl.trans(high), low, small, input_precision="ieee")
    return some, small


@triton.jit(do_not_specialize=AT_RUN_TIME)
def _products(
    columns,
    centre,
    result,
    one,
    num_clients,
    dim,
    piece,
    num_pieces,
    groups_per_run,
    run_stride,
    group_stride,
    coordinate_stride,
    client_stride,
    UNIT: tl.constexpr,
    WIDTH: tl.constexpr,
    ARE_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
    PIECE_UNIT: tl.constexpr,
    PART: tl.constexpr,
):
    number = tl.program_id(0).to(tl.int64)
    part = number % num_pieces
    group = number // num_pieces
    run = group // groups_per_run
    start = run * run_stride + (group - run * groups_per_run) * group_stride
    start = columns + start * UNIT
    middle = tl.load(centre + run).to(tl.int64) * client_stride
    if ARE_ROWS:
        middle *= UNIT
    first = part * piece * PIECE_UNIT
    last = tl.minimum(first + piece * PIECE_UNIT, dim)
    large = tl.zeros([BLOCK, BLOCK], dtype=tl.float32)
    small = tl.zeros([BLOCK, BLOCK], dtype=tl.float32)
    # Narrow columns are not read ahead by the compiler.
    IS_AHEAD: tl.constexpr = BLOCK < 64 and not ARE_ROWS
    # Parts that come from the turn before are multiplied from shared memory. The compiler would
    # work out some of them twice otherwise, in the order of a factor in registers.
    IS_SPLIT_AHEAD: tl.constexpr = BLOCK >= 64
    value, origin = _read(
        start,
        middle,
        first,
        last,
        num_clients,
        coordinate_stride,
        client_stride,
        UNIT,
        WIDTH,
        ARE_ROWS,
        BLOCK,
        STEP,
    )
    if IS_SPLIT_AHEAD:
        high, mid, low = _parts(value, origin, ARE_ROWS, PART)
    for at in range(first, last, STEP):
        if IS_AHEAD or IS_SPLIT_AHEAD:
            later, origin_later = _read(
                start,
                middle,
                at + STEP,
                last,
                num_clients,
                coordinate_stride,
                client_stride,
                UNIT,
                WIDTH,
                ARE_ROWS,
                BLOCK,
                STEP,
            )
        else:
            value, origin = _read(
                start,
                middle,
                at,
                last,
                num_clients,
                coordinate_stride,
                client_stride,
                UNIT,
                WIDTH,
                ARE_ROWS,
                BLOCK,
                STEP,
            )
        if not IS_SPLIT_AHEAD:
            high, mid, low = _parts(value, origin, ARE_ROWS, PART)
        some, small = _multiplied(high, mid, low, small, ARE_ROWS)
        # The factor 1 is not known to the compiler, which would add up in the tensor cores.
        large += some * one
        if IS_SPLIT_AHEAD:
            high, mid, low = _parts(later, origin_later, ARE_ROWS, PART)
        elif IS_AHEAD:
            value, origin = later, origin_later
    total = large + (small + tl.trans(small))
    client = tl.arange(0, BLOCK)
    known = client < num_clients
    to = result + number * num_clients * num_clients
    wanted = known[:, None] & known[None, :]
    tl.store(to + client[:, None] * num_clients + client[None, :], total, mask=wanted)


def gram(columns: Columns, centre: Tensor) -> Pairs:
    """Multiply the clients of ``columns [*batch, dim, n]`` relative to a central one.

    In float32, or, from pieces of many coordinates, in float64.
    """
    batch, num_clients = columns.shape[:-2], columns.shape[-1]
    groups = grouped(columns)
    if centre.dim() > 1:
        groups, centre = groups.flatten(0, 1).unsqueeze(1), centre.flatten()
    runs, groups_per_run, dim, _ = groups.shape
    piece = piece_length(runs * groups_per_run, dim)
    num_pieces = cdiv(dim, piece)
    shape = (runs, groups_per_run, num_pieces, num_clients, num_clients)
    result = torch.empty(shape, dtype=torch.float32, device=columns.device)
    given = groups, centre.expand(runs).contiguous(), result
    layout = layout_of(groups)
    if num_clients <= FEW:
        _products_of_few[(prod(shape[:3]),)](
            *given,
            dim,
            piece,
            num_pieces,
            groups_per_run,
            *layout.strides,
            UNIT=layout.unit,
            WIDTH=layout.width,
            CLIENTS=num_clients,
            STEP=FEW_STEP,
            num_warps=1,
        )
    else:
        block = max(16, next_power_of_2(num_clients))
        step, num_warps, registers = (ROW_TILES if layout.are_rows else COLUMN_TILES)[block]
        _products[(prod(shape[:3]),)](
            *given,
            1.0,
            num_clients,
            dim,
            piece // PIECE_UNIT,
            num_pieces,
            groups_per_run,
            *layout.strides,
            UNIT=layout.unit,
            WIDTH=layout.width,
            ARE_ROWS=layout.are_rows,
            BLOCK=block,
            STEP=step,
            PIECE_UNIT=PIECE_UNIT,
            PART=PART,
            num_warps=num_warps,
            num_stages=3,
            **({} if IS_AMD else {"maxnreg": registers}),
        )
    found = result[:, :, 0] if num_pieces == 1 else result.sum(dim=2, dtype=torch.float64)
    return found.view(*batch, num_clients, num_clients)


def piece_length(num_matrices: int, dim: int) -> int:
    """Return how many coordinates one program multiplies."""
    num_pieces = cdiv(ENOUGH_PROGRAMS, num_matrices)
    piece = min(max(cdiv(dim, num_pieces), SHORTEST_PIECE), LONGEST_PIECE)
    return cdiv(cdiv(dim, cdiv(dim, piece)), PIECE_UNIT) * PIECE_UNIT
