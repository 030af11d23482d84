"""The largest error of a rule: the constants of (f, lambda)-resilience.

A rule is (f, lambda)-resilient if, for every n - f of the n clients, its result is at most lambda
times their diameter away from their mean. No rule has less than f / (n - f).
"""

from collections.abc import Callable
from math import sqrt

from outvote.rules.geometric_median import GeometricMedian
from outvote.rules.krum import Krum, MultiKrum
from outvote.rules.mda import MDA
from outvote.rules.meamed import MeaMed
from outvote.rules.median import Median
from outvote.rules.rule import Rule
from outvote.rules.trimmed_mean import TrimmedMean

Constant = Callable[[int, int, int], float]
"""Of the numbers of clients, of Byzantine ones among them, and of coordinates."""


def resilience(rule: Rule, num_clients: int, num_byzantine: int, dim: int) -> float | None:
    """Return the constant of a rule; None: it has none, or none is known.

    The published ones (Farhadkhani et al., ICML 2022) are those of MDA, trimmed mean, MeaMed,
    median and the exact geometric median. Those of Krum and Multi-Krum are for n - f - 2
    neighbours, which is one or two fewer than the published ones are for:

    An honest client's score is at most (n - f - 2) times the squared diameter, so that of a client
    that is selected is no larger. At least n - 2f - 1 of its neighbours are honest, hence one of
    them is nearer than sqrt((n - f - 2) / (n - 2f - 1)) diameters.

    >>> resilience(TrimmedMean(), num_clients=10, num_byzantine=2, dim=1)
    0.25
    """
    constant = CONSTANTS.get(type(rule))
    if constant is None or rule != type(rule)():
        return None  # With other parameters it is another rule.
    if num_byzantine > rule.max_byzantine(num_clients) or num_clients < LEAST.get(type(rule), 1):
        return None
    return constant(num_clients, num_byzantine, dim)


def _spread(num_honest: int, dim: int) -> float:
    """Return how much a coordinate-wise rule loses: honest coordinates need not fit together."""
    return min(2 * sqrt(num_honest), sqrt(dim))


def _mda(n: int, f: int, dim: int) -> float:
    del dim
    return 2 * f / (n - f)


def _trimmed_mean(n: int, f: int, dim: int) -> float:
    return f / (n - f) * _spread(n - f, dim)


def _meamed(n: int, f: int, dim: int) -> float:
    return 2 * f / (n - f) * _spread(n - f, dim)


def _median(n: int, f: int, dim: int) -> float:
    return n / (2 * (n - f)) * _spread(n - f, dim)


def _geometric_median(n: int, f: int, dim: int) -> float:
    del dim
    return 1 + (n - f) / sqrt(n * (n - 2 * f))


def _krum(n: int, f: int, dim: int) -> float:
    del dim
    return 1 + sqrt((n - f - 2) / (n - 2 * f - 1))


def _multi_krum(n: int, f: int, dim: int) -> float:
    return f / (n - f) * (1 + _krum(n, f, dim))


CONSTANTS: dict[type[Rule], Constant] = {
    MDA: _mda,
    TrimmedMean: _trimmed_mean,
    MeaMed: _meamed,
    Median: _median,
    GeometricMedian: _geometric_median,
    Krum: _krum,
    MultiKrum: _multi_krum,
}
# Fewer clients have fewer neighbours than the derivation counts.
LEAST: dict[type[Rule], int] = {Krum: 3, MultiKrum: 3}
