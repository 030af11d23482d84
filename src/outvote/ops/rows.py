"""Operations that read whole rows: lengths, averages, distances to a vector, inner products.

`rows` are ``[*batch, clients, dim]`` and `columns` ``[*batch, dim, clients]`` in any memory layout.
Work is done in float32, or in float64 for float64 values.
"""

import torch
from torch import Tensor

from outvote.axes import Columns, PerClient, PerCoordinate, Rows
from outvote.ops.door import backend
from outvote.ops.pairs import long_products
from outvote.ops.process import work_dtype

# Values that are converted to float64 at once.
AT_ONCE = 1 << 26


def row_norms(rows: Rows) -> PerClient:
    """Return the Euclidean norms of the clients, float64.

    Equal rows have equal norms, to the last bit. A norm is infinite where the sum of the squares
    overflows in the working precision.
    """
    kernel = backend("row_norms", rows)
    if kernel is not None:
        found: Tensor = kernel(rows)
        return found
    norms: Tensor = torch.linalg.vector_norm(rows, dim=-1, dtype=work_dtype(rows.dtype))
    return norms.double()


def weighted_sum(rows: Rows, weights: PerClient) -> PerCoordinate:
    """Return the weighted sum of the clients, ``[*batch, dim]``, in the working precision.

    An average of the largest numbers may overflow by rounding.
    """
    kernel = backend("weighted_sum", rows)
    if kernel is not None:
        found: Tensor = kernel(rows, weights)
        return found
    work = work_dtype(rows.dtype)
    # Of one matrix per run, in half of the time that torch.matmul takes to look at the shapes.
    multiply = torch.bmm if rows.dim() == 3 else torch.matmul
    return multiply(weights.to(work).unsqueeze(-2), rows.to(work)).squeeze(-2)


def squared_distances_to_vector(columns: Columns, vector: PerCoordinate) -> PerClient:
    """Return how far every client is from a vector ``[*batch, dim]``, squared, float64."""
    kernel = backend("squared_distances_to_vector", columns, columns.shape[-1])
    if kernel is not None:
        found: Tensor = kernel(columns, vector)
        return found
    work = work_dtype(columns.dtype)
    apart = columns.to(work) - vector.to(work).unsqueeze(-1)
    found = apart.square_().sum(dim=-2).double()
    if work == torch.float64 or bool(found.isfinite().all()):
        return found
    return (columns.double() - vector.double().unsqueeze(-1)).square_().sum(dim=-2)


def inner_products(columns: Columns, vector: PerCoordinate) -> PerClient:
    """Return the inner product of every client with a vector ``[*batch, dim]``, float64."""
    total = columns.new_zeros(*columns.shape[:-2], columns.shape[-1], dtype=torch.float64)
    step = max(1, AT_ONCE * columns.shape[-2] // max(1, columns.numel()))
    for some, own in zip(columns.split(step, dim=-2), vector.split(step, dim=-1), strict=True):
        total += long_products(some.double().mT, own.double().unsqueeze(-2)).squeeze(-1)
    return total


def sign_counts(columns: Columns) -> Tensor:
    """Count the positive, zero and negative values of every client, ``[*batch, clients, 3]``."""
    signs = columns.sign()
    return torch.stack([(signs == sign).sum(dim=-2) for sign in (1, 0, -1)], dim=-1).double()


def sums_of_roots(squared: PerClient) -> PerClient:
    """Return the sums over the groups of the roots of ``squared [runs, groups, clients]``.

    Numbers below 0, which rounding leaves, count as 0.
    """
    kernel = backend("sums_of_roots", squared)
    if kernel is not None:
        found: Tensor = kernel(squared)
        return found
    return squared.clamp(min=0).sqrt_().sum(dim=-2)
