"""What `test_ops` knows about an operation: how it is called, on what, and how exact it is."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

EXACT: dict[torch.dtype, float] = {}
ROUNDED = {
    torch.float16: 2e-3,
    torch.bfloat16: 2e-2,
    torch.float32: 2e-5,
    torch.float64: 1e-12,
}
"""By dtype, a few units in the last place of sums of a few hundred values."""

Make = Callable[[torch.Generator, torch.dtype], tuple[Any, ...]]
"""Draws the arguments of one call, on a CPU."""


class Case(NamedTuple):
    """An operation, and families of its arguments."""

    call: Callable[..., Any]
    """Calls it; returns all that it returns or writes: tensors in tuples, lists or dictionaries."""
    families: dict[str, Make]
    """By name: shapes, strides and kinds of values. One at least must reach every backend."""
    tolerance: dict[torch.dtype, float] = EXACT
    """By dtype: relative, and of the largest value of a result. What is not listed is exact."""
    is_widened: bool = True
    """Whether the plain form is given float64; where digits decide (ties), it is given the same."""
