"""Distances between clients: fast in float32, redone in float64 where digits cancel.

The Gram matrix K of the rows, taken relative to one central row (the medoid), gives every distance
that affine rules need: ``D_ij = K_ii + K_jj - 2 K_ij``. Products are formed in the precision of the
data with TF32 off; sums over many of them are float64. A result that is small against the terms it
was subtracted from has lost its digits to cancellation: it is inexact, and is recomputed from the
values themselves, in float64.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from outvote.axes import Columns, Pairs, PerClient, PerCoordinate, Rows
from outvote.ops import client_kernels, group_kernels, matrix_kernels, native
from outvote.ops.long_products import long_products
from outvote.ops.memory import listed_later
from outvote.ops.precision import exact_products, work_dtype
from outvote.ops.threads import mapped
from outvote.seeding import RandomStream

if TYPE_CHECKING:
    from outvote.rules.column_stream import ColumnStream

Result = TypeVar("Result")
# Below this share of the subtracted terms a difference has lost too many digits.
CANCELLATION = {torch.float32: 1e-4, torch.float64: 1e-10}
# A tile of this many values stays in the processor's cache; a GPU wants larger pieces.
TILE_VALUES = {"cpu": 1 << 20, "cuda": 1 << 28}
NUM_SAMPLED_COORDINATES = 512
# From so many on, a mirrored quarter of the products pays for a second, smaller product.
MANY_CLIENTS, MANY_COORDINATES = 32, 256
# A larger piece of n x n matrices: they are worked on in many small steps, each with its price.
MATRICES_TILE = {"cpu": 1 << 19, "cuda": 1 << 26}
# Sums of squared norms up to this do not overflow in float32.
FLOAT32_NORM = 1e30
# Squared norms below this have lost digits in float32, or all of them.
SHORTEST_NORM = 1e-30
# Up to this many coordinates, plain differences are cheaper than a Gram matrix and its checks.
FEW_COORDINATES = 8
# Coordinates that rows of equal norm are compared in before all are.
NUM_COMPARED = 16


class CancellationCheck:
    """Counts inexact results on the device, which works on until the count is read."""

    def __init__(
        self,
        device: torch.device,
        count: Tensor | None = None,
        fetched: Callable[[], float] | None = None,
    ) -> None:
        """Start at 0; or count in ``count [1]``, which is 0, and read it in another way."""
        self._count = torch.zeros(1, dtype=torch.int32, device=device) if count is None else count
        self._read_otherwise = fetched
        self._fetched: Callable[[], float] | None = None

    @property
    def count(self) -> Tensor:
        """What to count in; a number that was fetched before is out of date then."""
        self._fetched = None
        return self._count

    def add(self, inexact: Tensor) -> None:
        """Count a mask that has any mark as one."""
        self.count.add_(inexact.any())

    def fetch(self) -> None:
        """Start to fetch the count, as nothing more is counted; what is queued now goes on."""
        if self._read_otherwise is None and self._fetched is None:
            later = listed_later(self._count)
            self._fetched = lambda: later()[0]

    def has_failed(self) -> bool:
        """Wait for the count, and return whether any result was inexact."""
        fetched = self._read_otherwise or self._fetched
        return bool(self._count if fetched is None else fetched())


def new_check(device: torch.device) -> CancellationCheck | None:
    """Return a check to look at later; None: looking at once costs nothing."""
    return None if device.type == "cpu" else CancellationCheck(device)


def tile_values(columns: Columns) -> int:
    """Return how many values a piece of work on this device should have."""
    return TILE_VALUES.get(columns.device.type, 1 << 28)


def tiles(columns: "Columns | ColumnStream") -> Iterator[tuple[slice, Columns]]:
    """Cut the coordinates into pieces that fit the cache, in the working precision."""
    if not isinstance(columns, Tensor):
        yield from columns.tiles()
        return
    dim = columns.shape[-2]
    per_coordinate = max(1, columns.numel() // max(1, dim))
    width = max(16, tile_values(columns) // per_coordinate)
    for start in range(0, dim, width):
        piece = slice(start, min(dim, start + width))
        yield piece, columns[..., piece, :].to(work_dtype(columns.dtype))


def over_tiles(
    work: Callable[[tuple[slice, Columns]], Result], columns: "Columns | ColumnStream"
) -> list[Result]:
    """Work on pieces of the coordinates; those of files are read some at a time."""
    if not isinstance(columns, Tensor):
        return columns.over_tiles(work)
    return mapped(work, tiles(columns), columns.device)


def everywhere(total: Tensor, columns: "Columns | ColumnStream") -> Tensor:
    """Add what other processes found in their coordinates, where each reads a part of a stream."""
    return total if isinstance(columns, Tensor) else columns.everywhere(total)


def medoids(columns: Columns) -> Tensor:
    """Return, for every run, the client whose median distance to the others is smallest.

    Found on a sample of coordinates. A client who hides a huge value outside the sample can win;
    the differences that this makes inexact are recomputed, so it costs time and not precision.
    """
    dim = columns.shape[-2]
    step = max(1, dim // NUM_SAMPLED_COORDINATES)
    sample = columns[..., ::step, :][..., :NUM_SAMPLED_COORDINATES, :].double()
    distances = torch.cdist(sample.mT, sample.mT, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.median(dim=-1).values.argmin(dim=-1)


def of_client(columns: Columns, client: Tensor) -> Columns:
    """Return the column of one client per run, [runs, *groups, dim, 1]."""
    if client.numel() == 1:
        return columns.index_select(-1, client.flatten())
    index = client.view(*client.shape, *[1] * (columns.dim() - client.dim()))
    return columns.gather(-1, index.expand(*columns.shape[:-1], 1))


def products(columns: Columns, centre: Tensor, buffer: Tensor | None = None) -> Pairs:
    """Return the inner products of the rows relative to the central row."""

    def multiply(tile: tuple[slice, Columns]) -> Pairs:
        centred = subtract(tile[1], of_client(tile[1], centre), buffer)
        return with_itself(centred)

    if columns.shape[-2] == 0:
        raise ValueError("there is no coordinate to compare, the gradients are empty.")
    if group_kernels.can_multiply(columns):
        return group_kernels.products(columns, centre)
    with exact_products():
        parts = over_tiles(multiply, columns)
    if len(parts) == 1 and isinstance(columns, Tensor):
        return parts[0]
    return everywhere(torch.stack(parts).sum(dim=0, dtype=torch.float64), columns)


def products_around(squared: Pairs, centre: Tensor) -> Pairs:
    """Return the inner products relative to the central row, from squared distances."""
    to_centre = of_client(squared, centre)
    return (to_centre + to_centre.mT - squared) / 2


def with_itself(values: Columns) -> Pairs:
    """Return the inner products of the rows; with many, a quarter of them as a mirror image."""
    num_clients = values.shape[-1]
    is_small = num_clients < MANY_CLIENTS or values.shape[-2] < MANY_COORDINATES
    if is_small or values.device.type != "cpu":
        return long_products(values.mT, values.mT)
    half = num_clients // 2 + 1
    upper, lower = values.mT[..., :half, :], values.mT[..., half:, :]
    result = values.new_empty(*values.shape[:-2], num_clients, num_clients)
    result[..., :half, :] = torch.matmul(upper, values)
    result[..., half:, half:] = torch.matmul(lower, lower.mT)
    result[..., half:, :half] = result[..., :half, half:].mT
    return result


def exact_gram(columns: Columns) -> Pairs:
    """Return the inner products of the rows as they are."""
    with exact_products():
        return long_products(columns.mT, columns.mT)


def subtract(tile: Columns, other: Tensor, buffer: Tensor | None) -> Columns:
    """Return ``tile - other`` in `buffer` if it fits: fresh memory costs more than the work."""
    if buffer is None or buffer.shape != tile.shape or buffer.dtype != tile.dtype:
        return tile - other
    return torch.sub(tile, other, out=buffer)


def without_overflow(products: Pairs, columns: Callable[[], Columns]) -> Pairs:
    """Redo in float64, around the coordinate-wise median, what overflowed in float32."""
    return _redone(products, ~products.isfinite().all(dim=-1).all(dim=-1), columns)


def without_underflow(products: Pairs, columns: Callable[[], Columns]) -> Pairs:
    """Redo in float64 what is so short that its squares vanish in float32."""
    if products.dtype == torch.float64 or products.device.type != "cpu":
        return products
    is_short = products.diagonal(dim1=-2, dim2=-1).amax(dim=-1) < SHORTEST_NORM
    return _redone(products.double(), is_short, columns) if bool(is_short.any()) else products


def _redone(products: Pairs, bad: Tensor, columns: Callable[[], Columns]) -> Pairs:
    for where in bad.nonzero().tolist():
        at = tuple(where)
        total = torch.zeros_like(products[at])
        values = columns()[at]
        for _, tile in tiles(values):
            centred = tile.double() - tile.double().median(dim=-1, keepdim=True).values
            total += centred.mT @ centred
        products[at] = everywhere(total, values)
    return products


def squared_distances(
    products: Pairs,
    columns: Callable[[], Columns],
    dtype: torch.dtype,
    originals: Tensor | None = None,
    check: CancellationCheck | None = None,
) -> Pairs:
    """Return the squared distances between all pairs of rows, from their inner products.

    `originals` has the first row that is equal to each. Inexact distances are redone from the
    values, or, with `check`, only counted.
    """
    inexact: Tensor | None
    threshold, count = CANCELLATION[dtype], None if check is None else check.count
    has_kernel = client_kernels.can_measure(products)
    if has_kernel:
        result, inexact = client_kernels.squared_distances(products, threshold, originals, count)
    else:
        result, inexact = _squared_distances(products, threshold)
        if originals is not None and inexact is not None:
            inexact &= ~_are_copies(originals, inexact)
        if check is not None and inexact is not None:
            check.add(inexact)
    is_redone = check is None and inexact is not None and bool(inexact.any())
    if is_redone and inexact is not None:
        _redo_pairs(result, inexact, columns())
    if originals is not None and (is_redone or not has_kernel):
        result = _copy_distances(result, originals)
    return result


def sums_of_smallest(
    products: Pairs,
    num_smallest: int,
    dtype: torch.dtype,
    originals: Tensor | None,
    check: CancellationCheck | None,
) -> PerClient | None:
    """Return the sum of every row's smallest squared distances; None: not without all of them.

    Inexact distances are counted by `check`; without it they are wanted one by one, to be redone.
    """
    if check is None or not client_kernels.can_sort(products):
        return None
    return client_kernels.sums_of_smallest_distances(
        products, num_smallest, CANCELLATION[dtype], originals, check.count
    )


def _copy_distances(result: Pairs, originals: Tensor) -> Pairs:
    """Give copies of a client its own distances to the last bit: ties are settled by index."""
    if originals.dim() > 2:  # Every group has copies of its own.
        rows = result.gather(-2, originals.unsqueeze(-1).expand(result.shape))
        return rows.gather(-1, originals.unsqueeze(-2).expand(result.shape))
    for run, own in enumerate(originals.expand(len(result), -1)):
        copies = (own != torch.arange(len(own), device=own.device)).nonzero().flatten()
        result[run, ..., copies, :] = result[run, ..., own[copies], :]
        result[run, ..., :, copies] = result[run, ..., :, own[copies]]
    return result


def _are_copies(originals: Tensor, like: Tensor) -> Tensor:
    """Mark the pairs of equal rows, with as many axes as `like`."""
    pairs = originals.unsqueeze(-1) == originals.unsqueeze(-2)
    return pairs.view(*pairs.shape[:-2], *[1] * (like.dim() - pairs.dim()), *pairs.shape[-2:])


def _squared_distances(products: Pairs, threshold: float) -> tuple[Pairs, Tensor | None]:
    """Return the squared distances, and where (above the diagonal) they are inexact."""
    norms = products.diagonal(dim1=-2, dim2=-1)
    longest = norms.amax(dim=-1)
    # Written so that what overflowed, and is not a number, is not small either.
    if not bool((longest <= FLOAT32_NORM).all()):
        products = products.double()
        norms = products.diagonal(dim1=-2, dim2=-1)
    left, right = norms.unsqueeze(-1), norms.unsqueeze(-2)
    # In an order of operations that makes it symmetric to the last bit: ties are settled by index.
    result = (left + right).sub_(products + products.mT)
    to_self = result.diagonal(dim1=-2, dim2=-1)
    to_self.fill_(torch.inf)
    nearest = result.amin(dim=-1)
    to_self.zero_()
    is_fine = (nearest >= longest.unsqueeze(-1) * threshold) & (longest < torch.inf).unsqueeze(-1)
    if bool(is_fine.all()):
        return result, None
    result.clamp_(min=0)
    # Written so that what overflowed, and is infinite or not a number, is inexact too.
    inexact = (result >= torch.maximum(left, right).mul_(threshold)) & (result < torch.inf)
    return result, inexact.logical_not_().triu_(1)


def _redo_pairs(result: Pairs, inexact: Tensor, columns: Columns) -> None:
    """Overwrite inexact distances by the sum of squared differences of the values."""
    num_clients = columns.shape[-1]
    flat_result = result.view(-1, num_clients, num_clients)
    flat_columns = columns.reshape(-1, *columns.shape[-2:])
    flat_inexact = inexact.reshape(-1, num_clients, num_clients)
    num_entries = int(flat_inexact.sum())
    pairs = flat_inexact.any(dim=0).nonzero()
    if 2 * num_entries >= len(pairs) * len(flat_result):
        _redo_everywhere(flat_result, flat_inexact, flat_columns, pairs)
    else:
        _redo_entries(flat_result, flat_inexact, flat_columns)


def _redo_everywhere(result: Tensor, inexact: Tensor, columns: Tensor, pairs: Tensor) -> None:
    """Redo some pairs in all groups: the same clients are alike everywhere (they collude)."""
    step = max(1, tile_values(columns) // max(1, columns.shape[0] * columns.shape[1]))
    for some in pairs.split(step):
        left, right = some.unbind(dim=-1)
        exact = torch.zeros(len(result), len(some), dtype=result.dtype, device=result.device)
        for _, tile in tiles(columns):
            difference = tile.index_select(-1, left).double() - tile.index_select(-1, right)
            exact += difference.square_().sum(dim=-2)
        exact = everywhere(exact, columns)
        exact = torch.where(inexact[:, left, right], exact, result[:, left, right])
        result[:, left, right] = exact
        result[:, right, left] = exact


def _redo_entries(result: Tensor, inexact: Tensor, columns: Tensor) -> None:
    """Redo single entries: two clients happen to be close in one group."""
    entries = inexact.nonzero()
    for some in entries.split(max(1, tile_values(columns) // columns.shape[1])):
        group, left, right = some.unbind(dim=-1)
        difference = columns[group, :, left].double() - columns[group, :, right].double()
        exact = difference.square_().sum(dim=-1).to(result.dtype)
        result[group, left, right] = exact
        result[group, right, left] = exact


def squared_distances_to_average(
    products: Pairs,
    weights: PerClient,
    columns: Callable[[], Columns],
    dtype: torch.dtype,
    originals: Tensor | None = None,
    check: CancellationCheck | None = None,
) -> PerClient:
    """Return how far every row is from the weighted average of the rows, from inner products.

    `originals` has the first row that is equal to each, `check` counts inexact distances.
    """
    if client_kernels.can_average(products):
        measure = client_kernels.squared_distances_to_average
        count = None if check is None else check.count
        result, at = measure(products, weights, originals, CANCELLATION[dtype], count)
    else:
        result, at = _to_average(products, weights, CANCELLATION[dtype])
        if check is not None:
            check.add(at)
    if check is not None or not bool(at.any()):
        return result
    if bool(at.all()):
        return direct_distances_to_average(columns(), weights)
    result[at] = direct_distances_to_average(columns()[at], weights[at])
    return result


def _to_average(products: Pairs, weights: PerClient, threshold: float) -> tuple[PerClient, Tensor]:
    """Return the squared distances to an average, and the groups where they are inexact."""
    products = products.double()
    norms = products.diagonal(dim1=-2, dim2=-1)
    along = torch.matmul(products, weights.unsqueeze(-1)).squeeze(-1)
    of_average = (weights * along).sum(dim=-1, keepdim=True)
    result = norms - 2 * along + of_average
    # An average of one client alone is that client: exactly 0.
    is_itself = weights == 1
    result = result.masked_fill(is_itself, 0)
    # Written so that what overflowed, and is infinite or not a number, is inexact too.
    is_exact = (result >= (norms + of_average) * threshold) & (result < torch.inf)
    return result, ~(is_exact | is_itself).all(dim=-1)


def direct_distances_to_average(columns: Columns, weights: PerClient) -> PerClient:
    """Return how far every row is from the weighted average, by the differences, squared."""
    if group_kernels.can_compare(columns):
        return group_kernels.distances_to_average(columns, weights)
    total = torch.zeros_like(weights)
    for _, tile in tiles(columns):
        exact = tile.double()
        difference = exact - torch.matmul(exact, weights.unsqueeze(-1))
        total += difference.square_().sum(dim=-2)
    return everywhere(total, columns)


def squared_distances_to_vector(
    columns: Columns, vector: PerCoordinate, buffer: Tensor | None = None
) -> PerClient:
    """Return how far every row is from a vector, by the differences themselves, float64."""
    if group_kernels.can_measure(columns):
        return group_kernels.squared_distances_to_vector(columns, vector)

    def measure(tile: tuple[slice, Columns]) -> PerClient:
        piece, values = tile
        difference = subtract(values, vector[..., piece].unsqueeze(-1), buffer)
        return difference.square_().sum(dim=-2).double()

    parts = over_tiles(measure, columns)
    total = parts[0] if len(parts) == 1 else torch.stack(parts).sum(dim=0)
    total = everywhere(total, columns)
    if columns.dtype == torch.float64 or bool(total.isfinite().all()):
        return total
    return squared_distances_to_vector(columns.double(), vector.double())


def sums_of_roots(squared: PerClient) -> PerClient:
    """Return the sum over the groups of distances ``[runs, groups, clients]``, given squared."""
    if group_kernels.can_add_roots(squared):
        return group_kernels.sums_of_roots(squared)
    return squared.clamp(min=0).sqrt_().sum(dim=-2)


def distances_to_update(rows: Rows, updates: PerCoordinate) -> PerClient:
    """Return the distances of ``rows [runs, clients, dim]`` to the update of their run, float64."""
    if group_kernels.can_add(rows):
        return group_kernels.square_sums(rows, updates).sqrt()
    return torch.stack([_to_update(own, update) for own, update in zip(rows, updates, strict=True)])


def _to_update(rows: Tensor, update: Tensor) -> Tensor:
    # Some rows at a time: the differences are as large as the gradients.
    step = max(1, tile_values(rows) // rows.shape[-1])
    kind = torch.promote_types(rows.dtype, update.dtype)
    apart = (some.to(kind) - update.to(kind) for some in rows.split(step))
    norms = [torch.linalg.vector_norm(some, dim=-1, dtype=torch.float64) for some in apart]
    far = norms[0] if len(norms) == 1 else torch.cat(norms)
    if rows.dtype == torch.float64 or bool(far.isfinite().all()):
        return far
    return _to_update(rows.double(), update.double())


def products_with(
    columns: Columns, centre: Tensor, point: PerCoordinate, known: Pairs | None = None
) -> Pairs:
    """Return the inner products of the rows and, last, a point, around the centre, float64.

    `known` are those of the rows alone, where they are there already.
    """

    def multiply(tile: tuple[slice, Columns]) -> tuple[Tensor, Tensor, Tensor]:
        piece, values = tile
        middle = of_client(values, centre)
        own = point[..., piece].unsqueeze(-1) - middle
        centred = subtract(values, middle, None)
        among = with_itself(centred) if known is None else own[..., :0, :0]
        return among, long_products(centred.mT, own.mT), long_products(own.mT, own.mT)

    with exact_products():
        parts = over_tiles(multiply, columns)
    among, across, itself = (
        everywhere(torch.stack(same).sum(dim=0, dtype=torch.float64), columns)
        for same in zip(*parts, strict=True)
    )
    among = among if known is None else known.double()
    upper = torch.cat([among, across], dim=-1)
    return torch.cat([upper, torch.cat([across.mT, itself], dim=-1)], dim=-2)


def pairwise_differences(columns: Columns) -> Pairs:
    """Return the squared distances between all pairs, by the differences, for a few coordinates."""
    if group_kernels.can_compare(columns):
        return group_kernels.pairwise_differences(columns)
    total: Tensor | None = None
    for values in columns.double().unbind(dim=-2):
        squared = (values.unsqueeze(-1) - values.unsqueeze(-2)).square_()
        total = squared if total is None else total.add_(squared)
    if total is None:
        raise ValueError("there is no coordinate to compare, the gradients are empty.")
    return total


def are_few(num_coordinates: int, kind: Tensor, num_clients: int) -> bool:
    """Return whether differences of so many coordinates are cheaper than products and checks."""
    return num_coordinates <= FEW_COORDINATES or group_kernels.are_few(
        num_coordinates, kind, num_clients
    )


def inner_products(columns: Columns, vector: PerCoordinate) -> PerClient:
    """Return the inner product of every row with a vector, float64."""
    total = columns.new_zeros(*columns.shape[:-2], columns.shape[-1], dtype=torch.float64)
    for piece, tile in tiles(columns):
        along = long_products(tile.double().mT, vector[..., piece].double().unsqueeze(-2))
        total += along.squeeze(-1)
    return everywhere(total, columns)


def sign_counts(columns: Tensor) -> Tensor:
    """Count the positive, zero and negative values of ``columns [dim, clients]``, float64."""
    signs = columns.sign()
    return torch.stack([(signs == sign).sum(dim=-2) for sign in (1, 0, -1)], dim=-1).double()


def norms(columns: Columns) -> PerClient:
    """Return the Euclidean norm of every row, float64."""
    if columns.dim() == 3 and group_kernels.can_add(columns.mT):
        return group_kernels.square_sums(columns.mT).sqrt()
    zero = torch.zeros((), dtype=work_dtype(columns.dtype), device=columns.device)
    origin = zero.expand(columns.shape[:-1])
    return squared_distances_to_vector(columns, origin).sqrt()


def row_norms(rows: Tensor) -> Tensor:
    """Return the norms of ``rows [n, dim]``: those of equal rows are equal to the last bit.

    On a GPU, those of torch depend on how many bytes a row begins after a multiple of 16.
    """
    runs = rows.unsqueeze(0)
    if rows.numel() > 0 and group_kernels.can_add(runs):
        return group_kernels.square_sums(runs).sqrt_().squeeze(0)
    norms: Tensor = torch.linalg.vector_norm(rows, dim=-1, dtype=work_dtype(rows.dtype))
    return norms


def smallest(scores: PerClient, num_smallest: int) -> Tensor:
    """Mark the rows with the smallest scores; equal scores go to the lower row index."""
    if client_kernels.can_compare(scores):
        return client_kernels.smallest(scores, num_smallest)
    if scores.device.type == "cpu" and num_smallest < scores.shape[-1]:
        ranked = torch.from_numpy(np.sort(scores.numpy(), axis=-1))
        last, next_one = ranked[..., num_smallest - 1 : num_smallest + 1].unbind(dim=-1)
        if not bool((last == next_one).any()):
            return scores <= last.unsqueeze(-1)
    order = scores.argsort(dim=-1, stable=True)[..., :num_smallest]
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, value=True)


def average_of(is_selected: Tensor, num_selected: int) -> PerClient:
    """Return equal weights for the selected clients."""
    return is_selected.to(torch.float64) / num_selected


def average_of_smallest(scores: PerClient, num_smallest: int) -> PerClient:
    """Return equal weights for the rows with the smallest scores; ties: lower row index."""
    if client_kernels.can_compare(scores):
        return group_kernels.average_of_smallest(scores, num_smallest)
    return average_of(smallest(scores, num_smallest), num_smallest)


# Two eigenvalues that differ by a millionth are separated after so many.
NUM_SQUARINGS = 24
TINY_WEIGHT = 1e-300


def as_shares(weights: PerClient) -> tuple[PerClient, Tensor]:
    """Return weights relative to the largest of their run, and what to divide the sum by.

    Equal weights that sum to 1 become ones, and the divisor their number.
    """
    shares = weights / weights.amax(dim=-1, keepdim=True).clamp(min=TINY_WEIGHT)
    total = weights.sum(dim=-1, keepdim=True)
    total = torch.where((total - 1).abs() < 1e-12, 1, total)
    count = shares.sum(dim=-1, keepdim=True)
    return shares, torch.where(total > 0, count / total, 1)


def leading_projections(matrices: Pairs, scale: Tensor, stream: RandomStream) -> PerClient:
    """Return the top eigenvalue times the squared entries of its eigenvector, times a scale.

    Kernels find one eigenvector by Lanczos' method, from random numbers of each run: nobody who
    does not know them can send gradients that hide the top direction. A GPU without kernels
    decomposes small matrices one by one: there the matrix is squared until it is the projector on
    the eigenvector. Where two eigenvalues are equal, or closer than about 1e-9, any eigenvector is
    as good: scores are then those of one of them, and which one depends on the device.
    """
    for kernels in (matrix_kernels, native):
        if kernels.can_work_on(matrices):
            start = stream.fold_in("lanczos").signed_sizes(matrices.shape[-1], matrices.device)
            start = start.view(len(start), *[1] * (matrices.dim() - 3), -1)
            start = start.expand(matrices.shape[:-1])
            found: PerClient = kernels.leading_projections(matrices, start) * scale
            return found
    if matrices.device.type == "cpu":
        values, vectors = torch.linalg.eigh(matrices)
        projections: PerClient = values[..., -1:].clamp(min=0) * scale * vectors[..., -1].square()
        return projections
    return projections_by_squaring(matrices) * scale


def projections_by_squaring(matrices: Pairs) -> PerClient:
    """Return `leading_projections` for the scale 1, of matrices without negative eigenvalues."""
    power = matrices
    for _ in range(NUM_SQUARINGS):
        power = torch.matmul(power, power)
        trace = power.diagonal(dim1=-2, dim2=-1).sum(dim=-1)[..., None, None]
        power = power / trace.clamp(min=torch.finfo(torch.float64).tiny)
    value = (matrices * power).sum(dim=(-2, -1)).clamp(min=0)
    return value.unsqueeze(-1) * power.diagonal(dim1=-2, dim2=-1)


def central_client(norms: list[float]) -> int:
    """Return a client of median norm: no difference from it cancels because it is long."""
    return sorted(range(len(norms)), key=norms.__getitem__)[(len(norms) - 1) // 2]


def find_originals(rows: Rows, norms: list[list[float]]) -> list[list[int]]:
    """Return, for each row of ``rows [runs, clients, dim]``, the first equal one of its run.

    Colluding clients send copies. To find them once is cheaper than group by group. A GPU is waited
    for once for all runs, not for every pair.
    """
    originals = [list(range(len(own))) for own in norms]
    left = _alike(rows, norms)
    while left:
        pairs = [(run, row, same[0]) for run, same in left for row in same[1:]]
        equal = [(rows[run, row] == rows[run, first]).all() for run, row, first in pairs]
        is_equal = dict(zip(pairs, torch.stack(equal).tolist(), strict=True))
        unequal = []
        for run, (first, *others) in left:
            for row in others:
                if is_equal[run, row, first]:
                    originals[run][row] = first
            rest = [row for row in others if not is_equal[run, row, first]]
            if len(rest) > 1:
                unequal.append((run, rest))
        left = unequal
    return originals


def _alike(rows: Rows, norms: list[list[float]]) -> list[tuple[int, list[int]]]:
    """Return the runs, and the rows of each, that are equal in norm and in some coordinates."""
    runs = [run for run, own in enumerate(norms) if len(set(own)) < len(own)]
    if not runs:
        return []
    # Rows of equal norm need not be equal: a gradient and its negative, for one.
    step = max(1, rows.shape[2] // NUM_COMPARED)
    samples = torch.stack([rows[run, :, ::step] for run in runs]).tolist()
    alike: dict[tuple[float, ...], list[int]] = {}
    for run, sample in zip(runs, samples, strict=True):
        for row, norm in enumerate(norms[run]):
            alike.setdefault((run, norm, *sample[row]), []).append(row)
    return [(int(kind[0]), same) for kind, same in alike.items() if len(same) > 1]


def equal_rows(matrices: Tensor) -> Tensor | None:
    """Return the first row equal to each of ``matrices [runs, rows, columns]``, if any are."""
    num_rows = matrices.shape[-2]
    labels = torch.stack([matrix.unique(dim=0, return_inverse=True)[1] for matrix in matrices])
    if bool((labels.amax(dim=-1) == num_rows - 1).all()):
        return None
    numbers = torch.arange(num_rows, device=labels.device).expand_as(labels)
    first = torch.full_like(labels, num_rows).scatter_reduce(-1, labels, numbers, "amin")
    return first.gather(-1, labels)


def equal_rows_of_groups(matrices: Tensor) -> Tensor | None:
    """Return the first row equal to each of ``matrices [runs, *groups, rows, columns]``, if any.

    For many small matrices, which `equal_rows` would take one by one. Of rows with numbers in the
    same columns only those that equal the first of them are found: all, where rows are averages of
    neighbours with given weights.
    """
    num_columns = matrices.shape[-1]
    marks = torch.randint(1 << 40, (num_columns,), generator=torch.Generator().manual_seed(0))
    # Sums of whole numbers, without rounding: rows with numbers in the same columns have one key.
    keys = (matrices != 0).double() @ marks.double().to(matrices.device)
    ordered, order = keys.sort(dim=-1, stable=True)
    is_next = ordered[..., 1:] == ordered[..., :-1]
    if not bool(is_next.any()):
        return None
    numbers = torch.arange(matrices.shape[-2], device=matrices.device)
    start = torch.where(F.pad(is_next, (1, 0)), 0, numbers).cummax(dim=-1).values
    first = torch.empty_like(order).scatter_(-1, order, order.gather(-1, start))
    *where, rows = (first != numbers).nonzero(as_tuple=True)
    like = first[*where, rows]
    is_equal = (matrices[*where, rows] == matrices[*where, like]).all(dim=-1)
    first[*where, rows] = torch.where(is_equal, like, rows)
    return first
