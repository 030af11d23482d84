"""The state of a federation after a round, and the checkpoint that keeps it across `kill -9`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor

from outvote.flower.exclusion import Exclusions
from outvote.flower.model_record import SentModel
from outvote.results import checkpoint as checkpoints
from outvote.results.audit_log import read_audit, read_manifest
from outvote.results.checkpoint import Checkpoint
from outvote.results.disk import StoreError
from outvote.rules.rule import Rule
from outvote.server.selection import Suspicions
from outvote.server.step import STATE_NAMES, Moments
from outvote.state_format import pack_state, unpack_state
from outvote.text import short_line

CONFIG = "outvote-flower-1"
"""The layout of the file."""


@final
@dataclass(slots=True, kw_only=True)
class ServerState:
    """What a server carries from round to round: this, and nothing else, is checkpointed."""

    exclusions: Exclusions
    round: int = 0
    model: ArrayRecord | None = None
    optimizer_state: Moments = field(default_factory=dict)
    rule_state: Any = None
    known_nodes: set[int] = field(default_factory=set)
    """All that were ever connected."""
    suspicions: Suspicions = field(default_factory=dict)
    """How suspicious nodes are by their scores in earlier rounds, see `Selection`."""


def save_state(folder: Path, state: ServerState, rule: Rule) -> None:
    """Write the state after a round, and the text of the rule that its `rule_state` belongs to."""
    if state.model is None:
        return
    arrays: dict[str, NDArray[Any]] = {
        **{f"model/{name}": array.numpy() for name, array in state.model.items()},
        **{f"optimizer/{name}": each.numpy() for name, each in state.optimizer_state.items()},
    }
    notes = {
        # A file keeps neither the order of the arrays nor that a single number has no axis.
        "shapes": [[name, list(array.shape)] for name, array in state.model.items()],
        "offenders": state.exclusions.to_notes(),
        "nodes": sorted(state.known_nodes),
        "suspicions": [[node, each] for node, each in state.suspicions.items()],
        "rule": str(rule),
        "rule_state": pack_state(state.rule_state, "rule_state", arrays),
    }
    checkpoints.save(
        folder, Checkpoint(round=state.round, config=CONFIG, arrays=arrays, notes=notes)
    )


def load_state(folder: Path, state: ServerState, rule: Rule) -> list[str]:
    """Load the newest sound checkpoint, if any; return what was wrong with newer ones.

    The state of another rule is not loaded.
    """
    found, faults = checkpoints.load_newest(folder, CONFIG)
    if found is None:
        if faults:
            raise StoreError(f"no checkpoint in {folder} can be read: {'; '.join(faults)}")
        _check_none_is_lost(folder)
        return []
    if faults:
        # Else the damaged one would replace the sound one when the next is saved.
        checkpoints.drop(folder, checkpoints.NEWEST)
    try:
        _restore(state, found, rule)
    # Its checksum is right: another program, or a user by hand, has written it.
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise StoreError(
            f"the checkpoint in {folder} is not one of this server ({short_line(error)}); restore "
            "it, or start anew in another audit_dir"
        ) from error
    return faults


def _restore(state: ServerState, found: Checkpoint, rule: Rule) -> None:
    arrays, notes = found.arrays, found.notes
    state.round = found.round
    state.model = ArrayRecord(
        {name: Array(arrays[f"model/{name}"].reshape(shape)) for name, shape in notes["shapes"]}
    )
    state.optimizer_state = {
        name.removeprefix("optimizer/"): _tensor(array)
        for name, array in arrays.items()
        if name.startswith("optimizer/")
    }
    dim = len(SentModel.read(state.model).vector)
    for name, each in state.optimizer_state.items():
        if name not in STATE_NAMES or each.numel() != dim:
            raise ValueError(f"{name} of the optimizer has {each.numel()} values")
    state.exclusions.from_notes(notes["offenders"])
    state.known_nodes = {int(node) for node in notes.get("nodes", ())}
    state.suspicions = {int(node): float(each) for node, each in notes.get("suspicions", ())}
    is_same = notes["rule"] == str(rule)
    state.rule_state = unpack_state(notes["rule_state"], arrays, rule) if is_same else None


def _check_none_is_lost(folder: Path) -> None:
    """Raise if the log holds rounds that must have left a checkpoint."""
    manifest, rounds = read_manifest(folder), read_audit(folder)
    every = 1 if manifest is None else int(manifest.settings.get("checkpoint_every") or 1)
    if rounds and rounds[-1].round > every:
        raise StoreError(
            f"the log in {folder} holds {rounds[-1].round} rounds, but the checkpoint is gone; "
            "restore it, or start anew in another audit_dir"
        )


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.array(array))
