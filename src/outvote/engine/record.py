"""Step 6 of a round: evaluate the models, and record what happened."""

from itertools import compress

import torch
from torch import Tensor

from outvote.engine.diagnostics import diagnose
from outvote.engine.federation import client_accuracy
from outvote.engine.run_stack import Participants, RunStack, State
from outvote.results.round import Diagnostics, Round, Theory
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
    diagnostics: list[tuple[Diagnostics | None, Theory | None]] = [(None, None)] * num_runs
    if stack.has_diagnostics:
        diagnostics = diagnose(stack, before, after, participants, updates, aggregation)
    records = []
    for k, clients in enumerate(participants.clients):
        own = client_accuracy(stack.client_tests, stack.runs[k].federation, tested[k].correct)
        records.append(
            Round(
                round=participants.number,
                num_samples=trained_on[k],
                loss=losses[k],
                accuracy=tested[k].accuracy,
                test_loss=tested[k].loss,
                clients=tuple(clients),
                byzantine=tuple(compress(clients, byzantine[k])),
                num_byzantine_assumed=participants.num_byzantine_assumed[k],
                num_byzantine_used=aggregation.num_byzantine[k],
                kept=tuple(compress(clients, kept[k])) if is_known[k] else None,
                rejected=tuple(compress(clients, rejected[k])),
                scores=tuple(scores[k]),
                deviation=distances[k],
                honest_norm=sizes[k],
                byzantine_weight=shares[k],
                client_accuracy=own.mean,
                worst_decile=own.worst_decile,
                client_accuracies=own.each,
                diagnostics=diagnostics[k][0],
                theory=diagnostics[k][1],
            )
        )
    return records


def deviations(updates: Tensor, gradients: Tensor, is_byzantine: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far ``updates [runs, dim]`` are from the honest means, and the means' norms.

    Both are ``[runs]``, float64. Of ``gradients [runs, clients, dim]`` the honest rows count.
    """
    means = honest_means(gradients, is_byzantine)
    return norms(updates - means), norms(means)


def honest_means(gradients: Tensor, is_byzantine: Tensor) -> Tensor:
    """Return the mean of the honest rows of ``gradients [runs, clients, dim]``, before any attack.

    Clients that diverged do not count. Where no honest client was sampled, it is the mean of what
    the Byzantine clients would have sent honestly.
    """
    is_honest = ~is_byzantine | is_byzantine.all(dim=-1, keepdim=True)
    means = _mean_of(gradients, is_honest)
    # NaN and infinity stay in a sum: if there is none in the means, the rows need not be searched.
    if bool(means.sum(dtype=torch.float64).isfinite()):
        return means
    is_finite = gradients.abs().amax(dim=-1).isfinite()
    return _mean_of(gradients.nan_to_num(0.0, 0.0, 0.0), is_honest & is_finite)


def _mean_of(gradients: Tensor, is_counted: Tensor) -> Tensor:
    share = is_counted.to(gradients.dtype)
    share = share / share.sum(dim=-1, keepdim=True).clamp(min=1)
    return torch.matmul(share.unsqueeze(1), gradients).squeeze(1)


def honest_losses(losses: Tensor, is_byzantine: Tensor, has_trained: Tensor) -> list[float | None]:
    """Return the mean loss ``[runs, clients]`` of the honest clients of each run.

    Clients that diverged do not count, unless all did: then it is NaN. None: nobody trained.
    """
    is_honest = (~is_byzantine | is_byzantine.all(dim=-1, keepdim=True)) & has_trained
    is_counted = is_honest & losses.isfinite()
    means = torch.where(is_counted, losses, 0.0).sum(dim=-1) / is_counted.sum(dim=-1)
    trained = is_honest.any(dim=-1).tolist()
    return [loss if any_ else None for loss, any_ in zip(means.tolist(), trained, strict=True)]


def weight_shares(weights: Tensor, is_byzantine: Tensor) -> list[float | None]:
    """Return the Byzantine share of ``weights [runs, clients]``; None: all are 0, or NaN."""
    exact, is_byzantine = weights.double().cpu(), is_byzantine.cpu()
    totals = exact.sum(dim=-1).tolist()
    parts = torch.where(is_byzantine, exact, 0.0).sum(dim=-1).tolist()
    return [part / whole if whole > 0 else None for part, whole in zip(parts, totals, strict=True)]


def norms(vectors: Tensor) -> Tensor:
    """Return the Euclidean norms of ``vectors [runs, dim]``, float64."""
    found: Tensor = torch.linalg.vector_norm(vectors, dim=-1, dtype=torch.float64)
    return found
