"""The one place that ranks scores: exact ties go to the lower index, whatever worked them out.

The same score worked out in two ways differs in its last bits. So each score is rounded to 40 of
its 53 significant bits before scores are compared: of its own, since one huge score must not make
ties of all others.
"""

import torch
from torch import Tensor

from outvote.axes import Pairs, PerClient
from outvote.ops.door import backend

# Half of the unit in the 40th significant bit of a float64, and the bits below that unit, as
# integers; native.c and triton/select.py round in the same way.
HALF_UNIT, DROPPED = 0x1000, 0x1FFF


def ranked(scores: Tensor) -> Tensor:
    """Round each score to 40 significant bits of its own, float64."""
    bits = scores.double().contiguous().view(torch.int64)
    return (bits + HALF_UNIT).bitwise_and_(~DROPPED).view(torch.float64)


def order(scores: PerClient) -> Tensor:
    """Return the clients, the smallest score first; of equal ones the lower index."""
    return ranked(scores).argsort(dim=-1, stable=True)


def smallest(scores: PerClient, num_smallest: int) -> Tensor:
    """Mark the clients with the smallest scores."""
    kernel = backend("smallest", scores, scores.shape[-1])
    if kernel is not None:
        found: Tensor = kernel(scores, num_smallest)
        return found
    first = order(scores)[..., :num_smallest]
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, first, value=True)


def average_of_smallest(scores: PerClient, num_smallest: int) -> PerClient:
    """Return equal weights, float64, for the clients with the smallest scores."""
    kernel = backend("average_of_smallest", scores, scores.shape[-1])
    if kernel is not None:
        found: Tensor = kernel(scores, num_smallest)
        return found
    first = order(scores)[..., :num_smallest]
    weights = torch.zeros_like(scores, dtype=torch.float64)
    return weights.scatter_(-1, first, value=1 / num_smallest)


def select_one_by_one(squared_distances: Pairs, num_selected: int, num_byzantine: int) -> Tensor:
    """Mark whom Krum selects, applied again and again to those who are left.

    The score of a client is the sum of its distances to the nearest of those left: all but
    `num_byzantine` + 2 of them, itself included, and one at least. There is at least
    one Byzantine client. Ties go to the lower index.
    """
    far = ranked(squared_distances)
    num_clients = far.shape[-1]
    kernel = backend("select_one_by_one", far, num_clients)
    if kernel is not None:
        found: Tensor = kernel(far, num_selected, num_byzantine)
        return found
    far.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
    far, who = far.sort(dim=-1)
    is_left = torch.ones(far.shape[:-1], dtype=torch.bool, device=far.device)
    for num_left in range(num_clients, num_clients - num_selected, -1):
        num_neighbours = max(1, num_left - num_byzantine - 2)
        counts = is_left.unsqueeze(-2).expand_as(who).gather(-1, who) & far.isfinite()
        counts &= counts.cumsum(dim=-1) <= num_neighbours
        scores = ranked(torch.where(counts, far, 0).sum(dim=-1))
        scores = scores.masked_fill(~is_left, torch.inf)
        is_left.scatter_(-1, scores.argmin(dim=-1, keepdim=True), value=False)
    return ~is_left
