"""Step 6 of a round: evaluate the models, and record what happened."""

import torch

from outvote.engine.client_accuracy import client_accuracy
from outvote.engine.diagnostics import diagnose
from outvote.engine.participants import Participants
from outvote.engine.run_stack import RunStack, State
from outvote.metrics.deviation import deviations, honest_losses, weight_shares
from outvote.results.round import Round
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
) -> list[Round]:
    """Return one record per run; with `is_evaluated`, including the accuracy on the test set."""
    vector = known(aggregation.vector)
    num_runs, num_clients = participants.is_byzantine.shape
    is_byzantine = participants.is_byzantine.to(vector.device)
    rows = updates.gradients.view(num_runs, num_clients, -1)
    num_samples = updates.num_samples.view(num_runs, -1)
    measured, losses = [], []
    for some in stack.slices():
        measured.append(torch.stack(deviations(vector[some], rows[some], is_byzantine[some])))
        losses += honest_losses(
            updates.losses.view(num_runs, -1)[some],
            participants.is_byzantine[some],
            num_samples[some] > 0,
        )
    tested = [Score()] * num_runs
    if is_evaluated:
        strata = stack.client_tests and stack.client_tests.strata
        tested = stack.trainer.evaluate(after.weights, after.buffers, stack.test, strata)
    # From here on a GPU has nothing left to do: one transfer of each.
    distances, sizes = torch.cat(measured, dim=1).tolist()
    weights = known(aggregation.weights).cpu()
    is_known = (~weights.isnan().any(dim=-1)).tolist()
    kept, rejected = (weights > 0).tolist(), known(aggregation.is_rejected).tolist()
    shares = weight_shares(weights, participants.is_byzantine)
    scores = known(aggregation.scores).tolist()
    trained_on = num_samples.sum(dim=-1).tolist()
    byzantine = participants.is_byzantine.tolist()
    own = [
        client_accuracy(stack.client_tests, run.federation, score.correct)
        for run, score in zip(stack.runs, tested, strict=True)
    ]
    diagnostics = diagnose(stack, before, after, participants, updates, aggregation)
    return [
        Round(
            round=participants.number,
            num_samples=trained_on[k],
            loss=losses[k],
            accuracy=tested[k].accuracy,
            test_loss=tested[k].loss,
            clients=tuple(clients),
            byzantine=_picked(clients, byzantine[k]),
            num_byzantine_assumed=participants.num_byzantine_assumed[k],
            num_byzantine_used=aggregation.num_byzantine[k],
            kept=_picked(clients, kept[k]) if is_known[k] else None,
            rejected=_picked(clients, rejected[k]),
            scores=tuple(scores[k]),
            deviation=distances[k],
            honest_norm=sizes[k],
            byzantine_weight=shares[k],
            client_accuracy=own[k].mean,
            worst_decile=own[k].worst_decile,
            client_accuracies=own[k].each,
            diagnostics=diagnostics[k][0],
            theory=diagnostics[k][1],
        )
        for k, clients in enumerate(participants.clients)
    ]


def _picked(clients: list[int], mask: list[bool]) -> tuple[int, ...]:
    return tuple(client for client, ok in zip(clients, mask, strict=True) if ok)
