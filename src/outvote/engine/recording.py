"""What is told of a round."""

from outvote.clients.work import LocalUpdates
from outvote.engine.alike import pieces
from outvote.engine.diagnosing import diagnose
from outvote.engine.judging import Judged
from outvote.engine.run_stack import RunStack, State
from outvote.engine.sampling import Participants
from outvote.metrics.deviation import honest_losses, honest_means, norms, weight_shares
from outvote.metrics.record import Record


def describe(
    stack: RunStack,
    before: State,
    after: State,
    participants: Participants,
    local_updates: LocalUpdates,
    judged: Judged,
    *,
    is_evaluated: bool,
) -> list[Record]:
    """Return one record per run; the models are tried on the whole test set if wanted."""
    num_runs, num_clients = judged.weights.shape
    is_byzantine = participants.is_byzantine.to(judged.updates.device)
    rows = local_updates.gradients.view(num_runs, num_clients, -1)
    num_samples = local_updates.num_samples.view(num_runs, -1)
    deviations, sizes, losses = [], [], []
    for some in pieces(stack):
        means = honest_means(rows[some], is_byzantine[some])
        deviations += norms(judged.updates[some] - means)
        sizes += norms(means)
        losses += honest_losses(
            local_updates.losses.view(num_runs, -1)[some],
            participants.is_byzantine[some],
            num_samples[some] > 0,
        )
    accuracies: list[float | None] = [None] * num_runs
    if is_evaluated:
        right = stack.trainer.count_right(after.weights, after.buffers, stack.test)
        accuracies = [int(count) / len(stack.test) for count in right]
    kept, rejected = (judged.weights > 0).tolist(), judged.is_rejected.tolist()
    shares = weight_shares(judged.weights, participants.is_byzantine)
    scores = judged.scores.tolist()
    diagnostics = diagnose(stack, before, participants, local_updates, judged)
    return [
        Record(
            round=participants.number,
            num_samples=int(num_samples[k].sum()),
            loss=losses[k],
            accuracy=accuracies[k],
            clients=tuple(clients),
            byzantine=_picked(clients, participants.is_byzantine[k].tolist()),
            num_byzantine_assumed=participants.num_byzantine_assumed[k],
            num_byzantine_used=judged.num_byzantine_used[k],
            kept=_picked(clients, kept[k]),
            rejected=_picked(clients, rejected[k]),
            scores=tuple(scores[k]),
            deviation=deviations[k],
            honest_norm=sizes[k],
            byzantine_weight=shares[k],
            diagnostics=diagnostics[k],
        )
        for k, clients in enumerate(participants.clients)
    ]


def _picked(clients: list[int], mask: list[bool]) -> tuple[int, ...]:
    return tuple(client for client, ok in zip(clients, mask, strict=True) if ok)
