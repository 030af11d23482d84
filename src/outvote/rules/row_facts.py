"""What every rule needs to know about the rows: norms, which are finite, which are copies."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outvote.axes import Rows
from outvote.ops.rows import row_norms
from outvote.rules.values import Stream

# The square of a larger float64 is not finite, so a distance to it could not be computed.
LARGEST = 1e120
# Squares of twice this are finite in float32; of norms below the other one they underflow.
SAFE_NORM, SMALLEST_NORM = 1e18, 1e-10
# Coordinates that rows of equal norm are compared in before all are.
NUM_COMPARED = 16


@dataclass(frozen=True, slots=True)
class RowFacts:
    """What every rule needs to know about the rows of all clients, by run."""

    norms: list[list[float]]
    is_finite: list[list[bool]]
    originals: list[list[int]]
    """The first row of the run that is equal to each."""

    def of(self, runs: Sequence[int]) -> "RowFacts":
        """Return those of some runs."""
        return RowFacts(
            [self.norms[k] for k in runs],
            [self.is_finite[k] for k in runs],
            [self.originals[k] for k in runs],
        )


def row_facts(gradients: "Rows | Stream") -> RowFacts:
    """Look at ``gradients [runs, clients, dim]``: once for all rules, as a GPU is waited for."""
    if isinstance(gradients, Stream):
        return _of_stream(gradients)
    norms = row_norms(gradients).tolist()
    largest = min(LARGEST, torch.finfo(gradients.dtype).max)
    # A norm may overflow although all numbers are fine: look at such rows one number at a time.
    is_finite = [
        [
            norm <= largest or bool((gradients[run, row].abs() <= largest).all())
            for row, norm in enumerate(own)
        ]
        for run, own in enumerate(norms)
    ]
    originals = [
        list(range(len(own))) if len(set(own)) == len(own) else find_originals(rows, own)
        for rows, own in zip(gradients, norms, strict=True)
    ]
    return RowFacts(norms, is_finite, originals)


def find_originals(rows: Tensor, norms: list[float]) -> list[int]:
    """Return, for each of ``rows [clients, dim]``, the first equal one.

    Colluding clients send copies. To find them once is cheaper than group by group.
    """
    # Rows of equal norm need not be equal: a gradient and its negative, for one.
    sample = rows[:, :: max(1, rows.shape[1] // NUM_COMPARED)].tolist()
    alike: dict[tuple[float, ...], list[int]] = {}
    for row, norm in enumerate(norms):
        alike.setdefault((norm, *sample[row]), []).append(row)
    originals = list(range(len(norms)))
    while pairs := [(row, same[0]) for same in alike.values() for row in same[1:]]:
        equal = torch.stack([(rows[row] == rows[first]).all() for row, first in pairs]).tolist()
        unequal = []
        for (row, first), is_equal in zip(pairs, equal, strict=True):
            if is_equal:
                originals[row] = first
            else:
                unequal.append(row)
        alike = {key: [row for row in same if row in unequal] for key, same in alike.items()}
    return originals


def central_client(norms: list[float]) -> int:
    """Return a client of median norm: no difference from it cancels because it is long."""
    return sorted(range(len(norms)), key=norms.__getitem__)[(len(norms) - 1) // 2]


def are_wide(norms: list[float]) -> bool:
    """Return whether squares overflow in float32, or vanish: distances then take float64."""
    return max(norms) >= SAFE_NORM or norms[central_client(norms)] < SMALLEST_NORM


def _of_stream(stream: Stream) -> RowFacts:
    """Look at the rows of a stream in one pass; in one more if some may be copies."""
    squares = stream.total(lambda tile: row_norms(tile.mT).square())[0]
    norms = squares.sqrt().tolist()
    numbers = range(len(norms))
    alike = [(k, row) for row in numbers for k in range(row) if norms[k] == norms[row]]
    originals = list(numbers)
    if alike:
        first, second = (torch.tensor(side) for side in zip(*alike, strict=True))
        is_unequal = stream.total(
            lambda tile: (tile[0][:, first] != tile[0][:, second]).any(dim=0)
        ).tolist()
        for (k, row), unequal in zip(alike, is_unequal, strict=True):
            if not unequal:
                originals[row] = min(originals[row], k)
    return RowFacts([norms], [[norm <= LARGEST for norm in norms]], [originals])
