"""Paired differences: values of the same seeds, their mean, and intervals around it."""

from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import NormalDist, fmean
from typing import Literal, NamedTuple

import numpy as np

BySeed = dict[int, float]
"""A value, or a difference, for each seed."""
MeanOver = Literal["seed", "setting"]
# Student's t, 97.5 %, for 1 to 30 degrees of freedom; beyond that 1.96 + 2.4 / df is close enough.
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
     2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
     2.052, 2.048, 2.045, 2.042)  # fmt: skip
NUM_RESAMPLES = 10_000
FEW = 5
"""Fewer values decide nothing: their interval covers the truth less often than it should."""


class Interval(NamedTuple):
    """A mean difference and its 95 % bootstrap interval; no interval where there is one value."""

    mean: float
    low: float | None
    high: float | None
    num: int
    unit: MeanOver
    """What a value is: a seed (its mean over the settings), or a setting of the only seed."""

    @property
    def side(self) -> int:
        """1 if the whole interval is above zero, -1 if it is below, else 0; 0 for few values."""
        if self.low is None or self.high is None or self.num < FEW:
            return 0
        return (self.low > 0) - (self.high < 0)


def shared(cells: Sequence[BySeed]) -> list[BySeed]:
    """Return the values of the seeds that all cells have.

    >>> shared([{0: 1.0, 1: 2.0}, {1: 5.0, 2: 6.0}])
    [{1: 2.0}, {1: 5.0}]
    """
    seeds = set.intersection(*map(set, cells)) if cells else set()
    return [{seed: cell[seed] for seed in sorted(seeds)} for cell in cells]


def independent(cells: Iterable[BySeed]) -> tuple[list[float], MeanOver]:
    """Return the values that a mean over cells is taken of, and what each of them is.

    Where all cells share two seeds or more, a value is a seed's mean over the cells: seeds are
    independent, cells of one seed are not. With one seed, a value is a cell.
    """
    known = [cell for cell in cells if cell]
    common = shared(known)
    seeds = list(common[0]) if common else []
    is_over_seeds = len(seeds) > 1
    by_seed = [[cell[seed] for cell in common] for seed in seeds]
    of_cells = [list(cell.values()) for cell in known]
    # Rounded far below what is printed: equal values have no spread.
    values = [round(fmean(each), 9) for each in (by_seed if is_over_seeds else of_cells)]
    return values, "seed" if is_over_seeds else "setting"


def t_quantile(num_values: int) -> float:
    """Return the factor of a 95 % interval of the mean of so many values, at least two."""
    df = num_values - 1
    return T[df - 1] if df <= len(T) else 1.96 + 2.4 / df


def bootstrap(cells: Iterable[BySeed]) -> Interval | None:
    """Return the mean over cells and seeds with a bootstrap interval; None if there is no value.

    The interval is the expanded percentile interval of Hesterberg (The American Statistician,
    2015): the plain one is too narrow for few values. The same values give the same interval.

    >>> bootstrap([{0: 1.0, 1: 2.0, 2: 3.0}])
    Interval(mean=2.0, low=1.0, high=3.0, num=3, unit='seed')
    """
    values, unit = independent(cells)
    num = len(values)
    if num < 2:
        return Interval(values[0], None, None, num, unit) if values else None
    tail = NormalDist().cdf(-sqrt(num / (num - 1)) * t_quantile(num))
    drawn = np.random.default_rng(0).integers(num, size=(NUM_RESAMPLES, num))
    means = np.asarray(values)[drawn].mean(axis=1)
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(fmean(values), float(low), float(high), num, unit)


def most_coverage(num_values: int) -> float:
    """Return the share of cases in which an interval between so many values can be right.

    No bootstrap interval reaches beyond the smallest and the largest value, and all values are on
    one side of their true median with a probability of 2 / 2^n.

    >>> [most_coverage(number) for number in (2, 3, 5)]
    [0.5, 0.75, 0.9375]
    """
    return 1 - 2.0 ** (1 - num_values)
