"""Operations in C for a CPU; torch does without them.

They are built when outvote is installed, where there is a C compiler (`hatch_build.py`), for
several levels of x86-64, and the best one that the processor has is used. OUTVOTE_NATIVE=0 switches
them off. Calls let go of Python's lock. What each function returns is said where its plain form is.
"""

import ctypes
import os
import zlib
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from outvote.axes import Columns, Pairs, PerClient, Rows
from outvote.ops.groups import KeyedOrder, Sizes
from outvote.ops.network import comparators
from outvote.ops.order import Among, Found, median_ranks, nearest_values
from outvote.ops.process import CPU, mapped, scratch

FOLDER = Path(__file__).parent
# As in native.c: numbers of a line of the cache and of half a line, coordinates at once.
LINE, HALF, FOUR = 16, 8, 4
MOST_COPIED, SQUARED, GAP, CENTRED, SORTED = 1024, 256, 16, 64, 64
# Numbers of a buffer that stay in the cache of a core.
BUFFERED = 1 << 17
# More pieces than cores: a core that comes late still finds one. Sums are rounded in the same way
# whatever the number of cores.
NUM_PIECES, NUM_SUMS = 16, 6

_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_ORDER = (_LONG, _INT, _INT, _POINTER)
_ROWS = (_LONG, _LONG, _POINTER, _LONG, _INT)
_NETWORK = (_POINTER, _INT)
_ARGUMENTS = {
    "outvote_scatter": (*_ORDER, *_ROWS, _INT, _INT, _LONG, _POINTER, _POINTER),
    "outvote_products": (_POINTER, _LONG, *[_INT] * 4, _POINTER, _POINTER, _POINTER),
    "outvote_order": (
        *(_POINTER, _LONG, _LONG, _LONG, _INT, _LONG, _LONG, *_NETWORK, _POINTER, *[_INT] * 4),
        *[_POINTER] * 5,
    ),
    "outvote_leading": (_POINTER, _LONG, _INT, _INT, _POINTER, _POINTER, _POINTER),
    "outvote_select": (_POINTER, _LONG, *[_INT] * 3, *_NETWORK, _LONG, *[_POINTER] * 4),
    "outvote_pair_sums": (*_ORDER, *_ROWS, *[_INT] * 3, _POINTER, _POINTER),
}


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


@cache
def function(name: str) -> Callable[..., None]:
    """Return a function of the library in use."""
    found: Callable[..., None] = getattr(_open(level() or ""), f"outvote_{name}")
    return found


def in_order(rows: Rows, orders: Sequence[KeyedOrder]) -> Columns:
    """See `groups.in_order`: the clients of a coordinate begin a line of the cache."""
    runs, num_clients, dim = rows.shape
    width = _up_to(LINE, num_clients)
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    memory = scratch((runs * dim * width + LINE,), torch.float32, CPU)
    first = -memory.data_ptr() // memory.element_size() % LINE
    result = memory[first : first + runs * dim * width].view(runs, dim, width)
    copied = max(HALF, min(MOST_COPIED, BUFFERED // width - GAP) // HALF * HALF)

    given = list(map(_given, orders))

    def copy(piece: tuple[int, int, int]) -> None:
        run, start, stop = piece
        own = rows[run]
        buffer = np.empty(width * (copied + GAP), np.float32)
        where = start, stop, own.data_ptr(), own.stride(0), num_clients
        memory = result[run].data_ptr(), buffer.ctypes.data
        order = given[run % len(given)][1]
        function("scatter")(*order, *where, width, copied, copied + GAP, *memory)

    mapped(copy, _pieces(runs, dim, NUM_PIECES))
    return result[..., :num_clients]


def pair_sums(rows: Rows, orders: Sequence[KeyedOrder], sizes: Sizes, start: int = 0) -> Pairs:
    """See `groups.pair_sums`."""
    runs, num_clients, dim = rows.shape
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    first, second = np.tril_indices(num_clients, -1)
    width = _up_to(FOUR, len(first))
    num_large, large, num_small, small = sizes

    given = list(map(_given, orders))

    def add_up(piece: tuple[int, int, int]) -> Tensor:
        run, *ends = piece
        own = rows[run]
        total = np.zeros((num_large + num_small, width))
        buffer = np.empty((width + num_clients) * (SQUARED + GAP))
        function("pair_sums")(
            *(*given[run % len(given)][1], *(start + end for end in ends)),
            *(own.data_ptr() - start * own.element_size(), own.stride(0), num_clients),
            *(num_large, large, small, buffer.ctypes.data, total.ctypes.data),
        )
        return torch.from_numpy(total)

    parts = mapped(add_up, _pieces(runs, dim, NUM_SUMS))
    sums = torch.stack(parts).unflatten(0, (runs, -1)).sum(dim=1)[..., : len(first)]
    result: Pairs = sums.new_zeros(*sums.shape[:2], num_clients, num_clients)
    result[..., first, second] = sums
    result[..., second, first] = sums
    return result


def _given(order: KeyedOrder) -> tuple[Tensor, tuple[int, int, int, int]]:
    """Return an order as the kernels take it, and the memory that they read, which must be held.

    Another thread that draws the same order may put another table into its place.
    """
    table = order.table
    return table, (order.size, order.num_rows, order.num_columns, table.data_ptr())


def _pieces(runs: int, size: int, num_pieces: int) -> list[tuple[int, int, int]]:
    num_pieces = min(num_pieces, size)
    pieces = []
    for run in range(runs):
        for k in range(num_pieces):
            pieces.append((run, size * k // num_pieces, size * (k + 1) // num_pieces))
    return pieces


def _up_to(unit: int, number: int) -> int:
    return -(-number // unit) * unit


def gram_of_groups(columns: Columns, centre: Tensor) -> Pairs:
    """See `pairs.gram`; groups that do not lie as `in_order` puts them are copied so."""
    *batch, dim, num_clients = columns.shape
    width = _up_to(LINE, num_clients)
    if centre.dim() > 1:
        groups, centres = columns.reshape(-1, 1, dim, num_clients), centre.flatten().tolist()
    else:
        groups, centres = columns.flatten(1, -3), centre.tolist()
    if groups.stride()[1:] != (dim * width, width, 1):
        groups = F.pad(groups, (0, width - num_clients))
    result = columns.new_empty(*groups.shape[:2], num_clients, num_clients)
    buffer, total = np.empty((CENTRED + width) * width, np.float32), np.empty(width * width)
    for run, own in enumerate(groups):
        function("products")(
            *(own.data_ptr(), len(own), dim, num_clients, width, centres[run % len(centres)]),
            *(result[run].data_ptr(), buffer.ctypes.data, total.ctypes.data),
        )
    return result.view(*batch, num_clients, num_clients)


def ranks(columns: Columns, first: int, last: int, *, has_bounds: bool) -> Found:
    """See `order.mean_of_ranks` and `order.values_at_ranks`."""
    del has_bounds  # They are there anyway.
    mean, low, high, _ = _sorted(columns, (first, last), 0, None)
    return mean, low, high


def nearest(
    columns: Columns, num_nearest: int, even: str, among: Among | None, *, has_bounds: bool
) -> Found:
    """See `order.mean_nearest_median`."""
    del has_bounds  # They are there anyway.
    index = None if among is None else among.index
    num = columns.shape[-1] if among is None else among.num
    mean, low, high, is_unknown = _sorted(columns, median_ranks(num, even), num_nearest, index)
    # Where the indices of clients decide, or values are near the largest float.
    if bool(is_unknown.any()):
        values = columns[is_unknown]
        if index is not None:
            of_these = index.unsqueeze(-2).expand(*columns.shape[:-1], num)[is_unknown]
            values = values.gather(-1, of_these)
        found = nearest_values(values, num_nearest, even)
        mean[is_unknown], low[is_unknown], high[is_unknown] = found
    return mean, low, high


def _sorted(
    columns: Columns, ends: tuple[int, int], num_nearest: int, index: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sort the clients of every coordinate, or some of them, by a network of comparators."""
    dim, num_clients = columns.shape[-2:]
    groups = columns.reshape(-1, dim, num_clients)
    if min(groups.stride()[1:]) != 1:
        groups = groups.contiguous()
    mean, low, high = torch.empty(3, *columns.shape[:-1])
    is_unknown = columns.new_empty(columns.shape[:-1], dtype=torch.bool)
    if index is None:
        clients = _everyone(num_clients, len(groups))
    else:
        clients = index.to(torch.int16).contiguous().numpy()
    num_among = clients.shape[-1]
    network = _network(num_among)
    buffer = np.empty(2 * SORTED * _up_to(HALF, num_clients), np.float32)
    function("order")(
        *(groups.data_ptr(), len(groups), *groups.stride()[:1], dim, num_clients),
        *(*groups.stride()[1:], network.ctypes.data, len(network), clients.ctypes.data),
        *(num_among, ends[0], ends[1] - 1, num_nearest),
        *(mean.data_ptr(), low.data_ptr(), high.data_ptr(), is_unknown.data_ptr()),
        buffer.ctypes.data,
    )
    return mean, low, high, is_unknown


@cache
def _network(num_clients: int) -> np.ndarray:
    return np.array(comparators(num_clients), np.int16)


@lru_cache(maxsize=16)
def _everyone(num_clients: int, num_groups: int) -> np.ndarray:
    return np.tile(np.arange(num_clients, dtype=np.int16), (num_groups, 1))


def select_one_by_one(squared_distances: Pairs, num_selected: int, num_byzantine: int) -> Tensor:
    """See `order.select_one_by_one`."""
    num_clients = squared_distances.shape[-1]
    far = squared_distances.contiguous()
    is_left = far.new_empty(far.shape[:-1], dtype=torch.bool)
    network = _network(num_clients)
    width = _up_to(SORTED, num_clients) + GAP
    keys = np.empty((num_clients + 1) * width, np.int64)
    scores, numbers = np.empty(3 * width), np.empty(3 * width, np.int32)
    function("select")(
        *(far.data_ptr(), far.shape[:-2].numel(), num_clients, num_selected, num_byzantine),
        *(network.ctypes.data, len(network), width, keys.ctypes.data, scores.ctypes.data),
        *(numbers.ctypes.data, is_left.data_ptr()),
    )
    return is_left.logical_not_()


def leading_projections(matrices: Pairs, start: PerClient) -> PerClient:
    """See `eigen.leading_projections`: by Lanczos' method."""
    num_rows = matrices.shape[-1]
    matrices, start = matrices.contiguous(), start.contiguous()
    result = torch.empty_like(matrices[..., 0])
    width = _up_to(HALF, num_rows)
    buffer = np.empty((2 * num_rows + 7) * width)
    function("leading")(
        *(matrices.data_ptr(), matrices.shape[:-2].numel(), num_rows, width, start.data_ptr()),
        *(result.data_ptr(), buffer.ctypes.data),
    )
    return result
