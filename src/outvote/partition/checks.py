"""Checks of the input of every partition, and the order of its result."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def check_labels(labels: Any) -> NDArray[np.integer]:
    """Return the labels as an array; they must be whole numbers, one per sample."""
    array = np.asarray(labels)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(
            f"labels must be a list with one label per sample, got the shape {array.shape}; "
            "pass labels.reshape(-1) of a dataset that is not empty."
        )
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(
            f"labels must be whole numbers, got {array.dtype}; number the classes from 0."
        )
    return array


def check_count(what: str, value: Any, least: int = 1) -> int:
    """Return a count that is a whole number and large enough."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{what} must be a whole number, got {value!r}.")
    if value < least:
        raise ValueError(f"{what} must be {least} or larger, got {value}.")
    return int(value)


def check_enough(num_parts: int, num_samples: int, what: str = "num_clients") -> None:
    """Refuse to make more parts than there are samples."""
    if num_parts > num_samples:
        raise ValueError(
            f"{what} must be at most the number of samples, {num_samples}, got {num_parts}; "
            "take fewer clients or more data."
        )


def in_order(parts: Iterable[NDArray[np.integer]]) -> list[Indices]:
    """Return every client's samples in increasing order."""
    return [np.sort(part).astype(np.int64, copy=False) for part in parts]
