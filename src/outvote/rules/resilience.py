"""The largest error of a rule: the constants of (f, lambda)-resilience.

A rule is (f, lambda)-resilient if, for every n - f of the n clients, its result is at most lambda
times their diameter away from their mean. No rule has less than f / (n - f).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Literal, NamedTuple, final

from outvote.errors import check_kind
from outvote.rules.bulyan import Bulyan
from outvote.rules.gas import GAS
from outvote.rules.geometric_median import GeometricMedian
from outvote.rules.groups import BY_LAYER
from outvote.rules.krum import Krum, MultiKrum
from outvote.rules.mda import MDA
from outvote.rules.meamed import MeaMed
from outvote.rules.median import Median
from outvote.rules.rule import Rule
from outvote.rules.rule_spec import make_rule
from outvote.rules.trimmed_mean import TrimmedMean

Kind = Literal["published", "derived", "none"]
Constant = Callable[[int, int, int | None], float]
"""Of the numbers of clients, of Byzantine ones among them, and of coordinates (None: any)."""


@final
@dataclass(frozen=True, slots=True)
class Resilience:
    """The constant lambda of a rule, and where it comes from."""

    constant: float | None
    """None: no constant is known here."""
    kind: Kind
    """ "published" (Farhadkhani et al., ICML 2022), "derived" (proved for this library, see
    docs/concepts/theory.md), or "none"."""


NOT_KNOWN = Resilience(None, "none")


def resilience(
    rule: Rule | str, num_clients: int, num_byzantine: int, dim: int | None = None
) -> Resilience:
    """Return lambda: how far a rule can be from the mean of any n - f clients, in diameters.

    `dim` is the number of coordinates; without it, the constant holds for any number. A rule has
    no constant above the f that it tolerates. With other parameters it is another rule, for which
    none is known. The derivations are in docs/concepts/theory.md. For rules without a constant,
    `outvote.testing.worst_case` searches for a lower bound.

    >>> resilience("trimmed-mean", num_clients=10, num_byzantine=2, dim=1)
    Resilience(constant=0.25, kind='published')
    >>> resilience("rfa", num_clients=10, num_byzantine=2)
    Resilience(constant=None, kind='none')
    """
    rule = make_rule(rule)
    counts = {"num_clients": (num_clients, 1), "num_byzantine": (num_byzantine, 0), "dim": (dim, 1)}
    for name, (value, least) in counts.items():
        if value is not None:
            _check_count(name, value, least)
    if isinstance(rule, GAS):
        return _of_gas(rule, num_clients, num_byzantine, dim)
    known = CONSTANTS.get(type(rule))
    if known is None or rule != type(rule)():
        return NOT_KNOWN
    if num_byzantine > rule.max_byzantine(num_clients) or num_clients < known.least_clients:
        return NOT_KNOWN
    return Resilience(known.constant(num_clients, num_byzantine, dim), known.kind)


def _check_count(name: str, value: int, least: int) -> None:
    check_kind(name, value, int)
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}.")


def _of_gas(gas: GAS, n: int, f: int, dim: int | None) -> Resilience:
    """Return the constant that follows from that of the rule inside, see `certificate`."""
    num_groups = gas.num_groups if dim is None else min(gas.num_groups, dim)
    inside = resilience(gas.rule, n, f, None if dim is None else ceil(dim / num_groups))
    if inside.constant is None or gas.split in BY_LAYER:  # Groups are as wide as layers.
        return NOT_KNOWN
    constant = f / (n - f) * (1 + (1 + 2 * inside.constant) * _sum_of_diameters(n - f, num_groups))
    return Resilience(constant, "derived")


def _sum_of_diameters(num_honest: int, num_groups: int) -> float:
    """Return how many diameters those of the groups add up to at most.

    Each is at most the whole, and by Cauchy's inequality the sum is at most the root of the number
    of groups times that of the sum of squares.
    """
    return min(num_groups, sqrt(num_groups * _sum_of_squares(num_honest)))


def _sum_of_squares(num_honest: int) -> float:
    """Return how many squared diameters the squares of all groups add up to at most.

    Either a group's is at most that of all pairs, or it is at most four times the squared
    distances to the mean, which add up to (m - 1) / 2 squared diameters.
    """
    return min(2 * (num_honest - 1), num_honest * (num_honest - 1) / 2)


def _spread(num_honest: int, dim: int | None) -> float:
    """Return how much a coordinate-wise rule loses: honest coordinates need not fit together."""
    most = 2 * sqrt(num_honest)
    return most if dim is None else min(most, sqrt(dim))


def _mda(n: int, f: int, dim: int | None) -> float:
    del dim
    return 2 * f / (n - f)


def _trimmed_mean(n: int, f: int, dim: int | None) -> float:
    return f / (n - f) * _spread(n - f, dim)


def _meamed(n: int, f: int, dim: int | None) -> float:
    return 2 * f / (n - f) * _spread(n - f, dim)


def _median(n: int, f: int, dim: int | None) -> float:
    return n / (2 * (n - f)) * _spread(n - f, dim)


def _geometric_median(n: int, f: int, dim: int | None) -> float:
    del dim
    return 1 + (n - f) / sqrt(n * (n - 2 * f))


def _krum(n: int, f: int, dim: int | None) -> float:
    """Return the constant of Krum for n - f - 2 neighbours; the published one is for n - f.

    An honest client's score is at most (n - f - 2) times the squared diameter, so that of a client
    that is selected is no larger. At least n - 2f - 1 of its neighbours are honest, hence one of
    them is nearer than sqrt((n - f - 2) / (n - 2f - 1)) diameters.
    """
    del dim
    return 1 + sqrt((n - f - 2) / (n - 2 * f - 1))


def _multi_krum(n: int, f: int, dim: int | None) -> float:
    return f / (n - f) * (1 + _krum(n, f, dim))


def _bulyan(n: int, f: int, dim: int | None) -> float:
    """Return the constant of Bulyan, whatever Krum selects.

    On a coordinate where S has the range w, the median of the n - 2f selected clients is within
    the range, because at most f of them are outside S. The last step leaves out 2f of them, hence
    at least one of S, which is within w of the median: so are the n - 4f nearest, and they are
    within 2w of the mean of S. If b <= f of these are outside S, the others lack 3f + b clients of
    S, each within w of its mean. The distance is at most (3f + b + 2b) w / (n - 4f); it is also at
    most (n - 4f - b + 2b) w / (n - 4f).
    """
    spread = sqrt(_sum_of_squares(n - f)) if f else 0.0
    spread = spread if dim is None else min(spread, sqrt(dim))
    return min(6 * f, n - 3 * f) / (n - 4 * f) * spread


@final
class Known(NamedTuple):
    """A constant, where it comes from, and how few clients it holds for."""

    constant: Constant
    kind: Kind
    least_clients: int = 1


CONSTANTS: dict[type[Rule], Known] = {
    MDA: Known(_mda, "published"),
    TrimmedMean: Known(_trimmed_mean, "published"),
    MeaMed: Known(_meamed, "published"),
    Median: Known(_median, "published"),
    GeometricMedian: Known(_geometric_median, "published"),
    # Fewer clients have fewer neighbours than the derivation counts.
    Krum: Known(_krum, "derived", least_clients=3),
    MultiKrum: Known(_multi_krum, "derived", least_clients=3),
    Bulyan: Known(_bulyan, "derived"),
}
