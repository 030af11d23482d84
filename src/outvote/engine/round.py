"""One round of all runs, read from top to bottom."""

from outvote.engine.attacking import attack
from outvote.engine.judging import judge_all
from outvote.engine.recording import describe
from outvote.engine.sampling import choose_clients
from outvote.engine.serving import serve
from outvote.engine.training import train
from outvote.engine.world import State, World
from outvote.metrics.record import Record


def play_round(
    world: World, state: State, *, is_evaluated: bool = True
) -> tuple[State, list[Record]]:
    """Choose clients, let them train, let liars lie, judge, step, and tell what happened."""
    chosen = choose_clients(world, state.round + 1)
    learnt = train(world, state, chosen)
    sent = attack(world, state, chosen, learnt)
    judged = judge_all(world, state, chosen, sent)
    after = serve(world, state, learnt, sent, judged)
    return after, describe(world, state, after, chosen, learnt, judged, is_evaluated=is_evaluated)
