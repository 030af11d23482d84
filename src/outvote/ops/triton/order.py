"""Triton kernels for order statistics, see `ops.order`.

Up to 20 clients, a thread holds all values of a coordinate and sorts them by a network of minima
and maxima. With more clients nothing is sorted: the value of a rank is found by halving an interval
and counting the values below its middle, until one value is left for every coordinate of a program.
All the values of a coordinate lie in one thread or a few, so that counting needs few exchanges.

While the values are at hand, the same pass counts for every client in how many coordinates its
value is between the bounds.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from outvote.axes import Columns, PerClient, PerCoordinate
from outvote.ops.network import comparators
from outvote.ops.order import Among, Found, median_ranks
from outvote.ops.triton import IS_AMD, cdiv, next_power_of_2
from outvote.ops.triton.layout import grouped

# How many values each of the 32 threads of a warp holds in registers.
VALUES_PER_THREAD = 32
# Up to this many clients are sorted by a network, for a multiple of so many. A larger network would
# take seconds to compile.
LARGEST_NETWORK, NETWORK_STEP = 20, 4
# What a program counts fits a byte.
MOST_COORDINATES = 128
# What changes from call to call: a kernel that was compiled for one value would be compiled again.
AT_RUN_TIME = [
    "num_coordinates",
    "programs_per_run",
    "num_groups",
    "width",
    "num_clients",
    "run_stride",
    "group_stride",
    "width_stride",
    "client_stride",
    "first",
    "last",
    "num_taken",
    "count",
]


@triton.jit
def _load_tile(
    source,
    among,
    run,
    tile,
    num_coordinates,
    num_groups,
    width,
    num_clients,
    run_stride,
    group_stride,
    width_stride,
    client_stride,
    HAS_AMONG: tl.constexpr,
    COORDINATES: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Load ``[coordinates, values]``, so that neighbouring threads take neighbouring coordinates.

    The compiler goes by what is marked as contiguous. This holds where clients sent rows; where the
    clients are side by side it decides only who loads what: nothing is known to be aligned, so
    values are loaded one by one.
    """
    coordinate = tile * COORDINATES + tl.arange(0, COORDINATES)
    slot = tl.arange(0, VALUES)
    known = coordinate < num_coordinates
    is_client = (slot < num_clients)[None, :]
    group = coordinate // width
    start = run * run_stride + group.to(tl.int64) * group_stride
    start += (coordinate % width).to(tl.int64) * width_stride
    start = tl.max_contiguous(start, COORDINATES)
    at = start[:, None] + slot[None, :].to(tl.int64) * client_stride
    if HAS_AMONG:
        matrix = tl.max_contiguous((run * num_groups + group) * num_clients, COORDINATES)
        own = matrix[:, None] + slot[None, :]
        wanted = tl.load(among + own, mask=is_client & known[:, None], other=0)
        # Coordinates past the last one have values too, all 0.
        is_client = is_client & ((wanted != 0) | (coordinate >= num_coordinates)[:, None])
    values = tl.load(source + at, mask=is_client & known[:, None], other=0.0).to(tl.float32)
    return values, is_client & (coordinate >= 0)[:, None], coordinate, known


@triton.jit
def _ordered(values):
    """Return integers that are in the order of floats."""
    bits = values.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _as_float(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _key_of_rank(key, rank):
    """Return the key that `rank` of the keys come before, and how many there are up to it.

    The key is in an interval that is halved: first by values, which separates values of one size
    soonest, later by keys, which ends after 32 halvings. The smallest key of the interval is often
    the one long before.
    """
    low = tl.min(key, axis=1)
    high = tl.max(tl.where(key < 0x7FFFFFFF, key, -2147483648), axis=1)
    up_to = tl.zeros(low.shape, tl.int32)
    by_value = low <= high
    num_steps = 12
    num_open = 1
    while num_open > 0:
        for _ in range(num_steps):
            # The mean of two integers, rounded up, without overflow.
            candidate = (low | high) - ((low ^ high) >> 1)
            middle = _ordered(_as_float(low) * 0.5 + _as_float(high) * 0.5)
            candidate = tl.where(by_value, tl.maximum(middle, low), candidate)
            candidate = tl.minimum(candidate, high)
            below = tl.sum((key < candidate[:, None]).to(tl.int32), axis=1)
            low = tl.where(below <= rank, candidate, low)
            high = tl.where(below <= rank, high, candidate - 1)
        smallest = tl.min(tl.where(key >= low[:, None], key, 0x7FFFFFFF), axis=1)
        up_to = tl.sum((key <= smallest[:, None]).to(tl.int32), axis=1)
        is_found = up_to > rank
        low = tl.where(is_found, smallest, smallest + 1)
        high = tl.where(is_found, smallest, high)
        by_value = low > high
        num_steps = 4
        num_open = tl.max((up_to <= rank).to(tl.int32), axis=0)
    return low, up_to


@triton.jit
def _two_ranks(key, first, last):
    """Return the keys of the ranks `first` and ``last - 1``, and how many are up to the former."""
    low, up_to_low = _key_of_rank(key, first)
    if last - first > 2:
        high, _ = _key_of_rank(key, last - 1)
    else:
        above = tl.min(tl.where(key > low[:, None], key, 0x7FFFFFFF), axis=1)
        high = tl.where(up_to_low >= last, low, above)
    return low, high, up_to_low


@triton.jit
def _store_counts(counts, values, inside, known, low, high, VALUES: tl.constexpr):
    """Count, for every client, the coordinates where its value is between two bounds."""
    entered = inside & known[:, None] & (values >= low[:, None]) & (values <= high[:, None])
    found = tl.sum(entered.to(tl.int32), axis=0)
    at = tl.program_id(0).to(tl.int64) * VALUES + tl.arange(0, VALUES)
    tl.store(counts + at, found.to(tl.uint8))


@triton.jit(do_not_specialize=AT_RUN_TIME)
def _ranks(
    source,
    mean,
    lowest,
    highest,
    counts,
    num_coordinates,
    programs_per_run,
    num_groups,
    width,
    num_clients,
    run_stride,
    group_stride,
    width_stride,
    client_stride,
    first,
    last,
    count,
    HAS_BOUNDS: tl.constexpr,
    HAS_COUNTS: tl.constexpr,
    COORDINATES: tl.constexpr,
    VALUES: tl.constexpr,
):
    program = tl.program_id(0)
    run = (program // programs_per_run).to(tl.int64)
    tile = program % programs_per_run
    values, inside, coordinate, known = _load_tile(
        source,
        source,
        run,
        tile,
        num_coordinates,
        num_groups,
        width,
        num_clients,
        run_stride,
        group_stride,
        width_stride,
        client_stride,
        False,
        COORDINATES,
        VALUES,
    )
    key = tl.where(inside, _ordered(values), 0x7FFFFFFF)
    low_key, high_key, up_to_low = _two_ranks(key, first, last)
    low, high = _as_float(low_key), _as_float(high_key)
    at = run * num_coordinates + coordinate
    # From the keys, so that registers hold them alone.
    values = _as_float(key)
    between = (key > low_key[:, None]) & (key < high_key[:, None])
    up_to_high = tl.sum((key < high_key[:, None]).to(tl.int32), axis=1)
    num_low = (tl.minimum(up_to_low, last) - first).to(tl.float32)
    num_high = tl.where(low_key == high_key, 0, last - up_to_high).to(tl.float32)
    total = tl.sum(tl.where(between, values, 0.0), axis=1) + num_low * low + num_high * high
    # Shares of numbers overflow only where their mean does; a sum is rounded less.
    share = 1.0 / count
    shares = tl.sum(tl.where(between, values * share, 0.0), axis=1)
    shares += (num_low * share) * low + (num_high * share) * high
    found = tl.where(tl.abs(total) < float("inf"), tl.div_rn(total, count), shares)
    # Rounding may carry the mean of equal values away from them.
    found = tl.minimum(tl.maximum(found, low), high)
    tl.store(mean + at, found, mask=known)
    if HAS_BOUNDS:
        tl.store(lowest + at, low, mask=known)
        tl.store(highest + at, high, mask=known)
    if HAS_COUNTS:
        _store_counts(counts, values, key < 0x7FFFFFFF, known, low, high, VALUES)


@triton.jit(do_not_specialize=AT_RUN_TIME)
def _nearest(
    source,
    among,
    mean,
    lowest,
    highest,
    counts,
    num_coordinates,
    programs_per_run,
    num_groups,
    width,
    num_clients,
    run_stride,
    group_stride,
    width_stride,
    client_stride,
    first,
    last,
    num_taken,
    count,
    HAS_AMONG: tl.constexpr,
    HAS_BOUNDS: tl.constexpr,
    HAS_COUNTS: tl.constexpr,
    COORDINATES: tl.constexpr,
    VALUES: tl.constexpr,
):
    program = tl.program_id(0)
    run = (program // programs_per_run).to(tl.int64)
    tile = program % programs_per_run
    values, inside, coordinate, known = _load_tile(
        source,
        among,
        run,
        tile,
        num_coordinates,
        num_groups,
        width,
        num_clients,
        run_stride,
        group_stride,
        width_stride,
        client_stride,
        HAS_AMONG,
        COORDINATES,
        VALUES,
    )
    key = tl.where(inside, _ordered(values), 0x7FFFFFFF)
    low_key, high_key, _ = _two_ranks(key, first, last)
    extreme = tl.max(tl.abs(values), axis=1)
    # Twice a difference of numbers near the largest float would overflow.
    scale = tl.where(extreme > 3.4028234663852886e38 / 16, 0.25, 1.0)
    below, above = _as_float(low_key) * scale, _as_float(high_key) * scale
    scaled = values * scale[:, None]
    # The median as the two values around it: their mean would be rounded, differences are not.
    far = tl.abs((scaled - below[:, None]) + (scaled - above[:, None]))
    # Numbers that are not negative are in the order of their bits.
    key = tl.where(inside, far.to(tl.int32, bitcast=True), 0x7FFFFFFF)
    reach, up_to_reach = _key_of_rank(key, num_taken - 1)
    taken = key < reach[:, None]
    tied = key == reach[:, None]
    num_nearer = tl.sum(taken.to(tl.int32), axis=1)
    num_wanted = num_taken - num_nearer
    # Of values equally near, those of the lower client index: the tied ones before `end`.
    end = tl.zeros((COORDINATES,), tl.int32)
    slot = tl.arange(0, VALUES)[None, :]
    has_ties = tl.max((up_to_reach - num_nearer > num_wanted).to(tl.int32), axis=0)
    if has_ties > 0:
        step = tl.full((COORDINATES,), VALUES, tl.int32)
        while tl.max(step, axis=0) > 0:
            candidate = end + step
            before = tl.sum((tied & (slot < candidate[:, None])).to(tl.int32), axis=1)
            end = tl.where(before <= num_wanted, candidate, end)
            step = step // 2
    else:
        end += VALUES
    taken = inside & (taken | (tied & (slot < end[:, None])))
    low = tl.min(tl.where(taken, values, float("inf")), axis=1)
    high = tl.max(tl.where(taken, values, float("-inf")), axis=1)
    at = run * num_coordinates + coordinate
    total = tl.sum(tl.where(taken, values, 0.0), axis=1)
    shares = tl.sum(tl.where(taken, values * (1.0 / count), 0.0), axis=1)
    found = tl.where(tl.abs(total) < float("inf"), tl.div_rn(total, count), shares)
    tl.store(mean + at, tl.minimum(tl.maximum(found, low), high), mask=known)
    if HAS_BOUNDS:
        tl.store(lowest + at, low, mask=known)
        tl.store(highest + at, high, mask=known)
    if HAS_COUNTS:
        _store_counts(counts, values, inside, known, low, high, VALUES)


@triton.jit
def _exchange(values, RUN: tl.constexpr, STEP: tl.constexpr, SLOTS: tl.constexpr):
    """Put pairs in order that are `STEP` apart, as Batcher's odd-even merge sort does."""
    result = ()
    for k in tl.static_range(SLOTS):
        if (
            (k >= STEP % RUN)
            and ((k - STEP % RUN) // STEP % 2 == 0)
            and (k + STEP < SLOTS)
            and (k // (2 * RUN) == (k + STEP) // (2 * RUN))
        ):
            result = result + (tl.minimum(values[k], values[k + STEP]),)
        elif (
            (k - STEP >= STEP % RUN)
            and ((k - STEP - STEP % RUN) // STEP % 2 == 0)
            and ((k - STEP) // (2 * RUN) == k // (2 * RUN))
        ):
            result = result + (tl.maximum(values[k - STEP], values[k]),)
        else:
            result = result + (values[k],)
    return result


@triton.jit
def _in_order(values, NETWORK: tl.constexpr, OPERANDS: tl.constexpr, SLOTS: tl.constexpr):
    """Sort up to 32 vectors entry by entry.

    By one assembly statement: the compiler takes seconds for as many operations of its own. Without
    a text of it, for the interpreter and for AMD, by minima and maxima.
    """
    if NETWORK == "":
        for level in tl.static_range(5):
            for down in tl.static_range(5):
                if down <= level and 2**level < SLOTS:
                    values = _exchange(values, 2**level, 2 ** (level - down), SLOTS)
    else:
        values = tl.inline_asm_elementwise(
            NETWORK, OPERANDS, values, dtype=(tl.float32,) * SLOTS, is_pure=True, pack=1
        )
    return values


@triton.jit
def _few_values(
    source,
    among,
    run,
    coordinate,
    num_coordinates,
    num_groups,
    width,
    num_clients,
    run_stride,
    group_stride,
    width_stride,
    client_stride,
    HAS_AMONG: tl.constexpr,
    HAS_GROUPS: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """Load one vector per client, infinite where there is no client."""
    at = run * run_stride
    matrix = run * num_groups
    if HAS_GROUPS:
        group = coordinate // width
        matrix = matrix + group
        at = at + group.to(tl.int64) * group_stride
        at = at + (coordinate - group * width).to(tl.int64) * width_stride
    else:
        at = at + coordinate.to(tl.int64) * width_stride
    known = coordinate < num_coordinates
    if HAS_AMONG:
        # Bit k is set for client k.
        bits = tl.load(among + matrix + coordinate * 0, mask=known, other=0).to(tl.int32)
    values = ()
    for k in tl.static_range(SLOTS):
        wanted = coordinate < tl.where(k < num_clients, num_coordinates, 0)
        if HAS_AMONG:
            wanted = wanted & (((bits >> k) & 1) != 0)
        value = tl.load(source + at, mask=wanted, other=float("inf")).to(tl.float32)
        values = values + (value,)
        at = at + client_stride
    return values


@triton.jit
def _store_few_counts(counts, values, known, low, high, SLOTS: tl.constexpr):
    """Count, for every client, the coordinates where its value is between two bounds.

    Four clients at once, in the four bytes of an integer: up to 128 coordinates need its sign.
    """
    at = counts.to(tl.pointer_type(tl.uint32)) + tl.program_id(0).to(tl.int64) * (SLOTS // 4)
    for first in tl.static_range(0, SLOTS, 4):
        packed = tl.zeros(low.shape, tl.uint32)
        for k in tl.static_range(4):
            value = values[first + k]
            is_between = known & (value >= low) & (value <= high)
            packed += tl.where(is_between, 256**k, 0)
        tl.store(at + first // 4, tl.sum(packed, axis=0))


@triton.jit(do_not_specialize=AT_RUN_TIME)
def _few_ranks(
    source,
    mean,
    lowest,
    highest,
    counts,
    num_coordinates,
    programs_per_run,
    num_groups,
    width,
    num_clients,
    run_stride,
    group_stride,
    width_stride,
    client_stride,
    first,
    last,
    count,
    HAS_BOUNDS: tl.constexpr,
    HAS_COUNTS: tl.constexpr,
    HAS_GROUPS: tl.constexpr,
    NETWORK: tl.constexpr,
    OPERANDS: tl.constexpr,
    COORDINATES: tl.constexpr,
    SLOTS: tl.constexpr,
):
    program = tl.program_id(0)
    run = (program // programs_per_run).to(tl.int64)
    tile = program % programs_per_run
    coordinate = tile * COORDINATES + tl.arange(0, COORDINATES)
    known = coordinate < num_coordinates
    values = _few_values(
        source,
        source,
        run,
        coordinate,
        num_coordinates,
        num_groups,
        width,
        num_clients,
        run_stride,
        group_stride,
        width_stride,
        client_stride,
        False,
        HAS_GROUPS,
        SLOTS,
    )
    ranked = _in_order(values, NETWORK, OPERANDS, SLOTS)
    low = ranked[0]
    high = ranked[0]
    # Float64 does not overflow here.
    total = tl.zeros((COORDINATES,), tl.float64)
    for k in tl.static_range(SLOTS):
        low = tl.where(k == first, ranked[k], low)
        high = tl.where(k == last - 1, ranked[k], high)
        total += tl.where((k >= first) & (k < last), ranked[k], 0.0).to(tl.float64)
    at = run * num_coordinates + coordinate
    found = (total / count).to(tl.float32)
    # Rounding may carry the mean of equal values away from them.
    tl.store(mean + at, tl.minimum(tl.maximum(found, low), high), mask=known)
    if HAS_BOUNDS:
        tl.store(lowest + at, low, mask=known)
        tl.store(highest + at, high, mask=known)
    if HAS_COUNTS:
        _store_few_counts(counts, values, known, low, high, SLOTS)


@triton.jit(do_not_specialize=AT_RUN_TIME)
def _few_nearest(
    source,
    among,
    mean,
    lowest,
    highest,
    counts,
    num_coordinates,
    programs_per_run,
    num_groups,
    width,
    num_clients,
    run_stride,
    group_stride,
    width_stride,
    client_stride,
    first,
    last,
    num_taken,
    count,
    HAS_AMONG: tl.constexpr,
    HAS_BOUNDS: tl.constexpr,
    HAS_COUNTS: tl.constexpr,
    HAS_GROUPS: tl.constexpr,
    NETWORK: tl.constexpr,
    OPERANDS: tl.constexpr,
    COORDINATES: tl.constexpr,
    SLOTS: tl.constexpr,
):
    program = tl.program_id(0)
    run = (program // programs_per_run).to(tl.int64)
    tile = program % programs_per_run
    coordinate = tile * COORDINATES + tl.arange(0, COORDINATES)
    known = coordinate < num_coordinates
    values = _few_values(
        source,
        among,
        run,
        coordinate,
        num_coordinates,
        num_groups,
        width,
        num_clients,
        run_stride,
        group_stride,
        width_stride,
        client_stride,
        HAS_AMONG,
        HAS_GROUPS,
        SLOTS,
    )
    ranked = _in_order(values, NETWORK, OPERANDS, SLOTS)
    below = ranked[0]
    above = ranked[0]
    extreme = tl.abs(ranked[0])
    for k in tl.static_range(SLOTS):
        below = tl.where(k == first, ranked[k], below)
        above = tl.where(k == last - 1, ranked[k], above)
        size = tl.abs(ranked[k])
        extreme = tl.where(size < float("inf"), tl.maximum(extreme, size), extreme)
    # Twice a difference of numbers near the largest float would overflow.
    scale = tl.where(extreme > 3.4028234663852886e38 / 16, 0.25, 1.0)
    below = below * scale
    above = above * scale
    all_far = ()
    for k in tl.static_range(SLOTS):
        # The median as the two values around it: their mean would be rounded.
        scaled = tl.where(values[k] < float("inf"), values[k] * scale, 0.0)
        far = tl.abs((scaled - below) + (scaled - above))
        far = tl.where(values[k] < float("inf"), far, float("inf"))
        all_far = all_far + (far,)
    ranked = _in_order(all_far, NETWORK, OPERANDS, SLOTS)
    reach = ranked[0]
    for k in tl.static_range(SLOTS):
        reach = tl.where(k == num_taken - 1, ranked[k], reach)
    num_wanted = tl.zeros((COORDINATES,), tl.int32) + num_taken
    for k in tl.static_range(SLOTS):
        num_wanted -= (all_far[k] < reach).to(tl.int32)
    low = tl.full((COORDINATES,), float("inf"), tl.float32)
    high = tl.full((COORDINATES,), float("-inf"), tl.float32)
    # Float64 does not overflow here.
    total = tl.zeros((COORDINATES,), tl.float64)
    for k in tl.static_range(SLOTS):
        # Of values equally near, those of the lower client index.
        is_tied = (all_far[k] == reach) & (num_wanted > 0)
        num_wanted -= is_tied.to(tl.int32)
        is_taken = is_tied | (all_far[k] < reach)
        total += tl.where(is_taken, values[k], 0.0).to(tl.float64)
        low = tl.where(is_taken, tl.minimum(low, values[k]), low)
        high = tl.where(is_taken, tl.maximum(high, values[k]), high)
    at = run * num_coordinates + coordinate
    found = (total / count).to(tl.float32)
    tl.store(mean + at, tl.minimum(tl.maximum(found, low), high), mask=known)
    if HAS_BOUNDS:
        tl.store(lowest + at, low, mask=known)
        tl.store(highest + at, high, mask=known)
    if HAS_COUNTS:
        _store_few_counts(counts, values, known, low, high, SLOTS)


def has_network(num_clients: int) -> bool:
    """Return whether so many clients are sorted by a network: tuples of vectors need Triton 3.3."""
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    return num_clients <= LARGEST_NETWORK and version >= (3, 3)


def ranks(columns: Columns, first: int, last: int, *, has_bounds: bool) -> Found:
    """Average the ranks `first` up to `last`; also return the first and the last of the values."""
    numbers = first, last, float(last - first)
    return _launch(columns, None, numbers, (_few_ranks, _ranks), HAS_BOUNDS=has_bounds)[:3]


def ranks_and_counts(columns: Columns, first: int, last: int) -> tuple[PerCoordinate, PerClient]:
    """Average the ranks, and count the coordinates where each client is between the bounds."""
    numbers = first, last, float(last - first)
    return _launch(columns, None, numbers, (_few_ranks, _ranks), HAS_COUNTS=True)[::3]


def nearest(
    columns: Columns, num_nearest: int, even: str, among: Among | None, *, has_bounds: bool
) -> Found:
    """Average the values nearest to the median; also return the bounds of these."""
    given = _nearest_ones(columns, num_nearest, even, among)
    return _launch(columns, *given, HAS_AMONG=among is not None, HAS_BOUNDS=has_bounds)[:3]


def nearest_and_counts(
    columns: Columns, num_nearest: int, even: str, among: Among | None
) -> tuple[PerCoordinate, PerClient]:
    """Average the values nearest to the median, and count where each client is among them."""
    given = _nearest_ones(columns, num_nearest, even, among)
    return _launch(columns, *given, HAS_AMONG=among is not None, HAS_COUNTS=True)[::3]


def _nearest_ones(columns: Columns, num_nearest: int, even: str, among: Among | None):
    num = columns.shape[-1] if among is None else among.num
    numbers = *median_ranks(num, even), num_nearest, float(num_nearest)
    marks = columns if among is None else _marked(among.is_among)
    return marks, numbers, (_few_nearest, _nearest)


def _marked(among: Tensor) -> Tensor:
    """Return which clients count, in the form that the kernels read: bits, or a byte for each."""
    num_clients = among.shape[-1]
    marks = among.reshape(-1, num_clients)
    if not has_network(num_clients):
        return marks.to(torch.int8)
    return (marks.long() << torch.arange(num_clients, device=among.device)).sum(dim=-1)


def _launch(
    columns, among, numbers, kernels, *, HAS_BOUNDS=False, HAS_COUNTS=False, **constants
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the mean, its bounds, and in how many coordinates each client is between these."""
    shape, groups = columns.shape, grouped(columns)
    runs, num_groups, width, num_clients = groups.shape
    coordinates, size, num_warps = _tile(num_clients)
    programs = cdiv(num_groups * width, coordinates)
    mean = torch.empty(shape[:-1], dtype=torch.float32, device=columns.device)
    low, high = mean.new_empty(2, *mean.shape) if HAS_BOUNDS else (mean, mean)
    counts = mean
    if HAS_COUNTS:
        counts = torch.empty(runs, programs, size, dtype=torch.uint8, device=columns.device)
    is_few = has_network(num_clients)
    if is_few:
        text, operands = network(size)
        constants |= {"SLOTS": size, "HAS_GROUPS": num_groups > 1}
        is_nvidia = columns.is_cuda and not IS_AMD  # The text is of NVIDIA's assembly.
        constants |= {"NETWORK": text if is_nvidia else "", "OPERANDS": operands}
    else:
        constants["VALUES"] = size
    kernels[0 if is_few else 1][(runs * programs,)](
        groups,
        *(() if among is None else (among,)),
        mean,
        low,
        high,
        counts,
        num_groups * width,
        programs,
        num_groups,
        width,
        num_clients,
        *groups.stride(),
        *numbers,
        HAS_BOUNDS=HAS_BOUNDS,
        HAS_COUNTS=HAS_COUNTS,
        COORDINATES=coordinates,
        num_warps=num_warps,
        **constants,
    )
    if HAS_COUNTS:
        counts = counts.sum(dim=1)[:, :num_clients].double()
    return mean, low, high, counts


@cache
def network(num_values: int) -> tuple[str, str]:
    """Return a sorting network in assembly: sorted floats from as many floats, and its operands."""
    names = [f"v{k}" for k in range(num_values)]
    lines = [f".reg .f32 {', '.join(names)}, low;"]
    lines += [f"mov.f32 {name}, ${num_values + k};" for k, name in enumerate(names)]
    for first, second in comparators(num_values):
        pair = f"{names[first]}, {names[second]}"
        lines.append(f"min.f32 low, {pair};")
        lines.append(f"max.f32 {names[second]}, {pair};")
        lines.append(f"mov.f32 {names[first]}, low;")
    lines += [f"mov.f32 ${k}, {name};" for k, name in enumerate(names)]
    return "{ " + " ".join(lines) + " }", ",".join(["=f"] * num_values + ["f"] * num_values)


def _tile(num_clients: int) -> tuple[int, int, int]:
    """Return how many coordinates a program works on, its values filled up, and its warps."""
    if has_network(num_clients):
        slots = NETWORK_STEP * cdiv(num_clients, NETWORK_STEP)
        return MOST_COORDINATES, slots, MOST_COORDINATES // 32
    size = max(2, next_power_of_2(num_clients))
    # Eight coordinates at least: a whole sector of memory.
    num_warps = max(4, 8 * size // (32 * VALUES_PER_THREAD))
    return min(MOST_COORDINATES, VALUES_PER_THREAD * 32 * num_warps // size), size, num_warps


@triton.jit(do_not_specialize=["num_rows", "num_values", "num_smallest"])
def _sum_of_smallest(
    source, result, num_rows, num_values, num_smallest, ROWS: tl.constexpr, VALUES: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    value = tl.arange(0, VALUES)
    at = row[:, None] * num_values + value[None, :]
    inside = (row < num_rows)[:, None] & (value < num_values)[None, :]
    ranked = tl.sort(tl.load(source + at, mask=inside, other=float("inf")), dim=1)
    counts = value < num_smallest
    total = tl.sum(tl.where(counts[None, :], ranked, 0.0).to(tl.float64), axis=1)
    tl.store(result + row, total, mask=row < num_rows)


def sum_of_smallest(values: Tensor, num_smallest: int) -> Tensor:
    """Add up the smallest values along the last axis."""
    num_values = values.shape[-1]
    flat = values.reshape(-1, num_values).contiguous()
    result = torch.empty(values.shape[:-1], dtype=torch.float64, device=values.device)
    width = max(2, next_power_of_2(num_values))
    rows = max(1, 512 // width)
    _sum_of_smallest[(cdiv(len(flat), rows),)](
        flat,
        result,
        len(flat),
        num_values,
        num_smallest,
        ROWS=rows,
        VALUES=width,
        num_warps=1,
    )
    return result
