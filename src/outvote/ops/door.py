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
FLOATS = (*SINGLE, *EXACT)
WIDE = ANY[2:]
# Triton's interpreter cannot multiply bfloat16.
HALF = NARROW[:1] if IS_INTERPRETED else NARROW[:2]
INT32 = (1 << 31) - 1


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
    # Rows.
    "row_norms": (Backend("triton.rows:row_norms", NARROW),),
    "weighted_sum": (Backend("triton.rows:weighted_sum", NARROW),),
    "squared_distances_to_vector": (Backend("triton.rows:squared_distances_to_vector", NARROW),),
    "sums_of_roots": (Backend("triton.rows:sums_of_roots", EXACT),),
    # Pairs; the size of differences is that of the clients or coordinates, whichever are more.
    "gram": (Backend("triton.gram:gram", NARROW, most=64),),
    "gram_of_groups": (
        Backend("triton.gram:gram", NARROW, most=64),
        Backend("native:gram_of_groups", SINGLE, 4, is_native=True),
    ),
    "squared_distances": (Backend("triton.pairs:squared_distances", FLOATS),),
    "sums_of_smallest_distances": (
        Backend("triton.pairs:sums_of_smallest_distances", FLOATS, most=128),
    ),
    "squared_distances_to_average": (
        Backend("triton.pairs:squared_distances_to_average", FLOATS, most=1024),
    ),
    "pairwise_differences": (Backend("triton.differences:pairwise_differences", NARROW, most=128),),
    "sums_of_smallest_differences": (
        Backend("triton.differences:sums_of_smallest_differences", NARROW, most=128),
    ),
    "differences_to_average": (
        Backend("triton.differences:differences_to_average", NARROW, most=128),
    ),
    # Order.
    "sum_of_smallest": (Backend("triton.order:sum_of_smallest", FLOATS, most=128),),
    "ranks": (
        Backend("triton.order:ranks", NARROW, most=1024),
        Backend("native:ranks", SINGLE, 2, 64, is_native=True),
    ),
    "ranks_and_counts": (Backend("triton.order:ranks_and_counts", NARROW, most=1024),),
    "nearest": (
        Backend("triton.order:nearest", NARROW, most=1024),
        Backend("native:nearest", SINGLE, 2, 64, is_native=True),
    ),
    "nearest_and_counts": (Backend("triton.order:nearest_and_counts", NARROW, most=1024),),
    # Selection and top eigenvectors.
    "smallest": (Backend("triton.select:smallest", FLOATS, most=64),),
    "average_of_smallest": (Backend("triton.select:average_of_smallest", FLOATS, most=64),),
    "select_one_by_one": (
        Backend("triton.select:select_one_by_one", EXACT, 2, 1024),
        Backend("native:select_one_by_one", EXACT, 2, 1024, is_native=True),
    ),
    "leading_projections": (
        Backend("triton.eigen:leading_projections", EXACT, 2, 1024),
        Backend("native:leading_projections", EXACT, 2, 1024, is_native=True),
    ),
    # Groups.
    "in_order": (
        Backend("triton.scatter:in_order", NARROW, most=128),
        Backend("native:in_order", SINGLE, 4, is_native=True),
    ),
    "pair_sums": (Backend("native:pair_sums", SINGLE, 2, 9, is_native=True),),
    # Attacks.
    "moments": (Backend("triton.moments:moments", SINGLE, most=1024),),
    # Training. The size of windows and pooling is the number of results, which kernels count in 32
    # bits; that of convolutions the largest power of two that divides the channels.
    "add_relu": (Backend("triton.layers:add_relu", NARROW),),
    "add_up_windows": (Backend("triton.conv_windows:add_up_windows", NARROW, most=INT32),),
    "affine": (Backend("triton.layers:affine", NARROW),),
    "affine_pooled": (Backend("triton.layers:affine_pooled", NARROW),),
    "convolve": (Backend("triton.convolution:convolve", HALF, least=8),),
    "cut_windows": (Backend("triton.conv_windows:cut_windows", ANY, most=INT32),),
    "image_gradient": (Backend("triton.convolution:image_gradient", HALF, least=8),),
    "inner_gradient": (Backend("triton.layers:inner_gradient", NARROW),),
    "max_pool": (Backend("triton.pooling:max_pool", NARROW, most=INT32),),
    "norm_moments": (Backend("triton.layers:norm_moments", NARROW),),
    "relu_gradient": (Backend("triton.layers:relu_gradient", NARROW),),
    "take_step": (Backend("triton.sgd_step:take_step", SINGLE),),
    "weight_gradient": (Backend("triton.convolution:weight_gradient", HALF, least=8),),
    "write_changes": (Backend("triton.packing:write_changes", WIDE),),
}
"""By operation. The first row that takes the values is used."""


def backend(operation: str, values: Tensor, size: int = 1) -> Callable[..., Any] | None:
    """Return the faster form of an operation on such values; None: its plain form is the one."""
    if not (values.is_cuda or values.is_cpu):
        return None
    is_native = not (values.is_cuda or IS_INTERPRETED)
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
