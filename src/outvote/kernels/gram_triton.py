"""A Triton kernel for the inner products of the clients; called by `group_kernels`.

A product of float32 numbers is formed by tensor cores, from two parts of each: the leading 11 bits
and the rest. What is left out is below 2^-23 of the product, as the rounding of float32 is. Tensor
cores round sums down, so each sum of a few coordinates is added to the others outside of them.
"""

import triton
import triton.language as tl
from torch import Tensor

BLOCK, STEP = 64, 32


@triton.jit
def _leading(x):
    """Round to the 11 bits of a number that a tensor core takes."""
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def _read(own, middle, known, at, last, coordinate_stride, STEP: tl.constexpr):
    """Return some coordinates of some clients, relative to the centre."""
    coordinate = at + tl.arange(0, STEP)
    inside = coordinate < last
    offset = coordinate * coordinate_stride
    mask = known[:, None] & inside[None, :]
    value = tl.load(own[:, None] + offset[None, :], mask=mask, other=0.0)
    centre = tl.load(middle + offset, mask=inside, other=0.0)
    return value.to(tl.float32) - centre.to(tl.float32)[None, :]


@triton.jit(do_not_specialize=["num_clients", "dim", "piece", "num_pieces", "groups_per_run"])
def _products(
    columns,
    centre,
    result,
    one,
    num_clients,
    dim,
    piece,
    num_pieces,
    groups_per_run,
    run_stride,
    group_stride,
    coordinate_stride,
    client_stride,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
):
    number = tl.program_id(0).to(tl.int64)
    part = number % num_pieces
    group = number // num_pieces
    run = group // groups_per_run
    start = columns + run * run_stride + (group - run * groups_per_run) * group_stride
    middle = start + tl.load(centre + run).to(tl.int64) * client_stride
    upper = tl.program_id(1) // BLOCKS
    lower = tl.program_id(1) % BLOCKS
    left = upper * BLOCK + tl.arange(0, BLOCK)
    right = lower * BLOCK + tl.arange(0, BLOCK)
    left_at = start + left.to(tl.int64) * client_stride
    right_at = start + right.to(tl.int64) * client_stride
    # What is below the diagonal is a mirror image.
    is_left = left < tl.where(upper <= lower, num_clients, 0)
    is_right = right < num_clients
    first = part * piece
    last = tl.minimum(first + piece, dim)
    stop = tl.where(upper <= lower, last, first)
    large = tl.zeros([BLOCK, BLOCK], dtype=tl.float32)
    small = tl.zeros([BLOCK, BLOCK], dtype=tl.float32)
    for at in range(first, stop, STEP):
        x = _read(left_at, middle, is_left, at, last, coordinate_stride, STEP)
        high = _leading(x)
        low = x - high
        if BLOCKS == 1:
            # The factor 1 is not known to the compiler, which would add up in the tensor cores.
            large += tl.dot(high, tl.trans(high), input_precision="tf32") * one
            small = tl.dot(high, tl.trans(low), small, input_precision="tf32")
        else:
            y = _read(right_at, middle, is_right, at, last, coordinate_stride, STEP)
            other = _leading(y)
            large += tl.dot(high, tl.trans(other), input_precision="tf32") * one
            small = tl.dot(high, tl.trans(y - other), small, input_precision="tf32")
            small = tl.dot(low, tl.trans(other), small, input_precision="tf32")
    if BLOCKS == 1:
        total = large + (small + tl.trans(small))
    else:
        total = large + small
    to = result + number * num_clients * num_clients
    wanted = is_left[:, None] & is_right[None, :]
    tl.store(to + left[:, None] * num_clients + right[None, :], total, mask=wanted)
    if BLOCKS > 1:
        is_beyond = is_right & (right >= (upper + 1) * BLOCK)
        wanted = is_left[:, None] & is_beyond[None, :]
        tl.store(to + left[:, None] + right[None, :] * num_clients, total, mask=wanted)


def products(columns: Tensor, centre: Tensor, result: Tensor, piece: int) -> None:
    """Multiply the clients of ``columns [runs, groups, dim, n]`` relative to a central one.

    ``result [runs, groups, pieces, n, n]`` are the products of pieces of so many coordinates.
    """
    runs, groups, dim, num_clients = columns.shape
    num_pieces = result.shape[2]
    blocks = triton.cdiv(num_clients, BLOCK)
    _products[(runs * groups * num_pieces, blocks * blocks)](
        columns,
        centre,
        result,
        1.0,
        num_clients,
        dim,
        piece,
        num_pieces,
        groups,
        *columns.stride(),
        BLOCKS=blocks,
        BLOCK=BLOCK,
        STEP=STEP,
        num_warps=4,
        num_stages=4 if blocks == 1 else 3,
    )
