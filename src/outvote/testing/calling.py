"""The calling contract: kind, dtype and device stay, and inputs are not changed."""

import warnings

import numpy as np
import torch
from torch import Tensor

from outvote.errors import OutvoteWarning
from outvote.testing.trial import (
    Array,
    Gradients,
    Round,
    Trial,
    as_array,
    require,
    require_close,
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
    """Integers become floats, and both the verdict and a warning say so."""
    rows = np.rint(10 * trial.rows(6, 4)).astype(np.int64)
    verdict = trial.inspect(trial.given(rows))
    require(verdict.update.dtype in (np.float64, torch.float64), rows, _kind(verdict.update))
    exact = trial.inspect(trial.given(rows.astype(np.float64))).update
    require_close(as_array(verdict.update), as_array(exact), rows, "update of integers")
    is_said = any("promoted" in note for note in verdict.notes)
    require(is_said, rows, f"no note about the promotion in {verdict.notes}")
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


def _layouts(rows: Array, trial: Trial) -> dict[str, Gradients]:
    """Return the same rows in many ways; elsewhere than on the CPU stream differ from numpy's."""
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
