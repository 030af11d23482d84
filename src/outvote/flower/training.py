"""After a round: replies -> updates -> rule -> optimiser -> model, and what to tell about it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from flwr.app import ArrayRecord, Message, MetricRecord

from outvote.flower.answers import Answers, sort_answers
from outvote.flower.auditing import in_order, not_judged, now
from outvote.flower.evaluating import merge_metrics, num_distrusted
from outvote.flower.judging import Decision, blames, judge, judgements, merge_statistics
from outvote.flower.offenders import Offence
from outvote.flower.receiving import Received, receive
from outvote.flower.sampling import derive
from outvote.flower.sent_model import SentModel
from outvote.flower.settings import Settings
from outvote.flower.state import ServerState
from outvote.results.audit_log import AuditRound

NOT_FINITE = "the new model would not have been finite"


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """A round that has begun."""

    round: int
    sent: SentModel
    messages: Sequence[Message]
    num_byzantine: int
    """How many of those asked may lie."""
    excluded: Mapping[int, str]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Finished:
    """A round that is over."""

    model: ArrayRecord | None
    """None: it is kept as it was."""
    metrics: MetricRecord | None
    told: AuditRound
    missing: Sequence[int]


def finish_round(
    settings: Settings, state: ServerState, asked: Asked, replies: Iterable[Message]
) -> Finished:
    """Bring the server's state one round further."""
    answers = sort_answers(asked.messages, replies)
    received = receive(
        asked.sent,
        answers.contents,
        settings.weighted_by_key,
        use_counts=settings.use_num_examples,
    )
    seed = None if settings.seed is None else derive(settings.seed, f"rule {asked.round}")
    decision = judge(
        settings, received, asked.num_byzantine, seed, **_memory(settings, state, asked)
    )
    model = _move(settings, state, asked.sent, received, decision)
    state.round = asked.round
    state.model = asked.sent.record if model is None else model
    malformed = {**answers.malformed, **received.malformed}
    _note_offences(state, asked, malformed, decision)
    return Finished(
        model=model,
        metrics=_metrics(settings, received, decision),
        told=_tell(asked, answers, malformed, received, decision, is_updated=model is not None),
        missing=answers.missing,
    )


def _memory(settings: Settings, state: ServerState, asked: Asked) -> dict[str, Any]:
    """Return what the rule is told besides the updates."""
    memory: dict[str, Any] = {}
    if settings.rule.traits.has_state:
        memory["state"] = state.rule_memory
    if settings.rule.traits.needs_reference and settings.reference is not None:
        trained = settings.reference(asked.round, asked.sent.record)
        named = {name: array.numpy() for name, array in trained.items()}
        memory["reference"] = torch.from_numpy(asked.sent.to_vector(named) - asked.sent.vector)
    return memory


def _move(
    settings: Settings,
    state: ServerState,
    sent: SentModel,
    received: Received,
    decision: Decision,
) -> ArrayRecord | None:
    """Apply the update; None, and nothing remembered, if there is none or it would do harm."""
    if decision.verdict is None:
        return None
    step, memory = settings.server_optimizer.step(decision.verdict.update, state.optimizer_memory)
    model = sent.moved(step, merge_statistics(received.statistics))
    if model is not None:
        state.optimizer_memory, state.rule_memory = memory, decision.verdict.state
    return model


def _note_offences(
    state: ServerState, asked: Asked, malformed: Mapping[int, str], decision: Decision
) -> None:
    nodes = {message.metadata.dst_node_id for message in asked.messages}
    offences: dict[int, Offence] = {node: "malformed" for node in malformed if node in nodes}
    kept: list[int] = []
    if decision.verdict is not None:
        kept = [int(client) for client in decision.verdict.kept or ()]
        if blames(decision.verdict):
            offences |= {int(client): "outvoted" for client in decision.verdict.dropped or ()}
    state.offenders.record(asked.round, kept, offences)


def _metrics(settings: Settings, received: Received, decision: Decision) -> MetricRecord | None:
    replies = list(received.replies.values())
    return merge_metrics(
        [reply.metrics for reply in replies],
        num_distrusted(settings, decision.num_byzantine, len(replies)),
        settings.weighted_by_key,
        [reply.count for reply in replies],
    )


def _tell(
    asked: Asked,
    answers: Answers,
    malformed: Mapping[int, str],
    received: Received,
    decision: Decision,
    *,
    is_updated: bool,
) -> AuditRound:
    verdict = decision.verdict
    norm = None
    if verdict is not None and is_updated:
        norm = float(torch.linalg.vector_norm(verdict.update, dtype=torch.float64))
    judged = judgements(received, verdict)
    return AuditRound(
        round=asked.round,
        time=now(),
        num_byzantine=decision.num_byzantine,
        is_updated=is_updated,
        reason=decision.reason if verdict is None or is_updated else NOT_FINITE,
        update_norm=norm,
        seed=None if verdict is None else verdict.seed,
        clients=in_order([*judged, *not_judged(answers, malformed, asked.excluded)]),
    )
