"""One round on the server: contributions of sites -> updates -> rule -> model and audit line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from outvote.nvflare.server_model import ServerModel
from outvote.results.audit_folder import now
from outvote.results.audit_log import AuditRound, ClientRecord
from outvote.rules.aggregate import one_round
from outvote.rules.majority import too_many
from outvote.rules.rule import Rule
from outvote.rules.verdict import Verdict
from outvote.server.replies import (
    ANSWERED_TWICE,
    NO_REPLY,
    NOT_A_MODEL,
    NOT_FINITE,
    Malformed,
    applied_nevertheless,
    is_number,
    measure_cosines,
    measure_rows,
    needed_count,
    norm_of,
    why_rule_failed,
    why_too_few,
    with_update,
    without_update,
)

UNKNOWN_MODEL = "the server's model is unknown; give the workflow a persistor"
NOT_ARRIVED = "no contribution of it arrived"


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contribution:
    """What a site sent and can be used."""

    row: Tensor
    """The weights that were sent, minus the model."""
    statistics: tuple[Tensor, ...]
    is_difference: bool
    norm: float
    count: float
    """How many steps the site claims to have trained; 1 if counts are ignored."""
    metrics: Mapping[str, Any]


@final
@dataclass(slots=True, kw_only=True, eq=False)
class SiteRound:
    """The sites of a round, as their contributions arrive."""

    number: int
    model: ServerModel | None
    asked: set[str] = field(default_factory=set)
    usable: dict[str, Contribution] = field(default_factory=dict)
    malformed: dict[str, str] = field(default_factory=dict)
    late: dict[str, str] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    is_over: bool = False

    @property
    def num_asked(self) -> int:
        """How many sites got the model, as far as is known."""
        return len({*self.asked, *self.usable, *self.malformed, *self.unread})

    def add(
        self,
        site: str,
        sent: object,
        *,
        is_difference: bool,
        metrics: Mapping[str, Any],
        counts: tuple[Mapping[str, Any], str] | None,
    ) -> str:
        """Add what a site sent; return why it cannot be used, or ""."""
        if self.model is None:
            self.unread[site] = UNKNOWN_MODEL  # No fault of the site.
            return UNKNOWN_MODEL
        if site in self.usable or site in self.malformed:
            return self.refuse(site, ANSWERED_TWICE)
        try:
            row, norm, statistics = _read(self.model, sent, is_difference=is_difference)
            count = 1.0 if counts is None else needed_count(*counts)
        except Malformed as fault:
            return self.refuse(site, str(fault))
        self.usable[site] = Contribution(
            row=row,
            statistics=statistics,
            is_difference=is_difference,
            norm=norm,
            count=count,
            metrics=metrics,
        )
        return ""

    def refuse(self, site: str, reason: str) -> str:
        """Count a site as Byzantine; return why."""
        self.usable.pop(site, None)
        self.malformed[site] = reason
        return reason


def _read(
    model: ServerModel, sent: object, *, is_difference: bool
) -> tuple[Tensor, float, tuple[Tensor, ...]]:
    """Return the update of a site, its norm and its statistics, or raise Malformed."""
    if not isinstance(sent, Mapping):
        raise Malformed("it sent no arrays")
    row, statistics = model.update_of(sent, is_difference=is_difference)
    (norm,), (is_fine,) = measure_rows(row.unsqueeze(0))
    if not is_fine or not all(bool(each.isfinite().all()) for each in statistics):
        raise Malformed(NOT_FINITE)
    return row, norm, statistics


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SiteResult:
    """A round that is over."""

    arrays: Mapping[str, Tensor] | None
    """The model after the round; None: it stays as it was."""
    state: Any
    """Of the rule."""
    audit: AuditRound


def finish_round(
    rule: Rule,
    sites: SiteRound,
    *,
    num_byzantine: int,
    lowers: bool,
    seed: int | None,
    use_counts: bool,
    state: Any,
) -> SiteResult:
    """Aggregate the contributions; keep the model if they are too few, or if the rule fails."""
    # In the order of the names: a result must not depend on who was the fastest.
    usable = {site: sites.usable[site] for site in sorted(sites.usable)}
    rows = torch.stack([each.row for each in usable.values()]) if usable else torch.empty(0)
    verdict, arrays, reason = None, None, NO_REPLY if sites.model is not None else UNKNOWN_MODEL
    fault = too_many(rule, num_byzantine, len(usable))
    if usable and fault is not None:
        reason = why_too_few(fault, "sites")
    if usable and sites.model is not None and (fault is None or lowers):
        try:
            verdict = one_round(
                rule,
                rows,
                num_byzantine=num_byzantine,
                when_too_many="lower",
                seed=seed,
                clients=list(usable),
                sample_counts=[each.count for each in usable.values()] if use_counts else None,
                state=state if rule.traits.has_state else None,
                round=sites.number,
                model=sites.model.vector if rule.traits.needs_model else None,
                layer_sizes=sites.model.layer_sizes,
            ).verdict()
        except Exception as error:  # noqa: BLE001  (a round without an update, and why)
            reason = why_rule_failed(error)
        else:
            nevertheless = f"{reason}; {applied_nevertheless(verdict.base_num_byzantine)}"
            reason = "" if fault is None else nevertheless
            arrays = sites.model.moved(verdict.update, _medians(list(usable.values())))
            reason = reason if arrays is not None else NOT_A_MODEL
    audit = AuditRound(
        round=sites.number,
        time=now(),
        num_byzantine=num_byzantine if verdict is None else verdict.num_byzantine,
        is_updated=arrays is not None,
        reason=reason,
        update_norm=norm_of(verdict.update) if verdict is not None and arrays is not None else None,
        seed=None if verdict is None else verdict.seed,
        clients=_clients(sites, usable, rows, verdict),
    )
    after = state if verdict is None or arrays is None else verdict.state
    return SiteResult(arrays=arrays, state=after, audit=audit)


def median_metrics(contributions: Sequence[Contribution]) -> dict[str, float]:
    """Return the lower median of each number that more than half of the sites measured."""
    by_name: dict[str, list[float]] = {}
    for each in contributions:
        for name, value in each.metrics.items():
            if is_number(value):
                by_name.setdefault(str(name), []).append(float(value))
    return {
        name: sorted(values)[(len(values) - 1) // 2]
        for name, values in by_name.items()
        if 2 * len(values) > len(contributions)
    }


def _medians(contributions: Sequence[Contribution]) -> list[Tensor]:
    by_array = zip(*(each.statistics for each in contributions), strict=True)
    # The lower of two: always a value that was sent.
    middle = (len(contributions) - 1) // 2
    return [torch.stack(part).sort(dim=0).values[middle] for part in by_array]


def _clients(
    sites: SiteRound, usable: Mapping[str, Contribution], rows: Tensor, verdict: Verdict | None
) -> tuple[ClientRecord, ...]:
    """Return the audit entries of all sites."""
    norms = [each.norm for each in usable.values()]
    cosines: Sequence[float | None] = [None] * len(norms)
    if verdict is not None:
        cosines = measure_cosines(rows, verdict.update, norms)
    heard = {*sites.usable, *sites.malformed, *sites.late, *sites.unread}
    in_time = {*sites.usable, *sites.malformed}
    return (
        *with_update(list(usable), verdict, norms=norms, cosines=cosines),
        *without_update(
            malformed=sites.malformed,
            error=sites.unread,
            late={site: why for site, why in sites.late.items() if site not in in_time},
            missing=dict.fromkeys(sites.asked - heard, NOT_ARRIVED),
        ),
    )
