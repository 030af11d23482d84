"""What attackers know about a batch of rounds: the only view of the data that attacks have."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import torch
from torch import Tensor

from outvote.axes import PerClient, PerCoordinate, Rows
from outvote.errors import check_choice, plural, was
from outvote.flat import finite_rows, to_float
from outvote.ops.moments import Measured, Request, distances, measure
from outvote.ops.process import fresh, lazy, on_device, work_dtype
from outvote.ops.rows import row_norms
from outvote.seeding import RandomStream

SPREADS = ("population", "sample", "variance")

Defence = Callable[[Rows, Sequence[int]], tuple[PerCoordinate, Tensor | None]]
"""What the server does with gradients ``[runs, clients, dim]`` and one seed per run: the updates
``[runs, dim]``, and which rows it keeps, ``[runs, clients]``; None where it does not report that.
It must not change any state of the server."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AttackContext:
    """The rounds of some runs as their attackers see them, ``[runs, clients, dim]``.

    In a run, `gradients` has the rows of all sampled clients, the attackers' own among them:
    `is_honest` marks the honest ones that are finite. `is_counted` marks the rows that count as
    honest before that check (None: all), `is_own` those that are attackers' own (None: none), also
    where they count as honest because no honest client is there. `own` is what the attackers would
    have sent honestly (None: unknown, or the attack declares that it does not use it), `clients`
    the id of each row's sender. `ask` puts a question to the defence, on rows ``[runs, attackers or
    1, dim]``. The attackers' own rows of `gradients` may be written over after the attack.
    """

    gradients: Rows
    """The rows of all sampled clients."""
    num_byzantine: tuple[int, ...]
    """The number of attackers of each run."""
    stream: RandomStream
    """Where randomness comes from."""
    is_counted: Tensor | None = None
    """Which rows count as honest before they are checked; None: all."""
    own: Rows | None = None
    """What the attackers would have sent honestly; None: not known, or not used."""
    is_own: Tensor | None = None
    """Which rows of `gradients` are the attackers' own; None: none."""
    clients: Tensor | None = None
    """The id of each row's sender."""
    defence: Defence | None = None
    """What `ask` asks; None: the attack is not given the rule."""
    state: Any = None
    """What the attack returned as state in the round before."""
    round: int | None = None
    """The number of the round, from 1."""

    @property
    def num_runs(self) -> int:
        """The number of runs."""
        return self.gradients.shape[0]

    @property
    def dim(self) -> int:
        """The number of coordinates of a gradient."""
        return self.gradients.shape[-1]

    @property
    def device(self) -> torch.device:
        """The device of the gradients."""
        return self.gradients.device

    @property
    def num_attackers(self) -> int:
        """The largest number of attackers of a run."""
        return max(self.num_byzantine)

    @lazy
    def byzantine_counts(self) -> Tensor:
        """The number of attackers of each run, float64."""
        return on_device(self.num_byzantine, self.device, torch.float64)

    @lazy
    def honest_counts(self) -> Tensor:
        """The number of honest clients of each run, float64; those that diverged count too."""
        return (self.used_rows & ~self.own_positions).sum(dim=-1).double()

    @lazy
    def is_honest(self) -> Tensor:
        """Which rows of `gradients` are honest and finite, [runs, clients].

        Where no honest client was sampled, the attackers' own rows count as honest.
        """
        return self.checked.used_rows[:, : self.gradients.shape[1]]

    @lazy
    def honest_norms(self) -> PerClient:
        """The norms of the honest rows, [runs, clients], float64; NaN where `is_honest` is not."""
        norms: Tensor = torch.linalg.vector_norm(self.gradients, dim=-1, dtype=torch.float64)
        return norms.masked_fill(~self.is_honest, torch.nan)

    @lazy
    def used_rows(self) -> Tensor:
        """Which rows count as honest, finite or not, [runs, clients]."""
        return self._mask(default=True) if self.is_counted is None else self.is_counted

    @lazy
    def own_positions(self) -> Tensor:
        """Which rows are the attackers' own, [runs, clients]."""
        return self._mask(default=False) if self.is_own is None else self.is_own

    def _mask(self, *, default: bool) -> Tensor:
        return torch.full(self.gradients.shape[:2], default, device=self.device)

    @lazy
    def checked(self) -> "AttackContext":
        """The same context without the honest clients that sent NaN or infinity."""
        is_used = self._is_finite(self.gradients)
        if self.is_counted is not None:
            is_used &= self.is_counted
        context = self if is_used.all() else replace(self, is_counted=is_used)
        if not bool(is_used.any(dim=-1).all()) and (own := self._known_own()) is not None:
            # Where nobody honest is left, use what the attackers would have sent.
            more = self._is_finite(own) & ~is_used.any(dim=-1, keepdim=True)
            context = replace(self, is_counted=is_used, own=own)._with_own(more)
        context.__dict__["checked"] = context
        return context

    @lazy
    def trusted(self) -> "AttackContext":
        """The same as `checked`, but rows are checked one by one only if the mean is not finite."""
        if self.gradients.dtype == torch.float64:
            return self.checked
        _ = self.mean
        found: AttackContext = self.__dict__.get("checked", self)
        return found

    def per_run(self, value: float) -> Tensor:
        """Return a number for every run, float64."""
        return torch.full((self.num_runs,), float(value), dtype=torch.float64, device=self.device)

    def with_reference_set(self, reference_set: str) -> "AttackContext":
        """Return this context; with "all", the attackers' own gradients count as honest too."""
        if reference_set == "honest":
            return self
        if self.own is None:
            raise ValueError(
                "reference_set='all' counts what the attackers would have sent honestly, got none; "
                "pass own=, or leave reference_set at 'honest'."
            )
        # Where nobody is honest, their own gradients are the reference already.
        is_wanted = (self.honest_counts > 0).unsqueeze(-1)
        found = self._with_own(is_wanted.expand(-1, self.own.shape[1]))
        self.__dict__["reference_context"] = found
        return found

    def _with_own(self, is_wanted: Tensor) -> "AttackContext":
        """Count some of the attackers' own gradients, [runs, attackers], as honest."""
        assert self.own is not None
        numbers = torch.arange(self.own.shape[1], device=self.device)
        is_wanted = is_wanted & (numbers < self.byzantine_counts.unsqueeze(-1))
        return replace(
            self,
            gradients=torch.cat([self.gradients, self.own], dim=1),
            is_counted=torch.cat([self.used_rows, is_wanted], dim=1),
            is_own=torch.cat([self.own_positions, torch.ones_like(is_wanted)], dim=1),
            clients=None,
        )

    def _known_own(self) -> Rows | None:
        """Return the attackers' own gradients, also where the attack did not ask for them."""
        if self.own is not None or self.is_own is None:
            return self.own
        return Positions(self.is_own).take(self.gradients)

    def _is_finite(self, rows: Rows) -> Tensor:
        flat = rows.flatten(0, 1)
        found = finite_rows(flat, row_norms(flat).tolist())
        return on_device(found, self.device).view(rows.shape[:2])

    def measured(self, request: Request) -> Measured:
        """Measure the honest clients; in float64 without diverged clients if that is needed."""
        dtype = work_dtype(self.gradients.dtype)
        found = measure(self.gradients, self.is_counted, dtype, request)
        if found.is_safe():
            return found
        careful = self.checked
        return measure(careful.gradients, careful.is_counted, torch.float64, request)

    @lazy
    def moments(self) -> Measured:
        """The mean and the standard deviation of the honest clients."""
        return self.measured(Request(spread=True))

    @lazy
    def mean(self) -> PerCoordinate:
        """The mean of the honest clients."""
        found = self.__dict__.get("moments") or self.measured(Request())
        return found.mean

    def spread(self, kind: str) -> PerCoordinate:
        """Return the coordinate-wise "population" or "sample" standard deviation, or "variance"."""
        check_choice("spread", kind, SPREADS)
        spread: PerCoordinate = self.moments.spread
        if kind == "variance":
            return spread.square()
        if kind == "population":
            return spread
        return spread * self.moments.sample_factor().to(spread.dtype).unsqueeze(-1)

    @lazy
    def own_rows(self) -> Rows:
        """The attackers' own gradients; the honest mean where they are unknown or diverged."""
        if self.own is None:
            return self.mean.unsqueeze(1).expand(-1, self.num_attackers, -1)
        is_finite = self._is_finite(self.own)
        if is_finite.all():
            return self.own
        self.__dict__["num_own_replaced"] = int((~is_finite).sum())
        return torch.where(is_finite.unsqueeze(-1), self.own, self.mean.unsqueeze(1)).to(
            self.own.dtype
        )

    def ask(self, rows: Rows, name: str) -> tuple[PerCoordinate, Tensor | None]:
        """Return the updates if the attackers sent `rows`, and the runs where all are kept.

        The same name means the same randomness, the attackers' own. The second part is None where
        the defence does not report whom it keeps.
        """
        assert self.defence is not None
        return self.defence(rows, self.stream.fold_in(name).derived())

    def distances(self, updates: PerCoordinate) -> PerClient:
        """Return the distances of the updates to the honest means, per run, float64."""
        return distances(updates, self.mean)

    def notes(self) -> tuple[str, ...]:
        """Return who diverged, as far as rows were checked, and what was done about it."""
        seen = self.__dict__.get("reference_context")
        notes = [] if seen is None else list(seen.notes())
        checked = self.__dict__.get("checked", self)
        if checked is not self:
            is_lost = self.used_rows & ~checked.used_rows[:, : self.gradients.shape[1]]
            if num_lost := int((is_lost & ~self.own_positions).sum()):
                clients = plural(num_lost, "honest client")
                notes.append(f"{clients} sent NaN or infinity and {was(num_lost)} left out")
            if num_lost := int((is_lost & self.own_positions).sum()):
                rows = plural(num_lost, "gradient")
                notes.append(f"{rows} of the attackers' own {was(num_lost)} not finite, left out")
        if num_replaced := self.__dict__.get("num_own_replaced", 0):
            rows, dtype = plural(num_replaced, "gradient"), str(self.gradients.dtype)
            notes.append(
                f"{rows} of the attackers' own {was(num_replaced)} not finite in "
                f"{dtype.removeprefix('torch.')}; replaced by the honest mean"
            )
        return tuple(notes)


def in_range(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert rows to a dtype; what is too large becomes the largest finite number."""
    if rows.dtype != dtype:
        return to_float(rows, dtype)
    largest = torch.finfo(dtype).max
    clipped = fresh(tuple(rows.shape), dtype, rows.device)
    return torch.clamp(rows, min=-largest, max=largest, out=clipped)


class Positions:
    """Which rows ``[runs, clients]`` of a batch are the attackers'.

    Rows are copied one by one: a copy of a long row is as fast as memory is, an index is not.
    """

    def __init__(self, is_byzantine: Tensor) -> None:
        """Read the mask, once: to read it waits for all work before."""
        self.clients: list[list[int]] = []
        for mask in is_byzantine.tolist():
            self.clients.append(list(compress(range(len(mask)), mask)))
        self.counts = tuple(map(len, self.clients))

    def take(self, gradients: Rows) -> Rows:
        """Return copies of the attackers' rows, [runs, attackers, dim]; 0 where a run has fewer."""
        num_attackers, dim = max(self.counts), gradients.shape[-1]
        shape = (len(self.counts), num_attackers, dim)
        own = fresh(shape, gradients.dtype, gradients.device)
        for run, clients in enumerate(self.clients):
            own[run, len(clients) :] = 0
            for attacker, client in enumerate(clients):
                own[run, attacker] = gradients[run, client]
        return own

    def put(self, rows: Rows, into: Rows, runs: Sequence[int] | None = None) -> None:
        """Write rows [runs, attackers or 1, dim] over the attackers' rows of `into`.

        With `runs`, these runs of `into` are meant; otherwise all of them, in order.
        """
        is_same = rows.shape[1] == 1
        for number, clients in enumerate(self.clients):
            run = number if runs is None else runs[number]
            if clients and clients[-1] - clients[0] == len(clients) - 1:
                sent = rows[number] if is_same else rows[number, : len(clients)]
                into[run, clients[0] : clients[-1] + 1] = sent
                continue
            for attacker, client in enumerate(clients):
                into[run, client] = rows[number, 0 if is_same else attacker]
