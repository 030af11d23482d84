"""Where runs stand <-> checkpoints, one per run."""

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from outvote.engine.world import Run, State
from outvote.experiment.memory import pack, unpack
from outvote.results.checkpoint import Checkpoint


def checkpoint_of(state: State, row: int, config: str, outcome: str) -> Checkpoint:
    """Take one run out of the state of many."""
    arrays: dict[str, NDArray[Any]] = {
        "weights": state.weights[row].cpu().numpy(),
        "buffers": state.buffers[row].cpu().numpy(),
    }
    if state.velocity is not None:
        arrays["velocity"] = state.velocity[row].cpu().numpy()
    notes = {
        "outcome": outcome,
        "attack": pack(_at(state.attack_memory, row), "attack", arrays),
        "rule": pack(_at(state.rule_memory, row), "rule", arrays),
    }
    return Checkpoint(round=state.round, config=config, arrays=arrays, notes=notes)


def state_of(found: Sequence[Checkpoint], runs: Sequence[Run], device: torch.device) -> State:
    """Put runs that stand at the same round side by side."""

    def stacked(name: str) -> Tensor:
        rows = [torch.from_numpy(each.arrays[name].copy()) for each in found]
        return torch.stack(rows).to(device)

    pairs = list(zip(found, runs, strict=True))
    return State(
        round=found[0].round,
        weights=stacked("weights"),
        buffers=stacked("buffers"),
        velocity=stacked("velocity") if "velocity" in found[0].arrays else None,
        attack_memory=tuple(
            unpack(each.notes["attack"], each.arrays, run.attack, device) for each, run in pairs
        ),
        rule_memory=tuple(
            unpack(each.notes["rule"], each.arrays, run.rule, device) for each, run in pairs
        ),
    )


def _at(memory: tuple[Any, ...], row: int) -> Any:
    return memory[row] if memory else None
