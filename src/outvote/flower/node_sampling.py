"""Before a round: which nodes take part, and the messages they get."""

import random
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from logging import getLogger
from typing import final

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from outvote.flower.reply_collection import listed
from outvote.flower.server_state import ServerState
from outvote.flower.settings import Settings
from outvote.rules.majority import tolerated
from outvote.seeding import RandomStream
from outvote.server.selection import draw

LOG = getLogger("flwr")
SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_BETWEEN_REPORTS = 30.0
MOST_KNOWN = 10_000


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSample:
    """The nodes of a round, and those left out."""

    nodes: Sequence[int] = ()
    excluded: Mapping[int, str]
    """Nodes that are connected but excluded because of earlier rounds, with the evidence."""
    num_online: int = 0
    num_byzantine: int = 0
    """How many of the nodes may be Byzantine. Exclusion does not lower it: an honest node may have
    been excluded."""


def sample_for_training(
    settings: Settings, state: ServerState, round_: int, grid: Grid
) -> NodeSample:
    """Choose the nodes that train."""
    if settings.fraction_train == 0:
        return NodeSample(excluded={})
    share, least = settings.fraction_train, settings.min_train_nodes
    found, wanted = _available(settings, state, round_, grid, share, least)
    candidates = found.nodes
    if settings.sample is not None:
        nodes = sorted(set(settings.sample(round_, candidates)))
        if strangers := [node for node in nodes if node not in candidates]:
            raise ValueError(
                f"sample chose node {strangers[0]}, which is not among the {len(candidates)} that "
                "it was given; choose from those."
            )
        wanted = len(nodes)
    else:
        weights = settings.selection.weights(state.suspicions, candidates)
        nodes = _draw(candidates, wanted, settings.seed, f"train {round_}", weights)
    return replace(found, nodes=nodes, num_byzantine=settings.num_byzantine_of(wanted))


def sample_for_evaluation(
    settings: Settings, state: ServerState, round_: int, grid: Grid
) -> NodeSample:
    """Choose the nodes that evaluate."""
    if settings.fraction_evaluate == 0:
        return NodeSample(excluded={})
    share, least = settings.fraction_evaluate, settings.min_evaluate_nodes
    found, wanted = _available(settings, state, round_, grid, share, least)
    return replace(found, nodes=_draw(found.nodes, wanted, settings.seed, f"evaluate {round_}"))


def write_messages(
    settings: Settings,
    round_: int,
    arrays: ArrayRecord,
    config: ConfigRecord,
    kind: str,
    nodes: Sequence[int],
) -> list[Message]:
    """Write one message per node, all with the same content."""
    with_round = ConfigRecord({**config, "server-round": round_})
    record = RecordDict({settings.arrayrecord_key: arrays, settings.configrecord_key: with_round})
    return [Message(content=record, message_type=kind, dst_node_id=node) for node in nodes]


def derive_seed(seed: int, purpose: str) -> int:
    """Return a seed of its own for every purpose."""
    return RandomStream((seed,)).fold_in(purpose).derived()[0]


def _available(
    settings: Settings, state: ServerState, round_: int, grid: Grid, fraction: float, at_least: int
) -> tuple[NodeSample, int]:
    """Return the nodes to choose from, and how many to ask, as Flower's own strategies count."""
    online = _wait(settings, state, grid, at_least)
    wanted = max(int(len(online) * fraction), at_least)
    num_byzantine, tolerates = settings.num_byzantine_of(wanted), partial(tolerated, settings.rule)
    out = state.exclusions.excluded(round_, online, wanted, num_byzantine, tolerates)
    excluded = {node: state.exclusions.evidence(node) for node in out}
    nodes = [node for node in online if node not in excluded]
    return NodeSample(nodes=nodes, excluded=excluded, num_online=len(online)), wanted


def _wait(settings: Settings, state: ServerState, grid: Grid, at_least: int) -> list[int]:
    """Wait for enough nodes; return them."""
    num_needed = max(settings.min_available_nodes, at_least, 1)
    start, reported = time.monotonic(), -SECONDS_BETWEEN_REPORTS
    while len(online := sorted(set(grid.get_node_ids()))) < num_needed:
        waited = time.monotonic() - start
        if waited - reported >= SECONDS_BETWEEN_REPORTS:
            _report_waiting(online, num_needed, state.known_nodes, waited)
            reported = waited
        time.sleep(SECONDS_BETWEEN_LOOKS)
    if len(state.known_nodes) > MOST_KNOWN:  # Strangers may connect under ever new ids.
        state.known_nodes.clear()
    state.known_nodes.update(online)
    return online


def _report_waiting(
    online: Sequence[int], num_needed: int, known: Collection[int], seconds: float
) -> None:
    """Report who is missing, or who is there if no node was ever connected before."""
    missing = sorted(set(known) - set(online))
    names, what = (missing, "not connected") if missing else (online, "connected")
    LOG.info(
        "Waiting for nodes for %.0f s: %d of %d are connected; %s: %s",
        seconds,
        len(online),
        num_needed,
        what,
        listed(names),
    )


def _draw(
    candidates: Sequence[int],
    num_wanted: int,
    seed: int | None,
    purpose: str,
    weights: Sequence[float] | None = None,
) -> list[int]:
    """Draw nodes at random, all alike or by weights: a secret draw, or one that a seed repeats."""
    source = random.SystemRandom() if seed is None else random.Random(derive_seed(seed, purpose))
    if weights is not None:
        waits = [source.expovariate(1.0) for _ in candidates]
        return sorted(candidates[row] for row in draw(weights, waits, num_wanted))
    return sorted(source.sample(sorted(candidates), min(num_wanted, len(candidates))))
