"""Sorting in the registers of a warp, for Triton kernels."""

import triton
import triton.language as tl

# Clients in no order: the compiler gives whole rows to threads, which sort in registers.
PERMUTING = tl.constexpr(21)


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
