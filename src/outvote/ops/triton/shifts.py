"""A Triton kernel that draws the shifts of a `KeyedOrder` on a GPU; called by `client_kernels`.

Philox with four words of 64 bits and ten rounds, as numpy has it, to the last bit: the reference is
Salmon et al., 2011 (Parallel random numbers: as easy as 1, 2, 3).
"""

import triton
import triton.language as tl
from torch import Tensor

from outvote.ops import cdiv

# Of four numbers each.
BLOCK = 128
FIRST_FACTOR, FIRST_STEP = tl.constexpr(0xD2E7470EE14C6C93), tl.constexpr(0x9E3779B97F4A7C15)
SECOND_FACTOR, SECOND_STEP = tl.constexpr(0xCA5A826395121157), tl.constexpr(0xBB67AE8584CAA73B)


@triton.jit
def _store_shift(result, at, drawn, num_values, num_rows, num_columns):
    """Store the upper half of a number as a fraction of the rows, or in even rounds columns."""
    bound = tl.where((at // num_columns) % 2 == 0, num_columns, num_rows).to(tl.uint64)
    shift = ((drawn >> 32) * bound) >> 32
    tl.store(result + at, shift.to(tl.int32), mask=at < num_values)


@triton.jit(do_not_specialize=["seed", "num_values", "num_rows", "num_columns"])
def _shifts(seed, result, num_values, num_rows, num_columns, BLOCK: tl.constexpr):
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    zero = tl.zeros([BLOCK], dtype=tl.uint64)
    # The first block of numbers has the counter 1.
    first, second, third, fourth = (number + 1).to(tl.uint64), zero, zero, zero
    key, other_key = zero + seed.to(tl.uint64), zero
    factor = tl.full([BLOCK], FIRST_FACTOR, dtype=tl.uint64)
    other_factor = tl.full([BLOCK], SECOND_FACTOR, dtype=tl.uint64)
    step = tl.full([BLOCK], FIRST_STEP, dtype=tl.uint64)
    other_step = tl.full([BLOCK], SECOND_STEP, dtype=tl.uint64)
    for _ in tl.static_range(10):
        low, high = first * factor, tl.umulhi(first, factor)
        other_low, other_high = third * other_factor, tl.umulhi(third, other_factor)
        first, second = other_high ^ second ^ key, other_low
        third, fourth = high ^ fourth ^ other_key, low
        key += step
        other_key += other_step
    _store_shift(result, 4 * number, first, num_values, num_rows, num_columns)
    _store_shift(result, 4 * number + 1, second, num_values, num_rows, num_columns)
    _store_shift(result, 4 * number + 2, third, num_values, num_rows, num_columns)
    _store_shift(result, 4 * number + 3, fourth, num_values, num_rows, num_columns)


def shifts(seed: int, num_rows: int, result: Tensor) -> None:
    """Draw ``result [rounds, columns]``, int32."""
    num_values = result.numel()
    _shifts[(cdiv(num_values, 4 * BLOCK),)](
        seed, result, num_values, num_rows, result.shape[1], BLOCK=BLOCK, num_warps=4
    )
