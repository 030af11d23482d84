"""Where a federation stands <-> a file that survives `kill -9`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor

from outvote.flower.state import ServerState
from outvote.results import checkpoint as checkpoints
from outvote.results.audit_log import read_audit, read_manifest
from outvote.results.checkpoint import Checkpoint
from outvote.results.disk import StoreError

CONFIG = "outvote-flower-1"
"""The layout of the file."""


def save_state(folder: Path, state: ServerState, rule: str) -> None:
    """Write where the federation stands after a round; the rule is told by its text."""
    arrays: dict[str, NDArray[Any]] = {}
    if state.model is None:
        return
    for name, array in state.model.items():
        arrays[f"model/{name}"] = array.numpy()
    for name, tensor in state.optimizer_memory.items():
        arrays[f"optimizer/{name}"] = tensor.numpy()
    notes = {
        # A file keeps neither the order of the arrays nor that a single number has no axis.
        "shapes": [[name, list(array.shape)] for name, array in state.model.items()],
        "offenders": state.offenders.to_notes(),
        "rule": rule,
        "rule_memory": _pack(state.rule_memory, arrays),
    }
    checkpoints.save(
        folder, Checkpoint(round=state.round, config=CONFIG, arrays=arrays, notes=notes)
    )


def load_state(folder: Path, state: ServerState, rule: str) -> list[str]:
    """Take up the newest sound checkpoint, if any; return what was wrong with newer ones.

    What another rule remembered is of no use to this one.
    """
    found, faults = checkpoints.load_newest(folder, CONFIG)
    if found is None:
        if faults:
            raise StoreError(f"no checkpoint in {folder} can be read: {'; '.join(faults)}")
        _check_none_is_lost(folder)
        return []
    if faults:
        # Else the damaged one would take the place of the sound one when the next is saved.
        checkpoints.drop_newest(folder)
    arrays, notes = found.arrays, found.notes
    state.round = found.round
    state.model = ArrayRecord(
        {name: Array(arrays[f"model/{name}"].reshape(shape)) for name, shape in notes["shapes"]}
    )
    state.optimizer_memory = {
        name.removeprefix("optimizer/"): _tensor(array)
        for name, array in arrays.items()
        if name.startswith("optimizer/")
    }
    state.offenders.from_notes(notes["offenders"])
    state.rule_memory = _unpack(notes["rule_memory"], arrays) if notes["rule"] == rule else None
    return faults


def _check_none_is_lost(folder: Path) -> None:
    """Raise if rounds were played that must have left a checkpoint."""
    manifest, told = read_manifest(folder), read_audit(folder)
    every = 1 if manifest is None else int(manifest.settings.get("checkpoint_every") or 1)
    if told and told[-1].round > every:
        raise StoreError(
            f"the log in {folder} tells of {told[-1].round} rounds, but the checkpoint is gone; "
            "bring it back, or start anew in another audit_dir"
        )


def _pack(memory: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Put the vectors that a rule remembers among the arrays: one, or one per node."""
    if memory is None:
        return None
    if isinstance(memory, Tensor):
        arrays["rule"] = memory.cpu().numpy()
        return "one"
    if isinstance(memory, Mapping) and all(isinstance(each, Tensor) for each in memory.values()):
        for k, vector in enumerate(memory.values()):
            arrays[f"rule/{k}"] = vector.cpu().numpy()
        return list(memory)
    raise TypeError(
        f"what the rule remembers cannot be saved: {type(memory).__name__}; use a tensor or a "
        "dictionary of tensors, or pass audit_dir=None."
    )


def _unpack(note: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    if note is None:
        return None
    if note == "one":
        return _tensor(arrays["rule"])
    return {client: _tensor(arrays[f"rule/{k}"]) for k, client in enumerate(note)}


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.array(array))
