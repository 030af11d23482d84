"""One round of all runs, read from top to bottom."""

from outvote.engine.attacking import attack
from outvote.engine.judging import judge_all
from outvote.engine.recording import describe
from outvote.engine.run_stack import RunStack, State
from outvote.engine.sampling import sample_participants
from outvote.engine.serving import serve
from outvote.engine.training import train
from outvote.metrics.record import Record


def run_round(
    stack: RunStack, state: State, *, is_evaluated: bool = True
) -> tuple[State, list[Record]]:
    """Choose clients, let them train, let liars lie, judge, step, and tell what happened."""
    participants = sample_participants(stack, state.round + 1)
    local_updates = train(stack, state, participants)
    sent = attack(stack, state, participants, local_updates)
    judged = judge_all(stack, state, participants, sent)
    after = serve(stack, state, local_updates, sent, judged)
    return after, describe(
        stack, state, after, participants, local_updates, judged, is_evaluated=is_evaluated
    )
