"""Runs that can be worked on together."""

from collections.abc import Callable, Hashable, Sequence

from outvote.engine.world import Run


def alike(runs: Sequence[Run], kind: Callable[[int, Run], Hashable]) -> list[list[int]]:
    """Put the numbers of runs of one kind together."""
    groups: dict[Hashable, list[int]] = {}
    for number, run in enumerate(runs):
        groups.setdefault(kind(number, run), []).append(number)
    return list(groups.values())
