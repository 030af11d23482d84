"""Local SGD: its settings, and one step of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeAlias, final

from outvote.errors import check_kind

if TYPE_CHECKING:
    Rates: TypeAlias = float | Sequence[float] | Callable[[int], float]
else:
    Rates = float  # What files hold: they are read by the type at run time.


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSGD:
    """SGD with momentum, weight decay and clipping, started afresh in every round."""

    learning_rate: Rates = 0.1
    """The step size of a client; from Python also a sequence of numbers, one per round (the last
    one stays), or a callable that returns the rate of a round, counted from 1. Allowed: at least 0.
    """
    momentum: float = 0.5
    """The share of the last step of a client in this one (heavy ball), from zero in every round.
    Allowed: at least 0."""
    weight_decay: float = 1e-4
    """What the weights are multiplied by before they are added to the gradient of every step.
    Allowed: at least 0."""
    max_norm: float | None = 2.0
    """The norm that the gradient of every step is clipped to, before weight decay is added; None:
    no clipping. Allowed: above 0."""
    batch_size: int = 64
    """How many samples a step is computed from; networks with batch normalisation skip a batch of
    one sample (there 1 is an error), and a client without a batch sends zeros. Allowed: at least
    1."""
    num_epochs: int = 1
    """How often a client goes through its samples in a round. Allowed: at least 1."""
    num_steps: int | None = None
    """How many batches a client takes in a round, instead of epochs; None: epochs count. Allowed:
    at least 1."""
    client_momentum: float = 0.0
    """The share b of what a client sent the last time in what it sends now, m = b m + (1 - b) g:
    with a robust rule the defence of Karimireddy et al., ICML 2021, where g is the gradient of a
    batch; here it is the change of a whole round. It needs memory for one gradient per client and
    run, in checkpoints too. Allowed: from 0 to below 1."""
    schedule: tuple[tuple[int, float], ...] = ()
    """Pairs of a round, counted from 1, and the learning rate from that round on. Allowed: pairs
    such as [101, 0.01]; one value, no grid."""
    augment: bool = False
    """Whether to shift every image by up to four pixels and mirror half of them."""
    proximal: float = 0.0
    """FedProx (Li et al., MLSys 2020): mu of the term mu / 2 ||w - w_start||^2 of a client's loss;
    its gradient is part of what is clipped, and the loss that is recorded is without the term.
    Allowed: at least 0."""

    def __post_init__(self) -> None:
        """Check the settings."""
        self._check_rates()
        for name in ("momentum", "weight_decay", "client_momentum", "proximal"):
            _check_number(name, getattr(self, name), 0.0)
        if self.client_momentum >= 1:
            raise ValueError(f"client_momentum must be below 1, got {self.client_momentum}.")
        if self.max_norm is not None and not self.max_norm > 0:
            raise ValueError(f"max_norm must be positive, or none, got {self.max_norm}.")
        for name in ("batch_size", "num_epochs"):
            _check_count(name, getattr(self, name))
        if self.num_steps is not None:
            _check_count("num_steps", self.num_steps)
        for pair in self.schedule:
            _check_count("schedule: the round", pair[0])
            _check_number("schedule: the learning rate", pair[1], 0.0)

    def _check_rates(self) -> None:
        rates: Any = self.learning_rate
        if hasattr(rates, "tolist"):  # Arrays, tensors, and their numbers.
            rates = rates.tolist()
        if isinstance(rates, Sequence) and not isinstance(rates, str):
            if not rates:
                raise ValueError("learning_rate must have at least one rate, got an empty list.")
            for number, rate in enumerate(rates, 1):
                _check_number(f"learning_rate of round {number}", rate, 0.0)
            rates = tuple(map(float, rates))
        elif not callable(rates):
            _check_number("learning_rate", rates, 0.0)
        if self.schedule and (callable(rates) or isinstance(rates, tuple)):
            what = "a callable" if callable(rates) else "a list"
            raise ValueError(
                f"learning_rate must be a number if there is a schedule, got {what}; leave one out."
            )
        object.__setattr__(self, "learning_rate", rates)

    def learning_rate_at(self, number: int) -> float:
        """Return the learning rate of a round, counted from 1."""
        rate = self.learning_rate
        if callable(rate):
            found = rate(number)
            _check_number(f"learning_rate of round {number}", found, 0.0)
            return float(found)
        if isinstance(rate, Sequence):
            return rate[min(number, len(rate)) - 1]
        for start, later in sorted(self.schedule):
            rate = later if number >= start else rate
        return rate


def with_rates(training: LocalSGD, num_rounds: int) -> LocalSGD:
    """Return the same training with its rates as a number and a schedule, which files can hold.

    A callable is called once for every round; each rate must be finite and at least 0.

    >>> found = with_rates(LocalSGD(learning_rate=lambda number: 0.5 / number), num_rounds=3)
    >>> found.learning_rate, found.schedule
    (0.5, ((2, 0.25), (3, 0.16666666666666666)))
    """
    if isinstance(training.learning_rate, (int, float)):
        return training
    rates = [training.learning_rate_at(number) for number in range(1, num_rounds + 1)]
    pairs = zip(range(2, num_rounds + 1), pairwise(rates), strict=True)
    schedule = tuple((number, new) for number, (old, new) in pairs if new != old)
    return replace(training, learning_rate=rates[0], schedule=schedule)


def _check_number(name: str, value: float, least: float) -> None:
    check_kind(name, value, float)
    if not (isfinite(value) and value >= least):
        raise ValueError(f"{name} must be finite and at least {least:g}, got {value}.")


def _check_count(name: str, value: int) -> None:
    check_kind(name, value, int)
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}.")
