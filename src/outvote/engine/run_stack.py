"""What runs are made of, and their state after some rounds."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from operator import attrgetter
from typing import Any, final

import torch
from torch import Tensor

from outvote.attacks.attack import Attack
from outvote.engine.federation import ClientTests, Federation, sample_clients
from outvote.errors import check_choice
from outvote.ops.process import on_device
from outvote.rules.aggregate import num_from_fraction
from outvote.rules.rule import Aggregation, Rule, known
from outvote.seeding import RandomStream
from outvote.server.selection import Selection, Suspicions, Uniform
from outvote.server.step import BufferKinds, Moments, Server
from outvote.training.local_sgd import LocalSGD
from outvote.training.samples import Samples
from outvote.training.trainer import Trainer


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
    """How many Byzantine clients the server assumes in a round: None their true number, an integer
    that number always, a fraction that share of the clients, rounded up."""
    uses_sample_counts: bool = False
    """Whether the rule weighs clients by their numbers of samples, capped."""
    selection: Selection = field(default_factory=Uniform)
    """How the clients of a round are sampled."""
    root: Tensor | None = None
    """Indices of the server's own samples, for rules that need a reference gradient."""

    def stream(self, *names: object) -> RandomStream:
        """Return the run's random stream of that name."""
        stream = RandomStream((self.seed,))
        for name in names:
            stream = stream.fold_in(str(name))
        return stream

    def seed_of(self, number: int, name: str) -> int:
        """Return the seed of the "attack" or the "rule" in a round."""
        return self.stream(number, name).derived()[0]

    def sample_counts(self, clients: Sequence[int]) -> list[int] | None:
        """Return the numbers of samples of some clients; None: all count alike."""
        if not self.uses_sample_counts:
            return None
        return [len(self.federation.parts[client]) for client in clients]

    def num_byzantine_assumed(self, num_byzantine: int) -> int:
        """Return how many Byzantine clients the server assumes if there are `num_byzantine`."""
        if self.assumed_byzantine is None:
            return num_byzantine
        if isinstance(self.assumed_byzantine, int):
            return self.assumed_byzantine
        if self.assumed_byzantine < 0.5:
            return num_from_fraction(self.assumed_byzantine, self.num_sampled)
        return ceil(self.assumed_byzantine * self.num_sampled - 1e-9)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunStack:
    """Runs that train together: one dataset, one network, one way of training."""

    runs: tuple[Run, ...]
    trainer: Trainer
    test: Samples
    training: LocalSGD
    server: Server = field(default_factory=Server)
    num_classes: int | None
    """None: targets are not classes."""
    layer_sizes: tuple[int, ...]
    """The numbers of values in the network's parameters, and with aggregate="state" its buffers."""
    buffer_kinds: BufferKinds
    """Which of the network's buffers are counters, variances, whole numbers."""
    has_batch_norm: bool = False
    has_buffers: bool = False
    aggregate: str = "parameters"
    """What rules aggregate: the "parameters", or the whole "state" with the buffers, as in both of
    the authors' codes."""
    is_batched: bool = False
    """Whether runs that share an attack or a rule are computed at once, see `grouped`."""
    client_tests: ClientTests | None = None
    """What the global model is tested on for each client; None: targets are not classes."""
    has_diagnostics: bool = False
    """Whether rounds are diagnosed, see `diagnostics.py`."""
    has_theory: bool = False
    """Whether diagnosed rounds are also measured at both ends, see `measure_theory`."""

    def __post_init__(self) -> None:
        """Check that the runs can be stacked."""
        check_choice("aggregate", self.aggregate, ("parameters", "state"))
        sizes = set(map(attrgetter("num_sampled"), self.runs))
        if len(sizes) != 1:
            raise ValueError(
                f"runs of one stack must sample the same number of clients, got {sorted(sizes)}."
            )

    @property
    def device(self) -> torch.device:
        """Where the runs train."""
        return self.test.device

    def only(self, numbers: Sequence[int]) -> "RunStack":
        """Return the stack of some of the runs."""
        return replace(self, runs=tuple(self.runs[k] for k in numbers))

    def grouped(self, kind: Callable[[int, Run], Hashable]) -> list[list[int]]:
        """Return the numbers of the runs, those of one kind together.

        On a CPU (`is_batched` is False) every run is alone: batched products may differ in the
        last bit from single ones, and a run must not depend on the other runs of its stack.
        """
        if not self.is_batched:
            return [[number] for number in range(len(self.runs))]
        groups: dict[Hashable, list[int]] = {}
        for number, run in enumerate(self.runs):
            groups.setdefault(kind(number, run), []).append(number)
        return list(groups.values())

    def seeds_of(self, numbers: Sequence[int], number: int, name: str) -> list[int]:
        """Return the seeds of the "attack" or the "rule" of some runs in a round."""
        found = []
        for k in numbers:
            found.append(self.runs[k].seed_of(number, name))
        return found

    def slices(self) -> list[slice]:
        """Return all runs at once, or one after the other."""
        if not self.is_batched:
            return [slice(k, k + 1) for k in range(len(self.runs))]
        return [slice(0, len(self.runs))]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class State:
    """The state of the runs after some rounds."""

    round: int
    weights: Tensor
    """``[runs, dim]``"""
    buffers: Tensor
    """``[runs, buffers]``, float64"""
    server_state: Moments = field(default_factory=dict)
    """The server's momentum or moments, by name."""
    attack_states: tuple[Any, ...] = ()
    rule_states: tuple[Any, ...] = ()
    client_states: tuple[Any, ...] = ()
    """With client momentum: for each run, the gradient that each client sent last."""
    selection_states: tuple[Suspicions, ...] = ()
    """How suspicious the clients of each run are."""

    def only(self, numbers: Sequence[int]) -> "State":
        """Return the state of some of the runs."""
        at = on_device(numbers, self.weights.device, torch.long)

        def some(states: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(states[k] for k in numbers) if states else ()

        return replace(
            self,
            weights=self.weights[at],
            buffers=self.buffers[at],
            server_state={name: values[at] for name, values in self.server_state.items()},
            attack_states=some(self.attack_states),
            rule_states=some(self.rule_states),
            client_states=some(self.client_states),
            selection_states=some(self.selection_states),
        )

    @classmethod
    def joined(cls, parts: Sequence["State"]) -> "State":
        """Return the state of the runs of several states, one after the other."""
        if len(parts) == 1:
            return parts[0]
        first = parts[0]
        return cls(
            round=first.round,
            weights=torch.cat([part.weights for part in parts]),
            buffers=torch.cat([part.buffers for part in parts]),
            server_state={
                name: torch.cat([part.server_state[name] for part in parts])
                for name in first.server_state
            },
            attack_states=tuple(each for part in parts for each in part.attack_states),
            rule_states=tuple(each for part in parts for each in part.rule_states),
            client_states=tuple(each for part in parts for each in part.client_states),
            selection_states=tuple(each for part in parts for each in part.selection_states),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Participants:
    """The clients of a round, for every run."""

    number: int
    """The round, counted from 1."""
    clients: list[list[int]]
    is_byzantine: Tensor
    """``[runs, clients]``"""
    num_byzantine_assumed: list[int]


def sample_participants(stack: RunStack, state: State) -> Participants:
    """Sample the clients of the next round, and set how many Byzantine ones the server assumes."""
    number = state.round + 1
    clients, is_byzantine, assumed = [], [], []
    for run, suspicions in zip(stack.runs, _suspicions(stack, state), strict=True):
        federation = run.federation
        every = range(federation.num_clients)
        weights = run.selection.weights(suspicions, every)
        some = sample_clients(len(every), run.num_sampled, run.stream(), number, weights)
        clients.append(some)
        is_byzantine.append(list(map(federation.is_byzantine.__getitem__, some)))
        assumed.append(run.num_byzantine_assumed(sum(is_byzantine[-1])))
    return Participants(number, clients, torch.tensor(is_byzantine), assumed)


def remember_scores(
    stack: RunStack, state: State, participants: Participants, aggregation: Aggregation
) -> tuple[Suspicions, ...]:
    """Return how suspicious the clients of each run are after the round, see `Selection`."""
    before = _suspicions(stack, state)
    if not any(map(attrgetter("selection.uses_scores"), stack.runs)):
        return before  # Scores stay on the GPU.
    scores = known(aggregation.scores).tolist()
    return tuple(
        run.selection.updated(own, dict(zip(some, each, strict=True)))
        for run, own, some, each in zip(
            stack.runs, before, participants.clients, scores, strict=True
        )
    )


def _suspicions(stack: RunStack, state: State) -> tuple[Suspicions, ...]:
    return tuple(each or {} for each in state.selection_states or (None,) * len(stack.runs))
