"""A sequential test: is a node outvoted more than an honest node with unusual data would be?

Being dropped alone is no evidence. A rule that drops f nodes in every round drops f honest ones if
nobody attacks, and always the same ones if their data are unusual. So a round counts against a node
only if the rule dropped it and its update was far from the others', see `relative_distances`.

The null hypothesis: given all that happened before, an honest node is dropped and far with a
probability of at most 1/2. Against it a test martingale bets: with the bet p, a round that counts
against the node multiplies the capital by 2 p, any other round by 2 (1 - p). The wealth is the mean
over some bets, and over the round at which betting begins: a node that turns Byzantine after many
honest rounds is found, too. Under the null hypothesis the wealth is a supermartingale that starts
at 1, so by Ville's inequality it ever reaches 1 / rate with a probability of at most `rate`.
Reference: Shafer, Shen, Vereshchagin and Vovk, Test martingales, Bayes factors and p-values, 2011.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

BETS = (0.6, 0.7, 0.8, 0.9, 0.99)
"""In what share of the rounds a Byzantine node may be dropped and far."""
LARGEST = 1e100
"""Where the wealth is capped, far beyond all thresholds."""
LARGEST_WEIGHT = 0.5
SMALLEST = 1e-300


@final
@dataclass(slots=True)
class SequentialTest:
    """The evidence against one node.

    >>> test = SequentialTest()
    >>> for _ in range(10):
    ...     test.add(is_against=True)
    >>> test.num_against, test.wealth > 100
    (10, True)
    """

    num_rounds: int = 0
    num_against: int = 0
    capitals: tuple[float, ...] = (0.0,) * len(BETS)
    """Of each bet, summed over the rounds at which betting began."""

    @classmethod
    def of(cls, num_rounds: Any, num_against: Any, capitals: Sequence[Any]) -> "SequentialTest":
        """Return a test that was stored; a ValueError if it is none."""
        found = tuple(min(LARGEST, float(each)) for each in capitals)
        if len(found) != len(BETS) or not all(each >= 0 for each in found):
            raise ValueError(f"a test must have {len(BETS)} capitals from 0 on")
        if not 0 <= int(num_against) <= int(num_rounds):
            raise ValueError("a test must have no more rounds against a node than rounds")
        return cls(int(num_rounds), int(num_against), found)

    def add(self, *, is_against: bool) -> None:
        """Add a round in which the rule got an update of the node."""
        self.num_rounds += 1
        self.num_against += is_against
        # Betting from round t on gets the share 1 / (t (t + 1)) of the capital; they sum to 1.
        share = 1 / (self.num_rounds * (self.num_rounds + 1))
        self.capitals = tuple(
            min(LARGEST, (capital + share) * 2 * (bet if is_against else 1 - bet))
            for bet, capital in zip(BETS, self.capitals, strict=True)
        )

    @property
    def wealth(self) -> float:
        """The evidence: at most 1 on average for an honest node, in any round."""
        not_yet_bet = 1 / (self.num_rounds + 1)
        return not_yet_bet + sum(self.capitals) / len(BETS)


def relative_distances(
    norms: Sequence[float],
    cosines: Sequence[float | None],
    weights: Sequence[float],
    update_norm: float,
) -> list[float] | None:
    """Return how far each update is from the average of the others, over the median distance.

    The distance to the aggregated update, divided by 1 - weight: a node that is kept is part of
    that update, and would seem closer. Fewer than half of the nodes cannot move the median beyond
    the distances of the others. None: the median is 0.

    >>> relative_distances([1.0, 1.0, 3.0], [0.0, 0.0, 0.0], [0.5, 0.5, 0.0], 0.0)
    [1.0, 1.0, 1.5]
    """
    lengths = np.asarray(norms, dtype=float)
    known = np.array([0.0 if cosine is None else cosine for cosine in cosines])
    with np.errstate(over="ignore", invalid="ignore"):
        # (a - b)^2 + 2 a b (1 - cosine), scaled: the square of a huge norm is not finite.
        scale = np.maximum(np.maximum(lengths, update_norm), SMALLEST)
        a, b = lengths / scale, update_norm / scale
        distances = scale * np.sqrt((a - b) ** 2 + 2 * a * b * (1 - known))
        distances = distances / (1 - np.clip(weights, 0, LARGEST_WEIGHT))
        middle = float(np.median(distances))
        if not middle > 0:
            return None
        return [float(each) for each in np.minimum(distances / middle, LARGEST)]
