"""Where runs stand <-> checkpoints, one per run."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from outvote.engine.run_stack import Run, State
from outvote.experiment.memory import pack, unpack
from outvote.results.checkpoint import Checkpoint

STATES = tuple(field.name for field in fields(State) if field.name.endswith("_states"))
"""Of attacks, rules and clients, one per run; checkpoints keep the names of 0.1, `*_memory`."""


def checkpoint_of(state: State, row: int, config: str, outcome: str, data: str) -> Checkpoint:
    """Take one run out of the state of many; `data` is the checksum of its pictures."""
    arrays: dict[str, NDArray[Any]] = {
        "weights": state.weights[row].cpu().numpy(),
        "buffers": state.buffers[row].cpu().numpy(),
    }
    if state.velocity is not None:
        arrays["velocity"] = state.velocity[row].cpu().numpy()
    notes: dict[str, Any] = {"outcome": outcome, "data": data}
    for name in STATES:
        key = _key(name)
        notes[key] = pack(_at(getattr(state, name), row), key, arrays)
    return Checkpoint(round=state.round, config=config, arrays=arrays, notes=notes)


def state_of(found: Sequence[Checkpoint], runs: Sequence[Run], device: torch.device) -> State:
    """Put runs that stand at the same round side by side."""

    def stacked(name: str) -> Tensor:
        rows = [torch.from_numpy(each.arrays[name].copy()) for each in found]
        return torch.stack(rows).to(device)

    return State(
        round=found[0].round,
        weights=stacked("weights"),
        buffers=stacked("buffers"),
        velocity=stacked("velocity") if "velocity" in found[0].arrays else None,
        **{name: _remembered(name, found, runs, device) for name in STATES},
    )


def _remembered(
    name: str, found: Sequence[Checkpoint], runs: Sequence[Run], device: torch.device
) -> tuple[Any, ...]:
    """Return what is remembered of each run; nothing at all if no run remembers anything."""
    states = []
    for each, run in zip(found, runs, strict=True):
        owner = getattr(run, name.removesuffix("_states"), run)
        states.append(unpack(each.notes[_key(name)], each.arrays, owner, device))
    return () if all(one is None for one in states) else tuple(states)


def _at(states: tuple[Any, ...], row: int) -> Any:
    return states[row] if states else None


def _key(name: str) -> str:
    return name.replace("_states", "_memory")
