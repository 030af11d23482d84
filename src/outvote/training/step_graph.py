"""Steps of training recorded once as a CUDA graph, and repeated with other samples.

A step of a deep network is some hundred short kernels. Where few models are trained, a GPU is done
with each before Python has launched the next; a graph launches all of them at once. Where the GPU
is the slower of the two, recording would only take time.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class StepBatch:
    """The samples of one step of all models that still train."""

    index: Tensor
    """Which samples, ``[models, batch]``."""
    is_there: Tensor
    """Which of them are no padding."""
    moves: Tensor | None
    is_full: bool
    """Whether none is padding."""
    num_going: int
    """How many models take another step."""

    @property
    def kind(self) -> tuple[Any, ...]:
        """What steps have in common that one graph can repeat."""
        return (*self.index.shape, self.is_full, self.num_going)

    def copied(self) -> "StepBatch":
        """Return a copy, into which the samples of other steps can be written."""
        moves = None if self.moves is None else self.moves.clone()
        return StepBatch(
            self.index.clone(), self.is_there.clone(), moves, self.is_full, self.num_going
        )

    def copy_(self, other: "StepBatch") -> None:
        """Take the samples of another step of the same kind."""
        self.index.copy_(other.index)
        self.is_there.copy_(other.is_there)
        if self.moves is not None and other.moves is not None:
            self.moves.copy_(other.moves)


class RecordedStep:
    """One step as a CUDA graph."""

    def __init__(self, step: Callable[[StepBatch], None], batch: StepBatch, pool: Any) -> None:
        """Record what a step launches, which must have run before; nothing is executed."""
        self._batch = batch.copied()
        self._graph = torch.cuda.CUDAGraph()
        # Backward passes run in a thread of their own.
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="relaxed"):
            step(self._batch)

    def run(self, batch: StepBatch) -> None:
        """Execute it with the samples of a step."""
        self._batch.copy_(batch)
        self._graph.replay()


# Recording takes about as long as a step: fewer repetitions do not pay.
LEAST_REPEATED = 5


class StepEnd:
    """Where a GPU is done with a step."""

    def __init__(self) -> None:
        """Mark the end of what was launched until now."""
        self._event = torch.cuda.Event()
        self._event.record()

    def is_reached(self) -> bool:
        """Return whether the GPU is that far."""
        return bool(self._event.query())


class StepRunner:
    """Runs steps one after the other; those that are alike are recorded and repeated."""

    def __init__(self) -> None:
        """Record nothing yet."""
        self._pool: Any = None
        self._recorded: dict[tuple[Any, ...], RecordedStep] = {}

    def run(
        self, step: Callable[[StepBatch], None], batches: list[StepBatch], *, records: bool
    ) -> None:
        """Do a step for every batch; with `records`, on a GPU, as a graph where that pays."""
        # The first step of all differs from the others.
        step(batches[0])
        end, is_waiting = StepEnd() if records else None, False
        num_left = Counter(batch.kind for batch in batches[1:])
        recorded: dict[tuple[Any, ...], RecordedStep] = {}
        has_run: set[tuple[Any, ...]] = set()
        for batch in batches[1:]:
            kind = batch.kind
            # A step runs once before it is recorded: what it needs is loaded then.
            if is_waiting and kind in has_run and num_left[kind] >= LEAST_REPEATED:
                recorded[kind] = self._record(step, batch)
                has_run.remove(kind)
            if kind in recorded:
                recorded[kind].run(batch)
            else:
                step(batch)
                has_run.add(kind)
                if end is not None:
                    # The GPU was done with a step before the next was launched.
                    is_waiting, end = end.is_reached(), StepEnd()
            num_left[kind] -= 1
        if recorded:
            # Kept until there are others: without any, their memory would be given back.
            self._recorded = recorded

    def _record(self, step: Callable[[StepBatch], None], batch: StepBatch) -> RecordedStep:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return RecordedStep(step, batch, self._pool)
