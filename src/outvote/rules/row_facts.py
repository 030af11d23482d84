"""What every rule needs to know about the rows: norms, which are finite, which are copies.

A GPU is waited for to know them. Some rules do not wait: they take the rows to be usual, work on,
and look at the end whether that was right. Where the rows of the last call were not, as under an
attack of copies, they wait: it is faster than to compute twice, and the result is the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import pack
from threading import local

import torch
from torch import Tensor

from outvote.axes import Rows
from outvote.lazy import lazy
from outvote.ops import group_kernels
from outvote.ops.distances import CancellationCheck, find_originals, row_norms
from outvote.ops.group_kernels import SAFE_NORM
from outvote.ops.memory import listed_later
from outvote.receive import finite_rows
from outvote.rules.rule import Rule, Wrapper, is_ours

# Below this norm of the central client, squares underflow in float32: float64 is used.
SMALLEST_NORM = 1e-10
# Up to here one program of a kernel compares the norms of all pairs.
MOST_CLIENTS = 64
# Rules of this library that take any values: they loop a fixed number of times, and use no index
# that is worked out from values. With others, values that are not finite could stop a GPU.
TAKE_ANY_VALUES = frozenset({"gas", "krum", "multi-krum", "rfa"})


class _Last(local):
    """What this thread saw in its last call."""

    were_usual = True


_LAST = _Last()


@dataclass(frozen=True, slots=True)
class RowFacts:
    """What every rule needs to know about the rows of all clients, by run."""

    norms: list[list[float]]
    is_finite: list[list[bool]]
    originals: list[list[int]]
    """The first row of the run that is equal to each."""

    @classmethod
    def of_usual(cls, num_clients: int) -> "RowFacts":
        """Return those of one run of `UsualRows`, whose norms are not known yet: any will do."""
        return cls([[1.0] * num_clients], [[True] * num_clients], [list(range(num_clients))])

    @classmethod
    def from_norms(cls, gradients: Rows, norms: list[float]) -> "RowFacts":
        """Find out the rest about ``gradients [runs, clients, dim]``, given the norms of all."""
        num_runs, num_clients = gradients.shape[:2]
        is_finite = finite_rows(gradients.flatten(0, 1), norms)
        starts = [run * num_clients for run in range(num_runs)]
        of_runs = [norms[start : start + num_clients] for start in starts]
        return cls(
            norms=of_runs,
            is_finite=[is_finite[start : start + num_clients] for start in starts],
            originals=find_originals(gradients, of_runs),
        )

    def of(self, runs: Sequence[int]) -> "RowFacts":
        """Return those of some runs."""
        return RowFacts(
            [self.norms[k] for k in runs],
            [self.is_finite[k] for k in runs],
            [self.originals[k] for k in runs],
        )


def row_facts(gradients: Rows) -> RowFacts:
    """Look at ``gradients [runs, clients, dim]``: once for all rules, as a GPU is waited for."""
    return row_facts_later(gradients)()


def row_facts_later(gradients: Rows) -> Callable[[], RowFacts]:
    """Start to look at gradients; a GPU is waited for when the result is called."""
    measured = listed_later(row_norms(gradients.flatten(0, 1)))
    return lambda: RowFacts.from_norms(gradients, measured())


class UsualRows:
    """One run of rows that are taken to be finite, of different norms, and neither huge nor tiny.

    A GPU works on while it finds out whether they are.
    """

    def __init__(self, squares: Tensor) -> None:
        """Take the sums of the squares of pieces of the rows, ``[pieces, clients]``."""
        self._on_device, self.centre = group_kernels.lengths(squares, SMALLEST_NORM, SAFE_NORM)
        self._num_clients = squares.shape[1]
        self._fetched: Callable[[], list[float]] | None = None

    def new_check(self) -> CancellationCheck:
        """Return a check of distances whose count is fetched together with the lengths."""
        count = self._on_device[-1:].view(torch.int32)[:1]
        # By its bits: as a float64 a count is denormal, which a thread may take for 0.
        return CancellationCheck(
            count.device, count, lambda: pack("d", self._lengths[-1]) != bytes(8)
        )

    def fetch(self) -> None:
        """Start to fetch what was found, as nothing more is counted; what is queued now goes on."""
        self._fetched = self._fetched or listed_later(self._on_device)

    @lazy
    def _lengths(self) -> list[float]:
        self.fetch()
        assert self._fetched is not None
        return self._fetched()

    @property
    def norms(self) -> list[float]:
        """The norms of the rows, whatever they are; waits for a GPU."""
        return self._lengths[: self._num_clients]

    def are_usual(self) -> bool:
        """Wait for a GPU, and return whether the rows are what they were taken for."""
        _LAST.were_usual = self._lengths[self._num_clients] == 0
        return _LAST.were_usual

    def largest_norm(self) -> float:
        """Return the norm of the longest row; waits for a GPU."""
        return self._longest

    @lazy
    def _longest(self) -> float:
        # Fetched on its own: behind the lengths, inexact distances are still counted.
        return max(listed_later(self._on_device)()[: self._num_clients])


def are_looked_at_later(rule: Rule, gradients: Rows) -> bool:
    """Return whether a rule takes gradients to be usual until a GPU has looked at them."""
    num_runs, num_clients, dim = gradients.shape
    return (
        num_runs == 1
        and 0 < num_clients <= MOST_CLIENTS
        and dim > 0
        and group_kernels.can_add(gradients)
        and _takes_any_values(rule)
        and _LAST.were_usual
    )


def remember(facts: RowFacts) -> None:
    """Let the next call of this thread know whether the rows of one run were usual."""
    if len(facts.norms) == 1 and facts.norms[0]:
        norms = sorted(facts.norms[0])
        _LAST.were_usual = (
            all(norm < SAFE_NORM for norm in norms)
            and len(set(norms)) == len(norms)
            and norms[(len(norms) - 1) // 2] >= SMALLEST_NORM
        )


def _takes_any_values(rule: Rule) -> bool:
    if rule.name not in TAKE_ANY_VALUES or not is_ours(rule):
        return False
    return not isinstance(rule, Wrapper) or _takes_any_values(rule.rule)
