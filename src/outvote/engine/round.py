"""One round of all runs, read from top to bottom."""

from outvote.engine.aggregate_step import aggregate, apply_update
from outvote.engine.attack_step import attack
from outvote.engine.local_updates import local_updates
from outvote.engine.record import record
from outvote.engine.run_stack import RunStack, State, sample_participants
from outvote.results.round import Round


def run_round(
    stack: RunStack, state: State, *, is_evaluated: bool = True
) -> tuple[State, list[Round]]:
    """Sample participants, train local updates, attack, aggregate, apply the update, record."""
    participants = sample_participants(stack, state)
    updates = local_updates(stack, state, participants)
    sent, attack_states = attack(stack, state, participants, updates)
    aggregation = aggregate(stack, state, participants, updates, sent)
    after = apply_update(stack, state, participants, updates, aggregation, attack_states)
    return after, record(
        stack, state, after, participants, updates, aggregation, is_evaluated=is_evaluated
    )
