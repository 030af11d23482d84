"""The calling contract: kinds and dtypes stay, nothing else changes, and calls repeat."""

import ast
import warnings
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import numpy as np
import torch
from torch import Tensor

from outvote.errors import OutvoteWarning
from outvote.rules.rule import Rule
from outvote.rules.rule_spec import RULES, make_rule
from outvote.rules.verdict import Verdict
from outvote.testing.trial import (
    Array,
    BrokenError,
    Gradients,
    Round,
    Trial,
    as_array,
    global_state,
    require,
    require_close,
    stirred_generators,
)

NUMPY_FLOATS = ("float16", "float32", "float64")
TORCH_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def keeps_kind_and_dtype(trial: Trial) -> None:
    """The update has the kind, dtype and device of the gradients: numpy, torch, dicts of either."""
    rows = trial.rows(6, 4)
    for name in NUMPY_FLOATS:
        given = rows.astype(name)
        update = trial.inspect(given).update
        require(_is_like(update, given[0]), f"numpy {name} [6, 4]", f"update {_kind(update)}")
    for dtype in TORCH_FLOATS:
        tensor = torch.from_numpy(rows).to(trial.device, dtype)
        update = trial.inspect(tensor).update
        require(_is_like(update, tensor[0]), f"torch {dtype} [6, 4]", f"update {_kind(update)}")
    for name in NUMPY_FLOATS:
        for kind in (_array, _tensor):
            named = [
                {"a": kind(row[:3, None], name, trial), "b": kind(row[3:], "float64", trial)}
                for row in rows
            ]
            update = trial.inspect(named).update
            is_same = isinstance(update, dict) and [*update] == ["a", "b"]
            is_same = is_same and all(_is_like(update[key], named[0][key]) for key in update)
            require(is_same, f"dicts with {_kind(named[0])}", f"update {_kind(update)}")


def promotes_integers(trial: Trial) -> None:
    """Integers become floats, which the verdict notes and a call warns of."""
    rows = np.rint(10 * trial.rows(6, 4)).astype(np.int64)
    verdict = trial.inspect(trial.given(rows))
    require(verdict.update.dtype in (np.float64, torch.float64), rows, _kind(verdict.update))
    exact = trial.inspect(trial.given(rows.astype(np.float64))).update
    require_close(as_array(verdict.update), as_array(exact), rows, "update of integers")
    is_noted = any("promoted" in note for note in verdict.notes)
    require(is_noted, rows, f"no note about the promotion in {verdict.notes}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trial.call(trial.given(rows))
    kinds = [warning.category for warning in caught]
    require(OutvoteWarning in kinds, rows, f"a call warned with {kinds}, not OutvoteWarning")


def leaves_inputs_alone(trial: Trial) -> None:
    """The gradients are never changed, however they lie in memory, nor is the update a view."""
    rows = trial.rows(7, 6)
    num_byzantine = trial.some_byzantine(7)
    wanted = trial.update(Round(rows, num_byzantine))
    for layout, given in _layouts(rows, trial).items():
        before = _copy(given)
        update = trial.inspect(given, num_byzantine=num_byzantine).update
        if not isinstance(update, dict):
            require_close(as_array(update), wanted, layout, "update, against contiguous rows")
            update[...] = 77.0
        for part in update.values() if isinstance(update, dict) else ():
            part[...] = 77.0
        is_same = _equal(given, before)
        seen = "the gradients changed, or a write into the update went through to them"
        require(is_same, f"{layout} gradients [7, 6], num_byzantine={num_byzantine}", seen)


def call_equals_inspect(trial: Trial) -> None:
    """A plain call returns the update of the verdict."""
    for one in trial.rounds():
        called = trial.call(trial.given(one.rows), num_byzantine=one.num_byzantine)
        require_close(as_array(called), trial.update(one), one, "called")


def verdict_adds_up(trial: Trial) -> None:
    """Every client has a finite score; weights, if known, are from 0 to 1: kept or dropped."""
    for one in trial.rounds():
        ids = [f"client-{k}" for k in range(len(one.rows))]
        verdict = trial.inspect(trial.given(one.rows), num_byzantine=one.num_byzantine, clients=ids)
        shape = (len(ids),)
        require(verdict.scores.shape == shape, one, f"{verdict.scores.shape} scores")
        is_finite = bool(np.isfinite(verdict.scores).all())
        require(is_finite, one, f"scores {verdict.scores.tolist()}")
        if verdict.weights is None or verdict.kept is None or verdict.dropped is None:
            require(verdict.kept is verdict.dropped is None, one, "kept clients without weights")
            continue
        require(verdict.weights.shape == shape, one, f"{verdict.weights.shape} weights")
        is_share = bool(np.all((verdict.weights >= 0) & (verdict.weights <= 1 + 1e-9)))
        require(is_share, one, f"weights {verdict.weights.tolist()}")
        is_split = sorted(verdict.kept + verdict.dropped) == sorted(ids) and not verdict.rejected
        seen = f"kept {verdict.kept}, dropped {verdict.dropped}, rejected {verdict.rejected}"
        require(is_split, one, seen)


def same_seed_same_verdict(trial: Trial) -> None:
    """The same seed gives the same verdict, whatever was called in between; it is recorded."""
    for one in trial.rounds():
        first = trial.verdict(one)
        require(first.seed == trial.seed, one, f"seed {first.seed} in place of {trial.seed}")
        trial.verdict(Round(one.rows[::-1] * 3 + 1, one.num_byzantine))
        _require_same(trial.verdict(one), first, one)
        info = {"num_byzantine": one.num_byzantine}
        fresh = trial.inspect(trial.given(one.rows), **info, seed=None)
        again = trial.inspect(trial.given(one.rows), **info, seed=fresh.seed)
        _require_same(again, fresh, one)


def no_global_state(trial: Trial) -> None:
    """No global generator is drawn from or seeded, and no setting of torch is left changed."""
    for one in trial.rounds():
        with stirred_generators():
            before = global_state()
            trial.verdict(one)
            after = global_state()
        changed = [name for name, value in before.items() if after[name] != value]
        require(not changed, one, f"changed {', '.join(changed)}")


def text_round_trip(trial: Trial) -> None:
    """The text of a rule makes the same rule again (if its class can be found by text)."""
    if not all(_has_text(type(rule)) for rule in _nested(trial.rule)):
        return
    text = str(trial.rule)
    again = make_rule(text)
    is_same = again == trial.rule if _is_value(trial.rule) else type(again) is type(trial.rule)
    require(is_same and str(again) == text, text, f"make_rule gave {again!r}")


def repr_round_trip(trial: Trial) -> None:
    """The repr of a rule is the Python expression that makes it."""
    if not all(_is_value(rule) for rule in _nested(trial.rule)):
        return
    classes = {type(rule).__name__: type(rule) for rule in _nested(trial.rule)}
    again = _evaluate(ast.parse(repr(trial.rule), mode="eval").body, classes)
    require(again == trial.rule, repr(trial.rule), f"it makes {again!r}")


def _layouts(rows: Array, trial: Trial) -> dict[str, Gradients]:
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


def _copy(given: Gradients) -> Gradients:
    if isinstance(given, list):
        return [_copy(part) for part in given]
    if isinstance(given, dict):
        return {name: _copy(part) for name, part in given.items()}
    return given.clone() if isinstance(given, Tensor) else given.copy()


def _equal(one: Gradients, two: Gradients) -> bool:
    if isinstance(one, list):
        return all(_equal(a, b) for a, b in zip(one, two, strict=True))
    if isinstance(one, dict):
        return all(_equal(one[name], two[name]) for name in two)
    return bool((one == two).all())


def _array(row: Array, dtype: str, trial: Trial) -> Gradients:
    del trial
    return row.astype(dtype)


def _tensor(row: Array, dtype: str, trial: Trial) -> Gradients:
    return torch.from_numpy(row.astype(dtype)).to(trial.device)


def _is_like(update: Gradients, wanted: Gradients) -> bool:
    """Tell whether two arrays or tensors are of one kind, dtype and shape, in one place."""
    return (
        type(update) is type(wanted)
        and (update.dtype, update.shape) == (wanted.dtype, wanted.shape)
        and getattr(update, "device", None) == getattr(wanted, "device", None)
    )


def _kind(update: Gradients) -> str:
    if isinstance(update, dict):
        return ", ".join(f"{name}: {_kind(part)}" for name, part in update.items())
    where = f" on {update.device}" if isinstance(update, Tensor) else ""
    shape, dtype = getattr(update, "shape", "?"), getattr(update, "dtype", "?")
    return f"{type(update).__name__} {dtype} {tuple(shape)}{where}"


def _require_same(got: Verdict, wanted: Verdict, one: Round) -> None:
    is_same = np.array_equal(as_array(got.update), as_array(wanted.update))
    is_same = is_same and np.array_equal(got.scores, wanted.scores)
    is_same = is_same and _equal_weights(got.weights, wanted.weights)
    if not is_same:
        raise BrokenError(one, f"{got.update} the second time, {wanted.update} the first")


def _equal_weights(got: Array | None, wanted: Array | None) -> bool:
    if got is None or wanted is None:
        return got is wanted
    return np.array_equal(got, wanted)


def _nested(rule: Rule) -> Iterator[Rule]:
    """Yield a rule and all the rules inside."""
    yield rule
    for value in _parameters(rule):
        if isinstance(value, Rule):
            yield from _nested(value)


def _parameters(thing: object) -> list[object]:
    if not is_dataclass(thing):
        return []
    return [getattr(thing, field.name) for field in fields(thing)]


def _is_value(thing: object) -> bool:
    return is_dataclass(thing)


def _has_text(kind: type) -> bool:
    return kind in RULES.values() or hasattr(kind, "loaded_from")


def _evaluate(node: ast.expr, classes: dict[str, type]) -> object:
    """Evaluate a call of rule classes on literals, and nothing else."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in classes:
        parts = [_evaluate(part, classes) for part in node.args]
        named = {str(part.arg): _evaluate(part.value, classes) for part in node.keywords}
        return classes[node.func.id](*parts, **named)
    return ast.literal_eval(node)
