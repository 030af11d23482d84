"""The gradients of all clients in some coordinates: the only view of the data that rules have."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from outvote.axes import Columns, Mixture, Pairs, PerClient, PerCoordinate, Rows
from outvote.ops import order, pairs
from outvote.ops import rows as row_ops
from outvote.ops.process import lazy, work_dtype
from outvote.rules.values import InMemory, Values

if TYPE_CHECKING:
    from outvote.rules.groups import Groups
    from outvote.rules.rule import Aggregation, RoundInfo

# Distances are redone from so many values at once.
REDONE_VALUES = {"cpu": 1 << 24, "cuda": 1 << 27}
# Sums of rows up to this norm are finite in float32.
SUMMED_NORM = 1e30
TINY_WEIGHT = 1e-30


class ClientMatrix:
    """The clients as points in the space of some coordinates, and the geometry between them.

    Shapes are ``[runs, *groups, dim, clients]``. Everything is lazy: a rule that needs distances
    alone never has the values copied. Distances whose digits cancel are redone from the values, in
    float64, before anybody sees them.
    """

    def __init__(
        self,
        values: Values,
        *,
        centre: Tensor | list[int] | None = None,
        products: Callable[[], Pairs] | None = None,
        squared_distances: Pairs | None = None,
        norms: PerClient | list[list[float]] | None = None,
        originals: Tensor | None = None,
        is_wide: bool = False,
        largest_norm: float = torch.inf,
    ) -> None:
        """Take the values, and what is known about them.

        `centre` is the central client of each run. `products` computes the inner products without
        reading the values. `originals` has the first client equal to each. `is_wide`: squares need
        float64, as some clients are huge or all are tiny. `largest_norm`: no client is longer, in
        all coordinates.
        """
        self.values = values
        self.shape, self.device = values.shape, values.device
        self.num_clients, self.dim = self.shape[-1], self.shape[-2]
        self.batch = self.shape[:-2]
        """The axes before the coordinates: runs, then groups."""
        self.work_dtype = work_dtype(values.dtype)
        self.is_wide, self.largest_norm = is_wide, largest_norm
        self.originals = originals
        self._products = products
        self._centre, self._norms = centre, norms
        if squared_distances is not None:
            self.squared_distances = squared_distances

    @classmethod
    def from_rows(cls, rows: Rows, **known: Any) -> "ClientMatrix":
        """View gradients ``[runs, clients, dim]``, without a copy."""
        return cls(InMemory(rows.mT), **known)

    @property
    def columns(self) -> Columns:
        """The values, clients last."""
        return self.values.columns

    @property
    def rows(self) -> Rows:
        """The values, ``[runs, *groups, clients, dim]``."""
        return self.columns.mT

    @property
    def is_narrow(self) -> bool:
        """Whether the values are fewer than the inner products of the clients."""
        return self.dim <= self.num_clients

    @lazy
    def _are_few(self) -> bool:
        """Whether differences of the coordinates are cheaper than products and checks."""
        kind = torch.empty(0, dtype=self.values.dtype, device=self.device)
        return pairs.are_few(self.shape, kind)

    def _wide(self, work: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return work on tiles that is done in float64 where squares need it."""
        if not self.is_wide:
            return work
        return lambda tile, *more: work(tile.double(), *more)

    # Geometry

    @lazy
    def centre(self) -> Tensor:
        """The client of each run that is central among the others."""
        if self._centre is None:
            return pairs.medoids(self.values.sample)
        return torch.as_tensor(self._centre, device=self.device)

    @lazy
    def products(self) -> Pairs:
        """The inner products of the clients relative to the central one."""
        if self._products is not None:
            return self._products()
        return self.values.total(self._wide(partial(pairs.gram, centre=self.centre)))

    @lazy
    def gram(self) -> Pairs:
        """The inner products of the clients relative to a central point, float64."""
        if "squared_distances" in self.__dict__:
            return pairs.gram_from_distances(self.squared_distances.double(), self.centre)
        return self.products.double()

    @lazy
    def squared_distances(self) -> Pairs:
        """The squared distances between all pairs of clients, exactly 0 to oneself."""
        if self._are_few:
            return self.values.total(pairs.pairwise_differences)
        found, inexact = pairs.squared_distances(self.products, self.work_dtype, self.originals)
        if inexact is not None:
            self._redo_pairs(found, inexact)
            if self.originals is not None:
                found = pairs.copy_distances(found, self.originals)
        return found

    @lazy
    def norms(self) -> PerClient:
        """The Euclidean norm of every client, float64."""
        if self._norms is not None:
            return torch.as_tensor(self._norms, dtype=torch.float64, device=self.device)
        origin = torch.zeros((), dtype=self.work_dtype, device=self.device)
        measure = self._wide(row_ops.squared_distances_to_vector)
        return self.values.total(lambda tile: measure(tile, origin.expand(tile.shape[:-1]))).sqrt()

    def sums_of_smallest_distances(self, num_smallest: int) -> PerClient:
        """Return the sum of every client's smallest squared distances, 0 to itself among them."""
        if "squared_distances" not in self.__dict__:
            if self._are_few:
                # Without the n x n matrix of every group, which is far larger than the values.
                return pairs.sums_of_smallest_differences(
                    self.columns, num_smallest, self.largest_norm
                )
            found, is_exact = pairs.sums_of_smallest_distances(
                self.products, num_smallest, self.work_dtype, self.originals
            )
            if is_exact:
                return found
        return order.sum_of_smallest(self.squared_distances, num_smallest)

    def squared_distances_to(self, aggregation: "Aggregation") -> PerClient:
        """Return how far every client is from what a rule computed, squared, float64."""
        if aggregation.vector is not None:
            measure = self._wide(row_ops.squared_distances_to_vector)
            return self.values.total(measure, aggregation.vector)
        if aggregation.weights is None:
            raise ValueError("an Aggregation needs weights or a vector.")
        weights = aggregation.weights.double().expand(*self.batch, self.num_clients)
        if self.is_narrow or self._are_few:
            return self.values.total(lambda tile: pairs.differences_to_average(tile, weights))
        found, inexact = pairs.squared_distances_to_average(
            self.products, weights, self.work_dtype, self.originals
        )
        if inexact is None:
            return found
        if bool(inexact.all()):
            return self.values.total(lambda tile: pairs.differences_to_average(tile, weights))
        found[inexact] = pairs.differences_to_average(self.columns[inexact], weights[inexact])
        return found

    def distances_to(self, aggregation: "Aggregation") -> PerClient:
        """Return how far every client is from what a rule computed, float64."""
        return self.squared_distances_to(aggregation).clamp(min=0).sqrt()

    def total_distances_to(self, aggregation: "Aggregation") -> PerClient:
        """Return the sum over the groups of `distances_to`, ``[runs, clients]``."""
        return row_ops.sums_of_roots(self.squared_distances_to(aggregation))

    def _redo_pairs(self, result: Pairs, inexact: Tensor) -> None:
        """Overwrite inexact distances by the sum of squared differences of the values."""
        where = inexact.reshape(-1, *inexact.shape[-2:])
        pairs_of_any = where.any(dim=0).nonzero()
        if len(where) > 1 and 2 * int(where.sum()) < len(pairs_of_any) * len(where):
            self._redo_entries(result.view_as(where), where)
            return
        # The same clients are alike in all groups: they collude. All pairs at once where the values
        # come in tiles: files are read once then.
        at_once = max(1, self._num_redone() // (len(where) * self.dim))
        is_tiled = len(self.batch) == 1 and self.device.type == "cpu"
        for some in pairs_of_any.split(len(pairs_of_any) if is_tiled else at_once):
            left, right = some.unbind(dim=-1)
            exact = self.values.total(lambda tile: pairs.differences_of_pairs(tile, left, right))  # noqa: B023
            exact = torch.where(
                inexact[..., left, right], exact.to(result), result[..., left, right]
            )
            result[..., left, right] = exact
            result[..., right, left] = exact

    def _redo_entries(self, result: Pairs, inexact: Tensor) -> None:
        """Redo single entries: two clients happen to be close in one group."""
        columns = self.columns.reshape(len(inexact), self.dim, self.num_clients)
        for some in inexact.nonzero().split(max(1, self._num_redone() // self.dim)):
            group, left, right = some.unbind(dim=-1)
            exact = pairs.differences_of_entries(columns, some).to(result.dtype)
            result[group, left, right] = exact
            result[group, right, left] = exact

    def _num_redone(self) -> int:
        return REDONE_VALUES.get(self.device.type, REDONE_VALUES["cuda"])

    def same_for_copies(self, scores: PerClient) -> PerClient:
        """Give copies of a client its score to the last bit: ties are settled by index."""
        if self.originals is None:
            return scores
        return scores.gather(-1, self._index_of_originals(scores))

    def _index_of_originals(self, like: Tensor) -> Tensor:
        """Return the first client equal to each, in the shape of `like`, clients last."""
        assert self.originals is not None
        axes = [1] * (like.dim() - self.originals.dim())
        index = self.originals.view(*self.originals.shape[:-1], *axes, self.num_clients)
        return index.expand(like.shape)

    # Vectors

    def by_coordinate_with_shares(
        self, reduce: Callable[[Columns], tuple[PerCoordinate, PerClient | None]]
    ) -> tuple[Any, PerClient | None]:
        """Return what reduces every coordinate, and each client's share of them.

        `reduce` also counts where each client's value entered; None: it is not known.
        """
        vector, counts = self.values.by_coordinate_and_total(reduce)
        return vector, None if counts is None else counts / self.dim

    def vector(self, aggregation: "Aggregation") -> PerCoordinate:
        """Return what a rule computed as a vector of coordinates, in the working precision."""
        if aggregation.vector is not None:
            return aggregation.vector
        if aggregation.weights is None:
            raise ValueError("an Aggregation needs weights or a vector.")
        weights, divisor = aggregation.weights, None
        if self.device.type == "cpu" and self.largest_norm < SUMMED_NORM:
            # Relative to the largest: a mean is a sum divided by a count, as weights of 1 / 3 would
            # round the mean of 1, 4 and 7.
            weights = weights.to(self.work_dtype)
            largest = weights.amax(dim=-1, keepdim=True).clamp_(min=TINY_WEIGHT)
            weights, divisor = weights / largest, largest.reciprocal()
        client = None
        if self.originals is not None and len(self.batch) == 1:
            client = self._only_original(aggregation.weights)

        def average(tile: Columns) -> PerCoordinate:
            found = row_ops.weighted_sum(tile.mT, weights)
            if divisor is not None:
                found /= divisor
            if client is not None:
                own = pairs.of_client(tile, client.clamp(min=0)).squeeze(-1).to(found.dtype)
                found = torch.where((client >= 0).unsqueeze(-1), own, found)
            return found

        found: PerCoordinate = self.values.by_coordinate(average)
        return found

    def _only_original(self, weights: PerClient) -> Tensor:
        """Return, by run, the client whose copies have all the weight, -1 if there are several.

        Its row is not rounded.
        """
        assert self.originals is not None
        client = weights.argmax(dim=-1)
        same = self.originals == self.originals.gather(-1, client.unsqueeze(-1))
        is_average = (weights.sum(dim=-1) - 1).abs() < 1e-9
        is_alone = (same | (weights == 0)).all(dim=-1) & is_average
        return torch.where(is_alone, client, -1)

    # Other matrices

    def mixed(self, mixture: Mixture) -> "ClientMatrix":
        """Replace the clients by weighted averages of them (every row of `mixture` sums to 1)."""
        mixture = mixture.double().expand(*self.batch, *mixture.shape[-2:])
        if self.originals is not None:  # What copies weigh is the weight of the first of them.
            index = self._index_of_originals(mixture)
            mixture = torch.zeros_like(mixture).scatter_add_(-1, index, mixture)
        originals = equal_rows(mixture)
        is_one = self.originals is not None and bool((self.originals == 0).all())

        def mix(tile: Columns) -> Columns:
            if is_one:  # Averages of equal clients would round them.
                return (
                    tile[..., :1]
                    .to(work_dtype(tile.dtype))
                    .expand(*tile.shape[:-1], mixture.shape[-2])
                )
            found = averages(tile, mixture)
            if originals is None:
                return found
            return found.gather(-1, originals.unsqueeze(-2).expand(found.shape))

        return ClientMatrix(
            self.values.changed(mix, mixture.shape[-2]),
            products=None if self.is_narrow else lambda: mixture @ self.gram @ mixture.mT,
            originals=originals,
            is_wide=self.is_wide,
            largest_norm=self.largest_norm,
        )

    def with_point(self, vector: PerCoordinate | None = None) -> "ClientMatrix":
        """Add one more point behind the clients: the origin, or a vector per run."""
        point = torch.zeros((), dtype=self.work_dtype, device=self.device)
        point = (point if vector is None else vector.to(point)).expand(self.shape[:-1])

        def join(tile: Columns, own: PerCoordinate) -> Columns:
            return torch.cat([tile.to(own.dtype), own.unsqueeze(-1)], dim=-1)

        values = self.values.changed(join, self.num_clients + 1, point)
        # Averages of clients have inner products around a client that is not among them.
        centre_is_a_client = self._products is None or self._centre is not None
        originals = None
        if self.originals is not None:
            itself = torch.full_like(self.originals[..., :1], self.num_clients)
            originals = torch.cat([self.originals, itself], dim=-1)
        if self.is_narrow or self.dim == self.num_clients + 1 or not centre_is_a_client:
            return ClientMatrix(values, originals=originals, is_wide=self.is_wide)

        def products() -> Pairs:
            work = self._wide(lambda tile, own: pairs.gram_with(tile, self.centre, own))
            return self.values.total(work, point)

        return ClientMatrix(
            values,
            centre=self.centre,
            products=products,
            originals=originals,
            is_wide=self.is_wide,
        )

    def scaled(self, factors: PerClient) -> "ClientMatrix":
        """Multiply every client by a number of its own."""
        by = factors.to(self.work_dtype).unsqueeze(-2)
        values = self.values.changed(lambda tile: tile.to(by.dtype) * by, self.num_clients)
        return ClientMatrix(values, originals=self.originals, is_wide=self.is_wide)

    def some_clients(self, run: int, index: Tensor) -> "ClientMatrix":
        """Keep some clients of one run."""
        values, norms = self.values.of_clients(run, index), self.norms[run : run + 1, index]
        return ClientMatrix(
            values, norms=norms, is_wide=self.is_wide, largest_norm=self.largest_norm
        )

    def at_coordinates(self, index: Tensor) -> "ClientMatrix":
        """Keep some coordinates, ``index [runs, k]``."""
        return ClientMatrix(InMemory(self.values.at(index)), is_wide=self.is_wide)

    def split(self, how: str, num_groups: int, info: "RoundInfo") -> "Groups":
        """Split the coordinates into groups: `how` is one of `groups.SPLITS`."""
        from outvote.rules.groups import Groups  # groups needs ClientMatrix

        return Groups.of(self, how, num_groups, info)


def averages(tile: Columns, mixture: Mixture) -> Columns:
    """Return weighted averages of the clients, in the working precision."""
    dtype = work_dtype(tile.dtype)
    largest = torch.finfo(dtype).max
    found = torch.matmul(tile.to(dtype), mixture.mT.to(dtype))
    # Averages of the largest numbers overflow by rounding: weights sum to 1 but for that.
    return found.clamp_(min=-largest, max=largest)


def equal_rows(matrices: Tensor) -> Tensor | None:
    """Return the first row equal to each of ``matrices [runs, *groups, rows, columns]``, if any.

    Of rows with numbers in the same columns only those that equal the first of them are found: all,
    where rows are averages of neighbours with given weights.
    """
    num_rows, num_columns = matrices.shape[-2:]
    marks = torch.randint(1 << 40, (num_columns,), generator=torch.Generator().manual_seed(0))
    # Sums of whole numbers, without rounding: rows with numbers in the same columns have one key.
    keys = (matrices != 0).double() @ marks.double().to(matrices.device)
    ordered, order = keys.sort(dim=-1, stable=True)
    is_next = ordered[..., 1:] == ordered[..., :-1]
    if not bool(is_next.any()):
        return None
    numbers = torch.arange(num_rows, device=matrices.device)
    start = torch.where(F.pad(is_next, (1, 0)), 0, numbers).cummax(dim=-1).values
    first = torch.empty_like(order).scatter_(-1, order, order.gather(-1, start))
    *where, rows = (first != numbers).nonzero(as_tuple=True)
    like = first[*where, rows]
    is_equal = (matrices[*where, rows] == matrices[*where, like]).all(dim=-1)
    first[*where, rows] = torch.where(is_equal, like, rows)
    return first
