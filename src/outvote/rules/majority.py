"""When there are too many Byzantine clients to aggregate what strangers send.

Files, the Flower strategy and the aggregator for NVIDIA FLARE share this one definition. They keep
f as it was given, whatever is missing, late or malformed. A call of a rule is a researcher's: there
the rule's own limit holds, and gas lowers the number for the rule inside.
"""

from outvote.errors import TooManyByzantine
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
