"""Groups of coordinates: read some at a time, and what is measured on them added up.

Reading coordinates in a random order is where a random split spends its time. Kernels, on a GPU and
on a CPU, read in order and write at random, a coordinate of all clients at once. Without them, with
many clients it pays to transpose the matrix first, so that one coordinate of all clients is one
short copy; with few, to read row by row, each row being small enough for the cache.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from threading import Lock, local
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from outvote.axes import Columns, Pairs, PerClient, PerCoordinate, Rows
from outvote.lazy import lazy, once
from outvote.ops import client_kernels, distances, group_kernels, native
from outvote.ops.distances import CancellationCheck
from outvote.ops.memory import scratch
from outvote.ops.precision import exact_products, work_dtype
from outvote.ops.threads import free_cores, mapped
from outvote.rules import group_distances
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.split import (
    IndexBlock,
    PositionBlock,
    RandomCut,
    Split,
    draw_split,
    scattered_split,
)
from outvote.seeding import RandomStream

if TYPE_CHECKING:
    from outvote.rules.rule import RoundInfo

Result = TypeVar("Result")
FEW_CLIENTS = 12
# Values that are transposed at once fit the cache of a core.
TRANSPOSED_AT_ONCE = 96_000
# More pieces than cores: a core that comes late still finds one.
NUM_TRANSPOSED_PIECES = 16
# Work on so many values takes long enough to end the threads of torch, which spin, before it.
MANY_VALUES = 1 << 22


class SplitAhead(NamedTuple):
    """A split, and the values of its groups, made before it is known which rows are finite."""

    asked: tuple[str, int, RandomStream]
    split: Split
    values: Columns
    squares: Tensor | None = None
    """The sums of the squares of each client in pieces of the coordinates, ``[pieces, clients]``,
    if they were asked for."""


def split_ahead(
    rows: Rows,
    how: str,
    num_groups: int,
    stream: RandomStream,
    *,
    with_squares: bool = False,
) -> SplitAhead | None:
    """Start to split gradients of one run; None where the groups are not copied as they are.

    A GPU works on this while its norms of the rows are waited for.
    """
    columns = rows.mT
    is_copied = client_kernels.is_usable(columns, columns.shape[-1])
    if len(rows) > 1 or rows.numel() == 0 or how != "balanced" or not is_copied:
        return None
    if not group_kernels.can_multiply(columns):
        return None
    split = scattered_split(columns, num_groups, stream)
    asked = (how, num_groups, stream)
    if not with_squares:
        return SplitAhead(asked, split, client_kernels.scattered(columns, split.blocks[0]))
    return SplitAhead(asked, split, *client_kernels.scattered_and_squared(columns, split.blocks[0]))


class Groups:
    """The coordinates of a matrix in groups, read some at a time."""

    def __init__(
        self,
        matrix: ClientMatrix,
        split: Split,
        num_asked: int,
        copied: "Columns | OpenBlock | None" = None,
    ) -> None:
        """Take the matrix, its split, and what its values were copied to, if they were.

        On a CPU these are all values with the clients last, or a way to read the groups; on a GPU
        the values of the groups.
        """
        self.matrix, self.split, self.num_asked = matrix, split, num_asked
        self._copied = copied

    @classmethod
    def of(cls, matrix: ClientMatrix, how: str, num_groups: int, info: "RoundInfo") -> "Groups":
        """Split a matrix; one core draws the split while the others transpose the values."""
        if matrix.device.type == "cpu" and matrix.shape.numel() >= MANY_VALUES:
            free_cores()
        if info.split is not None:
            return cls(matrix, info.split, num_groups)
        ahead = matrix.ahead
        if ahead is not None and ahead.asked == (how, num_groups, info.stream):
            return cls(matrix, ahead.split, num_groups, ahead.values)
        split = draw_split(matrix, how, num_groups, info)
        if len(matrix.batch) > 1:
            return cls(matrix, split, num_groups)
        cut = split.random_cut
        in_order = None if cut is None else InOrder.opening(matrix, cut)
        if in_order is not None or not _is_transposed_first(matrix.columns):
            return cls(matrix, split, num_groups, in_order)
        transposed, pieces = _transposing(matrix.columns)
        mapped(_run, [lambda: [block.index for block in split.blocks], *pieces])
        return cls(matrix, split, num_groups, transposed)

    @property
    def num_groups(self) -> int:
        """How many groups there are."""
        return self.split.num_groups

    @property
    def notes(self) -> tuple[str, ...]:
        """Whether there are fewer groups than asked for because there are fewer coordinates.

        Or more, since a group holds coordinates of one layer only.
        """
        dim = self.matrix.dim
        if self.split.note:
            return (self.split.note,)
        if self.num_asked <= dim or self.num_groups != dim:
            return ()
        return (f"gas: num_groups={self.num_asked} is more than the {dim} coordinates; used {dim}",)

    def total(
        self,
        measure: Callable[[ClientMatrix], PerClient],
        *,
        needs_values: bool | None = True,
        reduce: Callable[[Columns], PerCoordinate] | None = None,
        ignores_zeros: Callable[[int], bool] = lambda _: False,
    ) -> PerClient:
        """Return the sum over all groups of ``measure(groups) [runs, clients]``, a sum over some.

        `needs_values`: whether it needs the values of the groups, not only distances. `reduce`:
        what it measures distances to, if that is worked out coordinate by coordinate.
        `ignores_zeros`: see `Rule.ignores_zeros`.
        """
        del reduce  # The groups are read anyway.
        with exact_products():
            # A GPU works on while inexact results are counted; if there are any, all is redone.
            total = self._sum(
                measure,
                self.matrix.check,
                needs_values=needs_values,
                may_be_padded=ignores_zeros(self.split.largest_width),
            )
            return self.matrix.same_for_copies(total)

    def _sum(
        self,
        measure: Callable[[ClientMatrix], PerClient],
        check: CancellationCheck | None,
        *,
        needs_values: bool | None,
        may_be_padded: bool = False,
    ) -> PerClient:
        chunks = self.chunks(check, needs_values=needs_values, may_be_padded=may_be_padded)
        parts = mapped(measure, chunks, self.matrix.device)
        wanted = [*self.matrix.batch, self.matrix.num_clients]
        if list(parts[0].shape) != wanted:
            raise ValueError(
                f"what is measured on groups must be added up over them, {wanted}, got "
                f"{list(parts[0].shape)}; return matrix.total_distances_to(aggregation)."
            )
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(dim=0)

    def chunks(
        self,
        check: CancellationCheck | None = None,
        *,
        needs_values: bool | None = True,
        may_be_padded: bool = False,
    ) -> Iterator[ClientMatrix]:
        """Yield the groups as matrices ``[runs, groups, width, clients]``, some at a time.

        With `check`, inexact distances are not redone but counted. Where distances are enough,
        only n x n matrices must fit the cache. `may_be_padded`: groups that are narrower by one
        coordinate may come together with the others, with one where all clients are 0.
        """
        matrix = self.matrix
        if len(matrix.batch) > 1:
            yield from self._chunks_of_groups()
            return
        copied = self._copied
        open_block = copied if callable(copied) else open_reader(matrix.columns, copied)
        known = self._squared_distances(needs_values=needs_values)
        for block, added_up in zip(self.split.blocks, known, strict=True):
            reader = open_block(block)
            if added_up is None:
                reader.prepare()
            parts = ((0, *block.shape[1:]),) if may_be_padded else block.widths
            for start, stop, width in self._pieces(parts, needs_values=needs_values):
                is_wide = width > matrix.num_clients
                yield ClientMatrix(
                    partial(reader.read_narrow, start, stop, width),
                    torch.Size([matrix.batch[0], stop - start, width, matrix.num_clients]),
                    like=reader.columns,
                    centre=matrix.centre,
                    # Distances in narrow groups are taken from the values, which are read anyway.
                    products=reader.products(start, stop, matrix.centre) if is_wide else None,
                    squared_distances=None if added_up is None else added_up[:, start:stop],
                    buffer=partial(reader.buffer, stop - start, "scratch"),
                    originals=matrix.originals,
                    check=check,
                    largest_norm=matrix.longest,
                )

    def _pieces(
        self, parts: Sequence[tuple[int, int, int]], *, needs_values: bool | None
    ) -> Iterator[tuple[int, int, int]]:
        """Cut groups of one width, given by the first and the one after the last, to fit."""
        for first, end, width in parts:
            step = groups_at_once(self.matrix, width, needs_values=needs_values)
            for start in range(first, end, step):
                yield start, min(end, start + step), width

    def _squared_distances(self, *, needs_values: bool | None) -> Sequence[Pairs | None]:
        """Return the distances in the groups of each block, where no group need be read."""
        found = None
        if needs_values is False:
            found = group_distances.squared_distances(self.matrix, self.split)
        sizes = [block.shape[1] for block in self.split.blocks]
        return [None] * len(sizes) if found is None else found.split(sizes, dim=1)

    def _chunks_of_groups(self) -> Iterator[ClientMatrix]:
        """Split what is itself a group: the same positions in every group of a run."""
        matrix = self.matrix
        for block in self.split.blocks:
            for start in range(block.shape[1]):
                index = block.index[:, start].long()
                inner = matrix.at_coordinates(index.expand(matrix.batch[0], -1))
                yield ClientMatrix(inner.columns.unsqueeze(-3))


def groups_at_once(matrix: ClientMatrix, width: int, *, needs_values: bool | None) -> int:
    """Return how many groups fit the cache, with their values and their n x n matrices."""
    num_clients = matrix.num_clients
    tile = distances.tile_values(matrix.columns)
    is_wide = width > num_clients
    matrices = distances.MATRICES_TILE.get(matrix.device.type, tile // 4) // num_clients**2
    values = tile // (num_clients * width)
    if is_wide and not needs_values and matrix.device.type == "cpu":
        values = matrices
    return max(1, min(matrices, values) // matrix.batch[0])


class Reader(ABC):
    """Reads groups of coordinates from all clients of the runs."""

    reads_copies: ClassVar[bool]
    """Whether what is read may be written over."""

    def __init__(self, columns: Columns, block: IndexBlock | PositionBlock) -> None:
        """Take the values ``[runs, dim, clients]`` and the groups to read."""
        self.columns = columns
        self.block = block
        self.lock = Lock()
        self._buffers = local()

    def prepare(self) -> None:  # noqa: B027  (most have nothing to prepare)
        """Do what all groups need before some are read: here all cores may share in it."""

    @abstractmethod
    def read(self, start: int, stop: int, buffer: str = "values") -> Columns:
        """Return the values of some groups, valid until the thread reads into this buffer again."""

    def read_narrow(self, start: int, stop: int, width: int) -> Columns:
        """Return the values of some groups, without positions that stayed empty."""
        return self.read(start, stop)[..., :width, :]

    @abstractmethod
    def new_buffer(self, num_groups: int) -> Columns:
        """Allocate memory for the values of some groups."""

    def products(self, start: int, stop: int, centre: Tensor) -> Callable[[], Pairs]:
        """Return a way to the inner products of some groups without reading all values at once."""
        return partial(self._multiply, start, stop, centre)

    def _multiply(self, start: int, stop: int, centre: Tensor) -> Pairs:
        num_clients = self.columns.shape[-1]
        shape = (self.columns.shape[0], stop - start, num_clients, num_clients)
        work = work_dtype(self.columns.dtype)
        result = torch.empty(shape, dtype=work, device=self.columns.device)
        per_group = num_clients * self.block.shape[-1] * shape[0]
        # Half a tile: faster than a whole one, and than a quarter.
        step = max(1, distances.tile_values(self.columns) // (2 * per_group))

        def multiply(first: int) -> None:
            last = min(stop, first + step)
            # In a buffer of its own: the rule may still hold values of the whole chunk.
            values = self.read(first, last, "to multiply")
            middle = distances.of_client(values, centre)
            target = values if self.reads_copies else self.buffer(last - first, "centred")
            centred = distances.subtract(values, middle, target)
            result[:, first - start : last - start] = distances.with_itself(centred)

        with exact_products():
            mapped(multiply, range(start, stop, step), self.columns.device)
        return result

    def buffer(self, num_groups: int, which: str) -> Columns:
        """Return memory of this thread that may be written over: fresh pages cost time."""
        kept: Tensor | None = getattr(self._buffers, which, None)
        if kept is None or kept.shape[1] < num_groups:
            kept = self.new_buffer(num_groups)
            setattr(self._buffers, which, kept)
        return kept[:, :num_groups]


OpenBlock = Callable[[IndexBlock | PositionBlock], Reader]


class _InOrder:
    """All values in the order of the groups, copied when they are first read."""

    def __init__(self, matrix: ClientMatrix, cut: RandomCut) -> None:
        self.rows, self.orders, self.lock = matrix.rows, cut.orders, Lock()

    @once
    def values(self) -> Columns:
        return native.scattered(self.rows, self.orders)


class InOrder(Reader):
    """Reads groups one after the other: a kernel copies all values in their order."""

    reads_copies = False

    def __init__(
        self,
        columns: Columns,
        copied: "_InOrder",
        start: int,
        block: IndexBlock | PositionBlock,
    ) -> None:
        """Take the values, their copies, and where among these the groups start."""
        super().__init__(columns, block)
        self._copied, self._start = copied, start

    @classmethod
    def opening(cls, matrix: ClientMatrix, cut: RandomCut) -> OpenBlock | None:
        """Return a way to read the blocks of a random split; None: not without other ways."""
        if not native.can_scatter(matrix.rows, cut.orders):
            return None

        copied = _InOrder(matrix, cut)

        def open_block(block: IndexBlock | PositionBlock) -> Reader:
            num_large, large, num_small, _ = cut.sizes
            is_second = num_large > 0 and num_small > 0 and block.shape[-1] != large
            return cls(matrix.columns, copied, num_large * large if is_second else 0, block)

        return open_block

    @lazy
    def values(self) -> Columns:
        """All groups of the block."""
        num_groups, width = self.block.shape[1:]
        own = self._copied.values[:, self._start : self._start + num_groups * width]
        groups: Tensor = own.unflatten(1, (num_groups, width))
        return groups

    def prepare(self) -> None:
        """Copy all values."""
        _ = self.values

    def new_buffer(self, num_groups: int) -> Columns:
        """Allocate memory for the values of some groups."""
        runs, _, width, num_clients = self.values.shape
        return self.values.new_empty(runs, num_groups, width, num_clients)

    def read(self, start: int, stop: int, buffer: str = "values") -> Columns:
        """View the values of some groups."""
        del buffer
        return self.values[:, start:stop]

    def products(self, start: int, stop: int, centre: Tensor) -> Callable[[], Pairs]:
        """Multiply groups that a kernel centres while it reads them."""
        return lambda: native.products(self.values[:, start:stop], centre)


class ByClient(Reader):
    """Reads client after client; the groups lie as ``[runs, groups, clients, width]``."""

    reads_copies = False

    @once
    def values(self) -> Tensor:
        """Copy all groups: a client's row stays in the cache while it is read at random."""
        runs, _, num_clients = self.columns.shape
        num_groups, width = self.block.shape[1:]
        index = self.block.index  # Listed here by all cores; in threads, each would list it alone.
        values = _scratch(self.columns, runs, num_clients, num_groups * width)
        halves = [
            (run, k, half) for run in range(runs) for k in range(num_clients) for half in (0, 1)
        ]
        mapped(partial(self._copy, index, values), halves)
        return values

    def prepare(self) -> None:
        """Copy all groups."""
        _ = self.values

    def _copy(self, index: Tensor, values: Tensor, where: tuple[int, int, int]) -> None:
        run, client, half = where
        order = index[run % len(index)].reshape(-1)
        piece = slice(0, len(order) // 2) if half == 0 else slice(len(order) // 2, len(order))
        order = order[piece]
        source, target = self.columns[run, :, client], values[run, client, piece]
        if source.dtype == target.dtype:
            torch.index_select(source, 0, order, out=target)
        else:
            target.copy_(source.index_select(0, order))

    def new_buffer(self, num_groups: int) -> Columns:
        """Allocate memory for the values of some groups."""
        runs, num_clients, _ = self.values.shape
        return self.values.new_empty(runs, num_groups, num_clients, self.block.shape[-1]).mT

    def read(self, start: int, stop: int, buffer: str = "values") -> Columns:
        """View the values of some groups."""
        del buffer
        width = self.block.shape[-1]
        some = self.values[..., start * width : stop * width]
        groups: Tensor = some.unflatten(-1, (-1, width))
        return groups.permute(0, 2, 3, 1)


class ByCoordinate(Reader):
    """Reads all clients of a coordinate at once; the groups lie as they are shaped."""

    reads_copies = True

    def new_buffer(self, num_groups: int) -> Columns:
        """Allocate memory for the values of some groups."""
        runs, _, num_clients = self.columns.shape
        return self.columns.new_empty(runs, num_groups, self.block.shape[-1], num_clients)

    def read(self, start: int, stop: int, buffer: str = "values") -> Columns:
        """Copy the values of some groups."""
        out = self.buffer(stop - start, buffer)
        for run, matrix in enumerate(self.columns):
            order = self.block.index[run % len(self.block.index), start:stop].reshape(-1)
            target = out[run].flatten(0, 1)
            if matrix.device.type == "cpu":
                np.take(matrix.numpy(), order.numpy(), axis=0, out=target.numpy(), mode="clip")
            else:
                torch.index_select(matrix, 0, order, out=target)
        return out


class OnGpu(Reader):
    """Reads everything in order, and writes each coordinate to its position."""

    reads_copies = False

    def __init__(
        self, columns: Columns, copied: Columns | None, block: IndexBlock | PositionBlock
    ) -> None:
        """Take the values, those of the groups if they were copied, and the groups."""
        super().__init__(columns, block)
        self._copied = copied

    def new_buffer(self, num_groups: int) -> Columns:
        """Allocate nothing: a GPU's allocator caches memory."""
        return self.columns.new_empty(1, num_groups, 0, 0)

    @lazy
    def values(self) -> Columns:
        """All groups."""
        if self._copied is not None:
            return self._copied
        return client_kernels.scattered(self.columns, self.block)

    def read(self, start: int, stop: int, buffer: str = "values") -> Columns:
        """View the values of some groups."""
        del buffer
        return self.values[:, start:stop, :, : self.columns.shape[-1]]

    @lazy
    def _centred(self) -> Columns:
        return client_kernels.scattered(self.columns, self.block, self._centre)

    def products(self, start: int, stop: int, centre: Tensor) -> Callable[[], Pairs]:
        """Multiply groups that are centred while they are read or, for a library, copied."""
        if group_kernels.can_multiply(self.columns):
            return lambda: group_kernels.products(self.read(start, stop), centre)
        self._centre = centre
        num_clients = self.columns.shape[-1]
        return lambda: distances.exact_gram(self._centred[:, start:stop])[
            ..., :num_clients, :num_clients
        ]


def open_reader(columns: Columns, copied: Columns | None = None) -> OpenBlock:
    """Choose the way to read ``columns [runs, dim, clients]``; call it with a block of groups.

    `copied` are the same values with the clients last in memory, or, on a GPU, in groups, if there
    is such a copy.
    """
    num_clients = columns.shape[-1]
    if client_kernels.is_usable(columns, num_clients):
        return partial(OnGpu, columns, copied)
    if columns.device.type == "cpu" and num_clients <= FEW_CLIENTS:
        return partial(ByClient, columns)
    return partial(ByCoordinate, clients_last(columns) if copied is None else copied)


def clients_last(columns: Columns) -> Columns:
    """Copy so that the values of all clients for one coordinate are side by side."""
    work = work_dtype(columns.dtype)
    if columns.is_contiguous() and columns.dtype == work:
        return columns
    if columns.device.type != "cpu":
        return columns.to(work).contiguous()
    if columns.dtype != work:
        return _scratch(columns, *columns.shape).copy_(columns)
    target, pieces = _transposing(columns)
    mapped(_run, pieces)
    return target


def _transposing(columns: Columns) -> tuple[Columns, list[Callable[[], None]]]:
    """Return memory for the values with the clients last, and the pieces of work that fill it."""
    target = _scratch(columns, *columns.shape)
    dim = columns.shape[1]
    cuts = [dim * k // NUM_TRANSPOSED_PIECES for k in range(NUM_TRANSPOSED_PIECES + 1)]
    return target, [
        partial(_transpose, source, to, slice(start, stop))
        for to, source in zip(target.numpy(), columns.numpy(), strict=True)
        for start, stop in pairwise(cuts)
    ]


def _is_transposed_first(columns: Columns) -> bool:
    """Return whether these values are copied clients last before groups are read."""
    return (
        columns.device.type == "cpu"
        and not client_kernels.is_usable(columns, columns.shape[-1])
        and columns.dim() == 3
        and columns.shape[-1] > FEW_CLIENTS
        and columns.dtype == work_dtype(columns.dtype)
        and not columns.is_contiguous()
    )


def _run(work: Callable[[], Result]) -> Result:
    return work()


def _scratch(like: Tensor, *shape: int) -> Tensor:
    return scratch(shape, work_dtype(like.dtype), like.device)


def _transpose(source: np.ndarray, target: np.ndarray, piece: slice) -> None:
    """Copy ``[dim, clients]`` through a buffer whose rows are spread over the whole cache.

    Read from where they are, rows of some lengths are not: that takes up to three times as long.
    """
    num_clients = source.shape[1]
    width = TRANSPOSED_AT_ONCE // num_clients // 32 * 32 + 16
    buffer = np.empty((num_clients, width), source.dtype).T
    for start in range(piece.start, piece.stop, width):
        part = slice(start, min(piece.stop, start + width))
        rows = buffer[: part.stop - part.start]
        rows[:] = source[part]
        target[part] = rows
