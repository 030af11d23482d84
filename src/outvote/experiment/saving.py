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

MEMORIES = tuple(field.name for field in fields(State) if field.name.endswith("_memory"))
"""Of attacks, rules, and whoever else remembers something from round to round."""


def checkpoint_of(state: State, row: int, config: str, outcome: str, data: str) -> Checkpoint:
    """Take one run out of the state of many; `data` is the checksum of its pictures."""
    arrays: dict[str, NDArray[Any]] = {
        "weights": state.weights[row].cpu().numpy(),
        "buffers": state.buffers[row].cpu().numpy(),
    }
    if state.velocity is not None:
        arrays["velocity"] = state.velocity[row].cpu().numpy()
    notes: dict[str, Any] = {"outcome": outcome, "data": data}
    for name in MEMORIES:
        notes[name] = pack(_at(getattr(state, name), row), name, arrays)
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
        **{name: _remembered(name, found, runs, device) for name in MEMORIES},
    )


def _remembered(
    name: str, found: Sequence[Checkpoint], runs: Sequence[Run], device: torch.device
) -> tuple[Any, ...]:
    """Return what is remembered of each run; nothing at all if no run remembers anything."""
    memory = []
    for each, run in zip(found, runs, strict=True):
        owner = getattr(run, name.removesuffix("_memory"), run)
        memory.append(unpack(each.notes[name], each.arrays, owner, device))
    return () if all(one is None for one in memory) else tuple(memory)


def _at(memory: tuple[Any, ...], row: int) -> Any:
    return memory[row] if memory else None
