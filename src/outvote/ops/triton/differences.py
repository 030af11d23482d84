"""Triton kernels for groups of few coordinates: differences of all pairs, see `ops.pairs`.

Distances are sums of squared differences: exactly 0 to oneself and between equal clients, and the
same to the last bit for copies. In float64 they are finite for all finite float32 values; in
float32 they are of values times a power of two, chosen by the caller so that no square is infinite.
"""

from math import frexp, ldexp

import torch
import triton
import triton.language as tl
from torch import Tensor

from outvote.axes import Columns, Pairs, PerClient
from outvote.ops.triton import cdiv, next_power_of_2
from outvote.ops.triton.layout import grouped
from outvote.ops.triton.sorting import PERMUTING, ranked

# Squares of twice this are finite in float32.
SAFE_NORM = 1e18
# Of the longest client and of a factor, in powers of two: squares of twice 2 ** 61 are finite.
LARGEST_EXPONENT, LARGEST_SCALE = 61, 120

# Values of a row that one thread sorts in its registers.
LOG_VALUES_PER_THREAD, LOG_WARP = 6, 5


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


def sums_of_smallest_differences(
    columns: Columns, num_smallest: int, largest_norm: float
) -> PerClient:
    """Add up the smallest squared distances of every client.

    Where `largest_norm` is below `SAFE_NORM`, distances are taken in float32, of values times a
    power of two: the relative error is at most (width + 3) * 6e-8, unless a difference is below
    1e-19 of that scale. Otherwise, and for the sums, float64 is used.
    """
    groups = grouped(columns)
    runs, groups_per_run, width, num_clients = groups.shape
    shape = (*columns.shape[:-2], num_clients)
    result = torch.empty(shape, dtype=torch.float64, device=columns.device)
    if largest_norm >= SAFE_NORM:
        # Every value is compared with all clients: it is converted once, not for each of them.
        _exact_sums(groups.double(), result, num_smallest)
        return result
    scale = scale_for(largest_norm)
    num_sorted = max(1, (num_clients - 1).bit_length())
    num_rows = LOG_WARP - max(0, num_sorted - LOG_VALUES_PER_THREAD)
    pairs_per_group = cdiv(num_clients, 2)
    num_pairs = runs * groups_per_run * pairs_per_group
    _sums_of_smallest[(cdiv(num_pairs, 2**num_rows),)](
        groups,
        result,
        num_pairs,
        pairs_per_group,
        num_clients,
        width,
        groups_per_run,
        *groups.stride(),
        num_smallest,
        scale,
        1 / scale,
        NUM_ROWS=num_rows,
        NUM_SORTED=num_sorted,
        num_warps=1,
    )
    return result


def scale_for(largest_norm: float) -> float:
    """Return the power of two that makes squared distances as large as is safe in float32."""
    exponent = frexp(largest_norm)[1]
    return ldexp(1.0, min(LARGEST_EXPONENT - exponent, LARGEST_SCALE))


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


def _exact_sums(columns: Tensor, result: Tensor, num_smallest: int) -> None:
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


def pairwise_differences(columns: Columns) -> Pairs:
    """Return the squared distances between all pairs, float64."""
    groups = grouped(columns)
    runs, groups_per_run, width, num_clients = groups.shape
    shape = (*columns.shape[:-2], num_clients, num_clients)
    result = torch.empty(shape, dtype=torch.float64, device=columns.device)
    num_rows = runs * groups_per_run * num_clients
    padded = max(2, next_power_of_2(num_clients))
    rows = max(1, 1024 // padded)
    _pairwise_differences[(cdiv(num_rows, rows),)](
        groups,
        result,
        num_rows,
        num_clients,
        width,
        groups_per_run,
        *groups.stride(),
        ROWS=rows,
        CLIENTS=padded,
        num_warps=4,
    )
    return result


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


def differences_to_average(columns: Columns, weights: PerClient) -> PerClient:
    """Measure each client against a weighted average, float64."""
    groups = grouped(columns)
    runs, groups_per_run, width, num_clients = groups.shape
    shape = (*columns.shape[:-2], num_clients)
    result = torch.empty(shape, dtype=torch.float64, device=columns.device)
    padded = max(2, next_power_of_2(num_clients))
    at_once = max(1, 512 // padded)
    _distances_to_average[(cdiv(runs * groups_per_run, at_once),)](
        groups,
        weights.double().expand(shape).contiguous(),
        result,
        runs * groups_per_run,
        num_clients,
        width,
        groups_per_run,
        *groups.stride(),
        GROUPS=at_once,
        CLIENTS=padded,
        num_warps=2,
    )
    return result
