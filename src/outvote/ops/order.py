"""What is sorted: the values of every coordinate over the clients, and the scores of the clients.

Order statistics of a tile: `columns` are ``[*batch, dim, clients]`` in any memory layout.

Scores are ranked in one place: exact ties go to the lower index, whatever worked them out. The same
score worked out in two ways differs in its last bits, so each is rounded to 40 of its 53
significant bits before scores are compared: of its own, since one huge score must not make ties of
all others.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from outvote.axes import Columns, Pairs, PerClient, PerCoordinate
from outvote.ops.door import backend
from outvote.ops.process import work_dtype

Bounds = tuple[PerCoordinate, PerCoordinate]
"""The smallest and the largest of the values that a mean is of."""


def median_ranks(num_clients: int, even: str) -> tuple[int, int]:
    """Return the ranks whose mean is the median: the two middle ones, or the lower of them."""
    lower = (num_clients - 1) // 2
    return (lower, lower + 1) if even == "lower" else (lower, num_clients // 2 + 1)


def sum_of_smallest(values: Tensor, num_smallest: int) -> Tensor:
    """Return the sum of the smallest values along the last axis, float64."""
    kernel = backend("sum_of_smallest", values, values.shape[-1])
    if kernel is not None:
        found: Tensor = kernel(values, num_smallest)
        return found
    return sorted_clients(values)[..., :num_smallest].sum(dim=-1, dtype=torch.float64)


def sorted_clients(values: Tensor) -> Tensor:
    """Sort along the last axis: on a CPU numpy takes a fraction of the time that torch takes."""
    if values.device.type != "cpu":
        return values.sort(dim=-1).values
    return torch.from_numpy(np.sort(values.numpy(), axis=-1))


def mean_of_ranks(columns: Columns, first: int, last: int) -> PerCoordinate:
    """Return the mean of the sorted values `first` up to, not with, `last` of every coordinate."""
    kernel = backend("ranks", columns, columns.shape[-1])
    ranks = _ranks if kernel is None else kernel
    found: Found = ranks(columns, first, last, has_bounds=False)
    return found[0]


def values_at_ranks(columns: Columns, first: int, last: int) -> Bounds:
    """Return the first and the last of the sorted values that a mean is of."""
    _, low, high = _ranks(columns, first, last, has_bounds=True)
    return low, high


def mean_of_ranks_and_counts(
    columns: Columns, first: int, last: int
) -> tuple[PerCoordinate, PerClient]:
    """Return `mean_of_ranks`, and in how many coordinates each client's value entered."""
    kernel = backend("ranks_and_counts", columns, columns.shape[-1])
    if kernel is not None and columns.dim() == 3:
        found: tuple[PerCoordinate, PerClient] = kernel(columns, first, last)
        return found
    mean, low, high = _ranks(columns, first, last, has_bounds=True)
    return mean, counts_between(columns, low, high)


Found = tuple[PerCoordinate, PerCoordinate, PerCoordinate]
"""A mean of values, the smallest and the largest of them (anything if they were not asked for)."""


def _ranks(columns: Columns, first: int, last: int, *, has_bounds: bool) -> Found:
    kernel = backend("ranks", columns, columns.shape[-1])
    if kernel is not None:
        found: Found = kernel(columns, first, last, has_bounds=has_bounds)
        return found
    values = sorted_clients(columns.to(work_dtype(columns.dtype)))[..., first:last]
    low, high = values[..., 0], values[..., -1]
    # Rounding may carry the mean of equal values away from them.
    return torch.clamp(_mean(values, last - first), low, high), low, high


def _mean(values: Tensor, count: int) -> Tensor:
    """Return the sum over the last axis divided by a count; it may overflow only with the mean."""
    mean = values.sum(dim=-1, dtype=torch.float64) / count
    if values.dtype == torch.float64 and not bool(mean.isfinite().all()):
        mean = (values / count).sum(dim=-1)
    return mean.to(values.dtype)


@dataclass(frozen=True, slots=True)
class Among:
    """Some of the clients, as many in every run and group, marked in ``[*batch, clients]``."""

    is_among: Tensor
    num: int

    @property
    def index(self) -> Tensor:
        """The indices of these clients, ``[*batch, num]``."""
        return self.is_among.nonzero()[:, -1].view(*self.is_among.shape[:-1], self.num)


def mean_nearest_median(
    columns: Columns, num_nearest: int, even: str = "mean", among: Among | None = None
) -> PerCoordinate:
    """Return the mean of the values nearest to the median of every coordinate.

    Of two equally near the one of the lower client index is taken. With `among`, only the values of
    those clients count.
    """
    return _nearest(columns, num_nearest, even, among, has_bounds=False)[0]


def bounds_nearest_median(
    columns: Columns, num_nearest: int, even: str = "mean", among: Among | None = None
) -> Bounds:
    """Return the smallest and the largest of the values nearest to the median."""
    _, low, high = _nearest(columns, num_nearest, even, among, has_bounds=True)
    return low, high


def mean_nearest_median_and_counts(
    columns: Columns, num_nearest: int, even: str = "mean", among: Among | None = None
) -> tuple[PerCoordinate, PerClient]:
    """Return `mean_nearest_median`, and in how many coordinates each client's value entered.

    The number of a client that is not in `among` is 0.
    """
    kernel = backend("nearest_and_counts", columns, columns.shape[-1])
    if kernel is not None and columns.dim() == 3:
        found: tuple[PerCoordinate, PerClient] = kernel(columns, num_nearest, even, among)
        return found
    mean, low, high = _nearest(columns, num_nearest, even, among, has_bounds=True)
    counts = counts_between(columns, low, high)
    return mean, counts if among is None else counts * among.is_among


def _nearest(
    columns: Columns, num_nearest: int, even: str, among: Among | None, *, has_bounds: bool
) -> Found:
    kernel = backend("nearest", columns, columns.shape[-1])
    if kernel is not None:
        found: Found = kernel(columns, num_nearest, even, among, has_bounds=has_bounds)
        return found
    values = columns.to(work_dtype(columns.dtype))
    if among is not None:
        values = of_clients(values, among.index)
    return nearest_values(values, num_nearest, even)


def of_clients(columns: Columns, index: Tensor) -> Columns:
    """Return the values of some clients per run and group, ``index [*batch, k]``."""
    index = index.unsqueeze(-2).expand(*columns.shape[:-1], index.shape[-1])
    return columns.gather(-1, index)


def nearest_values(values: Columns, num_nearest: int, even: str) -> Found:
    """Rank the values by how far they are from the median, and take the first."""
    ranked = sorted_clients(values)
    first, last = median_ranks(values.shape[-1], even)
    # The median as the two values around it: their mean would be rounded, differences are not.
    below, above = ranked[..., first, None], ranked[..., last - 1, None]
    extreme = torch.maximum(ranked[..., -1:].abs(), ranked[..., :1].abs())
    # Twice a difference of numbers near the largest float would overflow.
    is_extreme = extreme > torch.finfo(values.dtype).max / 16
    scale = torch.where(is_extreme, 0.25, 1.0).to(values.dtype)
    far = (values * scale - below * scale) + (values * scale - above * scale)
    order = far.abs_().argsort(dim=-1, stable=True)
    taken = values.gather(-1, order[..., :num_nearest])
    low, high = taken.amin(dim=-1), taken.amax(dim=-1)
    return torch.clamp(_mean(taken, num_nearest), low, high), low, high


def counts_between(columns: Columns, low: PerCoordinate, high: PerCoordinate) -> PerClient:
    """Return, per client, in how many coordinates its value is between two bounds, float64."""
    entered = (columns >= low.unsqueeze(-1)) & (columns <= high.unsqueeze(-1))
    return entered.sum(dim=-2).double()


Portions = Callable[[Tensor, Tensor], Tensor]
"""Of values ``[..., dim, clients]`` and weights ``[..., 1, clients]`` that sum to 1."""
ROUNDING = 1e-12
# What is left of the weight at least, so that an average is of something.
LEAST_LEFT = 1e-9
# Values at once: positions and portions take eight bytes each.
AT_ONCE = 1 << 24


def weighted_reduction(
    columns: Columns, client_weights: PerClient, portions: Portions
) -> tuple[PerCoordinate, PerClient]:
    """Average every coordinate with the portions of its values: clients do not count alike.

    Also return in how many coordinates each client's value entered. The weights
    ``[*batch, clients]`` need not sum to 1. Plain torch on every device, in parts: positions and
    portions take eight bytes for each value.
    """
    weights = (client_weights / client_weights.sum(dim=-1, keepdim=True)).unsqueeze(-2)
    step = max(1, AT_ONCE * columns.shape[-2] // max(1, columns.numel()))
    found = [_reduced(part, weights, portions) for part in columns.split(step, dim=-2)]
    vectors, counts = zip(*found, strict=True)
    return torch.cat(vectors, dim=-1), torch.stack(counts).sum(dim=0)


def _reduced(
    columns: Columns, weights: Tensor, portions: Portions
) -> tuple[PerCoordinate, PerClient]:
    values = columns.double()
    entered = portions(values, weights)
    entered = entered / entered.sum(dim=-1, keepdim=True)
    is_in = entered > 0
    mean = (values * entered).sum(dim=-1)
    # Rounding may carry the mean of equal values away from them.
    low = values.masked_fill(~is_in, torch.inf).amin(dim=-1)
    high = values.masked_fill(~is_in, -torch.inf).amax(dim=-1)
    work = work_dtype(columns.dtype)
    return mean.clamp(min=low, max=high).to(work), is_in.sum(dim=-2).double()


def median_portions(even: str) -> Portions:
    """Return all the weight to the value in the middle, or half of it to each of two."""

    def portions(values: Tensor, weights: Tensor) -> Tensor:
        order = values.argsort(dim=-1, stable=True)
        low, high = _middle(_in_order(weights, order), even)
        ranked = torch.zeros_like(values)
        ranked.scatter_add_(-1, low, torch.full_like(low, 0.5, dtype=values.dtype))
        ranked.scatter_add_(-1, high, torch.full_like(high, 0.5, dtype=values.dtype))
        return torch.zeros_like(values).scatter_(-1, order, ranked)

    return portions


def trimmed_portions(num_trimmed: int) -> Portions:
    """Cut off, at either end, the most weight that so many clients can have."""

    def portions(values: Tensor, weights: Tensor) -> Tensor:
        order = values.argsort(dim=-1, stable=True)
        own = _in_order(weights, order)
        cut = _heaviest(weights, num_trimmed).clamp(max=(1 - LEAST_LEFT) / 2)
        upto = own.cumsum(dim=-1)
        left = torch.minimum(upto, 1 - cut) - torch.maximum(upto - own, cut)
        return torch.zeros_like(values).scatter_(-1, order, _without_rounding(left, own))

    return portions


def nearest_portions(num_left_out: int, even: str = "mean") -> Portions:
    """Leave out, of the values farthest from the median, the most weight of so many clients."""

    def portions(values: Tensor, weights: Tensor) -> Tensor:
        ranked = values.argsort(dim=-1, stable=True)
        low, high = _middle(_in_order(weights, ranked), even)
        in_order = values.gather(-1, ranked)
        # As the two values around the median: their mean would be rounded.
        far = (values - in_order.gather(-1, low)) + (values - in_order.gather(-1, high))
        order = far.abs().argsort(dim=-1, stable=True)
        own = _in_order(weights, order)
        upto = own.cumsum(dim=-1)
        wanted = (1 - _heaviest(weights, num_left_out)).clamp(min=LEAST_LEFT)
        left = torch.minimum(upto, wanted) - (upto - own)
        return torch.zeros_like(values).scatter_(-1, order, _without_rounding(left, own))

    return portions


def _in_order(weights: Tensor, order: Tensor) -> Tensor:
    return weights.expand(order.shape).gather(-1, order)


def _middle(ranked_weights: Tensor, even: str) -> tuple[Tensor, Tensor]:
    """Return the ranks where half of the weight is reached, and where it is exceeded."""
    upto = ranked_weights.cumsum(dim=-1)
    last = ranked_weights.shape[-1] - 1
    low = (upto < 0.5 - ROUNDING).sum(dim=-1, keepdim=True).clamp(max=last)
    high = (upto <= 0.5 + ROUNDING).sum(dim=-1, keepdim=True).clamp(max=last)
    return low, (low if even == "lower" else high)


def _heaviest(weights: Tensor, number: int) -> Tensor:
    """Return the most weight that so many clients have together, ``[..., 1, 1]``."""
    number = min(number, weights.shape[-1])
    return weights.topk(number, dim=-1).values.sum(dim=-1, keepdim=True)


def _without_rounding(left: Tensor, own: Tensor) -> Tensor:
    """Return portions that are not negative; what rounding alone has left is 0."""
    return left.masked_fill(left <= ROUNDING * own, 0)


# Half of the unit in the 40th significant bit of a float64, and the bits below that unit, as
# integers; native.c and triton/select.py round in the same way.
HALF_UNIT, DROPPED = 0x1000, 0x1FFF


def rounded_score(scores: Tensor) -> Tensor:
    """Round each score to 40 significant bits of its own, float64."""
    bits = scores.double().contiguous().view(torch.int64)
    return (bits + HALF_UNIT).bitwise_and_(~DROPPED).view(torch.float64)


def clients_by_score(scores: PerClient) -> Tensor:
    """Return the clients, the smallest score first; of equal ones the lower index."""
    return rounded_score(scores).argsort(dim=-1, stable=True)


def smallest(scores: PerClient, num_smallest: int) -> Tensor:
    """Mark the clients with the smallest scores."""
    kernel = backend("smallest", scores, scores.shape[-1])
    if kernel is not None:
        found: Tensor = kernel(scores, num_smallest)
        return found
    first = clients_by_score(scores)[..., :num_smallest]
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, first, value=True)


def average_of_smallest(scores: PerClient, num_smallest: int) -> PerClient:
    """Return equal weights, float64, for the clients with the smallest scores."""
    kernel = backend("average_of_smallest", scores, scores.shape[-1])
    if kernel is not None:
        found: Tensor = kernel(scores, num_smallest)
        return found
    first = clients_by_score(scores)[..., :num_smallest]
    weights = torch.zeros_like(scores, dtype=torch.float64)
    return weights.scatter_(-1, first, value=1 / num_smallest)


def select_one_by_one(squared_distances: Pairs, num_selected: int, num_byzantine: int) -> Tensor:
    """Mark whom Krum selects, applied again and again to those who are left.

    The score of a client is the sum of its distances to the nearest of those left: all but
    `num_byzantine` + 2 of them, itself included, and one at least. There is at least
    one Byzantine client. Ties go to the lower index.
    """
    far = rounded_score(squared_distances)
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
        scores = rounded_score(torch.where(counts, far, 0).sum(dim=-1))
        scores = scores.masked_fill(~is_left, torch.inf)
        is_left.scatter_(-1, scores.argmin(dim=-1, keepdim=True), value=False)
    return ~is_left
