"""One round on the server: replies -> updates -> rule -> optimiser -> model and audit line."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from logging import getLogger
from math import inf
from typing import Any, final

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord
from torch import Tensor

from outvote.files.streaming import StreamingAggregator
from outvote.flower.model_record import SentModel
from outvote.flower.node_metrics import average_metrics, metrics_by, num_distrusted
from outvote.flower.node_sampling import NodeSample, derive_seed
from outvote.flower.reply_checks import NodeUpdates, read_updates
from outvote.flower.reply_collection import sort_replies
from outvote.flower.sequential_test import relative_distances
from outvote.flower.server_state import ServerState
from outvote.flower.settings import Settings
from outvote.results.audit_folder import now
from outvote.results.audit_log import AuditRound, ClientRecord
from outvote.rules.aggregate import one_round
from outvote.rules.majority import too_many
from outvote.rules.verdict import Verdict
from outvote.server.replies import (
    NO_REPLY,
    NOT_A_MODEL,
    applied_nevertheless,
    blames,
    finite,
    lower_median,
    measure_cosines,
    norm_of,
    why_rule_failed,
    why_too_few,
    with_update,
    without_update,
)
from outvote.server.step import direction

LOG = getLogger("flwr")


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundRequest:
    """A round whose messages were sent."""

    round: int
    sent: SentModel
    messages: Sequence[Message]
    sample: NodeSample


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundResult:
    """A round that is over."""

    model: ArrayRecord | None
    """None: it stays as it was."""
    metrics: MetricRecord | None
    audit: AuditRound
    missing: Sequence[int]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decision:
    """The verdict of the rule on a round, or why there is none."""

    verdict: Verdict | None
    """None: the model is kept."""
    num_byzantine: int
    """How many Byzantine nodes the rule assumed."""
    reason: str = ""
    """Why the model is kept, or the number of Byzantine nodes was lowered."""
    cosines: Sequence[float | None] | None = None
    """Of the updates to the aggregated one, where they were streamed."""

    @property
    def blames(self) -> bool:
        """Whether being dropped is an offence."""
        return self.verdict is not None and blames(self.verdict.kept, len(self.verdict.clients))


def finish_round(
    settings: Settings, state: ServerState, request: RoundRequest, replies: Iterable[Message]
) -> RoundResult:
    """Aggregate the replies of a round, and update the server's state."""
    sorted_ = sort_replies(request.messages, replies)
    key, use_counts = settings.weighted_by_key, settings.use_num_examples
    updates = read_updates(
        request.sent, sorted_.contents, key, use_counts=use_counts, max_bytes=settings.max_bytes
    )
    decision = decide(settings, state, request, updates)
    model = _apply_update(settings, state, request, updates, decision)
    state.round = request.round
    state.model = request.sent.record if model is None else model
    malformed = {**sorted_.malformed, **updates.malformed}
    measures = _measure(updates, decision)
    nodes = {message.metadata.dst_node_id for message in request.messages}
    offenders = [node for node in malformed if node in nodes]
    verdicts = _verdicts(settings, updates, decision, measures)
    state.exclusions.record(request.round, offenders, verdicts)
    scores = _scores(updates, decision.verdict) | dict.fromkeys(offenders, inf)
    state.suspicions = settings.selection.updated(state.suspicions, scores)
    if settings.train_metrics_aggr_fn is not None:
        usable = [sorted_.contents[node] for node in updates.replies]
        metrics = metrics_by(settings, "train_metrics_aggr_fn", usable)
    else:
        counts = [reply.count for reply in updates.replies.values()]
        metrics = average_metrics(
            [reply.metrics for reply in updates.replies.values()],
            num_distrusted(settings, decision.num_byzantine, len(counts)),
            key,
            counts,
        )
    clients = [
        *with_update(
            [str(node) for node in updates.replies],
            decision.verdict,
            norms=updates.norms,
            cosines=measures.cosines,
            distances=measures.distances,
            notes=[reply.note for reply in updates.replies.values()],
        ),
        *without_update(
            malformed=malformed,
            error=sorted_.errors,
            late=sorted_.late,
            missing=dict.fromkeys(sorted_.missing, "it did not answer in time"),
            excluded=request.sample.excluded,
        ),
    ]
    audit = _audit(request, decision, clients, is_updated=model is not None)
    return RoundResult(model=model, metrics=metrics, audit=audit, missing=sorted_.missing)


def decide(
    settings: Settings, state: ServerState, request: RoundRequest, updates: NodeUpdates
) -> Decision:
    """Apply the rule to the updates; keep the model if they are too few, or if the rule fails."""
    num_byzantine = request.sample.num_byzantine
    if not updates.replies:
        return Decision(verdict=None, num_byzantine=num_byzantine, reason=NO_REPLY)
    fault = too_many(settings.rule, num_byzantine, len(updates.replies))
    why = "" if fault is None else why_too_few(fault, "nodes")
    if fault is not None and settings.when_too_many == "keep":
        return Decision(verdict=None, num_byzantine=num_byzantine, reason=why)
    reference = None
    if settings.rule.traits.needs_reference and settings.reference is not None:
        # Outside of the try: a fault of the server's own training is to be seen at once.
        trained = settings.reference(request.round, request.sent.record)
        reference = request.sent.update_to(trained)
    cosines = None
    try:
        if updates.rows is None:
            verdict, cosines = _stream(settings, request, updates)
        else:
            verdict = _aggregate(settings, state, request, updates, reference)
    except Exception as error:
        LOG.debug("The rule failed in round %d:", request.round, exc_info=True)
        reason = why_rule_failed(error)
        return Decision(verdict=None, num_byzantine=num_byzantine, reason=reason)
    return Decision(
        verdict=verdict,
        num_byzantine=verdict.num_byzantine,
        reason=why and f"{why}; {applied_nevertheless(verdict.base_num_byzantine)}",
        cosines=cosines,
    )


def _aggregate(
    settings: Settings,
    state: ServerState,
    request: RoundRequest,
    updates: NodeUpdates,
    reference: Tensor | None,
) -> Verdict:
    """Call the rule; nothing else in this package does, but `_stream`."""
    rule, sent = settings.rule, request.sent
    done = one_round(
        rule,
        updates.rows,
        **_options(settings, request, updates),
        reference=reference,
        state=state.rule_state if rule.traits.has_state else None,
        round=request.round,
        model=torch.from_numpy(sent.vector) if rule.traits.needs_model else None,
        layer_sizes=sent.layer_sizes,
    )
    return done.verdict()


def _stream(
    settings: Settings, request: RoundRequest, updates: NodeUpdates
) -> tuple[Verdict, list[float | None]]:
    """Let the rule work on the replies, some coordinates at a time; return the cosines too."""
    aggregator = StreamingAggregator(
        settings.rule,
        updates.sources,
        max_memory=settings.max_memory,
        **_options(settings, request, updates),
    )
    verdict = aggregator.verdict()
    update = torch.from_numpy(np.zeros_like(request.sent.vector))
    for piece, vector in aggregator.update():
        update[piece] = vector
    return replace(verdict, update=update), [finite(each) for each in aggregator.cosines.tolist()]


def _options(settings: Settings, request: RoundRequest, updates: NodeUpdates) -> dict[str, Any]:
    """Return what the rule is given about a round, however it gets the updates."""
    seed, counts = settings.seed, None
    if settings.use_num_examples:
        counts = [reply.count for reply in updates.replies.values()]
    return {
        "num_byzantine": request.sample.num_byzantine,
        "when_too_many": "lower",
        "seed": None if seed is None else derive_seed(seed, f"rule {request.round}"),
        "clients": [str(node) for node in updates.replies],
        "sample_counts": counts,
    }


def _apply_update(
    settings: Settings,
    state: ServerState,
    request: RoundRequest,
    updates: NodeUpdates,
    decision: Decision,
) -> ArrayRecord | None:
    """Apply the update; None, and no state kept, if there is none or it is not finite."""
    if decision.verdict is None:
        return None
    server = settings.server_optimizer
    step, after = direction(server, decision.verdict.update, state.optimizer_state)
    medians = [lower_median(part) for part in updates.statistics]
    model = request.sent.moved(step * server.learning_rate, medians)
    if model is not None:
        state.optimizer_state, state.rule_state = after, decision.verdict.state
    return model


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """How the update of each node compares with the others and with the aggregated one."""

    cosines: Sequence[float | None]
    distances: Sequence[float | None]
    """To the others, over the median of the round."""


def _measure(updates: NodeUpdates, decision: Decision) -> Measures:
    unknown: list[float | None] = [None] * len(updates.norms)
    verdict, cosines = decision.verdict, decision.cosines
    if verdict is None:
        return Measures(cosines=unknown, distances=unknown)
    if updates.rows is not None:
        cosines = measure_cosines(updates.rows, verdict.update, updates.norms)
    cosines = unknown if cosines is None else cosines
    weights = np.zeros(len(unknown)) if verdict.weights is None else np.asarray(verdict.weights)
    distances = relative_distances(
        updates.norms, cosines, np.nan_to_num(weights).tolist(), norm_of(verdict.update)
    )
    return Measures(cosines=cosines, distances=unknown if distances is None else distances)


def _scores(updates: NodeUpdates, verdict: Verdict | None) -> dict[int, float]:
    """Return the scores of the nodes that the rule got; none if it could not be applied."""
    if verdict is None:
        return {}
    return dict(zip(updates.replies, verdict.scores.tolist(), strict=True))


def _verdicts(
    settings: Settings, updates: NodeUpdates, decision: Decision, measures: Measures
) -> dict[int, bool]:
    """Return for each node that the rule got whether the round counts against it."""
    if not decision.blames or decision.verdict is None:
        return {}
    dropped = set(decision.verdict.dropped or ())
    return {
        node: str(node) in dropped and distance is not None and distance > settings.heterogeneity
        for node, distance in zip(updates.replies, measures.distances, strict=True)
    }


def _audit(
    request: RoundRequest, decision: Decision, clients: Sequence[ClientRecord], *, is_updated: bool
) -> AuditRound:
    verdict, reason, norm = decision.verdict, decision.reason, None
    if verdict is not None and is_updated:
        norm = norm_of(verdict.update)
    elif verdict is not None:
        reason = NOT_A_MODEL
    return AuditRound(
        round=request.round,
        time=now(),
        num_byzantine=decision.num_byzantine,
        is_updated=is_updated,
        reason=reason,
        update_norm=norm,
        seed=None if verdict is None else verdict.seed,
        clients=tuple(sorted(clients, key=lambda each: int(each.client))),
    )
