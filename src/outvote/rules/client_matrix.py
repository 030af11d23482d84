"""The gradients of all clients in some coordinates: the only view of the data that rules have."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outvote.axes import Columns, Mixture, Pairs, PerClient, PerCoordinate, Rows
from outvote.lazy import lazy
from outvote.ops import distances, group_kernels
from outvote.ops.distances import CancellationCheck
from outvote.ops.order_statistics import sum_of_smallest
from outvote.ops.precision import exact_products, work_dtype

if TYPE_CHECKING:
    from outvote.rules.groups import Groups, SplitAhead
    from outvote.rules.rule import Aggregation, RoundInfo


class ClientMatrix:
    """The clients as points in the space of some coordinates, and the geometry between them.

    Shapes are ``[runs, *groups, dim, clients]``. Everything is lazy: a rule that needs distances
    alone never has the values copied.
    """

    def __init__(  # noqa: PLR0913  (what is known about the values, by name)
        self,
        columns: Columns | Callable[[], Columns],
        shape: torch.Size | None = None,
        *,
        like: Tensor | None = None,
        centre: Tensor | None = None,
        products: Callable[[], Pairs] | None = None,
        squared_distances: Pairs | None = None,
        buffer: Callable[[], Tensor] | None = None,
        originals: Tensor | None = None,
        check: CancellationCheck | None = None,
        largest_norm: float | Callable[[], float] = torch.inf,
    ) -> None:
        """Take the values, or a way to get them with the shape and the kind that they will have.

        `centre` is the central client of each run, `products` a way to the inner products relative
        to it that is shorter than through the values, `squared_distances` has those of all pairs if
        they are known, `buffer` memory that may be written over, `originals` has the first client
        equal to each, `check` counts inexact distances.
        `largest_norm`: no client is longer, in all coordinates; or a way to that number, if it is
        below `SAFE_NORM`.
        """
        self._columns = columns
        self.shape = columns.shape if isinstance(columns, Tensor) else torch.Size(shape or ())
        kind = columns if isinstance(columns, Tensor) else like
        if kind is None:
            raise ValueError("a matrix read later needs `like`, a tensor of its dtype and device.")
        self._kind = kind
        self.device = kind.device
        self.work_dtype = work_dtype(kind.dtype)
        self._centre = centre
        self._products = products
        self._squared_distances = squared_distances
        self._buffer = buffer
        self.originals = originals
        self.check = check
        self.longest = largest_norm
        self.sums_are_finite = False
        self.ahead: SplitAhead | None = None

    @classmethod
    def from_rows(
        cls,
        rows: Rows,
        centre: Tensor | None = None,
        originals: Tensor | None = None,
        *,
        largest_norm: float | Callable[[], float] = torch.inf,
        check: CancellationCheck | None = None,
        ahead: "SplitAhead | None" = None,
    ) -> "ClientMatrix":
        """View gradients ``[runs, clients, dim]``, without a copy.

        `ahead` is a split of them that was made before.
        """
        matrix = cls(
            rows.mT, centre=centre, originals=originals, check=check, largest_norm=largest_norm
        )
        largest = torch.finfo(matrix.work_dtype).max
        longest = group_kernels.SAFE_NORM if callable(largest_norm) else largest_norm
        matrix.sums_are_finite = longest < largest / (2 * matrix.num_clients)
        matrix.ahead = ahead
        return matrix

    @property
    def num_clients(self) -> int:
        """How many clients there are."""
        return self.shape[-1]

    @property
    def dim(self) -> int:
        """How many coordinates there are."""
        return self.shape[-2]

    @property
    def batch(self) -> torch.Size:
        """The axes before the coordinates: runs, then groups."""
        return self.shape[:-2]

    @property
    def can_overflow(self) -> bool:
        """Whether inner products may be too large for the working precision."""
        return not callable(self.longest) and not self.longest < group_kernels.SAFE_NORM

    @lazy
    def largest_norm(self) -> float:
        """No client is longer, in all coordinates; a GPU may be waited for."""
        return self.longest() if callable(self.longest) else self.longest

    @lazy
    def columns(self) -> Columns:
        """The values, clients last."""
        return self._columns if isinstance(self._columns, Tensor) else self._columns()

    @property
    def rows(self) -> Rows:
        """The values, ``[runs, *groups, clients, dim]``."""
        return self.columns.mT

    @lazy
    def centre(self) -> Tensor:
        """The client of each run that is central among the others."""
        return distances.medoids(self.columns) if self._centre is None else self._centre

    @lazy
    def products(self) -> Pairs:
        """The inner products of the clients relative to the central one, infinite if too large."""
        if self._squared_distances is not None:
            return distances.products_around(self._squared_distances, self.centre)
        if self._products is not None:
            found = self._products()
        else:
            found = distances.products(self.columns, self.centre, self._new_buffer())
        return distances.without_underflow(found, lambda: self.columns)

    @lazy
    def gram(self) -> Pairs:
        """The inner products of the clients relative to a central point, always finite."""
        products = self.products.double()
        if not self.can_overflow:
            return products
        return distances.without_overflow(products, lambda: self.columns)

    @lazy
    def squared_distances(self) -> Pairs:
        """The squared distances between all pairs of clients, exactly 0 to oneself."""
        if self._squared_distances is not None:
            return self._squared_distances
        if self._are_coordinates_few:
            return distances.pairwise_differences(self.columns)
        return distances.squared_distances(
            self.products, lambda: self.columns, self.work_dtype, self.originals, self.check
        )

    @lazy
    def norms(self) -> PerClient:
        """The Euclidean norm of every client, float64."""
        return distances.norms(self.columns)

    @property
    def _are_coordinates_few(self) -> bool:
        return distances.are_few(self.dim, self._kind, self.num_clients)

    def sums_of_smallest_distances(self, num_smallest: int) -> PerClient:
        """Return the sum of every client's smallest squared distances, 0 to itself among them."""
        is_known = "squared_distances" in self.__dict__
        if self._are_coordinates_few and not is_known and group_kernels.can_compare(self.columns):
            # Without the n x n matrix of every group, which is far larger than the values.
            return group_kernels.sums_of_smallest(self.columns, num_smallest, self.largest_norm)
        if not is_known and not self._are_coordinates_few and self._squared_distances is None:
            found = distances.sums_of_smallest(
                self.products, num_smallest, self.work_dtype, self.originals, self.check
            )
            if found is not None:
                return found
        return sum_of_smallest(self.squared_distances, num_smallest)

    def squared_distances_to(self, aggregation: "Aggregation") -> PerClient:
        """Return how far every client is from what a rule computed, squared, float64."""
        if aggregation.vector is not None:
            return distances.squared_distances_to_vector(
                self.columns, aggregation.vector, self._new_buffer()
            )
        if aggregation.weights is None:
            raise ValueError("an Aggregation needs weights or a vector.")
        weights = aggregation.weights.double().expand(*self.batch, self.num_clients)
        if self.dim <= self.num_clients:
            return distances.direct_distances_to_average(self.columns, weights)
        return distances.squared_distances_to_average(
            self.products,
            weights,
            lambda: self.columns,
            self.work_dtype,
            self.originals,
            self.check,
        )

    def _new_buffer(self) -> Tensor | None:
        return None if self._buffer is None else self._buffer()

    def distances_to(self, aggregation: "Aggregation") -> PerClient:
        """Return how far every client is from what a rule computed, float64."""
        return self.squared_distances_to(aggregation).clamp(min=0).sqrt_()

    def total_distances_to(self, aggregation: "Aggregation") -> PerClient:
        """Return the sum over the groups of `distances_to`, ``[runs, clients]``."""
        return distances.sums_of_roots(self.squared_distances_to(aggregation))

    def same_for_copies(self, scores: PerClient) -> PerClient:
        """Give copies of a client its score to the last bit: ties are settled by index."""
        if self.originals is None:
            return scores
        groups = [1] * (scores.dim() - self.originals.dim())
        index = self.originals.view(*self.originals.shape[:-1], *groups, self.num_clients)
        return scores.gather(-1, index.expand_as(scores))

    def vector(self, aggregation: "Aggregation") -> PerCoordinate:
        """Return what a rule computed as a vector of coordinates, in the working precision."""
        if aggregation.vector is not None:
            return aggregation.vector
        if aggregation.weights is None:
            raise ValueError("an Aggregation needs weights or a vector.")
        shares, divisor = aggregation.weights.double(), None
        if self.sums_are_finite and self.device.type == "cpu":
            # A sum divided by a count: weights such as 1 / 3 would round the mean of 1, 4 and 7.
            # A GPU would take longer to start these small steps than to average.
            shares, divisor = distances.as_shares(shares)
        if group_kernels.can_add(self.rows):
            # Reads the rows that have a weight, and no others.
            vector = group_kernels.weighted_sum(self.rows, shares)
        else:
            vector = self._added_up(shares.to(self.work_dtype).unsqueeze(-1))
        if divisor is not None:
            vector /= divisor.to(vector.dtype)
        if self.originals is not None and len(self.batch) == 1:
            self._keep_equal(vector, aggregation.weights)
        return vector

    def _added_up(self, weights: Tensor) -> PerCoordinate:
        if weights.dtype != self.columns.dtype:
            return self._multiplied(weights).squeeze(-1)
        with exact_products():
            # As a row times the rows that the clients sent: read in order.
            return torch.matmul(weights.mT, self.columns.mT).squeeze(-2)

    def _keep_equal(self, vector: PerCoordinate, weights: PerClient) -> None:
        """Write the row itself where all clients with a weight sent the same: a sum rounds it."""
        client = weights.argmax(dim=-1)
        assert self.originals is not None
        of_client = self.originals.gather(-1, client.unsqueeze(-1))
        is_same = ((self.originals == of_client) | (weights == 0)).all(dim=-1)
        is_average = (weights.sum(dim=-1) - 1).abs() < 1e-9
        is_kept = is_same & is_average
        if self.device.type != "cpu":
            # To look which runs these are would wait for a GPU; to read a row of each does not.
            own = distances.of_client(self.columns, client).squeeze(-1).to(vector.dtype)
            torch.where(is_kept.unsqueeze(-1), own, vector, out=vector)
            return
        for run in is_kept.nonzero().flatten().tolist():
            vector[run] = self.columns[run, :, client[run]]

    def mixed(self, mixture: Mixture) -> "ClientMatrix":
        """Replace the clients by weighted averages of them (every row of `mixture` sums to 1)."""
        originals = self._equal_averages(mixture)
        mixture = mixture.double().expand(*self.batch, *mixture.shape[-2:])
        shape = torch.Size([*self.batch, self.dim, mixture.shape[-2]])
        narrow = self.dim <= self.num_clients
        return ClientMatrix(
            lambda: self._mixed_columns(mixture, originals),
            shape,
            like=torch.empty(0, dtype=self.work_dtype, device=self.device),
            products=None if narrow else lambda: mixture @ self.gram @ mixture.mT,
            originals=originals,
            # Averages that differ in one client of many are close: in groups they would be counted.
            check=self.check if len(self.batch) == 1 else None,
            largest_norm=self.longest,
        )

    def _equal_averages(self, mixture: Mixture) -> Tensor | None:
        """Return the first row of a mixture that is equal to each, by run or by group, if any."""
        if len(self.batch) == 1:
            return distances.equal_rows(mixture.expand(*self.batch, *mixture.shape[-2:]))
        found = distances.equal_rows_of_groups(mixture)
        return None if found is None else found.expand(*self.batch, -1)

    def _mixed_columns(self, mixture: Mixture, originals: Tensor | None) -> Columns:
        columns = self._multiplied(mixture.mT.to(self.work_dtype))
        # Equal averages are equal to the last bit.
        if originals is not None and len(self.batch) > 1:
            columns = columns.gather(-1, originals.unsqueeze(-2).expand(columns.shape))
        elif originals is not None:  # Of all coordinates no second copy is made.
            for run, own in enumerate(originals.tolist()):
                for client, first in enumerate(own):
                    if client != first:
                        columns[run, :, client] = columns[run, :, first]
        if self.originals is not None and len(self.batch) == 1:
            for run in (self.originals == 0).all(dim=-1).nonzero().flatten().tolist():
                columns[run] = self.columns[run, :, :1]  # Averages of equal clients round them.
        return columns

    def _multiplied(self, matrix: Tensor) -> Columns:
        largest = torch.finfo(matrix.dtype).max
        with exact_products():
            # Averages of the largest numbers overflow by rounding: weights sum to 1 but for that.
            parts = [
                torch.matmul(tile, matrix).clamp_(min=-largest, max=largest)
                for _, tile in distances.tiles(self.columns)
            ]
        return torch.cat(parts, dim=-2)

    def with_point(self, vector: PerCoordinate | None = None) -> "ClientMatrix":
        """Add one more point behind the clients: the origin, or a vector per run."""
        shape = torch.Size([*self.shape[:-1], self.num_clients + 1])
        kind = torch.empty(0, dtype=self.work_dtype, device=self.device)
        point = kind.new_zeros(()) if vector is None else vector.to(kind)
        point = point.expand(self.shape[:-1])

        def columns() -> Columns:
            return torch.cat([self.columns.to(kind), point.unsqueeze(-1)], dim=-1)

        def products() -> Pairs:
            has_own = self._products is not None or "products" in self.__dict__
            known = self.products if has_own else None
            return distances.products_with(self.columns, self.centre, point, known)

        # Averages of clients have inner products around a client that is not among them.
        is_mixed = self._products is not None and self._centre is None
        if is_mixed or self.dim <= self.num_clients + 1:
            return ClientMatrix(columns, shape, like=kind)
        return ClientMatrix(columns, shape, like=kind, centre=self.centre, products=products)

    def scaled(self, factors: PerClient) -> "ClientMatrix":
        """Multiply every client by a number of its own."""
        return ClientMatrix(
            self.columns.to(self.work_dtype) * factors.to(self.work_dtype).unsqueeze(-2)
        )

    def norms_of(self, run: int) -> Tensor:
        """Return `norms` of one run, to the last bit whatever other runs there are."""
        return distances.norms(self.columns[run])

    def sign_counts(self, run: int, window: slice) -> Tensor:
        """Count the positive, zero and negative values of a run's clients, ``[clients, 3]``."""
        return distances.sign_counts(self.columns[run, window])

    def at_coordinates(self, index: Tensor) -> "ClientMatrix":
        """Keep some coordinates, ``index [runs, k]``."""
        if len(index) == 1:
            return ClientMatrix(self.columns.index_select(-2, index[0]))
        index = index.view(len(index), *[1] * (len(self.batch) - 1), -1, 1)
        index = index.expand(*self.batch, index.shape[-2], self.num_clients)
        return ClientMatrix(self.columns.gather(-2, index))

    def split(self, how: str, num_groups: int, info: "RoundInfo") -> "Groups":
        """Split the coordinates into groups: `how` is one of `split.SPLITS`."""
        from outvote.rules.groups import Groups  # groups needs ClientMatrix

        return Groups.of(self, how, num_groups, info)
