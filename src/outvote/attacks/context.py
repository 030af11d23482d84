"""What attackers see of a batch of rounds: the only view of the data that attacks have."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from outvote.attacks.statistics import Measured, Wanted, measure
from outvote.axes import PerClient, PerCoordinate, Rows
from outvote.errors import check_choice
from outvote.lazy import lazy
from outvote.precision import work_dtype
from outvote.receive import finite_rows, norms_later
from outvote.seeding import RandomStream
from outvote.threads import mapped

# Coordinates that are looked at together.
PIECE = 1 << 16
SPREADS = ("population", "sample", "variance")


@dataclass(frozen=True, slots=True)
class Opinion:
    """What the defence would do with some rows: updates [runs, dim], are all attackers kept."""

    updates: PerCoordinate
    is_kept: Tensor | None = None


# Answers on the attackers' rows [runs, attackers or 1, dim] with one seed per run; the last
# argument tells whether it matters who is kept.
Defence = Callable[[Rows, tuple[int, ...], bool], Opinion]


@dataclass(frozen=True, kw_only=True, eq=False)
class AttackContext:
    """The rounds of some runs as their attackers see them, `[runs, clients, dim]`.

    `is_honest` marks the rows that count as honest (None: all), `own` is what the attackers would
    have sent had they been honest, and `clients` tells who sent each row. `is_own` marks rows that
    are attackers' own, though they may count as honest: where nobody else is there, for one.
    """

    gradients: Rows
    num_byzantine: tuple[int, ...]
    stream: RandomStream
    is_honest: Tensor | None = None
    own: Rows | None = None
    is_own: Tensor | None = None
    clients: Tensor | None = None
    defence: Defence | None = None
    state: Any = None

    @property
    def num_runs(self) -> int:
        """How many runs there are."""
        return self.gradients.shape[0]

    @property
    def dim(self) -> int:
        """How many coordinates a gradient has."""
        return self.gradients.shape[-1]

    @property
    def device(self) -> torch.device:
        """Where the gradients are."""
        return self.gradients.device

    @property
    def num_attackers(self) -> int:
        """The largest number of attackers of a run."""
        return max(self.num_byzantine)

    @lazy
    def byzantine_counts(self) -> Tensor:
        """The number of attackers of each run, float64."""
        return torch.tensor(self.num_byzantine, dtype=torch.float64, device=self.device)

    @lazy
    def honest_counts(self) -> Tensor:
        """The number of honest clients of each run, float64; those that diverged count too."""
        return (self.used_rows & ~self.own_places).sum(dim=-1).double()

    @lazy
    def used_rows(self) -> Tensor:
        """Which rows count as honest, [runs, clients]."""
        if self.is_honest is not None:
            return self.is_honest
        return torch.ones(self.gradients.shape[:2], dtype=torch.bool, device=self.device)

    @lazy
    def own_places(self) -> Tensor:
        """Which rows are the attackers' own, [runs, clients]."""
        if self.is_own is not None:
            return self.is_own
        return torch.zeros(self.gradients.shape[:2], dtype=torch.bool, device=self.device)

    @lazy
    def checked(self) -> "AttackContext":
        """The same context without the honest clients that sent NaN or infinity."""
        is_used = self._is_finite(self.gradients)
        if self.is_honest is not None:
            is_used &= self.is_honest
        context = self if is_used.all() else replace(self, is_honest=is_used)
        if self.own is not None and not bool(is_used.any(dim=-1).all()):
            context = self._with_own(is_used)
        context.__dict__["checked"] = context
        return context

    @lazy
    def trusted(self) -> "AttackContext":
        """The same as `checked`, but looked at row by row only if the mean gives cause to."""
        if self.gradients.dtype == torch.float64:
            return self.checked
        _ = self.mean
        found: AttackContext = self.__dict__.get("checked", self)
        return found

    def _with_own(self, is_used: Tensor) -> "AttackContext":
        """Where nobody honest is left, go by what the attackers would have sent."""
        assert self.own is not None
        more = self._is_finite(self.own) & ~is_used.any(dim=-1, keepdim=True)
        return replace(self, is_honest=is_used).and_own(more)

    def and_own(self, is_wanted: Tensor) -> "AttackContext":
        """Count some of what the attackers would have sent, [runs, attackers], as honest."""
        assert self.own is not None
        places = torch.arange(self.own.shape[1], device=self.device)
        is_wanted = is_wanted & (places < self.byzantine_counts.unsqueeze(-1))
        return replace(
            self,
            gradients=torch.cat([self.gradients, self.own], dim=1),
            is_honest=torch.cat([self.used_rows, is_wanted], dim=1),
            is_own=torch.cat([self.own_places, torch.ones_like(is_wanted)], dim=1),
            clients=None,
        )

    def _is_finite(self, rows: Rows) -> Tensor:
        flat = rows.flatten(0, 1)
        found = finite_rows(flat, norms_later(flat)())
        return torch.tensor(found, device=self.device).view(rows.shape[:2])

    def measured(self, wanted: Wanted) -> Measured:
        """Measure the honest clients, with care if that turns out to be needed."""
        dtype = work_dtype(self.gradients.dtype)
        found = measure(self.gradients, self.is_honest, dtype, wanted)
        if found.is_safe():
            return found
        careful = self.checked
        return measure(careful.gradients, careful.is_honest, torch.float64, wanted)

    @lazy
    def moments(self) -> Measured:
        """The mean and the spread of the honest clients."""
        return self.measured(Wanted(spread=True))

    @lazy
    def mean(self) -> PerCoordinate:
        """The mean of the honest clients."""
        found = self.__dict__.get("moments") or self.measured(Wanted())
        return found.mean

    def spread(self, kind: str) -> PerCoordinate:
        """Return the coordinate-wise standard deviation, or what was once used in its place."""
        check_choice("spread", kind, SPREADS)
        spread = self.moments.spread
        assert spread is not None
        if kind == "variance":
            return spread.square()
        if kind == "population":
            return spread
        return spread * self.moments.sample_factor().to(spread.dtype).unsqueeze(-1)

    @lazy
    def own_rows(self) -> Rows:
        """What the attackers would have sent; the honest mean where that is unknown or diverged."""
        if self.own is None:
            return self.mean.unsqueeze(1).expand(-1, self.num_attackers, -1)
        is_finite = self._is_finite(self.own)
        if is_finite.all():
            return self.own
        self.__dict__["num_own_replaced"] = int((~is_finite).sum())
        return torch.where(is_finite.unsqueeze(-1), self.own, self.mean.unsqueeze(1)).to(
            self.own.dtype
        )

    def judge(self, rows: Rows, name: str, *, wants_kept: bool = False) -> Opinion:
        """Ask the defence; the same name means the same randomness, of the attackers' own."""
        assert self.defence is not None
        return self.defence(rows, self.stream.fold_in(name).derived(), wants_kept)

    def distances(self, updates: PerCoordinate) -> PerClient:
        """Return how far the updates are from the honest means, per run, float64."""
        if updates.device.type != "cpu":
            return norm(updates.to(self.mean.dtype) - self.mean)

        # Piece by piece, so that the differences never leave the cache.
        def work(pieces: tuple[Tensor, Tensor]) -> Tensor:
            update, mean = pieces
            return norm(update.to(mean.dtype) - mean)

        pairs = zip(updates.split(PIECE, dim=-1), self.mean.split(PIECE, dim=-1), strict=True)
        return norm(torch.stack(mapped(work, list(pairs)), dim=-1))


def norm(vectors: Tensor) -> Tensor:
    """Return Euclidean norms in float64; squares of large float32 numbers overflow."""
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=-1).double()
    if vectors.dtype == torch.float64 or bool((norms.isfinite() & (norms > 1e-12)).all()):
        return norms
    exact: Tensor = torch.linalg.vector_norm(vectors, dim=-1, dtype=torch.float64)
    return exact


def in_range(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Bring rows to a dtype; what is too large becomes the largest finite number."""
    largest = torch.finfo(dtype).max
    return rows.clamp(min=-largest, max=largest).to(dtype)
