"""Work on many n x n matrices on NVIDIA GPUs, one program of a Triton kernel per matrix.

`rules.bulyan` and `rules.distances` have the same in plain torch, which tests compare with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from outvote.ops import is_for_kernels, load_kernels

if TYPE_CHECKING:
    from outvote.axes import Pairs, PerClient

MOST_CLIENTS = 1024
# Up to here a kernel puts the others of a client in order, beyond it torch sorts them.
MOST_ORDERED = 128
# After so many steps of Lanczos' method it is looked at what has been found.
STEPS_AT_ONCE = 64
# Where the residual is this small against the eigenvalue, the eigenvector is found.
TOLERANCE = 1e-12


def _bulyan() -> Any:
    return load_kernels("outvote.ops.triton.bulyan")


def _leading() -> Any:
    return load_kernels("outvote.ops.triton.leading")


def can_work_on(matrices: Pairs) -> bool:
    """Return whether the kernels can work on these matrices."""
    return (
        is_for_kernels(matrices)
        and 2 <= matrices.shape[-1] <= MOST_CLIENTS
        and matrices.numel() > 0
        and _bulyan() is not None
    )


def select_one_by_one(squared_distances: Pairs, num_selected: int, num_byzantine: int) -> Tensor:
    """Return whom Krum selects, applied again and again to those who are left."""
    num_clients = squared_distances.shape[-1]
    far = squared_distances.double().reshape(-1, num_clients, num_clients).contiguous()
    is_left = torch.ones(far.shape[:-1], dtype=torch.int8, device=far.device)
    if num_clients <= MOST_ORDERED:
        order = torch.empty(far.shape, dtype=torch.uint8, device=far.device)
        _bulyan().order(far, order)
    else:
        others = far.clone()
        others.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
        order = others.argsort(dim=-1, stable=True)
    _bulyan().select_one_by_one(far, order, is_left, num_selected, num_byzantine)
    return (is_left == 0).view(squared_distances.shape[:-1])


def leading_projections(matrices: Pairs, start: PerClient) -> PerClient:
    """Return the top eigenvalue times the squared entries of its eigenvector.

    The matrices are symmetric, without negative eigenvalues, and their entries at most about 1.
    `start` has the numbers that Lanczos' method begins with.
    """
    num_rows = matrices.shape[-1]
    flat = matrices.double().reshape(-1, num_rows, num_rows).contiguous()
    vectors = flat.new_empty(len(flat), num_rows + 1, num_rows)
    vectors[:, 0] = _first_vector(flat, start.reshape(-1, num_rows))
    diagonal, beside, result = (torch.empty_like(flat[:, 0]) for _ in range(3))
    scratch = flat.new_empty(len(flat), 2, num_rows)
    is_done = torch.zeros(len(flat), dtype=torch.int8, device=flat.device)
    kernels, first = _leading(), 0
    for last in [*range(STEPS_AT_ONCE, num_rows, STEPS_AT_ONCE), num_rows]:
        kernels.lanczos(flat, vectors, diagonal, beside, is_done, (first, last))
        kernels.ritz(vectors, diagonal, beside, scratch, is_done, result, last, TOLERANCE)
        first = last
    return result.view(matrices.shape[:-1])


def _first_vector(matrices: Tensor, start: Tensor) -> Tensor:
    """Return a vector in the range of each matrix: numbers, more of the long rows, times it."""
    own = matrices.diagonal(dim1=-2, dim2=-1)
    longest = own.amax(dim=-1, keepdim=True).clamp(min=1e-290)
    weights = start * (1 + own / longest)
    vector = (matrices * weights.unsqueeze(-2)).sum(dim=-1)
    vector = vector / vector.abs().amax(dim=-1, keepdim=True).clamp(min=1e-290)
    unit: Tensor = vector / torch.linalg.vector_norm(vector, dim=-1, keepdim=True).clamp(min=1e-290)
    return unit
