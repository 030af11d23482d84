"""Triton kernels for distances from inner products, see `ops.pairs`."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from outvote.axes import Pairs, PerClient
from outvote.ops.triton import cdiv, next_power_of_2

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
DISTANCES_AT_ONCE = 1024


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
    tl.store(inexact + value, is_inexact.to(tl.int8), mask=inside)


def squared_distances(
    products: Pairs, threshold: float, originals: Tensor | None
) -> tuple[Pairs, Tensor]:
    """Turn inner products into squared distances, and mark those that are inexact."""
    flat, copies, groups_per_run = _given(products, originals)
    result = torch.empty(products.shape, dtype=torch.float64, device=products.device)
    inexact = torch.empty(products.shape, dtype=torch.bool, device=products.device)
    _squared_distances[(cdiv(result.numel(), DISTANCES_AT_ONCE),)](
        flat,
        copies,
        result,
        inexact.view(torch.int8),
        result.numel(),
        products.shape[-1],
        groups_per_run,
        flat.stride(0),
        flat.stride(1),
        threshold,
        HAS_COPIES=originals is not None,
        VALUES=DISTANCES_AT_ONCE,
        num_warps=4,
    )
    return result, inexact


def _given(products: Pairs, originals: Tensor | None) -> tuple[Tensor, Tensor, int]:
    """Return the products of all groups, the first client equal to each, and groups for each."""
    flat = products.reshape(-1, *products.shape[-2:])
    flat = flat if flat.stride(-1) == 1 else flat.contiguous()
    if originals is None:
        return flat, flat, len(flat)
    copies = originals.expand(len(products), *originals.shape[1:])
    copies = copies.reshape(-1, products.shape[-1]).contiguous()
    return flat, copies, len(flat) // len(copies)


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
    products: Pairs, num_smallest: int, threshold: float, originals: Tensor | None
) -> tuple[PerClient, bool]:
    """Add up the smallest distances of each client; also return whether all are exact."""
    flat, copies, groups_per_run = _given(products, originals)
    num_groups, num_clients, _ = flat.shape
    result = torch.empty(products.shape[:-1], dtype=torch.float64, device=products.device)
    count = torch.zeros(1, dtype=torch.int32, device=products.device)
    width = max(2, next_power_of_2(num_clients))
    rows = max(1, 512 // width)
    _sums_of_smallest_distances[(cdiv(num_groups * num_clients, rows),)](
        flat,
        copies,
        result,
        count,
        num_groups * num_clients,
        num_clients,
        num_smallest,
        groups_per_run,
        flat.stride(0),
        flat.stride(1),
        threshold,
        HAS_COPIES=originals is not None,
        ROWS=rows,
        CLIENTS=width,
        num_warps=1,
    )
    return result, int(count) == 0


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
    tl.store(inexact + group, (count > 0).to(tl.int8))


def squared_distances_to_average(
    products: Pairs, weights: PerClient, threshold: float, originals: Tensor | None
) -> tuple[PerClient, Tensor]:
    """Measure each client against the weighted average of its group, one program per group.

    Copies of a client that is the average alone are exactly at 0. Also mark the inexact groups.
    """
    flat, copies, groups_per_run = _given(products, originals)
    shape = products.shape[:-1]
    result = torch.empty(shape, dtype=torch.float64, device=products.device)
    inexact = torch.empty(shape[:-1], dtype=torch.bool, device=products.device)
    size = max(2, next_power_of_2(shape[-1]))
    _squared_distances_to_average[(len(flat),)](
        flat,
        weights.expand(shape).contiguous(),
        copies,
        result,
        inexact.view(torch.int8),
        shape[-1],
        groups_per_run,
        flat.stride(0),
        flat.stride(1),
        threshold,
        HAS_COPIES=originals is not None,
        CLIENTS=size,
        OTHERS=min(size, 32, 8192 // size),
        num_warps=2 if size <= 64 else 8,
    )
    return result, inexact
