"""Kernels for NVIDIA GPUs (Triton). Everything here has a plain torch twin that tests compare."""

from outvote.axes import Columns, PerCoordinate


def is_usable(columns: Columns) -> bool:
    """Tell whether these kernels can work on the given values."""
    return False


def mean_of_ranks(columns: Columns, first: int, last: int) -> PerCoordinate:
    """Return the mean of some order statistics per coordinate."""
    raise NotImplementedError
