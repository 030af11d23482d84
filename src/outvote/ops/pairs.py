"""Distances between clients: fast in float32, and where digits cancel it is said.

The Gram matrix K of the rows, taken relative to one central row, gives every distance that affine
rules need: ``D_ij = K_ii + K_jj - 2 K_ij``. Products are formed in the precision of the data; the
caller keeps TF32 off (`plain_torch`). A result that is small against the terms it was subtracted
from has lost its digits to cancellation: it is inexact, and the caller works it out again from the
values, in float64.

`columns` are ``[*batch, dim, clients]`` in any memory layout; a Gram matrix or a sum of differences
over all coordinates is the sum of those over pieces of them. `originals` has the first client that
is equal to each, ``[runs, clients]`` or by group: copies have the distances of what they copy, to
the last bit.
"""

from math import ceil, inf, prod

import torch
from torch import Tensor

from outvote.axes import Columns, Pairs, PerClient, PerCoordinate
from outvote.ops import order
from outvote.ops.door import backend
from outvote.ops.process import work_dtype

# Below this share of the subtracted terms a difference has lost too many digits.
CANCELLATION = {torch.float32: 1e-4, torch.float64: 1e-10}
# Sums of squared norms up to this do not overflow in float32.
FLOAT32_NORM = 1e30
# Squared norms and distances below this have lost digits in float32, or all of them.
SHORTEST_NORM = 1e-30
# Up to so many coordinates, plain differences are cheaper than a Gram matrix and its checks; with a
# kernel up to the second number.
FEW_COORDINATES, FEW_WITH_KERNEL = 8, 32
# On a CPU, so many differences of all pairs take less time than to start products and checks.
FEW_DIFFERENCES = 1 << 15
# From so many on, a mirrored quarter of the products pays for a second, smaller product.
MANY_CLIENTS, MANY_COORDINATES = 32, 256
# So many blocks of work keep every processor of a GPU busy to the end.
ENOUGH_BLOCKS = 1024
# Rows of a block, and coordinates below which a piece is not worth a block of its own.
BLOCK_ROWS, SHORTEST = 64, 2048
# More matrices than this keep a GPU busy by themselves.
MANY_MATRICES = 32


def medoids(columns: Columns) -> Tensor:
    """Return, for every run, the client whose median distance to the others is smallest.

    A sample of the coordinates is enough. A client who hides a huge value outside the sample can
    win; the differences that this makes inexact are recomputed, so it costs time and not precision.
    """
    rows = columns.mT.double()
    distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.median(dim=-1).values.argmin(dim=-1)


def of_client(columns: Columns, client: Tensor) -> Columns:
    """Return the column of one client per run (or per group), ``[*batch, dim, 1]``."""
    if client.numel() == 1:
        return columns.index_select(-1, client.flatten())
    index = client.view(*client.shape, *[1] * (columns.dim() - client.dim()))
    return columns.gather(-1, index.expand(*columns.shape[:-1], 1))


def gram(columns: Columns, centre: Tensor) -> Pairs:
    """Return the inner products of the clients relative to the central one.

    `centre` is a client per run, ``[runs]``, or per group. The result is float32, or float64, where
    values are or where sums of pieces were added up. It is infinite or not a number where it
    overflows.
    """
    if columns.shape[-2] == 0:
        raise ValueError("there is no coordinate to compare, the gradients are empty.")
    # A kernel for a CPU reads groups that lie with the clients side by side.
    are_groups = columns.dim() > 3 and columns.stride(-1) == 1
    kernel = backend("gram_of_groups" if are_groups else "gram", columns, columns.shape[-1])
    if kernel is not None:
        found: Tensor = kernel(columns, centre)
    else:
        values = columns.to(work_dtype(columns.dtype))
        found = _products_of(values - of_client(values, centre))
    return _without_underflow(found, columns, centre) if columns.is_cpu else found


def _without_underflow(products: Pairs, columns: Columns, centre: Tensor) -> Pairs:
    """Work out in float64 what is so short that its squares vanish in float32."""
    is_short = products.diagonal(dim1=-2, dim2=-1).amax(dim=-1) < SHORTEST_NORM
    if products.dtype == torch.float64 or not bool(is_short.any()):
        return products
    of_group = centre.view(*centre.shape, *[1] * (is_short.dim() - centre.dim()))
    result = products.double()
    result[is_short] = gram(columns[is_short].double(), of_group.expand_as(is_short)[is_short])
    return result


def _products_of(columns: Columns) -> Pairs:
    """Return the inner products of the clients; of many, a quarter of them as a mirror image.

    On a CPU that saves a sixth of the time of 50 clients.
    """
    *batch, num_coordinates, num_clients = columns.shape
    is_small = num_clients < MANY_CLIENTS or num_coordinates < MANY_COORDINATES
    if not columns.is_cpu:
        return long_products(columns.mT, columns.mT)
    if is_small:
        return torch.matmul(columns.mT, columns)
    half = num_clients // 2 + 1
    upper, lower = columns.mT[..., :half, :], columns.mT[..., half:, :]
    result = columns.new_empty(*batch, num_clients, num_clients)
    result[..., :half, :] = torch.matmul(upper, columns)
    result[..., half:, half:] = torch.matmul(lower, lower.mT)
    result[..., half:, :half] = result[..., :half, half:].mT
    return result


def gram_with(columns: Columns, centre: Tensor, point: PerCoordinate) -> Pairs:
    """Return the inner products of the clients and, last, a point, around the centre, float64."""
    values = columns.to(work_dtype(columns.dtype))
    middle = of_client(values, centre)
    own = point.to(values.dtype).unsqueeze(-1) - middle
    across = long_products((values - middle).mT, own.mT).double()
    itself = long_products(own.mT, own.mT).double()
    upper = torch.cat([gram(columns, centre).double(), across], dim=-1)
    return torch.cat([upper, torch.cat([across.mT, itself], dim=-1)], dim=-2)


def gram_from_distances(squared: Pairs, centre: Tensor) -> Pairs:
    """Return the inner products relative to the central client, from squared distances."""
    to_centre = of_client(squared, centre)
    return (to_centre + to_centre.mT - squared) / 2


def squared_distances(
    products: Pairs, dtype: torch.dtype, originals: Tensor | None = None
) -> tuple[Pairs, Tensor | None]:
    """Return the squared distances between all pairs of clients, from their inner products.

    `dtype` is what the products were worked out in. Also return a mask of the pairs above the
    diagonal whose distances are inexact, or None if all are exact; to tell, this waits for a GPU.
    """
    kernel = backend("squared_distances", products)
    if kernel is not None:
        result, inexact = kernel(products, CANCELLATION[dtype], originals)
        return result, inexact if bool(inexact.any()) else None
    result, inexact = _squared_distances(products, CANCELLATION[dtype])
    if originals is not None:
        result = copy_distances(result, originals)
        if inexact is not None:
            inexact &= ~_are_copies(originals, inexact)
    return result, inexact if inexact is not None and bool(inexact.any()) else None


def _squared_distances(products: Pairs, threshold: float) -> tuple[Pairs, Tensor | None]:
    norms = products.diagonal(dim1=-2, dim2=-1)
    longest = norms.amax(dim=-1)
    # Written so that what overflowed, and is not a number, is not small either.
    if not bool((longest <= FLOAT32_NORM).all()):
        products = products.double()
        norms = products.diagonal(dim1=-2, dim2=-1)
    left, right = norms.unsqueeze(-1), norms.unsqueeze(-2)
    # In an order of operations that makes it symmetric to the last bit: ties are settled by index.
    result = (left + right).sub_(products + products.mT)
    to_self = result.diagonal(dim1=-2, dim2=-1)
    to_self.fill_(inf)
    nearest = result.amin(dim=-1)
    to_self.zero_()
    is_fine = (nearest >= longest.unsqueeze(-1) * threshold) & (longest < inf).unsqueeze(-1)
    if bool(is_fine.all()):
        return result, None
    result.clamp_(min=0)
    # Written so that what overflowed, and is infinite or not a number, is inexact too.
    inexact = (result >= torch.maximum(left, right).mul_(threshold)) & (result < inf)
    return result, inexact.logical_not_().triu_(1)


def copy_distances(result: Pairs, originals: Tensor) -> Pairs:
    """Give copies of a client its own distances to the last bit: ties are settled by index."""
    if originals.dim() > 2:  # Every group has copies of its own, and what it is split into.
        axes = [1] * (result.dim() - 1 - originals.dim())
        own = originals.view(*originals.shape[:-1], *axes, originals.shape[-1])
        rows = result.gather(-2, own.unsqueeze(-1).expand(result.shape))
        return rows.gather(-1, own.unsqueeze(-2).expand(result.shape))
    for run, own in enumerate(originals.expand(len(result), -1)):
        copies = (own != torch.arange(len(own), device=own.device)).nonzero().flatten()
        result[run, ..., copies, :] = result[run, ..., own[copies], :]
        result[run, ..., :, copies] = result[run, ..., :, own[copies]]
    return result


def _are_copies(originals: Tensor, like: Tensor) -> Tensor:
    """Mark the pairs of equal rows, with as many axes as `like`."""
    pairs = originals.unsqueeze(-1) == originals.unsqueeze(-2)
    return pairs.view(*pairs.shape[:-2], *[1] * (like.dim() - pairs.dim()), *pairs.shape[-2:])


def sums_of_smallest_distances(
    products: Pairs, num_smallest: int, dtype: torch.dtype, originals: Tensor | None = None
) -> tuple[PerClient, bool]:
    """Return the sum of every client's smallest squared distances, 0 to itself among them.

    Also return whether all of the distances are exact; to tell, this waits for a GPU.
    """
    kernel = backend("sums_of_smallest_distances", products, products.shape[-1])
    if kernel is not None:
        sums, is_exact = kernel(products, num_smallest, CANCELLATION[dtype], originals)
        return sums, is_exact
    far, inexact = squared_distances(products, dtype, originals)
    return order.sum_of_smallest(far, num_smallest), inexact is None


def squared_distances_to_average(
    products: Pairs, weights: PerClient, dtype: torch.dtype, originals: Tensor | None = None
) -> tuple[PerClient, Tensor | None]:
    """Return how far every client is from the weighted average of all, squared, float64.

    Also return a mask of the groups with inexact distances, ``[*batch]``, or None if all are exact;
    to tell, this waits for a GPU.
    """
    kernel = backend("squared_distances_to_average", products, products.shape[-1])
    if kernel is not None:
        result, inexact = kernel(products, weights, CANCELLATION[dtype], originals)
        return result, inexact if bool(inexact.any()) else None
    products = products.double()
    along = torch.matmul(products, weights.unsqueeze(-1)).squeeze(-1)
    of_average = (weights * along).sum(dim=-1, keepdim=True)
    terms = products.diagonal(dim1=-2, dim2=-1) + of_average
    result = terms - 2 * along
    # Not a number where something overflowed, and then not exact.
    is_exact = result - terms * CANCELLATION[dtype] >= 0
    if bool(is_exact.all()):
        return result, None
    # An average of one client alone is that client: exactly 0.
    is_itself = weights == 1
    result = result.masked_fill_(is_itself, 0)
    inexact = ~(is_exact | is_itself).all(dim=-1)
    return result, inexact if bool(inexact.any()) else None


def are_few(shape: torch.Size, kind: Tensor) -> bool:
    """Return whether differences of such columns are cheaper than products and checks.

    `kind` is a tensor of the values' dtype and device.
    """
    num_coordinates, num_clients = shape[-2:]
    if num_coordinates <= FEW_COORDINATES:
        return True
    if kind.is_cpu and shape.numel() * num_clients <= FEW_DIFFERENCES:
        return True
    size = max(num_coordinates, num_clients)
    is_few = num_coordinates <= FEW_WITH_KERNEL
    return is_few and backend("pairwise_differences", kind, size) is not None


def pairwise_differences(columns: Columns) -> Pairs:
    """Return the squared distances between all pairs, by the differences, float64.

    For a few coordinates. Nothing cancels.
    """
    kernel = backend("pairwise_differences", columns, max(columns.shape[-2:]))
    if kernel is not None:
        found: Tensor = kernel(columns)
        return found
    if columns.shape[-2] == 0:
        raise ValueError("there is no coordinate to compare, the gradients are empty.")
    if columns.shape[-2] > FEW_COORDINATES:
        rows = columns.mT.double()
        return torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square_()
    first, *others = columns.double().unbind(dim=-2)
    total = (first.unsqueeze(-1) - first.unsqueeze(-2)).square_()
    for values in others:
        total += (values.unsqueeze(-1) - values.unsqueeze(-2)).square_()
    return total


def sums_of_smallest_differences(
    columns: Columns, num_smallest: int, largest_norm: float = inf
) -> PerClient:
    """Return the sum of every client's smallest squared distances, by the differences, float64.

    For a few coordinates. No client is longer than `largest_norm`; a kernel that knows that works
    in float32: in 32 coordinates a sum has a relative error of 3e-6 at most, unless clients that
    differ do so by less than 1e-36 of that norm.
    """
    kernel = backend("sums_of_smallest_differences", columns, max(columns.shape[-2:]))
    if kernel is not None:
        found: Tensor = kernel(columns, num_smallest, largest_norm)
        return found
    return order.sum_of_smallest(pairwise_differences(columns), num_smallest)


def differences_to_average(columns: Columns, weights: PerClient) -> PerClient:
    """Return how far every client is from the weighted average, by the differences, squared.

    In float64: nothing cancels.
    """
    kernel = backend("differences_to_average", columns, max(columns.shape[-2:]))
    if kernel is not None:
        found: Tensor = kernel(columns, weights)
        return found
    values = columns.double()
    return (values - torch.matmul(values, weights.unsqueeze(-1))).square_().sum(dim=-2)


def differences_of_pairs(columns: Columns, left: Tensor, right: Tensor) -> Tensor:
    """Return the squared distances of some pairs of clients, by the differences, float64.

    `left` and `right` are the same clients in the whole batch, ``[k]``; the result is
    ``[*batch, k]``.
    """
    if len(left) > columns.shape[-1] and columns.is_cpu:
        # All pairs, without the differences of the coordinates in memory.
        rows = columns.mT.double()
        far = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
        return far[..., left, right].square_()
    apart = columns.index_select(-1, left).double() - columns.index_select(-1, right)
    return apart.square_().sum(dim=-2)


def differences_of_entries(columns: Columns, entries: Tensor) -> Tensor:
    """Return the squared distances of single pairs ``[k, (*batch, left, right)]``, float64.

    In the order of ``inexact.nonzero()``; the result is ``[k]``.
    """
    *group, left, right = entries.unbind(dim=-1)
    rows = columns.mT
    return (rows[*group, left].double() - rows[*group, right]).square_().sum(dim=-1)


def long_products(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left @ right.mT``, ``[..., rows, dim]`` each, with sums of pieces in float64.

    A GPU is busy only if a few long rows are cut into many pieces. Asked for the products of 18
    rows of millions, its own library gives each matrix to one or a few of 132 processors, which
    takes a hundred times as long as reading the rows.
    """
    num_matrices, dim = prod(left.shape[:-2]), left.shape[-1]
    num_blocks = num_matrices * prod(ceil(x.shape[-2] / BLOCK_ROWS) for x in (left, right))
    if left.device.type == "cpu" or num_blocks == 0 or num_matrices > MANY_MATRICES:
        return torch.matmul(left, right.mT)
    num_pieces = min(dim // SHORTEST, ENOUGH_BLOCKS // num_blocks)
    return in_pieces(left, right, num_pieces) if num_pieces > 1 else torch.matmul(left, right.mT)


def in_pieces(left: Tensor, right: Tensor, num_pieces: int) -> Tensor:
    """Return ``left @ right.mT`` from the products of about so many pieces of the rows."""
    width = left.shape[-1] // num_pieces // 16 * 16 or left.shape[-1]
    whole = left.shape[-1] // width * width

    def cut(rows: Tensor) -> Tensor:
        pieces: Tensor = rows[..., :whole].unflatten(-1, (-1, width))
        return pieces.movedim(-2, -3)

    total = torch.matmul(cut(left), cut(right).mT).sum(dim=-3, dtype=torch.float64)
    if whole < left.shape[-1]:
        total += torch.matmul(left[..., whole:], right[..., whole:].mT)
    return total.to(left.dtype)
