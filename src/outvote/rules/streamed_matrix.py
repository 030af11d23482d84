"""Gradients that are too large for memory: the matrix of a stream, and that of some of it.

What is between the clients of a `StreamedMatrix` (norms, distances, inner products) comes from
passes over the stream. A `TileMatrix` has the values of some coordinates, and the geometry of all.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from outvote.axes import Columns, Mixture, Pairs, PerClient, PerCoordinate
from outvote.ops import distances
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.column_stream import ColumnStream, NeedsWholeRows
from outvote.rules.groups import Groups
from outvote.rules.stream_split import stream_split
from outvote.rules.streamed_groups import StreamedGroups

if TYPE_CHECKING:
    from outvote.rules.rule import Aggregation, RoundInfo

Result = TypeVar("Result")


class StreamedMatrix(ClientMatrix):
    """The clients of a stream; there is one run."""

    columns: Any

    def __init__(
        self,
        stream: ColumnStream,
        *,
        centre: Tensor | None = None,
        products: Callable[[], Pairs] | None = None,
        originals: Tensor | None = None,
        max_bytes: int = 1 << 30,
    ) -> None:
        """Take the stream; see `ClientMatrix`. `max_bytes` is what values of groups may take."""
        super().__init__(
            lambda: stream,  # type: ignore[arg-type, return-value]
            stream.shape,
            like=torch.empty(0, dtype=stream.dtype),
            centre=torch.zeros(1, dtype=torch.long) if centre is None else centre,
            products=products,
            originals=originals,
        )
        self.stream, self.max_bytes = stream, max_bytes
        self._made: dict[Any, Any] = {}

    def set_products(self, products: Callable[[], Pairs]) -> None:
        """Set where the inner products come from: added up in a pass that is made anyway."""
        self._products = products

    def mixed(self, mixture: Mixture) -> "StreamedMatrix":
        """Replace the clients by weighted averages of them."""
        mixture = mixture.double().expand(*self.batch, *mixture.shape[-2:])
        return self._once(("mixed", mixture.numpy().tobytes()), lambda: self._mixed(mixture))

    def _mixed(self, mixture: Mixture) -> "StreamedMatrix":
        originals = distances.equal_rows(mixture)

        def change(rows: Tensor) -> Tensor:
            columns = ClientMatrix(rows.mT.unsqueeze(0), originals=self.originals)
            return columns._mixed_columns(mixture, originals)[0].mT

        is_narrow = self.dim <= self.num_clients
        return StreamedMatrix(
            self.stream.changed(change, mixture.shape[-2]),
            products=None if is_narrow else lambda: mixture @ self.gram @ mixture.mT,
            originals=originals,
            max_bytes=self.max_bytes,
        )

    def with_point(self, vector: PerCoordinate | None = None) -> "StreamedMatrix":
        """Add the origin behind the clients."""
        if vector is not None:
            raise NeedsWholeRows("it compares the clients with a vector of its own")
        return self._once("origin", self._with_origin)

    def _with_origin(self) -> "StreamedMatrix":
        stream = self.stream.changed(_with_zeros, self.num_clients + 1)
        zero = torch.zeros((), dtype=self.work_dtype).expand(self.shape[:-1])

        def products() -> Pairs:
            return distances.products_with(self.columns, self.centre, zero)

        return StreamedMatrix(
            stream, centre=self.centre, products=products, max_bytes=self.max_bytes
        )

    def scaled(self, factors: PerClient) -> "StreamedMatrix":
        """Multiply every client by a number of its own."""
        by = factors[0].to(self.work_dtype).unsqueeze(-1)
        return self._once(
            ("scaled", factors.numpy().tobytes()),
            lambda: StreamedMatrix(
                self.stream.changed(lambda rows: rows * by, self.num_clients),
                centre=self.centre,
                originals=self.originals,
                max_bytes=self.max_bytes,
            ),
        )

    def norms_of(self, run: int) -> Tensor:
        """Return the norms of the one run."""
        return self.norms[run]

    def sign_counts(self, run: int, window: slice) -> Tensor:
        """Count the positive, zero and negative values of the clients, ``[clients, 3]``."""
        del run
        return self._once(("signs", window.start, window.stop), lambda: self._sign_counts(window))

    def _sign_counts(self, window: slice) -> Tensor:
        total = torch.zeros(self.num_clients, 3, dtype=torch.float64)
        for piece, rows in self.stream.chunks():
            start, stop = max(window.start, piece.start), min(window.stop, piece.stop)
            if start < stop:
                total += distances.sign_counts(rows[:, start - piece.start : stop - piece.start].mT)
        return self.stream.everywhere(total)

    def at_coordinates(self, index: Tensor) -> ClientMatrix:
        """Read some coordinates, ``index [1, k]``."""
        return self._once(("at", index.numpy().tobytes()), lambda: self._at(index))

    def _at(self, index: Tensor) -> ClientMatrix:
        order = index[0].argsort()
        ranked = index[0][order]
        # Zeros, to which what other processes read is added.
        values = torch.zeros(self.num_clients, len(order), dtype=self.work_dtype)
        for piece, rows in self.stream.chunks():
            first, last = torch.searchsorted(ranked, torch.tensor([piece.start, piece.stop]))
            values[:, order[first:last]] = rows[:, ranked[first:last] - piece.start]
        values = self.stream.everywhere(values)
        return ClientMatrix(values.mT.unsqueeze(0).contiguous())

    def split(self, how: str, num_groups: int, info: "RoundInfo") -> "StreamedGroups":
        """Split the coordinates into groups."""
        key = ("split", how, num_groups, info.stream)
        return self._once(
            key, lambda: StreamedGroups(self, stream_split(self.dim, how, num_groups, info))
        ).asked(num_groups)

    def vector(self, aggregation: "Aggregation") -> PerCoordinate:
        """Refuse: a vector of all coordinates is made tile by tile."""
        raise NeedsWholeRows("it works on the update as a whole")

    def tile(self, rows: Tensor) -> "TileMatrix":
        """Return the values ``[clients, coordinates]`` of some coordinates, with this geometry."""
        return TileMatrix(rows.mT.unsqueeze(0), self)

    def distances_once(self, average: "Aggregation") -> PerClient:
        """Return `squared_distances_to` an average; for the same one again, what was found."""
        weights = average.weights
        key = ("far", b"" if weights is None else weights.double().numpy().tobytes())
        return self._once(key, lambda: self.squared_distances_to(average))

    def _once(self, key: Any, make: Callable[[], Result]) -> Result:
        """Remember what was made: rules are called for every tile."""
        if key not in self._made:
            self._made[key] = make()
        found: Result = self._made[key]
        return found


def _with_zeros(rows: Tensor) -> Tensor:
    return torch.cat([rows, rows.new_zeros(1, rows.shape[1])])


class TileMatrix(ClientMatrix):
    """The values of some coordinates of a stream, and the geometry of all of them."""

    def __init__(self, columns: Columns, whole: StreamedMatrix) -> None:
        """Take the values ``[1, coordinates, clients]`` and the matrix that they are part of."""
        super().__init__(columns, originals=whole.originals)
        self.whole = whole
        self.sums_are_finite = whole.sums_are_finite

    @property
    def dim(self) -> int:
        """How many coordinates there are in all."""
        return self.whole.dim

    # Lazy attributes of the base class: looked up in the whole matrix instead.
    centre: Any = property(lambda self: self.whole.centre)
    products: Any = property(lambda self: self.whole.products)
    gram: Any = property(lambda self: self.whole.gram)
    squared_distances: Any = property(lambda self: self.whole.squared_distances)
    norms: Any = property(lambda self: self.whole.norms)

    def sums_of_smallest_distances(self, num_smallest: int) -> PerClient:
        """Return those of all coordinates."""
        return self.whole.sums_of_smallest_distances(num_smallest)

    def squared_distances_to(self, aggregation: "Aggregation") -> PerClient:
        """Return how far every client is from an average, over all coordinates."""
        if aggregation.vector is not None:
            raise NeedsWholeRows("it measures distances to the update while that is worked out")
        return self.whole.distances_once(aggregation)

    def norms_of(self, run: int) -> Tensor:
        """Return the norms of the one run, over all coordinates."""
        return self.whole.norms_of(run)

    def sign_counts(self, run: int, window: slice) -> Tensor:
        """Count signs among all coordinates."""
        return self.whole.sign_counts(run, window)

    def mixed(self, mixture: Mixture) -> "TileMatrix":
        """Replace the clients by weighted averages of them."""
        mixture = mixture.double().expand(*self.batch, *mixture.shape[-2:])
        whole = self.whole.mixed(mixture)
        return TileMatrix(self._mixed_columns(mixture, whole.originals), whole)

    def with_point(self, vector: PerCoordinate | None = None) -> "TileMatrix":
        """Add the origin behind the clients."""
        whole = self.whole.with_point(vector)
        return TileMatrix(_with_zeros(self.columns[0].mT).mT.unsqueeze(0), whole)

    def scaled(self, factors: PerClient) -> "TileMatrix":
        """Multiply every client by a number of its own."""
        by = factors.to(self.work_dtype).unsqueeze(-2)
        return TileMatrix(self.columns.to(self.work_dtype) * by, self.whole.scaled(factors))

    def at_coordinates(self, index: Tensor) -> ClientMatrix:
        """Read some of all coordinates."""
        return self.whole.at_coordinates(index)

    def split(self, how: str, num_groups: int, info: "RoundInfo") -> Groups:
        """Split all coordinates."""
        return self.whole.split(how, num_groups, info)
