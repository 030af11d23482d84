"""What an attack gives back: the rows that the lying clients send, and how they were chosen."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Crafted:
    """The rows that lying clients send, and how they were chosen.

    `factor` is the number that the attack chose or was given (z, gamma, epsilon, lambda, shift),
    `state` the memory of an attack that has one (pass it to the next round), `num_evaluations`
    how often the rule was asked; `seed` is None if there was no attacker and nothing was drawn.
    """

    rows: Any
    factor: float | None = None
    state: Any = None
    seed: int | None = None
    notes: tuple[str, ...] = ()
    num_evaluations: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forged:
    """The same for a batch of runs: rows ``[runs, attackers or 1, dim]``, one factor per run.

    One row per run means that all attackers of the run send it. `is_fresh` tells that the rows are
    nobody else's, so that they may be clipped in place.
    """

    rows: Tensor
    is_fresh: bool = False
    factor: Tensor | None = None
    state: Any = None
    notes: tuple[str, ...] = ()
    num_evaluations: int = 0
