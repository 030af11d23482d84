"""Triton kernels for squared lengths and distances, read once; called by `group_kernels`.

Squares and sums are float64: finite for all finite float32 values, the same to the last bit for
equal rows, and from one run to the next.
"""

import triton
import triton.language as tl
from torch import Tensor

from outvote.ops import cdiv, next_power_of_2
from outvote.ops.group_kernels import Layout

# Values that a program reads at once.
AT_ONCE = 2048
# Rows that share what they are compared with, which is then read once for all of them.
ROWS_AT_ONCE = 4
NUM_WARPS = 4


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


def square_sums(
    rows: Tensor, minus: Tensor | None, result: Tensor, piece: int, layout: Layout
) -> None:
    """Add up the squares of ``rows [runs, clients, dim]``, or of their differences to a vector.

    ``result [runs, pieces, clients]`` are the sums of pieces of so many coordinates.
    """
    runs, num_clients, dim = rows.shape
    num_pieces = result.shape[1]
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
        PIECE=piece,
        CLIENTS=clients,
        STEP=AT_ONCE // clients,
        num_warps=NUM_WARPS,
    )


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


def distances_to_vector(
    columns: Tensor, vector: Tensor, result: Tensor, piece: int, layout: Layout
) -> None:
    """Measure ``columns [runs, groups, dim, clients]`` against a contiguous vector per group.

    ``result [runs * groups, pieces, clients]`` are sums of pieces of so many coordinates. Clients
    are side by side.
    """
    runs, groups, dim, num_clients = columns.shape
    num_pieces = result.shape[1]
    clients = max(2, next_power_of_2(num_clients))
    _distances_to_vector[(runs * groups * num_pieces,)](
        columns,
        vector,
        result,
        num_clients,
        dim,
        num_pieces,
        groups,
        *layout.strides,
        UNIT=layout.unit,
        WIDTH=layout.width,
        PIECE=piece,
        CLIENTS=clients,
        STEP=AT_ONCE // clients,
        num_warps=NUM_WARPS,
    )


@triton.jit
def _sums(pieces, first, last, num_clients, PIECES: tl.constexpr, CLIENTS: tl.constexpr):
    """Add up the rows of ``pieces [..., clients]`` from `first` up to, not with, `last`."""
    client = tl.arange(0, CLIENTS)
    total = tl.zeros([PIECES, CLIENTS], dtype=tl.float64)
    for start in range(first, last, PIECES):
        piece = start + tl.arange(0, PIECES)
        at = piece[:, None] * num_clients + client[None, :]
        wanted = (piece < last)[:, None] & (client < num_clients)[None, :]
        total += tl.load(pieces + at, mask=wanted, other=0.0)
    return tl.sum(total, axis=0)


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


def sums_of_roots(squared: Tensor, result: Tensor, piece: int) -> None:
    """Add up the roots of ``squared [runs, groups, clients]`` over every `piece` groups.

    ``result`` is ``[runs, pieces, clients]``. The roots of equal clients are added in one order.
    """
    runs, num_groups, num_clients = squared.shape
    _sums_of_roots[(cdiv(num_clients, ROWS_AT_ONCE), result.shape[1], runs)](
        squared,
        result,
        num_groups,
        num_clients,
        PIECE=piece,
        GROUPS=AT_ONCE // ROWS_AT_ONCE,
        CLIENTS=ROWS_AT_ONCE,
        num_warps=NUM_WARPS,
    )


@triton.jit(do_not_specialize=["num_pieces", "num_clients"])
def _larger_pieces(
    pieces,
    result,
    num_pieces,
    num_clients,
    LARGER: tl.constexpr,
    PIECES: tl.constexpr,
    CLIENTS: tl.constexpr,
):
    number = tl.program_id(0)
    last = tl.minimum((number + 1) * LARGER, num_pieces)
    total = _sums(pieces, number * LARGER, last, num_clients, PIECES, CLIENTS)
    client = tl.arange(0, CLIENTS)
    tl.store(result + number * num_clients + client, total, mask=client < num_clients)


def larger_pieces(pieces: Tensor, result: Tensor, size: int) -> None:
    """Add up every `size` rows of ``pieces [pieces, clients]``."""
    num_pieces, num_clients = pieces.shape
    clients = max(2, next_power_of_2(num_clients))
    _larger_pieces[(len(result),)](
        pieces,
        result,
        num_pieces,
        num_clients,
        LARGER=size,
        PIECES=max(1, AT_ONCE // clients),
        CLIENTS=clients,
        num_warps=NUM_WARPS,
    )


@triton.jit(do_not_specialize=["num_pieces", "num_clients"])
def _lengths(
    pieces,
    lengths,
    centre,
    num_pieces,
    num_clients,
    SHORTEST: tl.constexpr,
    LONGEST: tl.constexpr,
    PIECES: tl.constexpr,
    CLIENTS: tl.constexpr,
):
    client = tl.arange(0, CLIENTS)
    known = client < num_clients
    length = tl.sqrt(_sums(pieces, 0, num_pieces, num_clients, PIECES, CLIENTS))
    length = tl.where(known, length, float("inf"))
    is_first = client[None, :] < client[:, None]
    is_alike = (length[None, :] == length[:, None]) & is_first & known[:, None]
    is_before = (length[None, :] < length[:, None]) | is_alike
    rank = tl.sum(is_before.to(tl.int32), axis=1)
    # Where some are not a number there may be none of this rank, or several.
    is_middle = (rank == (num_clients - 1) // 2) & known
    middle = tl.max(tl.where(is_middle, client, 0), axis=0)
    is_too_short = tl.where((client == middle) & (length < SHORTEST), 1, 0)
    is_usual = (length < LONGEST) | (known == 0)
    num_unusual = tl.sum(is_too_short + (is_usual == 0).to(tl.int32), axis=0)
    num_alike = tl.sum(tl.sum(is_alike.to(tl.int32), axis=1), axis=0)
    tl.store(lengths + client, length, mask=known)
    tl.store(lengths + num_clients, (num_unusual + num_alike).to(tl.float64))
    tl.store(lengths + (num_clients + 2) // 2 * 2, tl.zeros((), tl.float64))
    tl.store(centre, middle.to(tl.int64))


def lengths(
    pieces: Tensor, result: Tensor, centre: Tensor, shortest: float, longest: float
) -> None:
    """Turn sums of squares ``[pieces, clients]`` into lengths, and find a client of median length.

    ``result`` has behind them how many are unusual: not below `longest`, equal to another, or the
    median below `shortest`; and 0 at the next even index. `centre` is a client that there is,
    whatever the lengths are.
    """
    num_pieces, num_clients = pieces.shape
    clients = max(2, next_power_of_2(num_clients))
    _lengths[(1,)](
        pieces,
        result,
        centre,
        num_pieces,
        num_clients,
        SHORTEST=shortest,
        LONGEST=longest,
        PIECES=max(1, AT_ONCE // clients),
        CLIENTS=clients,
        num_warps=NUM_WARPS,
    )
