"""Triton kernels for groups of few coordinates; called by `group_kernels`.

Distances are sums of squared differences: exactly 0 to oneself and between equal clients, and the
same to the last bit for copies. In float64 they are finite for all finite float32 values; in
float32 they are of values times a power of two, chosen by the caller so that no square is infinite.
"""

from math import gcd

import triton
import triton.language as tl
from torch import Tensor

from outvote.ops import cdiv, next_power_of_2

# Values of a row that one thread sorts in its registers.
LOG_VALUES_PER_THREAD = 6
LOG_WARP = 5
# Clients in no order: the compiler gives whole rows to threads, which sort in registers.
PERMUTING = tl.constexpr(21)
LARGEST = tl.constexpr(3.4028234663852886e38)
# Values that are read together, at most; coordinates of a program that adds up clients, its warps.
LARGEST_UNIT = 4
SUMMED_AT_ONCE, SUM_WARPS = 1024, 4


@triton.jit
def _differences(
    columns,
    num_rows,
    num_clients,
    width,
    groups_per_run,
    run_stride,
    group_stride,
    coordinate_stride,
    client_stride,
    FACTOR: tl.constexpr,
    ROWS: tl.constexpr,
    CLIENTS: tl.constexpr,
):
    """Return the squared distances [rows, clients] of some clients, infinite past the last one.

    An odd `FACTOR` above 1 permutes the clients.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    group = row // num_clients
    run = group // groups_per_run
    start = columns + run * run_stride + (group - run * groups_per_run) * group_stride
    own_at = start + (row - group * num_clients) * client_stride
    client = (tl.arange(0, CLIENTS) * FACTOR) % CLIENTS
    is_row = row < num_rows
    inside = is_row[:, None] & (client < num_clients)[None, :]
    offset = client.to(tl.int64) * client_stride
    far = tl.zeros([ROWS, CLIENTS], dtype=tl.float64)
    for _ in range(width):
        own = tl.load(own_at, mask=is_row, other=0.0).to(tl.float64)
        other = tl.load(start[:, None] + offset[None, :], mask=inside, other=0.0).to(tl.float64)
        apart = other - own[:, None]
        far += apart * apart
        own_at += coordinate_stride
        start += coordinate_stride
    return tl.where(inside, far, float("inf"))


@triton.jit
def _is_second(NUM_AXES: tl.constexpr, AXIS: tl.constexpr):
    """Return 0 and 1 along an axis of a cube of two values each way."""
    return tl.reshape(tl.arange(0, 2), [1] * AXIS + [2] + [1] * (NUM_AXES - 1 - AXIS))


@triton.jit
def _exchanged(cube, falls, NUM_AXES: tl.constexpr, AXIS: tl.constexpr):
    """Put the smaller of two neighbours along an axis first or, where `falls` is 1, last."""
    low = tl.min(cube, axis=AXIS, keep_dims=True)
    high = tl.max(cube, axis=AXIS, keep_dims=True)
    return tl.where(_is_second(NUM_AXES, AXIS) == falls, low, high)


@triton.jit
def ranked(values, NUM_AXES: tl.constexpr, NUM_SORTED: tl.constexpr):
    """Sort rows of ``2 ** NUM_SORTED`` values each, ``2 ** NUM_AXES`` in all.

    A bitonic network of minimum and maximum, one instruction each for float32 and a third of what
    `tl.sort` compiles to.
    """
    cube = tl.reshape(values, [2] * NUM_AXES)
    for stage in tl.static_range(1, NUM_SORTED + 1):
        if stage < NUM_SORTED:
            falls = _is_second(NUM_AXES, NUM_AXES - 1 - stage)
        else:
            falls = 0
        for step in tl.static_range(stage):
            cube = _exchanged(cube, falls, NUM_AXES, NUM_AXES - stage + step)
    return tl.reshape(cube, values.shape)


@triton.jit
def _sum_of_smallest(
    far, num_clients, num_smallest, NUM_AXES: tl.constexpr, NUM_SORTED: tl.constexpr
):
    """Return the sums of the smallest of some distances in float64, clients in another order."""
    place = tl.arange(0, 2**NUM_SORTED)
    is_client = (place * PERMUTING) % 2**NUM_SORTED < num_clients
    far = tl.where(is_client[None, :], far, float("inf"))
    in_order = ranked(far, NUM_AXES, NUM_SORTED)
    counted = tl.where((place < num_smallest)[None, :], in_order, 0.0)
    return tl.sum(counted.to(tl.float64), axis=1)


@triton.jit(
    do_not_specialize=[
        "num_pairs",
        "pairs_per_group",
        "num_clients",
        "width",
        "groups_per_run",
        "run_stride",
        "group_stride",
        "coordinate_stride",
        "num_smallest",
    ]
)
def _sums_of_smallest(
    columns,
    result,
    num_pairs,
    pairs_per_group,
    num_clients,
    width,
    groups_per_run,
    run_stride,
    group_stride,
    coordinate_stride,
    client_stride,
    num_smallest,
    scale,
    back,
    NUM_ROWS: tl.constexpr,
    NUM_SORTED: tl.constexpr,
):
    # A thread works on two clients of a group, which share the values of the others.
    CLIENTS: tl.constexpr = 2**NUM_SORTED
    pair = tl.program_id(0).to(tl.int64) * 2**NUM_ROWS + tl.arange(0, 2**NUM_ROWS)
    is_pair = pair < num_pairs
    pair = tl.where(is_pair, pair, num_pairs - 1)
    group = pair // pairs_per_group
    run = group // groups_per_run
    start = columns + run * run_stride + (group - run * groups_per_run) * group_stride
    first = pair - group * pairs_per_group
    second = tl.minimum(first + pairs_per_group, num_clients - 1)
    first_at = start + first * client_stride
    second_at = start + second * client_stride
    client = (tl.arange(0, CLIENTS) * PERMUTING) % CLIENTS
    # More than half of them there are: these are read without a question.
    is_read = (client < CLIENTS // 2) | (client < num_clients)
    is_read = tl.broadcast_to(is_read[None, :], [2**NUM_ROWS, CLIENTS])
    offset = client.to(tl.int64) * client_stride
    far = tl.zeros([2**NUM_ROWS, CLIENTS], dtype=tl.float32)
    far_of_second = tl.zeros([2**NUM_ROWS, CLIENTS], dtype=tl.float32)
    for _ in range(width):
        own = tl.load(first_at).to(tl.float32) * scale
        own_of_second = tl.load(second_at).to(tl.float32) * scale
        other = tl.load(start[:, None] + offset[None, :], mask=is_read).to(tl.float32)
        # Rounded once: exactly 0 for equal clients, since the scale is a power of two.
        apart = tl.fma(other, scale, -own[:, None])
        far += apart * apart
        apart = tl.fma(other, scale, -own_of_second[:, None])
        far_of_second += apart * apart
        first_at += coordinate_stride
        second_at += coordinate_stride
        start += coordinate_stride
    total = _sum_of_smallest(far, num_clients, num_smallest, NUM_ROWS + NUM_SORTED, NUM_SORTED)
    row = result + group * num_clients
    tl.store(row + first, total * back * back, mask=is_pair)
    total = _sum_of_smallest(
        far_of_second, num_clients, num_smallest, NUM_ROWS + NUM_SORTED, NUM_SORTED
    )
    tl.store(row + second, total * back * back, mask=is_pair)


def sums_of_smallest(columns: Tensor, result: Tensor, num_smallest: int, scale: float) -> None:
    """Add up the smallest squared distances of every client of ``columns [runs, groups, ...]``.

    The distances are of values times `scale`, a power of two, in float32; sums are in float64. The
    relative error is at most (width + 3) * 6e-8, unless a difference is below 1e-19 / scale.
    """
    runs, groups, width, num_clients = columns.shape
    num_sorted = max(1, (num_clients - 1).bit_length())
    num_rows = LOG_WARP - max(0, num_sorted - LOG_VALUES_PER_THREAD)
    pairs_per_group = cdiv(num_clients, 2)
    num_pairs = runs * groups * pairs_per_group
    _sums_of_smallest[(cdiv(num_pairs, 2**num_rows),)](
        columns,
        result,
        num_pairs,
        pairs_per_group,
        num_clients,
        width,
        groups,
        *columns.stride(),
        num_smallest,
        scale,
        1 / scale,
        NUM_ROWS=num_rows,
        NUM_SORTED=num_sorted,
        num_warps=1,
    )


@triton.jit(
    do_not_specialize=[
        "num_rows",
        "num_clients",
        "width",
        "groups_per_run",
        "run_stride",
        "num_smallest",
    ]
)
def _exact_sums_of_smallest(
    columns,
    result,
    num_rows,
    num_clients,
    width,
    groups_per_run,
    run_stride,
    group_stride,
    coordinate_stride,
    client_stride,
    num_smallest,
    ROWS: tl.constexpr,
    CLIENTS: tl.constexpr,
):
    far = _differences(
        columns,
        num_rows,
        num_clients,
        width,
        groups_per_run,
        run_stride,
        group_stride,
        coordinate_stride,
        client_stride,
        PERMUTING,
        ROWS,
        CLIENTS,
    )
    # A sort takes seconds to compile, and half as long to run as a search for the last rank.
    in_order = tl.sort(far, dim=1)
    counts = tl.arange(0, CLIENTS) < num_smallest
    total = tl.sum(tl.where(counts[None, :], in_order, 0.0), axis=1)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    tl.store(result + row, total, mask=row < num_rows)


def exact_sums_of_smallest(columns: Tensor, result: Tensor, num_smallest: int) -> None:
    """Add up the smallest squared distances of every client in float64, see `sums_of_smallest`."""
    runs, groups, width, num_clients = columns.shape
    num_rows = runs * groups * num_clients
    padded = max(2, next_power_of_2(num_clients))
    rows = max(1, 2048 // max(padded, 64))
    _exact_sums_of_smallest[(cdiv(num_rows, rows),)](
        columns,
        result,
        num_rows,
        num_clients,
        width,
        groups,
        *columns.stride(),
        num_smallest,
        ROWS=rows,
        CLIENTS=padded,
        num_warps=1,
    )


@triton.jit(
    do_not_specialize=["num_rows", "num_clients", "width", "groups_per_run", "run_stride"],
)
def _pairwise_differences(
    columns,
    result,
    num_rows,
    num_clients,
    width,
    groups_per_run,
    run_stride,
    group_stride,
    coordinate_stride,
    client_stride,
    ROWS: tl.constexpr,
    CLIENTS: tl.constexpr,
):
    far = _differences(
        columns,
        num_rows,
        num_clients,
        width,
        groups_per_run,
        run_stride,
        group_stride,
        coordinate_stride,
        client_stride,
        1,
        ROWS,
        CLIENTS,
    )
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    client = tl.arange(0, CLIENTS)
    inside = (row < num_rows)[:, None] & (client < num_clients)[None, :]
    tl.store(result + row[:, None] * num_clients + client[None, :], far, mask=inside)


def pairwise_differences(columns: Tensor, result: Tensor) -> None:
    """Write the squared distances between all pairs of ``columns [runs, groups, width, n]``."""
    runs, groups, width, num_clients = columns.shape
    num_rows = runs * groups * num_clients
    padded = max(2, next_power_of_2(num_clients))
    rows = max(1, 1024 // padded)
    _pairwise_differences[(cdiv(num_rows, rows),)](
        columns,
        result,
        num_rows,
        num_clients,
        width,
        groups,
        *columns.stride(),
        ROWS=rows,
        CLIENTS=padded,
        num_warps=4,
    )


@triton.jit(
    do_not_specialize=["num_groups", "num_clients", "width", "groups_per_run", "run_stride"],
)
def _distances_to_average(
    columns,
    weights,
    result,
    num_groups,
    num_clients,
    width,
    groups_per_run,
    run_stride,
    group_stride,
    coordinate_stride,
    client_stride,
    GROUPS: tl.constexpr,
    CLIENTS: tl.constexpr,
):
    group = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    client = tl.arange(0, CLIENTS)
    inside = (group < num_groups)[:, None] & (client < num_clients)[None, :]
    run = group // groups_per_run
    start = columns + run * run_stride + (group - run * groups_per_run) * group_stride
    at = start[:, None] + (client.to(tl.int64) * client_stride)[None, :]
    own = group[:, None] * num_clients + client[None, :]
    weight = tl.load(weights + own, mask=inside, other=0.0)
    far = tl.zeros([GROUPS, CLIENTS], dtype=tl.float64)
    for _ in range(width):
        value = tl.load(at, mask=inside, other=0.0).to(tl.float64)
        apart = value - tl.sum(value * weight, axis=1)[:, None]
        far += apart * apart
        at += coordinate_stride
    tl.store(result + own, far, mask=inside)


def distances_to_average(columns: Tensor, weights: Tensor, result: Tensor) -> None:
    """Measure each client of ``columns [runs, groups, width, n]`` against a weighted average."""
    runs, groups, width, num_clients = columns.shape
    padded = max(2, next_power_of_2(num_clients))
    at_once = max(1, 512 // padded)
    _distances_to_average[(cdiv(runs * groups, at_once),)](
        columns,
        weights,
        result,
        runs * groups,
        num_clients,
        width,
        groups,
        *columns.stride(),
        GROUPS=at_once,
        CLIENTS=padded,
        num_warps=2,
    )


@triton.jit(do_not_specialize=["num_clients", "num_smallest"])
def _average_of_smallest(scores, result, num_clients, num_smallest, CLIENTS: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * num_clients
    client = tl.arange(0, CLIENTS)
    known = client < num_clients
    score = tl.load(scores + start + client, mask=known, other=float("inf"))
    is_before = (score[None, :] < score[:, None]) | (
        (score[None, :] == score[:, None]) & (client[None, :] < client[:, None])
    )
    rank = tl.sum(is_before.to(tl.int32), axis=1)
    one = tl.full([CLIENTS], 1.0, dtype=tl.float64)
    share = one / num_smallest.to(tl.float64)
    weight = tl.where(rank < num_smallest, share, 0.0)
    tl.store(result + start + client, weight, mask=known)


def average_of_smallest(scores: Tensor, result: Tensor, num_smallest: int) -> None:
    """Give equal weights to the smallest scores of each row, lower index first."""
    num_rows, num_clients = scores.shape
    _average_of_smallest[(num_rows,)](
        scores,
        result,
        num_clients,
        num_smallest,
        CLIENTS=max(2, next_power_of_2(num_clients)),
        num_warps=1,
    )


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


def weighted_sum(rows: Tensor, weights: Tensor, result: Tensor) -> None:
    """Add up the clients of ``rows [runs, clients, dim]`` (coordinates side by side)."""
    runs, num_clients, dim = rows.shape
    run_stride, client_stride, _ = rows.stride()
    unit = gcd(run_stride, client_stride, dim, LARGEST_UNIT)
    _weighted_sum[(cdiv(dim, SUMMED_AT_ONCE), runs)](
        rows,
        weights,
        result,
        num_clients,
        dim // unit,
        run_stride // unit,
        client_stride // unit,
        UNIT=unit,
        DIM=SUMMED_AT_ONCE,
        num_warps=SUM_WARPS,
    )
