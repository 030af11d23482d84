"""Step 6 of a round: evaluate the models, and record what happened."""

from outvote.engine.diagnostics import diagnose
from outvote.engine.participants import Participants
from outvote.engine.run_stack import RunStack, State
from outvote.metrics.deviation import honest_losses, honest_means, norms, weight_shares
from outvote.metrics.round_record import Record
from outvote.rules.rule import Aggregation, known
from outvote.training.objective import Score
from outvote.training.trainer import LocalUpdates


def record(
    stack: RunStack,
    before: State,
    after: State,
    participants: Participants,
    updates: LocalUpdates,
    aggregation: Aggregation,
    *,
    is_evaluated: bool,
) -> list[Record]:
    """Return one record per run; with `is_evaluated`, including the accuracy on the test set."""
    vector, weights = known(aggregation.vector), known(aggregation.weights)
    num_runs, num_clients = weights.shape
    is_byzantine = participants.is_byzantine.to(vector.device)
    rows = updates.gradients.view(num_runs, num_clients, -1)
    num_samples = updates.num_samples.view(num_runs, -1)
    deviations, sizes, losses = [], [], []
    for some in stack.slices():
        means = honest_means(rows[some], is_byzantine[some])
        deviations += norms(vector[some] - means)
        sizes += norms(means)
        losses += honest_losses(
            updates.losses.view(num_runs, -1)[some],
            participants.is_byzantine[some],
            num_samples[some] > 0,
        )
    tested = [Score()] * num_runs
    if is_evaluated:
        tested = stack.trainer.evaluate(after.weights, after.buffers, stack.test)
    is_known = (~weights.isnan().any(dim=-1)).tolist()
    kept, rejected = (weights > 0).tolist(), known(aggregation.is_rejected).tolist()
    shares = weight_shares(weights, participants.is_byzantine)
    scores = known(aggregation.scores).tolist()
    diagnostics = diagnose(stack, before, participants, updates, aggregation)
    return [
        Record(
            round=participants.number,
            num_samples=int(num_samples[k].sum()),
            loss=losses[k],
            accuracy=tested[k].accuracy,
            test_loss=tested[k].loss,
            clients=tuple(clients),
            byzantine=_picked(clients, participants.is_byzantine[k].tolist()),
            num_byzantine_assumed=participants.num_byzantine_assumed[k],
            num_byzantine_used=aggregation.num_byzantine[k],
            kept=_picked(clients, kept[k]) if is_known[k] else None,
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
