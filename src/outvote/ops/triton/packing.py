"""Triton kernels that write the change of packed weights in torch's order; called by `packing`."""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048
# A tile of filters of a convolution: both of its sides are whole sectors of memory.
VALUES = 64
FILTERS = 32
# The numbers of one piece, and of one tile, in their tables.
IN_PIECE = tl.constexpr(3)
IN_TILE = tl.constexpr(7)


@triton.jit(do_not_specialize=["stride", "packed_stride", "out_stride"])
def _subtract_pieces(
    vectors, packed, out, runs, rows, table, stride, packed_stride, out_stride, BLOCK: tl.constexpr
):
    model = tl.program_id(1).to(tl.int64)
    piece = table + tl.program_id(0).to(tl.int64) * IN_PIECE
    start = tl.load(piece)
    packed_start = tl.load(piece + 1)
    size = tl.load(piece + 2)
    run = tl.load(runs + model)
    row = tl.load(rows + model)
    index = tl.arange(0, BLOCK).to(tl.int64)
    inside = index < size
    before = tl.load(vectors + run * stride + start + index, mask=inside, other=0.0)
    after = tl.load(packed + model * packed_stride + packed_start + index, mask=inside, other=0.0)
    tl.store(out + row * out_stride + start + index, before - after, mask=inside)


@triton.jit(do_not_specialize=["stride", "packed_stride", "out_stride"])
def _subtract_tiles(
    vectors,
    packed,
    out,
    runs,
    rows,
    table,
    stride,
    packed_stride,
    out_stride,
    VALUES: tl.constexpr,
    FILTERS: tl.constexpr,
):
    model = tl.program_id(1).to(tl.int64)
    tile = table + tl.program_id(0).to(tl.int64) * IN_TILE
    start = tl.load(tile)
    packed_start = tl.load(tile + 1)
    num_filters = tl.load(tile + 2)
    # 64-bit divisions would take longer than the memory.
    num_channels = tl.load(tile + 3).to(tl.int32)
    num_taps = tl.load(tile + 4).to(tl.int32)
    first_value = tl.load(tile + 5).to(tl.int32)
    first_filter = tl.load(tile + 6)
    run = tl.load(runs + model)
    row = tl.load(rows + model)
    # In torch's order the taps of a channel are consecutive; packed, the filters of a tap are.
    value = first_value + tl.arange(0, VALUES)
    filters = first_filter + tl.arange(0, FILTERS).to(tl.int64)
    num_values = num_channels * num_taps
    inside = (value < num_values)[:, None] & (filters < num_filters)[None, :]
    packed_row = (value % num_taps) * num_channels + value // num_taps
    packed_at = packed_start + packed_row[:, None] * num_filters + filters[None, :]
    after = tl.load(packed + model * packed_stride + packed_at, mask=inside, other=0.0)
    at = start + filters[None, :] * num_values + value[:, None]
    before = tl.load(vectors + run * stride + at, mask=inside, other=0.0)
    tl.store(out + row * out_stride + at, before - after, mask=inside)


@lru_cache(maxsize=16)
def tables(slots, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the pieces that torch orders as packed, and the tiles of filters to transpose."""
    pieces, tiles = [], []
    for slot in slots:
        start, packed_start = slot.start, slot.packed_start
        if slot.kind == "conv":
            num_filters, num_channels, *window = slot.shape
            num_taps = window[0] * window[1]
            sizes = (start, packed_start, num_filters, num_channels, num_taps)
            tiles += [
                (*sizes, value, first)
                for first in range(0, num_filters, FILTERS)
                for value in range(0, num_channels * num_taps, VALUES)
            ]
        else:
            pieces += [
                (start + first, packed_start + first, min(BLOCK, slot.size - first))
                for first in range(0, slot.size, BLOCK)
            ]
    widths = (IN_PIECE.value, IN_TILE.value)
    found = [
        torch.tensor(table, dtype=torch.int64).view(-1, width).to(device)
        for table, width in zip((pieces, tiles), widths, strict=True)
    ]
    return found[0], found[1]


def write_changes(
    slots, vectors: Tensor, runs: Tensor, packed: Tensor, out: Tensor, rows: Tensor
) -> None:
    """Write ``vectors[runs]`` minus ``packed [models, packed_dim]`` into ``out[rows]``."""
    pieces, tiles = tables(slots, packed.device)
    num_models = len(packed)
    given = (vectors, packed, out, runs, rows)
    strides = (vectors.stride(0), packed.stride(0), out.stride(0))
    if num_models and len(pieces):
        _subtract_pieces[(len(pieces), num_models)](
            *given, pieces, *strides, BLOCK=BLOCK, num_warps=8
        )
    if num_models and len(tiles):
        _subtract_tiles[(len(tiles), num_models)](
            *given, tiles, *strides, VALUES=VALUES, FILTERS=FILTERS, num_warps=8
        )
