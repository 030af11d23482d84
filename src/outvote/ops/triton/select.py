"""Triton kernels that rank scores, see `ops.order`, and for Bulyan's selection.

The others of each client are sorted by distances that have the number of the client in their last
bits, which are 0 after rounding: one integer holds both.

The selection is one program per matrix, with vectors of one entry per client. When a client leaves,
the number of neighbours goes down by one too: every other client loses either the one who left, if
it was among its neighbours, or else the farthest of them. So one subtraction per client brings the
scores up to date, in place of a new sum. Scores are kept as the sum of two float64, which makes the
subtractions exact to 106 bits, and are summed anew where one has become so small that even those
are lost.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from outvote.axes import Pairs, PerClient
from outvote.ops.triton import cdiv, next_power_of_2
from outvote.ops.triton.differences import LOG_VALUES_PER_THREAD, LOG_WARP
from outvote.ops.triton.sorting import PERMUTING, ranked

AT_RUN_TIME = ["num_rows", "num_clients", "num_selected", "num_byzantine"]
LARGEST_INTEGER = tl.constexpr(0x7FFFFFFFFFFFFFFF)
# Up to here a kernel puts the others of a client in order, beyond it torch sorts them.
MOST_ORDERED = 128


@triton.jit
def _rounded(score):
    """Round to 40 significant bits, as `order.rounded_score` says."""
    bits = score.to(tl.float64).to(tl.int64, bitcast=True)
    return ((bits + 0x1000) & -0x2000).to(tl.float64, bitcast=True)


@triton.jit(do_not_specialize=["num_clients", "num_smallest"])
def _smallest(
    scores, result, num_clients, num_smallest, IS_AVERAGE: tl.constexpr, CLIENTS: tl.constexpr
):
    start = tl.program_id(0).to(tl.int64) * num_clients
    client = tl.arange(0, CLIENTS)
    known = client < num_clients
    score = _rounded(tl.load(scores + start + client, mask=known, other=float("inf")))
    is_before = (score[None, :] < score[:, None]) | (
        (score[None, :] == score[:, None]) & (client[None, :] < client[:, None])
    )
    is_taken = tl.sum(is_before.to(tl.int32), axis=1) < num_smallest
    if IS_AVERAGE:
        one = tl.full([CLIENTS], 1.0, dtype=tl.float64)
        weight = tl.where(is_taken, one / num_smallest.to(tl.float64), 0.0)
        tl.store(result + start + client, weight, mask=known)
    else:
        tl.store(result + start + client, is_taken.to(tl.int8), mask=known)


def smallest(scores: PerClient, num_smallest: int) -> Tensor:
    """Mark the smallest scores along the last axis."""
    result = torch.empty(scores.shape, dtype=torch.bool, device=scores.device)
    _launch_smallest(scores, result.view(torch.int8), num_smallest, is_average=False)
    return result


def average_of_smallest(scores: PerClient, num_smallest: int) -> PerClient:
    """Give equal weights to the smallest scores along the last axis."""
    result = torch.empty(scores.shape, dtype=torch.float64, device=scores.device)
    _launch_smallest(scores, result, num_smallest, is_average=True)
    return result


def _launch_smallest(
    scores: PerClient, result: Tensor, num_smallest: int, *, is_average: bool
) -> None:
    num_clients = scores.shape[-1]
    _smallest[(scores.shape[:-1].numel(),)](
        scores.contiguous(),
        result,
        num_clients,
        num_smallest,
        IS_AVERAGE=is_average,
        CLIENTS=max(2, next_power_of_2(num_clients)),
        num_warps=1,
    )


@triton.jit(do_not_specialize=AT_RUN_TIME)
def _order(
    distances, order, num_rows, num_clients, NUM_ROWS: tl.constexpr, NUM_SORTED: tl.constexpr
):
    CLIENTS: tl.constexpr = 2**NUM_SORTED
    row = tl.program_id(0).to(tl.int64) * 2**NUM_ROWS + tl.arange(0, 2**NUM_ROWS)
    is_row = row < num_rows
    client = (tl.arange(0, CLIENTS) * PERMUTING) % CLIENTS
    inside = is_row[:, None] & (client < num_clients)[None, :]
    at = distances + row[:, None] * num_clients + client[None, :]
    number = tl.load(at, mask=inside, other=0.0).to(tl.int64, bitcast=True)
    # Numbers of 0 or more are in the order of their bits. A client is its own last, and what is
    # beyond the clients comes after.
    is_own = client[None, :] == (row % num_clients)[:, None]
    number = tl.where(is_own, LARGEST_INTEGER, number) & (-CLIENTS) | client[None, :]
    number = tl.where(inside, number, LARGEST_INTEGER)
    number = ranked(number, NUM_ROWS + NUM_SORTED, NUM_SORTED)
    place = tl.arange(0, CLIENTS)
    wanted = is_row[:, None] & (place < num_clients)[None, :]
    to = order + row[:, None] * num_clients + place[None, :]
    tl.store(to, (number & (CLIENTS - 1)).to(tl.uint8), mask=wanted)


def _others(distances: Pairs) -> Tensor:
    """Return the others of each client of ``distances [matrices, n, n]``, nearest first (uint8).

    The lower index is first where they are equally near, and the client itself is last.
    """
    num_matrices, num_clients, _ = distances.shape
    result = torch.empty(distances.shape, dtype=torch.uint8, device=distances.device)
    num_sorted = _log_of(num_clients)
    # Half as many values for each thread as of 32 bits: with more, registers are spilled to memory.
    num_rows = LOG_WARP - max(0, num_sorted - LOG_VALUES_PER_THREAD + 1)
    _order[(cdiv(num_matrices * num_clients, 2**num_rows),)](
        distances,
        result,
        num_matrices * num_clients,
        num_clients,
        NUM_ROWS=num_rows,
        NUM_SORTED=num_sorted,
        num_warps=1,
    )
    return result


def _log_of(num_clients: int) -> int:
    return max(1, (num_clients - 1).bit_length())


@triton.jit
def _minus(total, rest, value):
    """Return ``total + rest - value``, as a rounded sum and what rounding took from it."""
    result = total - value
    back = result - total
    rest += (total - (result - back)) - (value + back)
    rounded = result + rest
    return rounded, rest - (rounded - result)


@triton.jit(do_not_specialize=AT_RUN_TIME)
def _select_one_by_one(
    distances,
    order,
    is_left,
    num_clients,
    num_selected,
    num_byzantine,
    CLIENTS: tl.constexpr,
):
    matrix = tl.program_id(0).to(tl.int64)
    distances += matrix * num_clients * num_clients
    order += matrix * num_clients * num_clients
    is_left += matrix * num_clients
    stride = num_clients.to(tl.int64)
    client = tl.arange(0, CLIENTS)
    known = client < num_clients
    own = client.to(tl.int64) * num_clients
    here = known
    num_neighbours = tl.maximum(1, num_clients - num_byzantine - 2)
    # The farthest neighbour of each client: its place in the order, who it is, and how far.
    place = tl.zeros((CLIENTS,), tl.int32) + (num_neighbours - 1)
    last = tl.load(order + own + place, mask=known, other=0).to(tl.int32)
    reach = tl.load(distances + own + last, mask=known, other=0.0)
    score = tl.zeros((CLIENTS,), tl.float64)
    rest = tl.zeros((CLIENTS,), tl.float64)
    largest = tl.full((CLIENTS,), float("inf"), tl.float64)
    for step in range(num_selected):
        # 2 ** -40 of what was summed: 66 of the 106 bits are left.
        is_lost = here & (score < largest * 9.094947017729282e-13)
        if tl.sum(is_lost.to(tl.int32), axis=0) > 0:
            fresh = tl.zeros((CLIENTS,), tl.float64)
            fresh_rest = tl.zeros((CLIENTS,), tl.float64)
            for other in range(num_clients):
                far = tl.load(distances + other * stride + client, mask=known, other=0.0)
                counts = (far < reach) | ((far == reach) & (other <= last))
                counts = counts & (client != other) & (tl.load(is_left + other) != 0)
                fresh, fresh_rest = _minus(fresh, fresh_rest, tl.where(counts, -far, 0.0))
            score = fresh
            rest = fresh_rest
            largest = fresh
        chosen = tl.argmin(tl.where(here, _rounded(score), float("inf")), axis=0)
        tl.store(is_left + chosen, 0)
        tl.debug_barrier()
        here = here & (client != chosen)
        fewer = tl.maximum(1, num_clients - step - 1 - num_byzantine - 2)
        num_fewer = num_neighbours - fewer
        num_neighbours = fewer
        far = tl.load(distances + chosen * stride + client, mask=here, other=0.0)
        was_near = (far < reach) | ((far == reach) & (chosen <= last))
        lost = tl.where(was_near, far, reach)
        score, rest = _minus(score, rest, tl.where(num_fewer > 0, lost, 0.0))
        # Walk towards the next one that is left: down, or up if there must be as many as before.
        moves = here & ((last == chosen) | (was_near.to(tl.int32) < num_fewer))
        moved = moves
        direction = 1 - 2 * num_fewer
        while tl.sum(moves.to(tl.int32), axis=0) > 0:
            place = tl.where(moves, place + direction, place)
            place = tl.minimum(tl.maximum(place, 0), num_clients - 1)
            next_one = tl.load(order + own + place, mask=moves, other=0).to(tl.int32)
            last = tl.where(moves, next_one, last)
            is_gone = tl.load(is_left + last, mask=moves, other=1) == 0
            # The ends of the order: a client itself is last.
            moves = moves & is_gone & (place > 0) & (place < num_clients - 1)
        reach = tl.where(moved, tl.load(distances + own + last, mask=moved, other=0.0), reach)
        # With one neighbour, the score is the distance to it.
        is_new = moved.to(tl.int32) > num_fewer
        score = tl.where(is_new, reach, score)
        rest = tl.where(is_new, 0.0, rest)
        largest = tl.where(is_new, reach, largest)


def select_one_by_one(squared_distances: Pairs, num_selected: int, num_byzantine: int) -> Tensor:
    """Apply Krum again and again to those who are left; distances are rounded."""
    num_clients = squared_distances.shape[-1]
    far = squared_distances.reshape(-1, num_clients, num_clients).contiguous()
    is_left = torch.ones(far.shape[:-1], dtype=torch.int8, device=far.device)
    if num_clients <= MOST_ORDERED:
        order = _others(far)
    else:
        others = far.clone()
        others.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
        order = others.argsort(dim=-1, stable=True)
    size = max(2, next_power_of_2(num_clients))
    _select_one_by_one[(len(far),)](
        far,
        order,
        is_left,
        num_clients,
        num_selected,
        num_byzantine,
        CLIENTS=size,
        num_warps=max(1, min(8, size // 64)),
    )
    return (is_left == 0).view(squared_distances.shape[:-1])
