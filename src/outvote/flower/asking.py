"""Before a round: who is asked, and what they are sent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from outvote.flower.sampling import check_sample, draw, num_to_ask, wait_for_nodes
from outvote.flower.settings import Settings
from outvote.flower.state import ServerState


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Participants:
    """Who takes part in a round, and who is left out."""

    nodes: Sequence[int]
    excluded: Mapping[int, str]
    """Who is connected but not asked because of what it did before: the evidence."""
    num_online: int
    num_byzantine: int
    """How many of them may lie. Exclusion lowers nothing: the honest may have been excluded."""


NOBODY = Participants(nodes=(), excluded={}, num_online=0, num_byzantine=0)


def choose_for_training(
    settings: Settings, state: ServerState, round_: int, grid: Grid
) -> Participants:
    """Choose who trains."""
    if settings.fraction_train == 0:
        return NOBODY
    online, wanted = _wait(settings, grid, settings.fraction_train, settings.min_train_nodes)
    candidates, excluded = _candidates(settings, state, round_, online, wanted)
    if settings.sample is not None:
        nodes = check_sample(settings.sample(round_, candidates), candidates)
        wanted = len(nodes)
    else:
        nodes = draw(candidates, wanted, settings.seed, f"train {round_}")
    num_byzantine = settings.num_byzantine_of(wanted)
    return Participants(
        nodes=nodes, excluded=excluded, num_online=len(online), num_byzantine=num_byzantine
    )


def choose_for_evaluation(
    settings: Settings, state: ServerState, round_: int, grid: Grid
) -> list[int]:
    """Choose who evaluates."""
    if settings.fraction_evaluate == 0:
        return []
    online, wanted = _wait(settings, grid, settings.fraction_evaluate, settings.min_evaluate_nodes)
    candidates, _ = _candidates(settings, state, round_, online, wanted)
    return draw(candidates, wanted, settings.seed, f"evaluate {round_}")


def messages(
    settings: Settings,
    round_: int,
    arrays: ArrayRecord,
    config: ConfigRecord,
    kind: str,
    nodes: Sequence[int],
) -> list[Message]:
    """Write one message per node, all with the same content."""
    told = ConfigRecord({**config, "server-round": round_})
    record = RecordDict({settings.arrayrecord_key: arrays, settings.configrecord_key: told})
    return [Message(content=record, message_type=kind, dst_node_id=node) for node in nodes]


def _wait(settings: Settings, grid: Grid, fraction: float, at_least: int) -> tuple[list[int], int]:
    online = wait_for_nodes(grid, max(settings.min_available_nodes, at_least, 1))
    return online, num_to_ask(len(online), fraction, at_least)


def _candidates(
    settings: Settings, state: ServerState, round_: int, online: Sequence[int], wanted: int
) -> tuple[list[int], dict[int, str]]:
    out = state.offenders.excluded(
        round_,
        online,
        wanted,
        settings.num_byzantine_of(wanted),
        settings.rule.max_byzantine,
    )
    excluded = {node: state.offenders.evidence(node) for node in out}
    return [node for node in online if node not in excluded], excluded
