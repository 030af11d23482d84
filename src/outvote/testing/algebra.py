"""What a rule does when the gradients are moved, scaled, swapped or all the same."""

import numpy as np
import torch
from torch import Tensor

from outvote.rules.aggregation import Aggregation
from outvote.rules.base import AffineRule, CoordinatewiseRule, RoundInfo
from outvote.rules.client_matrix import ClientMatrix
from outvote.seeding import RandomStream
from outvote.testing.trial import (
    SIZES,
    Array,
    Round,
    Trial,
    as_array,
    require,
    require_close,
)


def one_client(trial: Trial) -> None:
    """A single client is the update."""
    for size in (1.0, 1000.0):
        alone = Round(trial.rows(1, 5, size), 0)
        require_close(trial.update(alone), alone.rows[0], alone, "update")


def unanimous(trial: Trial) -> None:
    """If all clients send the same, that is the update."""
    for one in trial.rounds():
        same = Round(np.repeat(one.rows[:1], len(one.rows), axis=0), one.num_byzantine)
        require_close(trial.update(same), same.rows[0], same, "update")


def permutation_invariant(trial: Trial) -> None:
    """The order of the clients does not matter, and their scores and weights move with them."""
    for number, one in enumerate(trial.rounds()):
        order = trial.random(number).permutation(len(one.rows))
        before, after = trial.verdict(one), trial.verdict(Round(one.rows[order], one.num_byzantine))
        what = f"with the clients in the order {order.tolist()}, "
        require_close(as_array(after.update), as_array(before.update), one, what + "update")
        require_close(after.scores, before.scores[order], one, what + "scores")
        if has_firm_weights(trial, one):
            require_close(after.weights, before.weights[order], one, what + "weights")


def translation_equivariant(trial: Trial) -> None:
    """If all clients add the same vector, so does the update."""
    for number, one in enumerate(trial.rounds()):
        shift = 30 * np.abs(one.rows).max() * trial.random(number).normal(size=one.rows.shape[1:])
        moved = Round(one.rows + shift, one.num_byzantine)
        what = f"update after adding {shift.tolist()}"
        require_close(trial.update(moved), trial.update(one) + shift, one, what)


def scale_equivariant(trial: Trial) -> None:
    """If all clients multiply their gradients by the same number, so does the update."""
    for one in trial.rounds():
        # Powers of 2 are exact: no tie is broken by rounding.
        for factor in (2.0, 1024.0, 2.0**-10):
            scaled = Round(factor * one.rows, one.num_byzantine)
            what = f"update after multiplying by {factor}"
            require_close(trial.update(scaled), factor * trial.update(one), one, what)


def sign_equivariant(trial: Trial) -> None:
    """If all clients turn their gradients around, so does the update."""
    for one in trial.rounds():
        turned = Round(-one.rows, one.num_byzantine)
        require_close(trial.update(turned), -trial.update(one), one, "update of the negative")


def inside_the_box(trial: Trial) -> None:
    """No coordinate of the update lies outside what the clients sent for it."""
    for one in trial.rounds():
        update = trial.update(one)
        low, high = one.rows.min(axis=0), one.rows.max(axis=0)
        rounding = 1e-9 * np.abs(one.rows).max()
        is_inside = bool(np.all((update >= low - rounding) & (update <= high + rounding)))
        seen = f"update {update.tolist()} outside of {low.tolist()} to {high.tolist()}"
        require(is_inside, one, seen)


def mean_without_byzantine(trial: Trial) -> None:
    """A rule that counts on liars averages everybody when it is told that there are none."""
    if not trial.rule.uses_num_byzantine:
        return
    for num_clients, dim, size in SIZES:
        honest = Round(trial.rows(num_clients, dim, size), 0)
        require_close(trial.update(honest), honest.rows.mean(axis=0), honest, "update")


def per_coordinate(trial: Trial) -> None:
    """A coordinate-wise rule gives a coordinate the same value alone as among others."""
    if not isinstance(trial.rule, CoordinatewiseRule):
        return
    for one in trial.rounds():
        alone = [
            trial.update(Round(column[:, None], one.num_byzantine))[0] for column in one.rows.T
        ]
        what = "update, against that of each coordinate alone"
        require_close(trial.update(one), np.array(alone), one, what)


def average_of_clients(trial: Trial) -> None:
    """An affine rule answers with weights that are not negative and sum to 1."""
    for one in trial.rounds():
        matrix, answer = answer_on(trial, one.rows[None], one.num_byzantine, (trial.seed,))
        if answer.vector is not None or answer.weights is None:
            is_affine = isinstance(trial.rule, AffineRule)
            require(not is_affine, one, "an AffineRule answered without weights, or with a vector")
            return
        weights = answer.weights.double().expand(1, matrix.num_clients)[0].cpu().numpy()
        is_average = bool(np.all(weights >= 0)) and abs(weights.sum() - 1) <= 1e-9
        require(is_average, one, f"weights {weights.tolist()} with the sum {weights.sum()}")
        require_close(trial.update(one), weights @ one.rows, one, "update, against the average")


def batch_equals_loop(trial: Trial) -> None:
    """Several runs answered at once get what each gets alone with its own seed."""
    for num_clients, dim in ((5, 4), (9, 12)):
        num_byzantine = trial.some_byzantine(num_clients)
        seeds = (trial.seed, trial.seed + 1, trial.seed + 2)
        rows = trial.rows(num_clients, dim)
        runs = np.stack([np.roll(rows, k, axis=0) * (k + 1) + k for k in range(3)])
        together = told(*answer_on(trial, runs, num_byzantine, seeds))
        for k, seed in enumerate(seeds):
            one = Round(runs[k], num_byzantine)
            alone = told(*answer_on(trial, runs[k : k + 1], num_byzantine, (seed,)))
            for part, value in alone.items():
                got = together[part].expand(3, *value.shape[1:])[k].cpu().numpy()
                given = f"run {k} of 3, seed {seed}: {one}"
                if part != "weights" or has_firm_weights(trial, one):
                    require_close(got, value[0].cpu().numpy(), given, f"{part} in the batch")


def has_firm_weights(trial: Trial, one: Round) -> bool:
    """Tell whether the weights are no matter of rounding.

    A mixing makes equal rows that differ in the last digit; which of them a coordinate-wise rule
    took its values from cannot be told.
    """
    _, answer = answer_on(trial, one.rows[None], one.num_byzantine, (trial.seed,))
    return answer.vector is None or isinstance(trial.rule, CoordinatewiseRule)


def answer_on(
    trial: Trial, runs: Array, num_byzantine: int, seeds: tuple[int, ...]
) -> tuple[ClientMatrix, Aggregation]:
    """Ask the rule itself, below the calling contract, on rows ``[runs, clients, dim]``."""
    rows = torch.from_numpy(runs).to(trial.device)
    matrix = ClientMatrix.from_rows(rows)
    info = RoundInfo(
        num_byzantine=num_byzantine,
        stream=RandomStream(seeds),
        clients=tuple(range(runs.shape[1])),
        reference=torch.ones_like(rows[0, 0]),
        wants_shares=True,
    )
    return matrix, trial.rule.answer(matrix, info)


def told(matrix: ClientMatrix, answer: Aggregation) -> dict[str, Tensor]:
    """Return everything that an answer tells per run."""
    parts = {"update": matrix.vector(answer), "weights": answer.weights, "scores": answer.scores}
    return {name: part.double() for name, part in parts.items() if part is not None}
