"""What runs are made of, and where they stand."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, final

import torch
from torch import Tensor

from outvote.attacks.attack import Attack
from outvote.clients.federation import Federation
from outvote.clients.samples import Samples
from outvote.clients.training import Training
from outvote.clients.work import Trainer
from outvote.errors import check_choice
from outvote.rules.base import Rule
from outvote.seeding import RandomStream
from outvote.server.step import Server


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """One federation under one attack, defended by one rule."""

    federation: Federation
    attack: Attack
    rule: Rule
    seed: int
    num_sampled: int
    assumed_byzantine: int | float | None = None
    """What the server knows of the liars in a round: None their number, an integer that number
    always, a fraction that share of the clients, rounded up."""
    root: Tensor | None = None
    """Samples of the server's own, for rules that need a gradient to trust."""

    def stream(self, *names: object) -> RandomStream:
        """Return the run's random stream of that name."""
        stream = RandomStream((self.seed,))
        for name in names:
            stream = stream.fold_in(str(name))
        return stream

    def num_byzantine_assumed(self, num_byzantine: int) -> int:
        """Return how many liars the server reckons with if there are `num_byzantine`."""
        if self.assumed_byzantine is None:
            return num_byzantine
        if isinstance(self.assumed_byzantine, int):
            return self.assumed_byzantine
        return ceil(self.assumed_byzantine * self.num_sampled - 1e-9)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunStack:
    """Runs that are played together: one dataset, one network, one way of training."""

    runs: tuple[Run, ...]
    trainer: Trainer
    test: Samples
    training: Training
    server: Server = field(default_factory=Server)
    num_classes: int
    is_counter: Tensor
    """Which of the network's buffers are counters."""
    is_variance: Tensor
    """Which of them are running variances."""
    has_normalisation: bool = False
    aggregate: str = "parameters"
    """What rules see: the "parameters", or with "state" the buffers too, as both of the authors'
    codes have it."""
    is_batched: bool = False
    """Whether runs that share an attack or a rule are worked on at once, see `alike.py`."""
    has_diagnostics: bool = False
    """Whether rounds are diagnosed, see `diagnosing.py`."""

    def __post_init__(self) -> None:
        """Check that the runs can be stacked."""
        check_choice("aggregate", self.aggregate, ("parameters", "state"))
        sizes = {run.num_sampled for run in self.runs}
        if len(sizes) != 1:
            raise ValueError(
                f"runs played together must sample as many clients each, got {sorted(sizes)}."
            )

    @property
    def device(self) -> torch.device:
        """Where the runs are played."""
        return self.test.images.device

    def only(self, numbers: Sequence[int]) -> "RunStack":
        """Return the stack of some of the runs."""
        return replace(self, runs=tuple(self.runs[k] for k in numbers))


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class State:
    """Where the runs stand after some rounds."""

    round: int
    weights: Tensor
    """``[runs, dim]``"""
    buffers: Tensor
    """``[runs, buffers]``, float64"""
    velocity: Tensor | None = None
    attack_memory: tuple[Any, ...] = ()
    rule_memory: tuple[Any, ...] = ()
    client_memory: tuple[dict[int, Tensor], ...] = ()
    """What each client sent the last time, with `client_momentum` only."""

    def only(self, numbers: Sequence[int]) -> "State":
        """Return the state of some of the runs."""
        at = torch.tensor(numbers, dtype=torch.long, device=self.weights.device)

        def some(memory: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(memory[k] for k in numbers) if memory else ()

        return replace(
            self,
            weights=self.weights[at],
            buffers=self.buffers[at],
            velocity=None if self.velocity is None else self.velocity[at],
            attack_memory=some(self.attack_memory),
            rule_memory=some(self.rule_memory),
            client_memory=some(self.client_memory),
        )
