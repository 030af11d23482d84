"""Kernels in C for a CPU: groups of GAS, order of clients, Bulyan, DnC; torch does without them.

They are built when outvote is installed, where there is a C compiler (`hatch_build.py`), for
several levels of x86-64, and the best one that the processor has is used. OUTVOTE_NATIVE=0 switches
them off. Calls let go of Python's lock: each piece of work is given to a thread.
"""

import ctypes
import os
import zlib
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from outvote.axes import Columns, Pairs, PerClient, PerCoordinate, Rows
from outvote.ops.keyed_order import NUM_ROUNDS, KeyedOrder, SortedOrder
from outvote.ops.memory import scratch
from outvote.ops.order_kernels import comparators
from outvote.ops.threads import CPU, mapped

FOLDER = Path(__file__).parent
# As in native.c: numbers of a line of the cache and of half a line, coordinates at once.
LINE, HALF, FOUR = 16, 8, 4
MOST_COPIED, SQUARED, GAP, CENTRED, SORTED = 1024, 256, 16, 64, 64
# Numbers of a buffer that stay in the cache of a core.
BUFFERED = 1 << 17
# More pieces than cores: a core that comes late still finds one.
NUM_PIECES, NUM_SUMS = 16, 6
# With more clients numpy sorts faster than a network, which has ever more comparators.
MOST_SORTED = 64
# The clients of a matrix are sorted by a network, too, but torch would sort them again and again.
MOST_IN_MATRIX = 1024

_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_ORDER = (_LONG, _INT, _INT, _POINTER)
_ROWS = (_LONG, _LONG, _POINTER, _LONG, _INT)
_VALUES = (_POINTER, _LONG, _INT, _LONG, _LONG)
_NETWORK = (_POINTER, _INT)
_ARGUMENTS = {
    "outvote_scatter": (*_ORDER, *_ROWS, _INT, _INT, _LONG, _POINTER, _POINTER),
    "outvote_products": (_POINTER, _LONG, *[_INT] * 4, _POINTER, _POINTER, _POINTER),
    "outvote_sort": (*_VALUES, *_NETWORK, _POINTER, _POINTER, _POINTER),
    "outvote_nearest": (
        *(_POINTER, _LONG, _LONG, *_VALUES[1:], *_NETWORK, _POINTER, *[_INT] * 4),
        *[_POINTER] * 5,
    ),
    "outvote_leading": (_POINTER, _LONG, _INT, _INT, _POINTER, _POINTER, _POINTER),
    "outvote_select": (_POINTER, _LONG, *[_INT] * 3, *_NETWORK, _LONG, *[_POINTER] * 4),
    "outvote_pair_sums": (*_ORDER, *_ROWS, *[_INT] * 3, _POINTER, _POINTER),
}
Sizes = tuple[int, int, int, int]
"""(Number, width) of the larger groups, then of the smaller."""


@cache
def level() -> str | None:
    """Return the level of x86-64 that the kernels in use are built for, "0" for the lowest.

    None: there are none.
    """
    if os.environ.get("OUTVOTE_NATIVE") == "0":
        return None
    lowest = _open("0")
    if lowest is None:
        return None
    found = int(lowest.outvote_level())
    return next((name for name in ("4", "3") if int(name) <= found and _open(name)), "0")


@cache
def _open(name: str) -> ctypes.CDLL | None:
    """Return a library, None if it is not there, not of this machine, or not of this version."""
    try:
        source = zlib.crc32((FOLDER / "native.c").read_bytes())
        library = ctypes.CDLL(str(FOLDER / f"native.{name}.so"))
        library.outvote_source.restype = ctypes.c_uint32
        if library.outvote_source() != source:
            return None
        for function, arguments in _ARGUMENTS.items():
            found = getattr(library, function)
            found.argtypes, found.restype = arguments, None
    except (OSError, AttributeError):
        return None
    return library


def _library() -> ctypes.CDLL:
    library = _open(level() or "")
    assert library is not None
    return library


def can_read(rows: Rows, orders: Sequence[KeyedOrder | SortedOrder]) -> bool:
    """Return whether kernels read rows ``[runs, clients, dim]`` in these orders, one per run."""
    return (
        rows.device.type == "cpu"
        and rows.dtype == torch.float32
        and rows.dim() == 3
        and rows.stride(-1) == 1
        and len(orders) > 0
        and all(
            isinstance(order, KeyedOrder) and order.num_rounds == NUM_ROUNDS for order in orders
        )
        and level() is not None
    )


def can_scatter(rows: Rows, orders: Sequence[KeyedOrder | SortedOrder]) -> bool:
    """Return whether `scattered` copies these rows into at most twice their memory."""
    num_clients = rows.shape[-2]
    return _padded(num_clients) <= 2 * num_clients and can_read(rows, orders)


def scattered(rows: Rows, orders: Sequence[KeyedOrder | SortedOrder]) -> Columns:
    """Copy ``rows [runs, clients, dim]`` in the orders, clients last: ``[runs, dim, clients]``.

    A coordinate of all clients begins a line of the cache: there are gaps in memory.
    """
    runs, num_clients, dim = rows.shape
    width = _padded(num_clients)
    memory = scratch((runs * dim * width + LINE,), torch.float32, CPU)
    first = -memory.data_ptr() // memory.element_size() % LINE
    result = memory[first : first + runs * dim * width].view(runs, dim, width)
    copied = max(HALF, min(MOST_COPIED, BUFFERED // width - GAP) // HALF * HALF)
    given = [_Given.of(order) for order in orders]

    def copy(run: int, start: int, stop: int) -> None:
        own = rows[run]
        buffer = np.empty(width * (copied + GAP), np.float32)
        _library().outvote_scatter(
            *given[run % len(given)].arguments,
            *(start, stop, own.data_ptr(), own.stride(0), num_clients),
            *(width, copied, copied + GAP, result[run].data_ptr(), buffer.ctypes.data),
        )

    mapped(lambda piece: copy(*piece), _pieces(runs, dim))
    return result[..., :num_clients]


def products(values: Columns, centre: Tensor) -> Pairs:
    """Return the inner products in groups ``[runs, groups, width, clients]`` of `scattered`.

    They are relative to one client of each run.
    """
    runs, num_groups, group_width, num_clients = values.shape
    width = _padded(num_clients)
    shape = (runs, num_groups, num_clients, num_clients)
    # The caller's default may be another.
    result = torch.empty(shape, dtype=torch.float32, device=CPU)
    centres = centre.flatten().tolist()

    def multiply(run: int, start: int, stop: int) -> None:
        buffer = np.empty((CENTRED + width) * width, np.float32)
        total = np.empty(width * width)
        _library().outvote_products(
            *(values[run, start].data_ptr(), stop - start, group_width, num_clients, width),
            *(centres[run % len(centres)], result[run, start].data_ptr(), buffer.ctypes.data),
            total.ctypes.data,
        )

    mapped(lambda piece: multiply(*piece), _pieces(runs, num_groups))
    return result


def pair_sums(rows: Rows, order: KeyedOrder | SortedOrder, sizes: Sizes) -> Tensor:
    """Add up the squared differences of all pairs in the groups that an order is cut into.

    Pairs are those of ``np.tril_indices(clients, -1)``; the result is ``[groups, pairs]``, float64.
    """
    num_clients, dim = rows.shape
    num_pairs = num_clients * (num_clients - 1) // 2
    width = -(-num_pairs // FOUR) * FOUR
    num_large, large, num_small, small = sizes
    given = _Given.of(order)

    def add_up(piece: tuple[int, int, int]) -> Tensor:
        total = np.zeros((num_large + num_small, width))
        buffer = np.empty((width + num_clients) * (SQUARED + GAP))
        _library().outvote_pair_sums(
            *given.arguments,
            *(*piece[1:], rows.data_ptr(), rows.stride(0), num_clients, num_large, large, small),
            *(buffer.ctypes.data, total.ctypes.data),
        )
        return torch.from_numpy(total)

    # As many pieces whatever the number of cores: their sums are rounded in the same way.
    parts = mapped(add_up, _pieces(1, dim, NUM_SUMS))
    return torch.stack(parts).sum(dim=0)[:, :num_pairs]


def _padded(num_clients: int) -> int:
    return -(-num_clients // LINE) * LINE


def can_sort(source: np.ndarray) -> bool:
    """Return whether `sort` takes these values, ``[..., coordinates, clients]``."""
    return (
        source.dtype == np.float32
        and source.ndim >= 2
        and 2 <= source.shape[-1] <= MOST_SORTED
        and source.size >= SORTED * source.shape[-1]
        and _steps(source) is not None
        and level() is not None
    )


def sort(source: np.ndarray, to: np.ndarray) -> None:
    """Sort the clients of every coordinate of `source` into `to`, which has no gaps.

    Numbers only: what is not one is replaced by the value of another client. 0 and -0 are equal.
    """
    steps = _steps(source)
    assert steps is not None
    num_clients = source.shape[-1]
    width = -(-num_clients // HALF) * HALF
    buffer = np.empty(2 * SORTED * width, np.float32)
    network = _comparators(num_clients)
    _library().outvote_sort(
        *(source.ctypes.data, source.size // num_clients, num_clients, *steps),
        *(network.ctypes.data, len(network), _everyone(num_clients).ctypes.data),
        *(to.ctypes.data, buffer.ctypes.data),
    )


def _steps(source: np.ndarray) -> tuple[int, int] | None:
    """Return how many numbers are between coordinates and between clients; one of them is 1.

    None: the coordinates are not evenly spaced, or neither is.
    """
    *outer, coordinate, client = source.strides
    num_coordinates = source.shape[-2]
    for size, stride in zip(source.shape[-3::-1], reversed(outer), strict=True):
        if size > 1 and stride != coordinate * num_coordinates:
            return None
        num_coordinates *= size
    steps, rest = divmod(np.array([coordinate, client]), source.itemsize)
    is_one = min(steps) == 1 and not rest.any()
    return (int(steps[0]), int(steps[1])) if is_one else None


@cache
def _comparators(num_clients: int) -> np.ndarray:
    return np.array(comparators(num_clients), np.int16)


@cache
def _everyone(num_clients: int) -> np.ndarray:
    return np.arange(num_clients, dtype=np.int16)


class Nearest(NamedTuple):
    """What is known about the values nearest to the medians of coordinates."""

    mean: PerCoordinate
    low: PerCoordinate
    high: PerCoordinate
    is_unknown: Tensor
    """Where the rest is not known: indices of clients decide which values are taken, or values are
    near the largest float."""


def can_find_nearest(columns: object) -> bool:
    """Return whether `nearest` takes values ``[..., coordinates, clients]``; no stream of them."""
    return (
        isinstance(columns, Tensor)
        and columns.device.type == "cpu"
        and columns.dtype == torch.float32
        and columns.dim() in (2, 3, 4)
        and 2 <= columns.shape[-1] <= MOST_SORTED
        and columns.numel() > 0
        and min(columns.stride()[-2:]) == 1
        and level() is not None
    )


def nearest(
    columns: Columns, ranks_of_median: tuple[int, int], num_nearest: int, among: Tensor | None
) -> Nearest:
    """Find the values nearest to the median of ``columns [..., coordinates, clients]``.

    The median is the mean of the values with the ranks `first` up to, not with, `last`. `among` has
    the clients that count in each run and group, in ascending order; None: all.
    """
    num_coordinates, num_clients = columns.shape[-2:]
    shape = columns.shape[:-1]
    first, last = ranks_of_median
    mean, low, high = (torch.empty(shape, dtype=torch.float32, device=CPU) for _ in range(3))
    is_unknown = torch.empty(shape, dtype=torch.bool, device=CPU)
    if among is None:
        among = torch.arange(num_clients, device=CPU).expand(*columns.shape[:-2], num_clients)
    clients = among.to(torch.int16).contiguous()
    num_among = clients.shape[-1]
    network = _comparators(num_among)
    width = -(-num_clients // HALF) * HALF
    buffer = np.empty(2 * SORTED * width, np.float32)
    # Groups are evenly spaced, runs need not be.
    runs = [()] if columns.dim() < 4 else [(run,) for run in range(len(columns))]
    for run in runs:
        own, own_clients = columns[run], clients[run]
        num_groups = own.shape[:-2].numel()
        _library().outvote_nearest(
            *(own.data_ptr(), num_groups, own.stride(0), num_coordinates, num_clients),
            *(own.stride(-2), own.stride(-1), network.ctypes.data, len(network)),
            *(own_clients.data_ptr(), num_among, first, last - 1, num_nearest),
            *(found[run].data_ptr() for found in (mean, low, high, is_unknown)),
            buffer.ctypes.data,
        )
    return Nearest(mean, low, high, is_unknown)


def can_work_on(matrices: Pairs) -> bool:
    """Return whether `select_one_by_one` and `leading_projections` take these matrices."""
    return (
        matrices.device.type == "cpu"
        and 2 <= matrices.shape[-1] <= MOST_IN_MATRIX
        and matrices.numel() > 0
        and level() is not None
    )


def select_one_by_one(squared_distances: Pairs, num_selected: int, num_byzantine: int) -> Tensor:
    """Return whom Krum selects, applied again and again to those who are left."""
    num_clients = squared_distances.shape[-1]
    far = squared_distances.double().reshape(-1, num_clients, num_clients).contiguous()
    is_left = torch.empty(far.shape[:-1], dtype=torch.bool, device=CPU)
    network = _comparators(num_clients)
    width = -(-num_clients // SORTED) * SORTED + GAP

    def select(start: int, stop: int) -> None:
        keys = np.empty((num_clients + 1) * width, np.int64)
        scores, ranks = np.empty(3 * width), np.empty(3 * width, np.int32)
        _library().outvote_select(
            *(far[start].data_ptr(), stop - start, num_clients, num_selected, num_byzantine),
            *(network.ctypes.data, len(network), width, keys.ctypes.data, scores.ctypes.data),
            *(ranks.ctypes.data, is_left[start].data_ptr()),
        )

    mapped(lambda piece: select(*piece[1:]), _pieces(1, len(far)))
    return is_left.logical_not_().view(squared_distances.shape[:-1])


def leading_projections(matrices: Pairs, start: PerClient) -> PerClient:
    """Return the top eigenvalue times the squared entries of its eigenvector.

    The matrices are symmetric, without negative eigenvalues; their largest entry is about 1, or all
    are 0. `start` has the numbers that Lanczos' method begins with.
    """
    num_rows = matrices.shape[-1]
    flat = matrices.double().reshape(-1, num_rows, num_rows).contiguous()
    result = torch.empty(flat.shape[:-1], dtype=torch.float64, device=CPU)
    starts = start.reshape(-1, num_rows).contiguous()
    width = -(-num_rows // HALF) * HALF

    def decompose(first: int, stop: int) -> None:
        buffer = np.empty((2 * num_rows + 7) * width)
        _library().outvote_leading(
            *(flat[first].data_ptr(), stop - first, num_rows, width, starts[first].data_ptr()),
            *(result[first].data_ptr(), buffer.ctypes.data),
        )

    mapped(lambda piece: decompose(*piece[1:]), _pieces(1, len(flat)))
    return result.view(matrices.shape[:-1])


class _Given(NamedTuple):
    """An order as the kernels take it, and the memory that they read."""

    table: Tensor
    arguments: tuple[int, int, int, int]

    @classmethod
    def of(cls, order: KeyedOrder | SortedOrder) -> "_Given":
        assert isinstance(order, KeyedOrder)
        # Held here: another thread that draws the same order may put another table into its place.
        table = order.table
        return cls(table, (order.size, order.num_rows, order.num_columns, table.data_ptr()))


def _pieces(runs: int, size: int, num_pieces: int = NUM_PIECES) -> list[tuple[int, int, int]]:
    num_pieces = min(num_pieces, size)
    cuts = [size * k // num_pieces for k in range(num_pieces + 1)]
    return [(run, start, stop) for run in range(runs) for start, stop in pairwise(cuts)]


def gram_of_groups(columns: Columns, centre: Tensor) -> Pairs:
    """Return the inner products in groups whose clients are side by side, see `pairs.gram`."""
    *batch, group_width, num_clients = columns.shape
    width = _padded(num_clients)
    runs = columns.shape[:-3].numel()
    groups = columns.reshape(runs, *columns.shape[-3:])
    if groups.stride()[1:] != (group_width * width, width, 1):
        groups = torch.nn.functional.pad(groups, (0, width - num_clients))[..., :num_clients]
    centres = centre.expand(*batch).flatten() if centre.dim() > 1 else centre
    result = torch.empty(*batch, num_clients, num_clients, dtype=torch.float32, device=CPU)
    buffer = np.empty((CENTRED + width) * width, np.float32)
    total = np.empty(width * width)
    if centre.dim() > 1:
        groups = groups.flatten(0, 1).unsqueeze(1)
    flat = result.view(*groups.shape[:2], num_clients, num_clients)
    for run, own in enumerate(groups):
        _library().outvote_products(
            *(own.data_ptr(), len(own), group_width, num_clients, width),
            *(int(centres[run % len(centres)]), flat[run].data_ptr(), buffer.ctypes.data),
            total.ctypes.data,
        )
    return result


def scattered_groups(
    rows: Rows, orders: Sequence[KeyedOrder], sizes: Sizes, *, may_be_padded: bool
) -> list[Columns]:
    """Copy rows into groups, see `groups.scattered`."""
    from outvote.ops.groups import cut

    del may_be_padded
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    return cut(scattered(rows, orders), sizes)


def pair_sums_of_runs(
    rows: Rows, orders: Sequence[KeyedOrder], sizes: Sizes, start: int = 0
) -> Pairs:
    """Add up squared differences, see `groups.pair_sums`."""
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    found = torch.stack(
        [pair_sums(own, orders[run % len(orders)], sizes) for run, own in enumerate(rows)]
    )
    num_clients = rows.shape[1]
    first, second = np.tril_indices(num_clients, -1)
    result = found.new_zeros(*found.shape[:2], num_clients, num_clients)
    result[..., first, second] = found
    result[..., second, first] = found
    return result
