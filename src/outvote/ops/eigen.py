"""How far each row reaches along the top direction, for many small matrices of inner products."""

import torch
from torch import Tensor

from outvote.axes import Pairs, PerClient
from outvote.ops.door import backend
from outvote.seeding import RandomStream

# A projection below this share of the row's own squared norm is rounding.
NEGLIGIBLE = 2.0**-40
# Eigenvalues that are closer than this count as equal.
ALIKE = 1e-12
TINY = 1e-290


def leading_projections(matrices: Pairs, scale: Tensor, stream: RandomStream) -> PerClient:
    """Return the squared projection of each row on the top direction of all, times a scale.

    `matrices` are the inner products of the rows: symmetric, without negative eigenvalues, their
    largest entry about 1 or all of them 0. With the top eigenvalue and its eigenvector v, of length
    1, the squared projection of row i is the eigenvalue times v_i squared. One that is negligible
    beside the row itself is 0.

    Several eigenvalues may be equally large. Then there are many top directions, and a vector that
    is drawn for each run decides: the one nearest to it is taken. Gradients that hide the top
    direction can only be made by somebody who knows that vector. All backends begin with it.
    """
    start = stream.fold_in("lanczos").signed_sizes(matrices.shape[-1], matrices.device)
    start = start.view(len(start), *[1] * (matrices.dim() - 3), -1).expand(matrices.shape[:-1])
    own = matrices.diagonal(dim1=-2, dim2=-1)
    # Long rows get more weight, as the top direction is likely to be near theirs.
    start = start * (1 + own / own.amax(dim=-1, keepdim=True).clamp(min=TINY))
    kernel = backend("leading_projections", matrices, matrices.shape[-1])
    if kernel is not None:
        found = kernel(matrices, start)
    else:
        found = _by_decomposition(matrices, start)
    projections: PerClient = found.masked_fill(found < own * NEGLIGIBLE, 0) * scale
    return projections


def _by_decomposition(matrices: Pairs, start: PerClient) -> PerClient:
    values, vectors = torch.linalg.eigh(matrices)
    top = values[..., -1:].clamp(min=0)
    along = (vectors * start.unsqueeze(-1)).sum(dim=-2)
    along = torch.where(values >= top * (1 - ALIKE), along, 0)
    vector = (vectors * along.unsqueeze(-2)).sum(dim=-1)
    squares = vector.square()
    found: PerClient = top * squares / squares.sum(dim=-1, keepdim=True).clamp(min=TINY)
    return found
