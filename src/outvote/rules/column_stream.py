"""Values that are read when they are needed, some coordinates at a time, as often as needed."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor

from outvote.axes import Columns
from outvote.ops.threads import CPU, mapped

Result = TypeVar("Result")
Sum = Callable[[Tensor], Tensor]
"""Adds up what all processes found, each in its own coordinates."""
Chunks = Callable[[], Iterator[tuple[slice, Tensor]]]
"""Starts a pass: yields slices of the coordinates and their values ``[clients, coordinates]``, in
order; the values last until the next are asked for."""

# A tile of so many values is worked on by one core.
TILE_VALUES = 1 << 22
# Sums of more are rounded too often in float32; those of tiles are added in float64.
SUMMED_VALUES = 1 << 18


def alone(total: Tensor) -> Tensor:
    """Return what is given: one process reads all coordinates."""
    return total


class NeedsWholeRows(TypeError):  # noqa: N818  (named like TooManyByzantine)
    """A rule asks for whole gradients, which a stream does not have."""


class ColumnStream:
    """Values ``[1, dim, clients]`` that are read when they are needed, a chunk at a time.

    A process may read a part of the coordinates; `everywhere` adds up what all of them found.
    """

    is_cuda = False
    device = CPU

    def __init__(
        self, chunks: Chunks, shape: torch.Size, dtype: torch.dtype, everywhere: Sum = alone
    ) -> None:
        """Take a way to start a pass, and the shape and dtype of all values."""
        self.chunks, self.shape, self.dtype, self.everywhere = chunks, shape, dtype, everywhere

    @property
    def mT(self) -> "ColumnStream":  # noqa: N802  (as torch calls it)
        """The same: only asked which device it is on."""
        return self

    def __getattr__(self, name: str) -> Any:
        """Refuse what needs all values at once."""
        raise NeedsWholeRows(f"it asks for {name!r} of all values at once")

    def dim(self) -> int:
        """Return the number of axes."""
        return len(self.shape)

    def numel(self) -> int:
        """Return how many values there are."""
        return self.shape.numel()

    def reshape(self, *shape: int) -> "ColumnStream":
        """Return the same, as one matrix."""
        if torch.Size(shape[1:]) != self.shape[-2:]:
            raise NeedsWholeRows(f"it asks for the shape {shape} of all values at once")
        return self

    def __getitem__(self, index: tuple[int, ...]) -> "ColumnStream":
        """Return the values of the one run, ``[dim, clients]``."""
        if index != (0,):
            raise NeedsWholeRows(f"it asks for {index} of all values at once")
        return ColumnStream(self.chunks, self.shape[-2:], self.dtype, self.everywhere)

    def tiles(self) -> Iterator[tuple[slice, Columns]]:
        """Read all values once."""
        for piece, rows in self.chunks():
            yield piece, rows.mT.view(*self.shape[:-2], *rows.mT.shape)

    def over_tiles(self, work: Callable[[tuple[slice, Columns]], Result]) -> list[Result]:
        """Work on pieces of the coordinates, on all cores."""
        results: list[Result] = []
        for piece, rows in self.chunks():
            cuts = tile_cuts(rows, SUMMED_VALUES)
            results += mapped(
                lambda cut, first=piece.start, rows=rows: work(  # type: ignore[misc]
                    (
                        slice(first + cut[0], first + cut[1]),
                        rows[:, cut[0] : cut[1]].mT.view(*self.shape[:-2], -1, len(rows)),
                    )
                ),
                cuts,
            )
        return results

    def changed(self, change: Callable[[Tensor], Tensor], num_clients: int) -> "ColumnStream":
        """Return the stream of ``change(values [clients, coordinates])``."""

        def chunks() -> Iterator[tuple[slice, Tensor]]:
            for piece, rows in self.chunks():
                yield piece, change(rows)

        shape = torch.Size([*self.shape[:-1], num_clients])
        return ColumnStream(chunks, shape, self.dtype, self.everywhere)


def tile_cuts(rows: Tensor, num_values: int = TILE_VALUES) -> list[tuple[int, int]]:
    """Cut the coordinates of ``rows [clients, coordinates]`` into tiles, one after another."""
    num_clients, width = rows.shape
    num_tiles = max(1, -(-width * num_clients // num_values))
    cuts = [width * k // num_tiles for k in range(num_tiles + 1)]
    return list(pairwise(cuts))
