"""Triton kernel of the moments of clients; called by `moments`."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from outvote.axes import Rows
from outvote.ops.triton import cdiv, next_power_of_2

# Values of a tile: they stay in registers from the mean to the deviations.
TILE = 4096
# Coordinates of a tile at least: memory is read in pieces of 64 bytes.
FEWEST = 16


@triton.jit
def _moments(
    rows,
    is_used,
    counts,
    mean,
    spread,
    away,
    norms,
    sums,
    num_clients,
    dim,
    num_tiles,
    run_stride,
    client_stride,
    out_stride,
    HAS_SPREAD: tl.constexpr,
    IS_EXACT: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    HAS_AWAY: tl.constexpr,
    CLIENTS: tl.constexpr,
    DIM: tl.constexpr,
):
    run = (tl.program_id(0) // num_tiles).to(tl.int64)
    tile = (tl.program_id(0) % num_tiles).to(tl.int64)
    coordinate = tile * DIM + tl.arange(0, DIM)
    client = tl.arange(0, CLIENTS).to(tl.int64)
    inside = coordinate < dim
    # Rows left out are not read: they may hold NaN, which a factor of 0 would not take away.
    used = tl.load(is_used + run * num_clients + client, mask=client < num_clients, other=0) != 0
    wanted = used[:, None] & inside[None, :]
    at = run * run_stride + client[:, None] * client_stride + coordinate[None, :]
    values = tl.load(rows + at, mask=wanted, other=0.0).to(tl.float32)
    count = tl.load(counts + run)
    out = run * out_stride + coordinate
    if IS_EXACT:
        # Sums of large numbers that differ little are rounded more than the mean need be.
        first = tl.min(tl.where(used, client, CLIENTS), axis=0)
        start = rows + run * run_stride + first * client_stride + coordinate
        origin = tl.load(start, mask=inside & (first < CLIENTS), other=0.0).to(tl.float32)
        values = tl.where(wanted, values - origin[None, :], 0.0)
    middle = tl.div_rn(tl.sum(values, axis=0), count)
    found = middle
    if IS_EXACT:
        found = middle + origin
    tl.store(mean + out, found, mask=inside)
    total = tl.sum(tl.where(inside, found, 0.0), axis=0)
    tl.store(sums + tl.program_id(0).to(tl.int64) * 2, total)
    if HAS_SPREAD:
        values = tl.where(wanted, values - middle[None, :], 0.0)
        squares = values * values
        variance = tl.div_rn(tl.sum(squares, axis=0), count)
        tl.store(spread + out, tl.sqrt_rn(variance), mask=inside)
        total = tl.sum(tl.where(inside, variance, 0.0), axis=0)
        tl.store(sums + tl.program_id(0).to(tl.int64) * 2 + 1, total)
        if HAS_NORMS:
            part = tl.sum(squares, axis=1)
            to = (tile * CLIENTS + client) + run * num_tiles * CLIENTS
            tl.store(norms + to, part)
        if HAS_AWAY:
            to = (run * num_clients + client[:, None]) * dim + coordinate[None, :]
            tl.store(away + to, values, mask=(client < num_clients)[:, None] & inside[None, :])


def moments(
    rows: Rows,
    is_used: Tensor,
    into: tuple[Tensor, Tensor | None],
    *,
    is_exact: bool,
    has_norms: bool,
    away: Rows | None,
) -> tuple[Tensor, Tensor | None]:
    """Write the mean and, where wanted, the spread of the rows in use, in one read of them.

    The coordinates of `rows`, and of the mean and the spread in `into`, must lie side by side. With
    `away`, the differences from the mean are written there, 0 for rows left out. Returns the sum of
    the mean and of the squared spread, ``[runs, 2]``, and the squared norms of the differences,
    ``[runs, clients]``, both float64.
    """
    num_runs, num_clients, dim = rows.shape
    clients = next_power_of_2(num_clients)
    width = max(FEWEST, TILE // clients)
    num_tiles = cdiv(dim, width)
    mean, spread = into
    sums = torch.zeros(num_runs, num_tiles, 2, dtype=torch.float32, device=rows.device)
    norms = sums
    if has_norms:
        shape = (num_runs, num_tiles, clients)
        norms = torch.empty(shape, dtype=torch.float32, device=rows.device)
    _moments[(num_runs * num_tiles,)](
        rows,
        is_used.to(torch.uint8),
        is_used.sum(dim=-1).clamp(min=1).to(torch.float32),
        mean,
        mean if spread is None else spread,
        mean if away is None else away,
        norms,
        sums,
        num_clients,
        dim,
        num_tiles,
        rows.stride(0),
        rows.stride(1),
        mean.stride(0),
        HAS_SPREAD=spread is not None,
        IS_EXACT=is_exact,
        HAS_NORMS=has_norms,
        HAS_AWAY=away is not None,
        CLIENTS=clients,
        DIM=width,
        num_warps=4 if clients * width <= TILE else 8,
    )
    totals = sums.sum(dim=1, dtype=torch.float64)
    if not has_norms:
        return totals, None
    return totals, norms.sum(dim=1, dtype=torch.float64)[:, :num_clients]
