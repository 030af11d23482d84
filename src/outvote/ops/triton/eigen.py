"""Triton kernels for the top eigenvector of many symmetric matrices, see `ops.eigen`.

Lanczos' method with full orthogonalisation: one program per matrix multiplies it with one vector
after the other. In the space of these vectors the matrix is tridiagonal, and its top eigenvector is
found there. After as many steps as there are rows this is a full decomposition; most matrices need
far fewer, and stop when the residual is small.
"""

import torch
import triton
import triton.language as tl

from outvote.axes import Pairs, PerClient
from outvote.ops.triton import next_power_of_2

AT_RUN_TIME = ["num_rows", "start", "stop", "is_last"]
NUM_SHIFTS, NUM_ROUNDS, NUM_SOLVES = 64, 10, 3
# After so many steps of Lanczos' method it is looked at what has been found.
STEPS_AT_ONCE = 64
# Where the residual is this small against the eigenvalue, the eigenvector is found.
TOLERANCE = 1e-16
TINY = 1e-290
# Rows of a matrix that are loaded at once.
TILE_VALUES = 4096


@triton.jit(do_not_specialize=AT_RUN_TIME)
def _lanczos(
    matrices,
    vectors,
    diagonal,
    beside,
    is_done,
    num_rows,
    start,
    stop,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Take the steps `start` up to `stop`. Row k of `vectors` is the k-th vector, of length 1."""
    number = tl.program_id(0).to(tl.int64)
    matrices += number * num_rows * num_rows
    vectors += number * (num_rows + 1) * num_rows
    diagonal += number * num_rows
    beside += number * num_rows
    column = tl.arange(0, COLUMNS)
    known = column < num_rows
    # Where the result is known, no step is taken.
    stop = tl.where(tl.load(is_done + number) != 0, start, stop)
    for step in range(start, stop):
        current = vectors + step * num_rows.to(tl.int64)
        total = tl.zeros((ROWS, COLUMNS), tl.float64)
        for first in range(0, num_rows, ROWS):
            row = first + tl.arange(0, ROWS)
            inside = (row < num_rows)[:, None] & known[None, :]
            at = row[:, None].to(tl.int64) * num_rows + column[None, :]
            part = tl.load(matrices + at, mask=inside, other=0.0)
            factor = tl.load(current + row, mask=row < num_rows, other=0.0)
            total += part * factor[:, None]
        product = tl.sum(total, axis=0)
        own = tl.load(current + column, mask=known, other=0.0)
        along = tl.sum(product * own, axis=0)
        size = tl.sqrt(tl.sum(product * product, axis=0))
        # Twice: the second time takes away what the first left by rounding.
        for _ in range(2):
            for first in range(0, step + 1, ROWS):
                row = first + tl.arange(0, ROWS)
                inside = (row <= step)[:, None] & known[None, :]
                at = row[:, None].to(tl.int64) * num_rows + column[None, :]
                earlier = tl.load(vectors + at, mask=inside, other=0.0)
                part = tl.sum(earlier * product[None, :], axis=1)
                product -= tl.sum(earlier * part[:, None], axis=0)
        length = tl.sqrt(tl.sum(product * product, axis=0))
        # What is left is rounding: the vectors span all that the first one has a part in.
        length = tl.where(length > size * 1e-14, length, 0.0)
        scaled = tl.where(length > 0.0, product / tl.where(length > 0.0, length, 1.0), 0.0)
        tl.store(vectors + (step + 1) * num_rows.to(tl.int64) + column, scaled, mask=known)
        tl.store(diagonal + step, along)
        tl.store(beside + step, length)
        tl.debug_barrier()


@triton.jit(do_not_specialize=AT_RUN_TIME)
def _ritz(
    vectors,
    diagonal,
    beside,
    scratch,
    is_done,
    result,
    num_rows,
    stop,
    is_last,
    TOLERANCE: tl.constexpr,
    SHIFTS: tl.constexpr,
    ROUNDS: tl.constexpr,
    SOLVES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Find the top eigenpair of the tridiagonal matrices of `stop` rows.

    One warp per matrix: all its threads load an entry before any of them writes it.
    """
    number = tl.program_id(0).to(tl.int64)
    vectors += number * (num_rows + 1) * num_rows
    diagonal += number * num_rows
    beside += number * num_rows
    pivots = scratch + number * 2 * num_rows
    solution = pivots + num_rows
    result += number * num_rows
    # Where the result is known, all loops are empty.
    was_done = tl.load(is_done + number) != 0
    num_steps = tl.where(was_done, 0, stop)
    entry = tl.arange(0, COLUMNS)
    inside = entry < num_steps
    middle = tl.load(diagonal + entry, mask=inside, other=0.0)
    right = tl.load(beside + entry, mask=entry < num_steps - 1, other=0.0)
    left = tl.load(beside + entry - 1, mask=inside & (entry > 0), other=0.0)
    # The top eigenvalue is no smaller than an entry of the diagonal, and within Gershgorin's discs.
    low = tl.max(tl.where(inside, middle, 0.0), axis=0)
    high = tl.max(tl.where(inside, middle + left + right, 0.0), axis=0)
    high = tl.maximum(high, low)
    shift = tl.arange(0, SHIFTS)
    for _ in range(ROUNDS):
        width = (high - low) / SHIFTS
        trial = low + (shift + 1).to(tl.float64) * width
        # A number is above all eigenvalues if all pivots are negative.
        pivot = tl.full((SHIFTS,), -1.0, tl.float64)
        is_above = tl.full((SHIFTS,), 1, tl.int32)
        square = low * 0.0
        for k in range(num_steps):
            pivot = tl.load(diagonal + k) - trial - square / pivot
            is_above = tl.where(pivot < 0.0, is_above, 0)
            pivot = tl.minimum(pivot, -1e-290)
            square = tl.load(beside + k)
            square = square * square
        nearest = tl.min(tl.where(is_above > 0, shift, SHIFTS - 1), axis=0)
        high = tl.minimum(high, low + (nearest + 1).to(tl.float64) * width)
        low = low + nearest.to(tl.float64) * width
    value = high
    # A little above the eigenvalue, so that the matrix to solve with is positive definite.
    above = high + tl.maximum(high, 1e-30) * 4e-16
    pivot = low * 0.0 + 1.0
    square = low * 0.0
    for k in range(num_steps):
        pivot = above - tl.load(diagonal + k) - square / pivot
        pivot = tl.maximum(pivot, tl.maximum(high, 1e-30) * 1e-16)
        tl.store(pivots + k, pivot)
        tl.store(solution + k, 1.0)
        square = tl.load(beside + k)
        square = square * square
    tl.debug_barrier()
    # The eigenvector has entries of one sign, as the entries beside the diagonal have.
    length = low * 0.0 + 1.0
    for _ in range(SOLVES):
        carried = low * 0.0
        squares = low * 0.0
        for k in range(num_steps):
            carried = tl.load(solution + k) / length + carried
            tl.store(solution + k, carried)
            carried = carried * tl.load(beside + k) / tl.load(pivots + k)
        tl.debug_barrier()
        carried = low * 0.0
        for back in range(num_steps):
            k = num_steps - 1 - back
            carried = (tl.load(solution + k) + carried) / tl.load(pivots + k)
            tl.store(solution + k, carried)
            squares += carried * carried
            carried = carried * tl.load(beside + k - 1, mask=k > 0, other=0.0)
        length = tl.sqrt(squares)
        tl.debug_barrier()
    final = tl.load(solution + num_steps - 1, mask=num_steps > 0, other=0.0) / length
    residual = tl.abs(final) * tl.load(beside + num_steps - 1, mask=num_steps > 0, other=0.0)
    # No steps were taken where the result was known before.
    num_used = tl.where((residual <= value * TOLERANCE) | (is_last > 0), num_steps, 0)
    total = tl.zeros((ROWS, COLUMNS), tl.float64)
    for first in range(0, num_used, ROWS):
        row = first + tl.arange(0, ROWS)
        wanted = (row < num_used)[:, None] & (entry < num_rows)[None, :]
        at = row[:, None].to(tl.int64) * num_rows + entry[None, :]
        part = tl.load(vectors + at, mask=wanted, other=0.0)
        factor = tl.load(solution + row, mask=row < num_used, other=0.0) / length
        total += part * factor[:, None]
    vector = tl.sum(total, axis=0)
    squares = tl.sum(vector * vector, axis=0)
    found = value * vector * vector / tl.where(squares > 0.0, squares, 1.0)
    tl.store(result + entry, found, mask=entry < tl.where(num_used > 0, num_rows, 0))
    if num_used > 0:
        tl.store(is_done + number, 1)


def leading_projections(matrices: Pairs, start: PerClient) -> PerClient:
    """Return the top eigenvalue times the squared entries of its eigenvector."""
    num_rows = matrices.shape[-1]
    flat = matrices.reshape(-1, num_rows, num_rows).contiguous()
    vectors = flat.new_empty(len(flat), num_rows + 1, num_rows)
    # In the range of the matrix. Its entries may be tiny, and their squares 0.
    first = (flat * start.reshape(-1, 1, num_rows)).sum(dim=-1)
    first = first / first.abs().amax(dim=-1, keepdim=True).clamp(min=TINY)
    length = torch.linalg.vector_norm(first, dim=-1, keepdim=True)
    vectors[:, 0] = first / length.clamp(min=TINY)
    diagonal, beside, result = (torch.empty_like(flat[:, 0]) for _ in range(3))
    scratch = flat.new_empty(len(flat), 2, num_rows)
    is_done = torch.zeros(len(flat), dtype=torch.int8, device=flat.device)
    rows, columns, num_warps = _tile(num_rows)
    done = 0
    for steps in [*range(STEPS_AT_ONCE, num_rows, STEPS_AT_ONCE), num_rows]:
        tridiagonal = vectors, diagonal, beside
        _lanczos[(len(flat),)](
            flat,
            *tridiagonal,
            is_done,
            num_rows,
            done,
            steps,
            ROWS=rows,
            COLUMNS=columns,
            num_warps=num_warps,
        )
        _ritz[(len(flat),)](
            *tridiagonal,
            scratch,
            is_done,
            result,
            num_rows,
            steps,
            int(steps == num_rows),
            TOLERANCE=TOLERANCE,
            SHIFTS=NUM_SHIFTS,
            ROUNDS=NUM_ROUNDS,
            SOLVES=NUM_SOLVES,
            ROWS=max(1, 1024 // columns),
            COLUMNS=columns,
            num_warps=1,
        )
        done = steps
    return result.view(matrices.shape[:-1])


def _tile(num_rows: int) -> tuple[int, int, int]:
    """Return how many rows and columns are loaded at once, and by how many warps."""
    columns = max(2, next_power_of_2(num_rows))
    rows = max(4, min(columns, TILE_VALUES // columns))
    # One warp waits for no other.
    if columns <= 32:
        return rows, columns, 1
    return rows, columns, 4 if columns <= 128 else 8
