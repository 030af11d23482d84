"""The calling contract: kinds and dtypes stay, nothing else changes, and calls repeat."""

import ast
import warnings
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch

from outvote.errors import OutvoteWarning
from outvote.plugins import is_plugin_class
from outvote.rules.rule import Rule
from outvote.rules.verdict import Verdict
from outvote.testing.trial import (
    Array,
    BrokenError,
    Gradients,
    Round,
    RuleTrial,
    Trial,
    as_array,
    equal,
    forms,
    global_state,
    is_like,
    kind_of,
    leaves,
    require,
    require_close,
    stirred_generators,
)


def no_global_state(trial: Trial) -> None:
    """No global generator is drawn from or seeded, and no setting of torch is left changed."""
    for one in trial.rounds():
        with stirred_generators():
            before = global_state()
            trial.run(one)
            after = global_state()
        changed = [name for name, value in before.items() if after[name] != value]
        require(not changed, one, f"changed {', '.join(changed)}")


def text_round_trip(trial: Trial) -> None:
    """The text makes the same rule or attack again (if its class can be found by text)."""
    kinds = map(type, _nested(trial.subject))
    is_named = (
        kind in trial.table.values() or is_plugin_class(kind) or hasattr(kind, "loaded_from")
        for kind in kinds
    )
    if not all(is_named):
        return
    text = str(trial.subject)
    again = trial.make(text)
    is_same = type(again) is type(trial.subject)
    if is_dataclass(trial.subject):
        is_same = again == trial.subject
    require(is_same and str(again) == text, text, f"{trial.make.__name__} gave {again!r}")


def keeps_kind_and_dtype(trial: RuleTrial) -> None:
    """The update has the kind, dtype and device of the gradients: numpy, torch, dicts of either."""
    for form, given in forms(trial.rows(6, 4), trial.device):
        update = trial.inspect(given).update
        require(is_like(update, given[0]), form, f"update {kind_of(update)}")


def promotes_integers(trial: RuleTrial) -> None:
    """Integers become floats, which the verdict notes and a call warns of."""
    rows = np.rint(10 * trial.rows(6, 4)).astype(np.int64)
    verdict = trial.inspect(trial.given(rows))
    require(verdict.update.dtype in (np.float64, torch.float64), rows, kind_of(verdict.update))
    exact = trial.inspect(trial.given(rows.astype(np.float64))).update
    require_close(as_array(verdict.update), as_array(exact), rows, "update of integers")
    is_noted = any("promoted" in note for note in verdict.notes)
    require(is_noted, rows, f"no note about the promotion in {verdict.notes}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        given = trial.given(rows)
        trial.rule(given, **trial.info(given))
    kinds = [warning.category for warning in caught]
    require(OutvoteWarning in kinds, rows, f"a call warned with {kinds}, not OutvoteWarning")


def leaves_inputs_alone(trial: RuleTrial) -> None:
    """The gradients are never changed, whatever their layout, nor is the update a view of them."""
    rows = trial.rows(7, 6)
    num_byzantine = trial.some_byzantine(7)
    wanted = trial.update(Round(rows, num_byzantine))
    for layout, given in _layouts(rows, trial).items():
        before = deepcopy(given)
        update = trial.inspect(given, num_byzantine=num_byzantine).update
        if not isinstance(update, dict):
            require_close(as_array(update), wanted, layout, "update, against contiguous rows")
        for part in leaves(update):
            part[...] = 77.0
        seen = "the gradients changed, or a write into the update went through to them"
        require(
            equal(given, before), f"{layout} gradients [7, 6], num_byzantine={num_byzantine}", seen
        )


def call_equals_inspect(trial: RuleTrial) -> None:
    """A plain call returns the update of the verdict."""
    for one in trial.rounds():
        called = trial.call(trial.given(one.rows), num_byzantine=one.num_byzantine)
        require_close(as_array(called), trial.update(one), one, "called")


def verdict_adds_up(trial: RuleTrial) -> None:
    """Every client has a finite score; weights, if known, are from 0 to 1: kept or dropped."""
    for one in trial.rounds():
        ids = [f"client-{k}" for k in range(len(one.rows))]
        verdict = trial.run(one, clients=ids)
        shape, scores = (len(ids),), verdict.scores
        require(scores.shape == shape, one, f"{scores.shape} scores")
        require(bool(np.isfinite(scores).all()), one, f"scores {scores.tolist()}")
        if verdict.weights is None or verdict.kept is None or verdict.dropped is None:
            require(verdict.kept is verdict.dropped is None, one, "kept clients without weights")
            continue
        require(verdict.weights.shape == shape, one, f"{verdict.weights.shape} weights")
        is_share = bool(np.all((verdict.weights >= 0) & (verdict.weights <= 1 + 1e-9)))
        require(is_share, one, f"weights {verdict.weights.tolist()}")
        is_split = sorted(verdict.kept + verdict.dropped) == sorted(ids) and not verdict.rejected
        seen = f"kept {verdict.kept}, dropped {verdict.dropped}, rejected {verdict.rejected}"
        require(is_split, one, seen)


def same_seed_same_verdict(trial: RuleTrial) -> None:
    """The same seed gives the same verdict, whatever was called in between; it is recorded."""
    for one in trial.rounds():
        first = trial.run(one)
        require(first.seed == trial.seed, one, f"seed {first.seed} instead of {trial.seed}")
        trial.run(Round(one.rows[::-1] * 3 + 1, one.num_byzantine))
        _require_same(trial.run(one), first, one)
        fresh = trial.run(one, seed=None)
        _require_same(trial.run(one, seed=fresh.seed), fresh, one)


def repr_round_trip(trial: RuleTrial) -> None:
    """The repr of a rule is the Python expression that makes it."""
    if not all(map(is_dataclass, _nested(trial.rule))):
        return
    classes = {type(rule).__name__: type(rule) for rule in _nested(trial.rule)}
    again = _evaluate(ast.parse(repr(trial.rule), mode="eval").body, classes)
    require(again == trial.rule, repr(trial.rule), f"it makes {again!r}")


def _layouts(rows: Array, trial: RuleTrial) -> dict[str, Gradients]:
    """Return the same rows in many ways."""
    tensor = torch.from_numpy(rows.copy()).to(trial.device)
    tensors = {
        "torch": tensor,
        "transposed torch": tensor.T.contiguous().T,
        "list of torch vectors": list(tensor.clone()),
    }
    if trial.device.type != "cpu":
        return tensors
    wide = np.zeros((14, 12))
    wide[::2, ::2] = rows
    frozen = rows.copy()
    frozen.flags.writeable = False
    return {
        **tensors,
        "C-ordered": rows.copy(),
        "Fortran-ordered": np.asfortranarray(rows),
        "strided": wide[::2, ::2],
        "backward": rows[::-1, ::-1].copy()[::-1, ::-1],
        "read-only": frozen,
        "dicts": [{"a": row[:2].copy(), "b": row[2:].reshape(2, 2).copy()} for row in rows],
    }


def _require_same(got: Verdict, wanted: Verdict, one: Round) -> None:
    is_same = np.array_equal(as_array(got.update), as_array(wanted.update))
    is_same = is_same and np.array_equal(got.scores, wanted.scores)
    # Unknown weights are None, and None equals None alone.
    if not (is_same and np.array_equal(got.weights, wanted.weights)):  # type: ignore[arg-type]
        raise BrokenError(one, f"{got.update} the second time, {wanted.update} the first")


def _nested(thing: Any) -> Iterator[Any]:
    """Yield a rule or an attack, and all the rules inside."""
    yield thing
    for field in fields(thing) if is_dataclass(thing) else ():
        value = getattr(thing, field.name)
        if isinstance(value, Rule):
            yield from _nested(value)


def _evaluate(node: ast.expr, classes: dict[str, type]) -> object:
    """Evaluate a call of rule classes on literals, and nothing else."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in classes:
        parts = [_evaluate(part, classes) for part in node.args]
        named = {str(part.arg): _evaluate(part.value, classes) for part in node.keywords}
        return classes[node.func.id](*parts, **named)
    return ast.literal_eval(node)
