"""What is told of a round."""

from outvote.clients.work import Trained
from outvote.engine.alike import pieces
from outvote.engine.diagnosing import diagnose
from outvote.engine.judging import Judged
from outvote.engine.sampling import Chosen
from outvote.engine.world import State, World
from outvote.metrics.deviation import honest_losses, honest_means, norms, weight_shares
from outvote.metrics.record import Record


def describe(
    world: World,
    before: State,
    after: State,
    chosen: Chosen,
    learnt: Trained,
    judged: Judged,
    *,
    is_evaluated: bool,
) -> list[Record]:
    """Return one record per run; the models are tried on the whole test set if wanted."""
    num_runs, num_clients = judged.weights.shape
    is_byzantine = chosen.is_byzantine.to(judged.updates.device)
    rows = learnt.gradients.view(num_runs, num_clients, -1)
    num_pictures = learnt.num_pictures.view(num_runs, -1)
    deviations, sizes, losses = [], [], []
    for some in pieces(world):
        means = honest_means(rows[some], is_byzantine[some])
        deviations += norms(judged.updates[some] - means)
        sizes += norms(means)
        losses += honest_losses(
            learnt.losses.view(num_runs, -1)[some],
            chosen.is_byzantine[some],
            num_pictures[some] > 0,
        )
    accuracies: list[float | None] = [None] * num_runs
    if is_evaluated:
        right = world.trainer.count_right(after.weights, after.buffers, world.test)
        accuracies = [int(count) / len(world.test) for count in right]
    kept, rejected = (judged.weights > 0).tolist(), judged.is_rejected.tolist()
    shares = weight_shares(judged.weights, chosen.is_byzantine)
    scores = judged.scores.tolist()
    diagnostics = diagnose(world, before, chosen, learnt, judged)
    return [
        Record(
            round=chosen.number,
            num_pictures=int(num_pictures[k].sum()),
            loss=losses[k],
            accuracy=accuracies[k],
            clients=tuple(clients),
            byzantine=_picked(clients, chosen.is_byzantine[k].tolist()),
            num_told=chosen.num_told[k],
            num_used=judged.num_used[k],
            kept=_picked(clients, kept[k]),
            rejected=_picked(clients, rejected[k]),
            scores=tuple(scores[k]),
            deviation=deviations[k],
            honest_norm=sizes[k],
            byzantine_weight=shares[k],
            diagnostics=diagnostics[k],
        )
        for k, clients in enumerate(chosen.clients)
    ]


def _picked(clients: list[int], mask: list[bool]) -> tuple[int, ...]:
    return tuple(client for client, ok in zip(clients, mask, strict=True) if ok)
