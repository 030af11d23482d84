"""The one door: which code works on a tensor is decided here, and nowhere else.

An operation of `ops` is a plain function in torch. Where a faster backend is known for a kind of
tensor, it has a row in `BACKENDS`: C for a CPU, Triton for a GPU. A test holds every row against
the plain form.
"""

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Triton runs its kernels on a CPU, slowly: this tests them without a GPU.
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ANY = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NARROW = ANY[:3]
SINGLE = (torch.float32,)
EXACT = (torch.float64,)


class Backend(NamedTuple):
    """A faster form of an operation, and the tensors that it takes."""

    function: str
    """Where it is: "module:name", below outvote.ops."""
    dtypes: tuple[torch.dtype, ...]
    least: int = 1
    """The smallest size (of clients, unless the operation says otherwise)."""
    most: int = 1 << 62
    """The largest."""

    is_native: bool = False
    """Whether it is in C, for a CPU; the others are in Triton."""


BACKENDS: dict[str, tuple[Backend, ...]] = {
    # Training.
    "take_step": (Backend("triton.sgd_step:take_step", SINGLE),),
}
"""By operation. The first row that takes the values is used."""


def backend(operation: str, values: Tensor, size: int = 1) -> Callable[..., Any] | None:
    """Return the faster form of an operation on such values; None: its plain form is the one."""
    if not (values.is_cuda or values.is_cpu):
        return None
    is_native = values.is_cpu and not IS_INTERPRETED
    for found in BACKENDS[operation]:
        if (
            found.is_native == is_native
            and values.dtype in found.dtypes
            and found.least <= size <= found.most
        ):
            return load(found)
    return None


@cache
def load(found: Backend) -> Callable[..., Any] | None:
    """Return the function of a backend; None where it cannot run."""
    if not found.is_native and find_spec("triton") is None:
        return None
    module, name = found.function.split(":")
    library = import_module(f"outvote.ops.{module}")
    if found.is_native and library.level() is None:
        return None
    function: Callable[..., Any] = getattr(library, name)
    return function
