"""When there are too many Byzantine clients to aggregate what strangers send.

Files, the Flower strategy and the aggregator for NVIDIA FLARE share this one definition. They keep
f as it was given, whatever is missing, late or malformed. A call of a rule is a researcher's: there
the rule's own limit holds, and gas lowers the number for the rule inside.
"""

import numpy as np

from outvote.errors import TooManyByzantine, check_kind
from outvote.rules.aggregate import num_from_fraction
from outvote.rules.rule import Rule, lowered_inside


def tolerated(rule: Rule, num_usable: int) -> int:
    """Return how many of so many usable clients may be Byzantine.

    They are a minority, and no rule inside must assume fewer than there are.
    """
    limit = min(rule.max_byzantine(num_usable), max(0, num_usable - 1) // 2)
    while lowered_inside(rule, limit, num_usable):
        limit -= 1
    return limit


def too_many(rule: Rule, num_byzantine: int, num_usable: int) -> TooManyByzantine | None:
    """Return the error for too few usable clients; None if there are enough."""
    limit = tolerated(rule, num_usable)
    if num_byzantine <= limit:
        return None
    return TooManyByzantine(str(rule), limit, num_usable, num_byzantine)


def check_assumed(
    rule: Rule, num_byzantine: int | None, byzantine_fraction: float | None, who: str
) -> None:
    """Raise unless a server's settings say how many of its clients, called `who`, may attack."""
    if num_byzantine is not None and byzantine_fraction is not None:
        raise ValueError(
            "num_byzantine and byzantine_fraction must not be given both, got "
            f"{num_byzantine} and {byzantine_fraction}; leave one out."
        )
    check_kind("num_byzantine", num_byzantine, int | None)
    check_kind("byzantine_fraction", byzantine_fraction, float | None)
    if num_byzantine is not None and num_byzantine < 0:
        raise ValueError(f"num_byzantine must be a whole number from 0 on, got {num_byzantine!r}.")
    if byzantine_fraction is not None:
        num_from_fraction(byzantine_fraction, 1)
    if num_byzantine is byzantine_fraction is None and rule.traits.uses_num_byzantine:
        raise ValueError(
            f"{rule.name} needs the number of Byzantine {who}; pass num_byzantine=, or "
            "byzantine_fraction= if it is unknown."
        )


def check_weighs(rule: Rule) -> None:
    """Raise unless a rule can weigh clients by the numbers of samples that they claim."""
    rows = np.random.default_rng(0).normal(size=(16, 4))
    own = rows[0] if rule.traits.needs_reference else None
    rule.inspect(rows, num_byzantine=0, sample_counts=range(1, 17), reference=own, seed=0)
