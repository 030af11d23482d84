"""Runs that can be worked on together.

On a CPU every run is worked on alone (`RunStack.is_batched`): products of several matrices at once may
differ in the last bit from those of one, and a run must come out the same whoever is played beside
it, bit for bit.
"""

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from outvote.engine.run_stack import Run, RunStack


def alike(stack: RunStack, kind: Callable[[int, Run], Hashable]) -> list[list[int]]:
    """Put the numbers of runs of one kind together."""
    if not stack.is_batched:
        return [[number] for number in range(len(stack.runs))]
    groups: dict[Hashable, list[int]] = {}
    for number, run in enumerate(stack.runs):
        groups.setdefault(kind(number, run), []).append(number)
    return list(groups.values())


def pieces(stack: RunStack) -> list[slice]:
    """Return all runs at once, or one after the other."""
    if not stack.is_batched:
        return [slice(k, k + 1) for k in range(len(stack.runs))]
    return [slice(0, len(stack.runs))]


def place(numbers: list[int], device: torch.device) -> slice | Tensor:
    """Return what picks some runs: a slice, which copies nothing, if they are neighbours."""
    if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return slice(numbers[0], numbers[0] + len(numbers))
    return torch.tensor(numbers, device=device)
