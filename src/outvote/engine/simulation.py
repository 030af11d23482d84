"""Rounds, one after the other, until all runs have ended."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import isfinite
from typing import Any, final

import torch
from torch import Tensor, nn

from outvote.engine.federation import ClientTests
from outvote.engine.round import run_round
from outvote.engine.run_stack import Run, RunStack, State
from outvote.errors import OutvoteWarning, plural
from outvote.results.round import Round
from outvote.server.step import BufferKinds, Server
from outvote.training.batches import check_batch_size, has_batch_norm
from outvote.training.choose_trainer import choose_trainer
from outvote.training.gpu_memory import even_size, in_chunks
from outvote.training.local_sgd import LocalSGD
from outvote.training.objective import Loss, Objective
from outvote.training.samples import Samples
from outvote.training.sequential import MakeOptimizer, state_of


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One round of the runs that have not ended."""

    state: State
    numbers: list[int]
    """Which of the runs these are."""
    records: list[Round]
    over: list[int]
    """The runs that diverged in this round."""


def make_run_stack(  # noqa: PLR0913  (all of what a stack is made of)
    module: nn.Module,
    train: Samples,
    test: Samples,
    runs: Sequence[Run],
    *,
    training: LocalSGD,
    num_classes: int | None,
    server: Server | None = None,
    aggregate: str = "parameters",
    precision: str = "float32",
    has_diagnostics: bool = False,
    has_theory: bool = False,
    loss: Loss | None = None,
    optimizer: MakeOptimizer | None = None,
    trainer: str = "auto",
    groups: tuple[Any, Any] | None = None,
) -> RunStack:
    """Build a stack of runs; see `choose_trainer` for how their clients train.

    `groups` are those of the training and the test samples, where clients are groups.
    """
    check_batch_size(module, training)
    device = train.device
    objective = Objective.of(train.targets, loss, has_classes=num_classes is not None)
    chosen = choose_trainer(module, train, objective, optimizer, precision, trainer)
    sizes = list(map(Tensor.numel, module.parameters()))
    if aggregate == "state":
        sizes += map(Tensor.numel, module.buffers())
    return RunStack(
        runs=tuple(runs),
        trainer=chosen,
        test=test,
        training=training,
        server=server or Server(),
        num_classes=num_classes,
        layer_sizes=tuple(sizes),
        buffer_kinds=BufferKinds.of(module, device),
        aggregate=aggregate,
        has_batch_norm=has_batch_norm(module),
        has_buffers=next(module.buffers(), None) is not None,
        is_batched=device.type != "cpu",
        client_tests=ClientTests.of(train, test, num_classes, groups),
        has_diagnostics=has_diagnostics or has_theory,
        has_theory=has_theory,
    )


def first_state(modules: Sequence[nn.Module], like: Samples) -> State:
    """Return the state before the first round: one new network per run."""
    device, dtype = like.device, like.dtype
    weights, buffers = zip(*map(state_of, modules), strict=True)
    return State(
        round=0,
        weights=torch.stack(weights).to(device, dtype),
        buffers=torch.stack(buffers).to(device),
    )


def _warn(text: str) -> None:
    warnings.warn(text, OutvoteWarning, stacklevel=2)


@final
class FittingRounds:
    """Rounds of as many runs at once as fit into memory.

    A round that does not fit is run again in halves of the runs, and nothing is lost. The number of
    runs that fitted stays for the next rounds.
    """

    def __init__(self, report: Callable[[str], None] = _warn) -> None:
        """Take what is called with one line when runs do not fit."""
        self.report = report
        self.most: int | None = None
        """How many runs fit at once; None: all that there were."""

    def run(
        self, stack: RunStack, state: State, *, is_evaluated: bool = True
    ) -> tuple[State, list[Round]]:
        """Run one round of all runs, see `run_round`."""
        num_runs = len(stack.runs)

        def work(part: slice) -> tuple[State, list[Round]]:
            numbers = range(num_runs)[part]
            if len(numbers) == num_runs:
                return run_round(stack, state, is_evaluated=is_evaluated)
            return run_round(stack.only(numbers), state.only(numbers), is_evaluated=is_evaluated)

        size = even_size(num_runs, num_runs if self.most is None else self.most)
        parts, fitted = in_chunks(work, num_runs, size)
        if fitted < size:
            self.most = fitted
            self.report(
                f"{size} runs do not fit into memory together; their rounds are run with "
                f"{plural(fitted, 'run')} at a time."
            )
        states, records = zip(*parts, strict=True)
        return State.joined(states), list(chain(*records))


def simulate(
    stack: RunStack,
    state: State,
    num_rounds: int,
    *,
    evaluate_every: int = 1,
    numbers: Sequence[int] | None = None,
    report: Callable[[str], None] = _warn,
) -> Iterator[Step]:
    """Run rounds up to `num_rounds`; runs that diverge end early, the others go on.

    Runs that do not fit into memory together are run in smaller groups; `report` is called with one
    line then.
    """
    rounds = FittingRounds(report)
    active = list(range(len(stack.runs)) if numbers is None else numbers)
    here = stack if active == list(range(len(stack.runs))) else stack.only(active)
    while active and state.round < num_rounds:
        number = state.round + 1
        is_evaluated = number % evaluate_every == 0 or number == num_rounds
        before = state.buffers
        state, records = rounds.run(here, state, is_evaluated=is_evaluated)
        is_finite = _is_finite(state, before)
        over, left = [], []
        for k, each in enumerate(records):
            has_loss = each.loss is None or isfinite(each.loss)
            if not (is_finite[k] and has_loss):
                over.append(active[k])
                continue
            left.append(k)
            if number < num_rounds:
                records[k] = replace(each, client_accuracies=None)
        yield Step(state, active, records, over)
        if over:
            if not left:
                return
            active = [active[k] for k in left]
            here, state = here.only(left), state.only(left)


def _is_finite(state: State, before: Tensor) -> list[bool]:
    """Return which runs can go on: their weights, statistics and moments are finite.

    Buffers that are as they were `before` may be infinite, such as masks, but not NaN.
    """
    is_sound = (state.buffers.isfinite() | (state.buffers == before)).all(dim=-1)
    # The square of a huge update is infinite: its coordinate would never move again.
    for values in (state.weights, *state.server_state.values()):
        is_sound &= values.reshape(len(values), -1).isfinite().all(dim=-1)
    return list(is_sound.tolist())
