"""Triton kernels for order statistics; called by `order_kernels`.

Nothing is sorted: the value of a rank is found bit by bit. Floats, as integers that are in the same
order, are compared with a candidate and counted, 32 times. All the values of a coordinate lie in
one thread or a few, so that counting needs no exchange between threads. For 64 clients this takes a
third of the instructions of a bitonic sort, for 1,024 a tenth.
"""

import triton
import triton.language as tl
from torch import Tensor

# How many values each of the 32 threads of a warp holds in registers.
VALUES_PER_THREAD = 32
# What changes from call to call: a kernel that was compiled for one value would be compiled again.
AT_RUN_TIME = [
    "num_coordinates",
    "num_groups",
    "width",
    "num_values",
    "run_stride",
    "group_stride",
    "width_stride",
    "client_stride",
    "first",
    "last",
    "count",
    "num_passes",
    "index_stride",
    "slot_stride",
    "num_nearest",
]


@triton.jit
def _load_tile(
    source,
    index,
    num_coordinates,
    num_groups,
    width,
    num_values,
    run_stride,
    group_stride,
    width_stride,
    client_stride,
    index_stride,
    slot_stride,
    HAS_INDEX: tl.constexpr,
    COORDINATES: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Load ``[coordinates, values]``, so that neighbouring threads take neighbouring coordinates.

    The compiler goes by what is marked as contiguous. This holds where clients sent rows; where the
    clients are side by side it decides only who loads what: nothing is known to be aligned, so
    values are loaded one by one.
    """
    coordinate = tl.program_id(0).to(tl.int64) * COORDINATES + tl.arange(0, COORDINATES)
    slot = tl.arange(0, VALUES)
    inside = (slot < num_values)[None, :] & (coordinate < num_coordinates)[:, None]
    matrix = coordinate // width
    start = (matrix // num_groups) * run_stride + (matrix % num_groups) * group_stride
    start += (coordinate % width) * width_stride
    start = tl.max_contiguous(start, COORDINATES)
    if HAS_INDEX:
        row = tl.max_contiguous(matrix * index_stride, COORDINATES)
        at = row[:, None] + slot[None, :].to(tl.int64) * slot_stride
        client = tl.load(index + at, mask=inside, other=0).to(tl.int64)
        at = start[:, None] + client * client_stride
    else:
        at = start[:, None] + slot[None, :].to(tl.int64) * client_stride
    return tl.load(source + at, mask=inside, other=0.0), inside, coordinate


@triton.jit
def _ordered(values, inside):
    """Return integers that are in the order of floats; what is outside goes last."""
    bits = values.to(tl.int32, bitcast=True)
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.where(inside, key, 0x7FFFFFFF)


@triton.jit
def _as_float(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _refine(key, found, rank, num_passes):
    """Return the largest number that at most `rank` of the keys are below: the key of that rank.

    `found` is right but for the last 31 bits; with 0 passes it is returned as it is.
    """
    step = tl.full(found.shape, 1 << 30, tl.int32)
    for _ in range(num_passes):
        candidate = found + step
        below = tl.sum((key < candidate[:, None]).to(tl.int32), axis=1)
        found = tl.where(below <= rank, candidate, found)
        step = step // 2
    return found


@triton.jit
def _sign_of_rank(key, rank):
    """Return the smallest key with the sign of the key of a rank."""
    num_negative = tl.sum((key < 0).to(tl.int32), axis=1)
    return tl.where(num_negative <= rank, 0, -2147483648)


@triton.jit
def _two_ranks(key, first, last, num_passes):
    """Return the keys of the ranks `first` and ``last - 1``, the latter by `num_passes` passes.

    Without passes, `last` is at most two after `first`.
    """
    low = _refine(key, _sign_of_rank(key, first), first, 31)
    up_to_low = tl.sum((key <= low[:, None]).to(tl.int32), axis=1)
    # All keys that are above; with none, `low` is the last one.
    above = tl.min(tl.where(key > low[:, None], key, 0x7FFFFFFF), axis=1)
    if num_passes > 0:
        high = _refine(key, _sign_of_rank(key, last - 1), last - 1, num_passes)
    else:
        high = tl.where(up_to_low >= last, low, above)
    return low, high, up_to_low


@triton.jit(do_not_specialize=AT_RUN_TIME)
def _ranks(
    source,
    mean,
    lowest,
    highest,
    num_coordinates,
    num_groups,
    width,
    num_values,
    run_stride,
    group_stride,
    width_stride,
    client_stride,
    first,
    last,
    num_passes,
    count,
    HAS_MEAN: tl.constexpr,
    HAS_BOUNDS: tl.constexpr,
    COORDINATES: tl.constexpr,
    VALUES: tl.constexpr,
):
    values, inside, coordinate = _load_tile(
        source,
        source,
        num_coordinates,
        num_groups,
        width,
        num_values,
        run_stride,
        group_stride,
        width_stride,
        client_stride,
        0,
        0,
        False,
        COORDINATES,
        VALUES,
    )
    key = _ordered(values, inside)
    low_key, high_key, up_to_low = _two_ranks(key, first, last, num_passes)
    low, high = _as_float(low_key), _as_float(high_key)
    known = coordinate < num_coordinates
    if HAS_MEAN:
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
        tl.store(mean + coordinate, found, mask=known)
    if HAS_BOUNDS:
        tl.store(lowest + coordinate, low, mask=known)
        tl.store(highest + coordinate, high, mask=known)


@triton.jit(do_not_specialize=AT_RUN_TIME)
def _nearest(
    source,
    index,
    mean,
    lowest,
    highest,
    num_coordinates,
    num_groups,
    width,
    num_values,
    run_stride,
    group_stride,
    width_stride,
    client_stride,
    index_stride,
    slot_stride,
    first,
    last,
    num_nearest,
    count,
    HAS_INDEX: tl.constexpr,
    HAS_MEAN: tl.constexpr,
    HAS_BOUNDS: tl.constexpr,
    COORDINATES: tl.constexpr,
    VALUES: tl.constexpr,
):
    values, inside, coordinate = _load_tile(
        source,
        index,
        num_coordinates,
        num_groups,
        width,
        num_values,
        run_stride,
        group_stride,
        width_stride,
        client_stride,
        index_stride,
        slot_stride,
        HAS_INDEX,
        COORDINATES,
        VALUES,
    )
    low_key, high_key, _ = _two_ranks(_ordered(values, inside), first, last, 0)
    extreme = tl.max(tl.abs(values), axis=1)
    # Twice a difference of numbers near the largest float would overflow.
    scale = tl.where(extreme > 3.4028234663852886e38 / 16, 0.25, 1.0)
    below, above = _as_float(low_key) * scale, _as_float(high_key) * scale
    scaled = values * scale[:, None]
    # The median as the two values around it: their mean would be rounded, differences are not.
    far = tl.abs((scaled - below[:, None]) + (scaled - above[:, None]))
    # Numbers that are not negative are in the order of their bits.
    key = tl.where(inside, far.to(tl.int32, bitcast=True), 0x7FFFFFFF)
    reach = _refine(key, tl.zeros((COORDINATES,), tl.int32), num_nearest - 1, 31)
    taken = key < reach[:, None]
    tied = key == reach[:, None]
    num_wanted = num_nearest - tl.sum(taken.to(tl.int32), axis=1)
    num_tied = tl.sum(tied.to(tl.int32), axis=1)
    # Of values equally near, those of the lower client index: the tied ones before `end`.
    end = tl.zeros((COORDINATES,), tl.int32)
    slot = tl.arange(0, VALUES)[None, :]
    has_ties = tl.max((num_tied > num_wanted).to(tl.int32), axis=0)
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
    known = coordinate < num_coordinates
    if HAS_MEAN:
        total = tl.sum(tl.where(taken, values, 0.0), axis=1)
        shares = tl.sum(tl.where(taken, values * (1.0 / count), 0.0), axis=1)
        found = tl.where(tl.abs(total) < float("inf"), tl.div_rn(total, count), shares)
        tl.store(mean + coordinate, tl.minimum(tl.maximum(found, low), high), mask=known)
    if HAS_BOUNDS:
        tl.store(lowest + coordinate, low, mask=known)
        tl.store(highest + coordinate, high, mask=known)


def ranks(
    columns: Tensor, first: int, last: int, mean: Tensor | None, bounds: tuple[Tensor, ...]
) -> None:
    """Average the ranks `first` up to `last` of ``columns [runs, groups, width, values]``.

    `mean`, and the first and the last value in `bounds`, are written where they are given.
    """
    num_values = columns.shape[-1]
    coordinates, size, num_warps = _tile(num_values)
    some = mean if mean is not None else bounds[0]
    _ranks[(triton.cdiv(some.numel(), coordinates),)](
        columns,
        some,
        *(bounds or (some, some)),
        some.numel(),
        *columns.shape[1:],
        *columns.stride(),
        first,
        last,
        31 if last - first > 2 else 0,
        float(last - first),
        HAS_MEAN=mean is not None,
        HAS_BOUNDS=bool(bounds),
        COORDINATES=coordinates,
        VALUES=size,
        num_warps=num_warps,
    )


def nearest(
    columns: Tensor,
    index: Tensor | None,
    ranks_of_median: tuple[int, int],
    num_nearest: int,
    mean: Tensor | None,
    bounds: tuple[Tensor, ...],
) -> None:
    """Average the values nearest to the median of ``columns [runs, groups, width, clients]``.

    With ``index [runs * groups, values]``, only those clients are looked at.
    """
    num_values = columns.shape[-1] if index is None else index.shape[-1]
    # By all clients: with fewer of them selected, nothing is compiled anew.
    coordinates, size, num_warps = _tile(columns.shape[-1])
    some = mean if mean is not None else bounds[0]
    _nearest[(triton.cdiv(some.numel(), coordinates),)](
        columns,
        columns if index is None else index,
        some,
        *(bounds or (some, some)),
        some.numel(),
        *columns.shape[1:-1],
        num_values,
        *columns.stride(),
        *((0, 0) if index is None else index.stride()),
        *ranks_of_median,
        num_nearest,
        float(num_nearest),
        HAS_INDEX=index is not None,
        HAS_MEAN=mean is not None,
        HAS_BOUNDS=bool(bounds),
        COORDINATES=coordinates,
        VALUES=size,
        num_warps=num_warps,
    )


def _tile(num_values: int) -> tuple[int, int, int]:
    """Return how many coordinates a program works on, its values filled up, and its warps."""
    size = max(2, triton.next_power_of_2(num_values))
    # Eight coordinates at least: a whole sector of memory.
    num_warps = max(4, 8 * size // (32 * VALUES_PER_THREAD))
    return min(256, VALUES_PER_THREAD * 32 * num_warps // size), size, num_warps
