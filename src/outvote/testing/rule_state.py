"""The state of a rule: declared, carried run by run, not changed, and the same after saving."""

from typing import Any

import numpy as np

from outvote.rules.verdict import Verdict
from outvote.state_format import pack_state, unpack_state
from outvote.testing.algebra import aggregate_runs
from outvote.testing.trial import Array, Round, RuleTrial, as_array, require, require_close

NUM_ROUNDS = 3
NUM_RUNS = 3


def state_is_declared(trial: RuleTrial) -> None:
    """A rule returns a state if its traits have has_state, and none otherwise."""
    has_state = trial.rule.traits.has_state
    for one in trial.rounds():
        state = trial.run(one).state
        seen = f"state {type(state).__name__}, and traits.has_state is {has_state}"
        require((state is not None) == has_state, one, seen)


def state_run_by_run(trial: RuleTrial) -> None:
    """Over several rounds a run among others gets what it gets alone, and keeps its own state."""
    if not trial.rule.traits.has_state:
        return
    alone = [_rounds_of(trial, [k]) for k in range(NUM_RUNS)]
    together = _rounds_of(trial, list(range(NUM_RUNS)))
    for number in range(NUM_ROUNDS):
        for k in range(NUM_RUNS):
            given = f"round {number + 1} of run {k} of {NUM_RUNS}, {trial.name}"
            require_close(together[number][k], alone[k][number][0], given, "update")


def state_survives_saving(trial: RuleTrial) -> None:
    """A call does not change its state, which gives the same update after saving and reading."""
    if not trial.rule.traits.has_state:
        return
    state: Any = None
    for number in range(NUM_ROUNDS):
        rows = _rows(trial, 0, number)
        f = trial.some_byzantine(len(rows))

        def call(before: Any, rows: Array = rows, f: int = f, number: int = number) -> Verdict:
            info = {"num_byzantine": f, "round": number + 1, "state": before}
            return trial.inspect(trial.given(rows), **info)

        saved: dict[str, Any] = {}
        node = pack_state(state, "rule_state", saved)
        first, again = call(state), call(state)
        read = call(unpack_state(node, saved, trial.rule, trial.device))
        for verdict, what in ((again, "used before"), (read, "saved and read")):
            about = f"update of round {number + 1} with a state that was {what}"
            require_close(as_array(verdict.update), as_array(first.update), Round(rows, f), about)
        state = first.state


def _rows(trial: RuleTrial, run: int, number: int) -> Array:
    return trial.rows(7, 6) * (1 + run) + trial.random(run, number).normal(size=(7, 6))


def _rounds_of(trial: RuleTrial, runs: list[int]) -> list[Array]:
    """Return the updates ``[runs, dim]`` of several rounds of some runs, aggregated together."""
    states: list[Any] = [None] * len(runs)
    updates = []
    for number in range(NUM_ROUNDS):
        rows = np.stack([_rows(trial, k, number) for k in runs])
        seeds = [trial.seed + k for k in runs]
        f = trial.some_byzantine(rows.shape[1])
        info = {"states": states, "round": number + 1}
        found = aggregate_runs(trial, rows, f, seeds, **info)
        states = list(found.states)
        if found.vector is not None:
            updates.append(found.vector.double().cpu().numpy())
    return updates
