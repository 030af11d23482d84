"""Which clients sent the same: colluding clients send copies, and these must tie exactly."""

import torch
from torch import Tensor
from torch.nn import functional as F

from outvote.axes import Rows

# Coordinates that rows of equal norm are compared in before all are.
NUM_COMPARED = 16


def find_originals(rows: Rows, norms: list[list[float]]) -> list[list[int]]:
    """Return, for each row of ``rows [runs, clients, dim]``, the first equal one of its run.

    Colluding clients send copies. To find them once is cheaper than group by group. A GPU is waited
    for once for all runs, not for every pair.
    """
    originals = [list(range(len(own))) for own in norms]
    left = _alike(rows, norms)
    while left:
        pairs = [(run, row, same[0]) for run, same in left for row in same[1:]]
        equal = [(rows[run, row] == rows[run, first]).all() for run, row, first in pairs]
        is_equal = dict(zip(pairs, torch.stack(equal).tolist(), strict=True))
        unequal = []
        for run, (first, *others) in left:
            for row in others:
                if is_equal[run, row, first]:
                    originals[run][row] = first
            rest = [row for row in others if not is_equal[run, row, first]]
            if len(rest) > 1:
                unequal.append((run, rest))
        left = unequal
    return originals


def _alike(rows: Rows, norms: list[list[float]]) -> list[tuple[int, list[int]]]:
    """Return the runs, and the rows of each, that are equal in norm and in some coordinates."""
    runs = [run for run, own in enumerate(norms) if len(set(own)) < len(own)]
    if not runs:
        return []
    # Rows of equal norm need not be equal: a gradient and its negative, for one.
    step = max(1, rows.shape[2] // NUM_COMPARED)
    samples = torch.stack([rows[run, :, ::step] for run in runs]).tolist()
    alike: dict[tuple[float, ...], list[int]] = {}
    for run, sample in zip(runs, samples, strict=True):
        for row, norm in enumerate(norms[run]):
            alike.setdefault((run, norm, *sample[row]), []).append(row)
    return [(int(kind[0]), same) for kind, same in alike.items() if len(same) > 1]


def equal_rows(matrices: Tensor) -> Tensor | None:
    """Return the first row equal to each of ``matrices [runs, rows, columns]``, if any are."""
    num_rows = matrices.shape[-2]
    labels = torch.stack([matrix.unique(dim=0, return_inverse=True)[1] for matrix in matrices])
    if bool((labels.amax(dim=-1) == num_rows - 1).all()):
        return None
    numbers = torch.arange(num_rows, device=labels.device).expand_as(labels)
    first = torch.full_like(labels, num_rows).scatter_reduce(-1, labels, numbers, "amin")
    return first.gather(-1, labels)


def equal_rows_of_groups(matrices: Tensor) -> Tensor | None:
    """Return the first row equal to each of ``matrices [runs, *groups, rows, columns]``, if any.

    For many small matrices, which `equal_rows` would take one by one. Of rows with numbers in the
    same columns only those that equal the first of them are found: all, where rows are averages of
    neighbours with given weights.
    """
    num_columns = matrices.shape[-1]
    marks = torch.randint(1 << 40, (num_columns,), generator=torch.Generator().manual_seed(0))
    # Sums of whole numbers, without rounding: rows with numbers in the same columns have one key.
    keys = (matrices != 0).double() @ marks.double().to(matrices.device)
    ordered, order = keys.sort(dim=-1, stable=True)
    is_next = ordered[..., 1:] == ordered[..., :-1]
    if not bool(is_next.any()):
        return None
    numbers = torch.arange(matrices.shape[-2], device=matrices.device)
    start = torch.where(F.pad(is_next, (1, 0)), 0, numbers).cummax(dim=-1).values
    first = torch.empty_like(order).scatter_(-1, order, order.gather(-1, start))
    *where, rows = (first != numbers).nonzero(as_tuple=True)
    like = first[*where, rows]
    is_equal = (matrices[*where, rows] == matrices[*where, like]).all(dim=-1)
    first[*where, rows] = torch.where(is_equal, like, rows)
    return first
