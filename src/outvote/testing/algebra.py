"""What a rule does when the gradients are moved, scaled, swapped or all the same."""

from typing import Any

import numpy as np
import torch

from outvote.rules.aggregate import Batch, aggregate
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.rule import AffineRule, Aggregation, CoordinatewiseRule, RoundInfo
from outvote.seeding import RandomStream
from outvote.testing.trial import (
    SIZES,
    Array,
    Round,
    RuleTrial,
    as_array,
    require,
    require_close,
)


def one_client(trial: RuleTrial) -> None:
    """A single client is the update."""
    for size in (1.0, 1000.0):
        alone = Round(trial.rows(1, 5, size), 0)
        require_close(trial.update(alone), alone.rows[0], alone, "update")


def unanimous(trial: RuleTrial) -> None:
    """If all clients send the same, that is the update."""
    for one in trial.rounds():
        same = Round(np.repeat(one.rows[:1], len(one.rows), axis=0), one.num_byzantine)
        require_close(trial.update(same), same.rows[0], same, "update")


def permutation_invariant(trial: RuleTrial) -> None:
    """The order of the clients does not matter, and their scores and weights move with them."""
    for number, one in enumerate(trial.rounds()):
        order = trial.random(number).permutation(len(one.rows))
        before, after = trial.run(one), trial.run(Round(one.rows[order], one.num_byzantine))
        what = f"with the clients in the order {order.tolist()}, "
        require_close(as_array(after.update), as_array(before.update), one, what + "update")
        require_close(after.scores, before.scores[order], one, what + "scores")
        if has_firm_weights(trial, one):
            weights = before.weights, after.weights
            if weights[0] is not None and weights[1] is not None:
                require_close(weights[1], weights[0][order], one, what + "weights")


def translation_equivariant(trial: RuleTrial) -> None:
    """If all clients add the same vector, so does the update."""
    for number, one in enumerate(trial.rounds()):
        shift = 30 * np.abs(one.rows).max() * trial.random(number).normal(size=one.rows.shape[1:])
        moved = Round(one.rows + shift, one.num_byzantine)
        what = f"update after adding {shift.tolist()}"
        require_close(trial.update(moved), trial.update(one) + shift, one, what)


def scale_equivariant(trial: RuleTrial) -> None:
    """If all clients multiply their gradients by the same number, so does the update."""
    for one in trial.rounds():
        # Powers of 2 are exact: no tie is broken by rounding.
        for factor in (2.0, 1024.0, 2.0**-10):
            scaled = Round(factor * one.rows, one.num_byzantine)
            what = f"update after multiplying by {factor}"
            require_close(trial.update(scaled), factor * trial.update(one), one, what)


def sign_equivariant(trial: RuleTrial) -> None:
    """If all clients negate their gradients, so does the update."""
    for one in trial.rounds():
        negated = Round(-one.rows, one.num_byzantine)
        require_close(trial.update(negated), -trial.update(one), one, "update of the negative")


def inside_the_box(trial: RuleTrial) -> None:
    """No coordinate of the update is outside what the clients sent for it."""
    for one in trial.rounds():
        update = trial.update(one)
        low, high = one.rows.min(axis=0), one.rows.max(axis=0)
        rounding = 1e-9 * np.abs(one.rows).max()
        is_inside = bool(np.all((update >= low - rounding) & (update <= high + rounding)))
        seen = f"update {update.tolist()} outside of {low.tolist()} to {high.tolist()}"
        require(is_inside, one, seen)


def mean_without_byzantine(trial: RuleTrial) -> None:
    """A rule that uses the number of Byzantine clients averages all if it is 0."""
    if not trial.rule.traits.uses_num_byzantine:
        return
    for num_clients, dim, size in SIZES:
        honest = Round(trial.rows(num_clients, dim, size), 0)
        require_close(trial.update(honest), honest.rows.mean(axis=0), honest, "update")


def per_coordinate(trial: RuleTrial) -> None:
    """A coordinate-wise rule gives a coordinate the same value alone as among others."""
    if not isinstance(trial.rule, CoordinatewiseRule):
        return
    for one in trial.rounds():
        alone = [
            trial.update(Round(column[:, None], one.num_byzantine))[0] for column in one.rows.T
        ]
        what = "update, against that of each coordinate alone"
        require_close(trial.update(one), np.array(alone), one, what)


def average_of_clients(trial: RuleTrial) -> None:
    """Weights without a vector are not negative and sum to 1; the update is the average with them.

    An AffineRule returns weights alone; any other rule may.
    """
    for one in trial.rounds():
        matrix, found = compute_on(trial, one)
        if found.vector is not None or found.weights is None:
            is_affine = isinstance(trial.rule, AffineRule)
            require(not is_affine, one, "an AffineRule that returns no weights, or a vector")
            return
        weights = found.weights.double().expand(1, matrix.num_clients)[0].cpu().numpy()
        is_average = bool(np.all(weights >= 0)) and abs(weights.sum() - 1) <= 1e-9
        seen = f"weights {weights.tolist()} with the sum {weights.sum()}"
        require(is_average, one, f"{seen}; if the update is no average, return its vector too")
        require_close(trial.update(one), weights @ one.rows, one, "update, against the average")


def batch_equals_loop(trial: RuleTrial) -> None:
    """Several runs aggregated at once get what each gets alone with its own seed."""
    for num_clients, dim in ((5, 4), (9, 12)):
        num_byzantine = trial.some_byzantine(num_clients)
        seeds = [trial.seed, trial.seed + 1, trial.seed + 2]
        rows = trial.rows(num_clients, dim)
        runs = np.stack([np.roll(rows, k, axis=0) * (k + 1) + k for k in range(3)])
        together = aggregate_runs(trial, runs, num_byzantine, seeds)
        for k, seed in enumerate(seeds):
            one = Round(runs[k], num_byzantine)
            alone = aggregate_runs(trial, runs[k : k + 1], num_byzantine, [seed])
            given = f"run {k} of 3, seed {seed}: {one}"
            for part in ("vector", "scores", "weights"):
                got, wanted = getattr(together, part), getattr(alone, part)
                if wanted is not None and (part != "weights" or has_firm_weights(trial, one)):
                    got, wanted = got[k].double().cpu().numpy(), wanted[0].double().cpu().numpy()
                    require_close(got, wanted, given, f"{part} in the batch")


def has_firm_weights(trial: RuleTrial, one: Round) -> bool:
    """Return whether the weights do not depend on rounding.

    A mixing makes equal rows that differ in the last digit; which of them a coordinate-wise rule
    took its values from is not determined.
    """
    return compute_on(trial, one)[1].vector is None or isinstance(trial.rule, CoordinatewiseRule)


def compute_on(trial: RuleTrial, one: Round) -> tuple[ClientMatrix, Aggregation]:
    """Let the rule itself compute, below the calling contract."""
    rows = torch.from_numpy(one.rows[None]).to(trial.device)
    matrix = ClientMatrix.from_rows(rows)
    ones = torch.ones_like(rows[0, 0])
    info = RoundInfo(
        num_byzantine=one.num_byzantine,
        stream=RandomStream((trial.seed,)),
        num_received=matrix.num_clients,
        clients=tuple(range(matrix.num_clients)),
        round=1,
        reference=ones,
        model=ones,
        wants_weights=True,
    )
    return matrix, trial.rule.compute(matrix, info)


def aggregate_runs(
    trial: RuleTrial, runs: Array, num_byzantine: int, seeds: list[int], **info: Any
) -> Aggregation:
    """Aggregate several runs as the simulator does."""
    rows = torch.from_numpy(runs).to(trial.device)
    ones = torch.ones_like(rows[:, 0])
    batch = Batch(
        gradients=rows,
        num_byzantine=[num_byzantine] * len(rows),
        seeds=seeds,
        references=list(ones),
        models=list(ones),
        **info,
    )
    return aggregate(trial.rule, batch)
