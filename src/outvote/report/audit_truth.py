"""How well the rule and the ranking found the liars, where it is known who lied."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from outvote.report.audit import Audit
from outvote.report.audit_clients import ClientRecord


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """Precision and recall; None where nothing was to be found, or nothing was."""

    num_liars: int
    """How many liars took part at least once."""
    drop_precision: float | None
    """The share of what was dropped that liars had sent."""
    drop_recall: float | None
    """The share of what liars had sent that was dropped."""
    honest_kept: float | None
    """The share of what honest clients had sent that was used."""
    top_precision: float | None
    """The share of liars among the first `num_liars` of the ranking; their recall is the same."""


def detection(audit: Audit, records: Sequence[ClientRecord]) -> Detection | None:
    """Compare with the truth; None if it is not known."""
    if audit.is_byzantine is None:
        return None
    judged, refused = audit.is_judged, audit.is_refused
    lied, honest = judged & audit.is_byzantine, judged & ~audit.is_byzantine
    num_caught = int((refused & lied).sum())
    took_part = [each for each in records if each.num_judged]
    num_liars = sum(bool(each.is_byzantine) for each in took_part)
    top = took_part[:num_liars]
    return Detection(
        num_liars=num_liars,
        drop_precision=_share(num_caught, int(refused.sum())) if num_liars else None,
        drop_recall=_share(num_caught, int(lied.sum())),
        honest_kept=_share(int((honest & ~refused).sum()), int(honest.sum())),
        top_precision=_share(sum(bool(each.is_byzantine) for each in top), num_liars),
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
