"""A run in a few numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from outvote.results.schema import Round

NUM_LAST = 10


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The accuracies that papers print, and how many liars were believed."""

    best: float | None
    """The largest accuracy of all rounds."""
    final: float | None
    last_ten: float | None
    """The mean of the last ten accuracies."""
    kept_byzantine: float | None
    """The share of the liars sampled that had a share in the update."""


def summarise(rounds: Sequence[Round]) -> Summary:
    """Sum a run up; what cannot be told is None."""
    accuracies = [each.accuracy for each in rounds if each.accuracy is not None]
    last = accuracies[-NUM_LAST:]
    num_liars = sum(len(each.byzantine) for each in rounds)
    num_kept = sum(len(set(each.kept) & set(each.byzantine)) for each in rounds)
    return Summary(
        best=max(accuracies, default=None),
        final=last[-1] if last else None,
        last_ten=sum(last) / len(last) if last else None,
        kept_byzantine=num_kept / num_liars if num_liars else None,
    )
