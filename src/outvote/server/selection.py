"""Which clients take part in a round: all with one chance, or suspicious ones less often.

The simulator and the Flower strategy share this: how scores of rounds become suspicions, how these
become weights, and how clients are drawn by weights.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar, final

import numpy as np

from outvote.errors import closest
from outvote.results.labels import outline
from outvote.scores import robust_z
from outvote.text import build, shortened, to_text

USUAL, OUTLIER = 2.0, 4.0
"""In robust standard deviations above the median of its round: up to the first a score does not
count, from the second on it counts fully."""
FEWEST = 3
"""Of two clients nobody is the outlier."""

Suspicions = Mapping[int, float]
"""From 0 to 1, for the clients that were ever scored; 0 for others."""


class Selection(ABC):
    """How the server samples the clients of a round."""

    name: ClassVar[str] = ""
    uses_scores: ClassVar[bool] = False

    @abstractmethod
    def weights(self, suspicions: Suspicions, clients: Sequence[int]) -> list[float] | None:
        """Return the weights of clients, as `draw` takes them; None: all are alike."""

    @abstractmethod
    def updated(self, suspicions: Suspicions, scores: Mapping[int, float]) -> Suspicions:
        """Return the suspicions after a round, from the scores of its clients.

        Clients that were not sampled keep theirs.
        """

    def __str__(self) -> str:
        """Return the text from which `make_selection` builds this one."""
        return to_text(self, Selection)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform(Selection):
    """Every client has the same chance in every round."""

    name: ClassVar[str] = "uniform"

    def weights(self, suspicions: Suspicions, clients: Sequence[int]) -> None:
        """Return None: all are alike."""

    def updated(self, suspicions: Suspicions, scores: Mapping[int, float]) -> Suspicions:
        """Return the same: nothing is remembered."""
        return suspicions


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ByScore(Selection):
    r"""Clients with high scores in earlier rounds are sampled less often, and never excluded.

    $$ s_i \leftarrow \mu s_i + (1 - \mu) e_i, \quad w_i = 1 - (1 - \phi) s_i $$

    with the evidence e of `evidence`, for the clients of the round. Others keep their s; it begins
    at 0. Of n clients m are drawn by the weights w, without replacement (`draw`).

    `floor` is phi: whatever its scores were, a client's chance to be sampled is at least
    floor * m / n. `memory` is mu: how much of a suspicion is left after one round without evidence.

    >>> by_score = ByScore(floor=0.2, memory=0.5)
    >>> after = by_score.updated({}, {0: 1.0, 1: 2.0, 2: 3.0, 3: 100.0})
    >>> after[0], after[3], by_score.weights(after, [0, 3])
    (0.0, 0.5, [1.0, 0.6])
    """

    name: ClassVar[str] = "by-score"
    uses_scores: ClassVar[bool] = True
    floor: float = 0.2
    memory: float = 0.8

    def __post_init__(self) -> None:
        """Check that both are shares."""
        if not 0 < self.floor <= 1:
            raise ValueError(
                "by-score: floor must be above 0 and at most 1, the least share of a client's "
                f"usual chance, got {self.floor}; no client can be left out for good."
            )
        if not 0 <= self.memory < 1:
            raise ValueError(f"by-score: memory must be from 0 to below 1, got {self.memory}.")

    def weights(self, suspicions: Suspicions, clients: Sequence[int]) -> list[float]:
        """Return weights from `floor` to 1."""
        return [1 - (1 - self.floor) * suspicions.get(client, 0.0) for client in clients]

    def updated(self, suspicions: Suspicions, scores: Mapping[int, float]) -> Suspicions:
        """Move the suspicions of the round's clients towards its evidence, where it has any."""
        found = zip(scores, evidence(list(scores.values())), strict=True)
        return {**suspicions} | {
            client: self.memory * suspicions.get(client, 0.0) + (1 - self.memory) * each
            for client, each in found
            if each is not None
        }


SELECTIONS: dict[str, type[Selection]] = {kind.name: kind for kind in (Uniform, ByScore)}


def make_selection(text: str | Selection) -> Selection:
    """Build a selection from text such as "by-score(floor=0.5)"; no file is ever loaded.

    >>> make_selection("by-score(floor=0.5)")
    ByScore(floor=0.5, memory=0.8)
    """
    if isinstance(text, Selection):
        return text
    if not isinstance(text, str):
        raise TypeError(f"selection is given as text or as an object, got {type(text).__name__}.")
    found = outline(text)
    if found.name not in SELECTIONS or found.inside:
        raise ValueError(
            f"unknown selection {shortened(text)!r}; {closest(found.name, SELECTIONS)}"
        )
    made: Selection = build(text, kind="selection", table=SELECTIONS, aliases={}, base=Selection)
    return made


def evidence(scores: Sequence[float]) -> list[float | None]:
    """Return how much each score of a round counts against its client, from 0 to 1.

    0 up to `USUAL` robust standard deviations above the median, 1 from `OUTLIER` on, and 1 for
    scores that are not finite. The scale is that of the round: ranks would have a worst client in
    every round, however near it is to the others. None: there is no scale, because scores are few,
    or most of them are equal.

    >>> [round(each, 2) for each in evidence([1.0, 2.0, 3.0, 4.0, 5.0, 10.0, float("inf")])]
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.46, 1.0]
    """
    is_finite = [isfinite(score) for score in scores]
    has_scale = sum(is_finite) >= FEWEST
    far = robust_z(np.array(scores, dtype=np.float64)) if has_scale else [None] * len(scores)
    return [
        (None if z is None else min(max((z - USUAL) / (OUTLIER - USUAL), 0.0), 1.0)) if ok else 1.0
        for z, ok in zip(far, is_finite, strict=True)
    ]


def draw(weights: Sequence[float], waits: Sequence[float], number: int) -> list[int]:
    """Return the rows of `number` clients drawn by weights, without replacement, ascending.

    `waits` are independent draws of the exponential distribution: a client comes after its wait
    divided by its weight, and the first are taken. It is the same as to draw one after the other
    by the weights of those left. A weight that is the share w of all others gives at least w
    times their chance: P(i among the first m) = 1 - E exp(-w T), with T the time of the m-th of
    the others, is concave in w, 0 at w = 0, and m / n at w = 1; smaller weights of others make T
    later.

    >>> draw([1.0, 1.0, 0.2], [0.3, 0.9, 0.2], 2)
    [0, 1]
    """
    times = [wait / weight for wait, weight in zip(waits, weights, strict=True)]
    return sorted(sorted(range(len(times)), key=times.__getitem__)[:number])
