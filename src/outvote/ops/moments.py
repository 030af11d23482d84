"""Mean, standard deviation, distances and extremes of some clients, in one pass over tiles.

A tile of coordinates fits into the cache of a core, so that everything about it costs one pass
over the rows. Sums over coordinates are kept in float64 from tile to tile.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import local
from typing import Any

import torch
from torch import Tensor

from outvote.axes import Pairs, PerClient, PerCoordinate, Rows
from outvote.ops.door import backend
from outvote.ops.pairs import long_products
from outvote.ops.process import mapped

# Values of a tile: it stays in the last cache, and is large beside the cost of calling torch; a GPU
# wants large pieces.
TILE = {"cpu": 1 << 20, "cuda": 1 << 27}
# Below and above, squares in float32 lose digits or overflow: such gradients are done in float64.
SAFE_TOTAL = {torch.float32: 1e34, torch.float64: 1e240}
SAFE_MEAN_SQUARE = {torch.float32: 1e-26, torch.float64: 0.0}
# Matrix products work on blocks of rows; a block with less than this many is mostly wasted.
BLOCK, FEW = 16, 4
# From so many rows on it pays to take a quarter of the products from their mirror images.
MANY = 40
# Coordinates that a CPU works out together.
PIECE = 1 << 16

Toward = Callable[[PerCoordinate, PerCoordinate], PerCoordinate]
# Some runs, and some coordinates.
Tile = tuple[slice, slice]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one pass found; e_i is a client's gradient minus the mean, 0 for clients left out.

    `products` are the inner products of the e_i, `along` those of the e_i with a direction, `low`
    and `high` the smallest and the largest value of each coordinate.
    """

    mean: PerCoordinate
    counts: Tensor
    is_used: Tensor | None = None
    # Any: None unless request.
    spread: Any = None
    squared_norms: Any = None
    products: Any = None
    along: Any = None
    low: Any = None
    high: Any = None
    sums: Any = None
    """``[runs, 2]``: the sums of the mean and of the squared spread, where a backend added them."""

    def sample_factor(self) -> Tensor:
        """Return what makes a sample standard deviation of a population one; 1 for one client."""
        return (self.counts / (self.counts - 1).clamp(min=1)).sqrt()

    def is_safe(self) -> bool:
        """Whether nothing overflowed, nor became so small that digits were lost."""
        dtype = self.mean.dtype
        is_sound = (self.mean.sum() if self.sums is None else self.sums[:, 0]).isfinite().all()
        if self.spread is None:
            return bool(is_sound)
        # The largest total also bounds the inner products: |e_i|^2 <= n |spread|^2.
        if self.sums is None:
            norms = torch.linalg.vector_norm(self.spread, dim=-1).double()
        else:
            norms = self.sums[:, 1].sqrt()
        low = (SAFE_MEAN_SQUARE[dtype] * self.mean.shape[-1]) ** 0.5
        return bool(is_sound & ((norms >= low) & (norms <= SAFE_TOTAL[dtype] ** 0.5)).all())


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to work out besides the mean."""

    spread: bool = False
    norms: bool = False
    products: bool = False
    toward: Toward | None = None
    extremes: bool = False
    is_exact: bool = False
    """The mean is no further off than rounding it once, where the clients differ little."""

    def keeps_differences(self) -> bool:
        """Whether the differences from the mean are needed after the spread."""
        return self.spread and (self.products or self.toward is not None)


def measure(rows: Rows, is_used: Tensor | None, dtype: torch.dtype, request: Request) -> Measured:
    """Measure ``rows [runs, clients, dim]``; `is_used [runs, clients]` marks those that count.

    The results have the dtype, and sums over coordinates are float64. Rows that do not count may
    hold anything, NaN too.
    """
    num_runs, num_clients, dim = rows.shape
    mean = torch.empty(num_runs, dim, dtype=dtype, device=rows.device)
    spread = torch.empty_like(mean) if request.spread else None
    low, high = (torch.empty_like(mean) if request.extremes else None for _ in range(2))
    scratch = Scratch()
    run = None
    if rows.numel() > 0 and not request.extremes:
        run = backend("moments", mean, num_clients)

    def work(tile: Tile) -> tuple[Tensor | None, ...]:
        runs, columns = tile
        used = None if is_used is None else is_used[runs]
        into = mean[tile], None if spread is None else spread[tile]
        if run is not None:
            return _measure_by(run, rows[runs, :, columns], used, into, request)
        values = rows[runs, :, columns].to(dtype)
        if low is not None and high is not None:
            _extremes(values, used, (low[tile], high[tile]), scratch)
        return _measure_tile(values, used, into, request, scratch)

    # Without differences from the mean to keep, a backend needs no memory and does all at once.
    is_whole = run is not None and not request.keeps_differences()
    cut = [(slice(num_runs), slice(dim))] if is_whole else tiles(rows)
    parts = mapped(work, cut, rows.device)
    norms, products, along_vector, sums = (
        None if column[0] is None else add_up(cut, column, num_runs)
        for column in zip(*parts, strict=True)
    )
    counts = is_used.sum(dim=-1) if is_used is not None else torch.full((num_runs,), num_clients)
    return Measured(
        mean=mean,
        counts=counts.to(rows.device, torch.float64),
        is_used=is_used,
        spread=spread,
        squared_norms=norms if products is None else products.diagonal(dim1=-2, dim2=-1),
        products=products,
        along=along_vector,
        low=low,
        high=high,
        sums=sums,
    )


def _measure_by(
    run: Callable[..., Any],
    values: Rows,
    is_used: Tensor | None,
    into: tuple[Tensor, Tensor | None],
    request: Request,
) -> tuple[Tensor | None, ...]:
    """Measure in one read of the rows in use; their differences from the mean are a second pass."""
    values = values if values.stride(-1) == 1 else values.contiguous()
    if is_used is None:
        is_used = torch.ones(values.shape[:2], dtype=torch.bool, device=values.device)
    away = None
    if request.keeps_differences():
        away = torch.empty(values.shape, dtype=torch.float32, device=values.device)
    sums, norms = run(
        values,
        is_used,
        into,
        is_exact=request.is_exact,
        has_norms=request.spread and request.norms and not request.products,
        away=away,
    )
    if away is None:
        return norms, None, None, sums
    mean, spread = into
    assert spread is not None
    products = inner_products(away).double() if request.products else None
    if request.toward is None:
        return norms, products, None, sums
    return norms, products, along(away, request.toward(mean, spread)).double(), sums


class Scratch:
    """Buffers that every thread uses again for one tile after the other.

    New memory comes from the system page by page, which takes longer than the work.
    """

    def __init__(self) -> None:
        self.here = local()

    def like(self, values: Tensor, number: int) -> Tensor:
        """Return a buffer of the shape and dtype of `values`; the same one for the same number."""
        kept: dict[str, Tensor] = self.here.__dict__
        name = f"piece {number}"
        if name not in kept or kept[name].numel() < values.numel():
            kept[name] = values.new_empty(values.numel())
        return kept[name][: values.numel()].view(values.shape)


def tiles(rows: Rows) -> list[Tile]:
    """Cut the runs and coordinates so that no piece has many more values than a tile."""
    num_runs, num_clients, dim = rows.shape
    size = TILE.get(rows.device.type, TILE["cuda"])
    width = max(1, min(dim, size // num_clients))
    height = max(1, min(num_runs, size // (num_clients * width)))
    return [
        (slice(run, run + height), slice(first, first + width))
        for run in range(0, num_runs, height)
        for first in range(0, dim, width)
    ]


def _extremes(
    values: Rows, is_used: Tensor | None, into: tuple[Tensor, Tensor], scratch: Scratch
) -> None:
    """Write the smallest and the largest values; 0 where nobody is."""
    half = scratch.like(values[:, : max(1, values.shape[1] // 2)], 0)
    for out, largest in zip(into, (False, True), strict=True):
        found = values
        if is_used is not None:
            beyond = -torch.inf if largest else torch.inf
            found = values.masked_fill(~is_used.unsqueeze(-1), beyond)
        out.copy_(extreme(found, half, largest=largest))
        if is_used is not None:
            out[~is_used.any(dim=-1)] = 0


def _measure_tile(
    values: Rows,
    is_used: Tensor | None,
    into: tuple[Tensor, Tensor | None],
    request: Request,
    scratch: Scratch,
) -> tuple[Tensor | None, ...]:
    mean, spread = into
    count: Tensor | int = values.shape[1]
    if is_used is not None:
        values = _clear(scratch.like(values, 2).copy_(values), is_used)
        count = is_used.sum(dim=-1, keepdim=True).clamp(min=1)
    if spread is None:
        torch.div(column_sums(values), count, out=mean)
        return None, None, None, None
    around, away = values, scratch.like(values, 0)
    if request.is_exact:
        # Sums of large numbers that differ little are rounded more than the mean need be.
        first = _first_rows(values, is_used)
        around = torch.sub(values, first, out=away)
        if is_used is not None:
            _clear(around, is_used)
    middle = torch.div(column_sums(around), count, out=mean).unsqueeze(1)
    torch.sub(around, middle, out=away)
    if request.is_exact:
        mean += first.squeeze(1)
    if is_used is not None:
        _clear(away, is_used)
    products = inner_products(away).double() if request.products else None
    is_last = request.toward is None
    squares = torch.mul(away, away, out=away if is_last else scratch.like(values, 1))
    norms = squares.sum(dim=-1).double() if request.norms and products is None else None
    torch.sqrt(column_sums(squares).div_(count), out=spread)
    if request.toward is None:
        return norms, products, None, None
    return norms, products, along(away, request.toward(mean, spread)).double(), None


def _clear(values: Rows, is_used: Tensor) -> Rows:
    """Write 0 to the rows left out: they may hold NaN, which a factor of 0 would not take away."""
    if values.is_cuda:
        return values.masked_fill_(~is_used.unsqueeze(-1), 0)
    # A CPU reads a mask value by value, which takes longer than all the rest.
    for run, client in (~is_used).nonzero().tolist():
        values[run, client] = 0
    return values


def _first_rows(values: Rows, is_used: Tensor | None) -> Rows:
    """Return the first row in use of each run, [runs, 1, width]."""
    if is_used is None:
        return values[:, :1]
    runs = torch.arange(len(values), device=values.device)
    return values[runs, is_used.double().argmax(dim=-1)].unsqueeze(1)


def add_up(cut: Sequence[Tile], parts: Sequence[Tensor], num_runs: int) -> Tensor:
    """Add the parts of all tiles of a run, [runs, ...]."""
    total = parts[0].new_zeros(num_runs, *parts[0].shape[1:])
    for (runs, _), part in zip(cut, parts, strict=True):
        total[runs] += part
    return total


def weighted_sum(weights: PerClient, values: Rows) -> PerCoordinate:
    """Return the sum of the rows with the given weights, [runs, width]."""
    if len(values) == 1 and not values.is_cuda:
        # On rows with a large stride three times as fast as a sum over an axis.
        return torch.mv(values[0].mT, weights[0]).unsqueeze(0)
    return (weights.unsqueeze(1) @ values).squeeze(1)


def column_sums(values: Rows) -> PerCoordinate:
    """Return the sum of the rows, [runs, width]."""
    if len(values) == 1 and not values.is_cuda:
        return weighted_sum(values.new_ones(values.shape[:2]), values)
    return values.sum(dim=1)


def along(values: Rows, vectors: PerCoordinate) -> PerClient:
    """Return the inner products of the rows with the vector of their run."""
    if len(values) == 1 and not values.is_cuda:
        return torch.mv(values[0], vectors[0]).unsqueeze(0)
    return long_products(values, vectors.unsqueeze(-2)).squeeze(-1)


def inner_products(values: Rows) -> Pairs:
    """Return the inner products of all rows with each other."""
    num_rows = values.shape[1]
    if values.is_cuda or len(values) > 1 or num_rows < BLOCK:
        return long_products(values, values)
    num_last = num_rows % BLOCK
    if not 0 < num_last <= FEW:
        if num_rows < MANY:
            return values @ values.mT
        # About half, in whole strips of half a block.
        num_last = num_rows - BLOCK // 2 * -(-num_rows // BLOCK)
    found = values.new_empty(1, num_rows, num_rows)
    main, rest = values[0, :-num_last], values[0, -num_last:]
    torch.mm(main, main.mT, out=found[0, :-num_last, :-num_last])
    torch.mm(rest, values[0].mT, out=found[0, -num_last:])
    found[0, :-num_last, -num_last:] = found[0, -num_last:, :-num_last].mT
    return found


def extreme(values: Rows, half: Rows, *, largest: bool) -> PerCoordinate:
    """Return the smallest or largest values over the rows, by halves: faster than over an axis.

    `half` is a buffer for half of the rows, at least one.
    """
    pick = torch.maximum if largest else torch.minimum
    if values.shape[1] == 1:
        return values[:, 0]
    while (num_rows := values.shape[1]) > 1:
        best = half[:, : num_rows // 2]
        pick(values[:, : num_rows // 2], values[:, num_rows // 2 : num_rows // 2 * 2], out=best)
        if num_rows % 2:
            pick(best[:, 0], values[:, -1], out=best[:, 0])
        values = best
    return values[:, 0]


def summed(
    rows: Rows,
    is_used: Tensor | None,
    dtype: torch.dtype,
    work: Callable[[Rows, Tile], Tensor],
) -> Tensor:
    """Add up over all tiles what `work` makes of the values of one; rows left out are 0."""

    def one(tile: Tile) -> Tensor:
        runs, columns = tile
        values = rows[runs, :, columns].to(dtype)
        if is_used is not None:
            values = values.masked_fill(~is_used[runs].unsqueeze(-1), 0)
        return work(values, tile)

    cut = tiles(rows)
    return add_up(cut, mapped(one, cut, rows.device), len(rows))


def norm(vectors: Tensor) -> Tensor:
    """Return Euclidean norms in float64; squares of large float32 numbers overflow."""
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=-1).double()
    if vectors.dtype == torch.float64 or bool((norms.isfinite() & (norms > 1e-12)).all()):
        return norms
    exact: Tensor = torch.linalg.vector_norm(vectors, dim=-1, dtype=torch.float64)
    return exact


def distances(vectors: PerCoordinate, others: PerCoordinate) -> Tensor:
    """Return the distances of vectors to others, per run, float64; in the precision of others."""
    if vectors.device.type != "cpu":
        return norm(vectors.to(others.dtype) - others)

    # In pieces that stay in the cache.
    def work(pieces: tuple[Tensor, Tensor]) -> Tensor:
        vector, other = pieces
        return norm(vector.to(other.dtype) - other)

    pairs = zip(vectors.split(PIECE, dim=-1), others.split(PIECE, dim=-1), strict=True)
    return norm(torch.stack(mapped(work, list(pairs)), dim=-1))


def fill_between(into: Tensor, low: Tensor, width: Tensor, generator: torch.Generator) -> None:
    """Draw every coordinate uniformly from low to low + width."""
    # On a CPU in pieces that stay in the cache.
    size = PIECE // 2 if into.device.type == "cpu" else max(1, len(into))
    pieces = (part.split(size) for part in (into, width, low))
    for some, reach, first in zip(*pieces, strict=True):
        some.uniform_(generator=generator).mul_(reach).add_(first)
