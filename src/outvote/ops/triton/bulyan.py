"""Triton kernels for Bulyan's selection; called by `matrix_kernels`.

The others of each client are sorted by distances that have the number of the client in their last
bits, so that one integer holds both: of up to 128 clients, distances are compared to 45 of their 52
bits.

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

from outvote.ops import cdiv, next_power_of_2
from outvote.ops.triton.groups import (
    LOG_VALUES_PER_THREAD,
    LOG_WARP,
    PERMUTING,
    ranked,
)

AT_RUN_TIME = ["num_rows", "num_clients", "num_selected", "num_byzantine"]
LARGEST_INTEGER = tl.constexpr(0x7FFFFFFFFFFFFFFF)


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


def order(distances: Tensor, result: Tensor) -> None:
    """Write the others of each client of ``distances [matrices, n, n]``, nearest first (uint8).

    The lower index is first where they are equally near in all bits but the last few, and the
    client itself is last.
    """
    num_matrices, num_clients, _ = distances.shape
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


def _log_of(num_clients: int) -> int:
    return max(1, (num_clients - 1).bit_length())


@triton.jit
def _distances(at, mask, LAST_BITS: tl.constexpr):
    """Load distances without the bits that they were not sorted by."""
    number = tl.load(at, mask=mask, other=0.0)
    if LAST_BITS > 0:
        kept = number.to(tl.int64, bitcast=True) & -(2**LAST_BITS)
        number = kept.to(tl.float64, bitcast=True)
    return number


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
    LAST_BITS: tl.constexpr,
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
    reach = _distances(distances + own + last, known, LAST_BITS)
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
                far = _distances(distances + other * stride + client, known, LAST_BITS)
                counts = (far < reach) | ((far == reach) & (other <= last))
                counts = counts & (client != other) & (tl.load(is_left + other) != 0)
                fresh, fresh_rest = _minus(fresh, fresh_rest, tl.where(counts, -far, 0.0))
            score = fresh
            rest = fresh_rest
            largest = fresh
        chosen = tl.argmin(tl.where(here, score, float("inf")), axis=0)
        tl.store(is_left + chosen, 0)
        tl.debug_barrier()
        here = here & (client != chosen)
        fewer = tl.maximum(1, num_clients - step - 1 - num_byzantine - 2)
        num_fewer = num_neighbours - fewer
        num_neighbours = fewer
        far = _distances(distances + chosen * stride + client, here, LAST_BITS)
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
        reach = tl.where(moved, _distances(distances + own + last, moved, LAST_BITS), reach)
        # With one neighbour, the score is the distance to it.
        is_new = moved.to(tl.int32) > num_fewer
        score = tl.where(is_new, reach, score)
        rest = tl.where(is_new, 0.0, rest)
        largest = tl.where(is_new, reach, largest)


def select_one_by_one(
    distances: Tensor, order: Tensor, is_left: Tensor, num_selected: int, num_byzantine: int
) -> None:
    """Clear `is_left` (int8) for Krum's choice among those left, again and again.

    `order` has the others of each client, nearest first, the lower index first where they are
    equally near, and last the client itself; as bytes, what `order` writes.
    """
    num_matrices, num_clients = is_left.shape
    size = max(2, next_power_of_2(num_clients))
    _select_one_by_one[(num_matrices,)](
        distances,
        order,
        is_left,
        num_clients,
        num_selected,
        num_byzantine,
        LAST_BITS=_log_of(num_clients) if order.dtype == torch.uint8 else 0,
        CLIENTS=size,
        num_warps=max(1, min(8, size // 64)),
    )
