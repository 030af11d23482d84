"""A run round by round as arrays, and in a few numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from outvote.results.round import Diagnostics, Round, Theory

NUM_LAST = 10
DECILE = 10
"""One of so many clients is in the worst decile."""
DECIMALS = 4
"""Of numbers of single clients."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """A run round by round; NaN: not measured, not known, or not finite."""

    round: NDArray[np.int64]
    accuracy: NDArray[np.float64]
    loss: NDArray[np.float64]
    deviation: NDArray[np.float64]
    """How far the update is from the mean of the honest gradients."""
    honest_norm: NDArray[np.float64]
    num_sampled: NDArray[np.int64]
    num_byzantine: NDArray[np.int64]
    """How many of the sampled clients are Byzantine."""
    num_kept: NDArray[np.float64]
    """NaN: the rule cannot report who was kept."""
    num_kept_byzantine: NDArray[np.float64]
    num_rejected: NDArray[np.int64]
    num_byzantine_assumed: NDArray[np.int64]
    num_byzantine_used: NDArray[np.int64]
    byzantine_weight: NDArray[np.float64]
    """The Byzantine clients' share of the weights."""
    test_loss: NDArray[np.float64]
    """The mean loss on the test set; NaN where the accuracy is the measure."""
    client_accuracy: NDArray[np.float64]
    """Accuracy on the own label distribution of a client, mean over the honest clients; NaN where
    targets are not classes."""
    worst_decile: NDArray[np.float64]
    """The mean of the lowest tenth of these accuracies."""
    kappa: NDArray[np.float64]
    """Diagnostics from here on, NaN in runs without: see `Diagnostics`."""
    sigma: NDArray[np.float64]
    honest_diameter: NDArray[np.float64]
    resilience: NDArray[np.float64]
    bound_factor: NDArray[np.float64]
    certificate: NDArray[np.float64]
    full_loss: NDArray[np.float64]
    """The theory from here on, NaN in runs without: see `Theory`."""
    gradient_norm: NDArray[np.float64]
    gradient_deviation: NDArray[np.float64]
    lipschitz: NDArray[np.float64]
    deviation_bound: NDArray[np.float64]
    printed_bound: NDArray[np.float64]
    descent: NDArray[np.float64]
    descent_bound: NDArray[np.float64]

    def __len__(self) -> int:
        """Return the number of rounds."""
        return len(self.round)


DIAGNOSTICS = tuple(field.name for field in fields(Diagnostics))
THEORY = tuple(field.name for field in fields(Theory))
OF_CLIENTS = ("client_accuracy", "worst_decile")
OPTIONAL = ("byzantine_weight", "test_loss", *OF_CLIENTS, *DIAGNOSTICS, *THEORY)
"""Those that not every run has."""
SERIES = tuple(field.name for field in fields(Series) if field.name not in OPTIONAL)
"""Those that every run has."""
REAL = ("accuracy", "loss", "deviation", "honest_norm", *OPTIONAL)
"""Those that are not counts."""
COUNTS_OR_NAN = ("num_kept", "num_kept_byzantine")
"""Counts that a rule may not report."""
_RECORDED = (
    *("round", "accuracy", "loss", "deviation", "honest_norm"),
    *("num_byzantine_assumed", "num_byzantine_used", "num_kept", "num_kept_byzantine"),
    *("byzantine_weight", "test_loss", *OF_CLIENTS),
)
"""Those that a round has under the same name."""
_COUNTED = {"num_sampled": "clients", "num_byzantine": "byzantine", "num_rejected": "rejected"}
"""Those that count some clients of a round."""


def to_digits(value: float) -> str:
    """Return a real number, other than an accuracy, as exports write it."""
    return f"{value:.5g}"


def series_of(rounds: Sequence[Round]) -> Series:
    """Turn the lines of a run into arrays."""
    diagnoses, measured, columns = [], [], {}
    for each in rounds:
        diagnoses.append(each.diagnostics or Diagnostics())
        measured.append(each.theory or Theory())
    sources: tuple[tuple[Sequence[str], Sequence[Any]], ...] = (
        (_RECORDED, rounds),
        (DIAGNOSTICS, diagnoses),
        (THEORY, measured),
    )
    for names, source in sources:
        for name in names:
            columns[name] = column(name, list(map(attrgetter(name), source)))
    for name, clients in _COUNTED.items():
        columns[name] = column(name, list(map(len, map(attrgetter(clients), rounds))))
    return Series(**columns)


def column(name: str, values: Sequence[Any]) -> NDArray[Any]:
    """Return a column of a series, from numbers or their texts; None is NaN."""
    is_float = name in REAL or name in COUNTS_OR_NAN
    return np.array(values, dtype=np.float64 if is_float else np.int64)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clients:
    """The honest clients of a run one by one, to four decimals; NaN: Byzantine, or not known."""

    accuracy: NDArray[np.float64]
    """On the own label distribution of the client, after the last round."""
    kept: NDArray[np.float64]
    """The share of the rounds it was sampled in, in which its update was kept."""
    sampled: NDArray[np.float64]
    """The share of the rounds in which it was sampled."""

    @property
    def least_kept(self) -> float | None:
        """The mean share of the lowest tenth of the clients, of at least one."""
        known = np.sort(self.kept[~np.isnan(self.kept)])
        return _mean(known[: max(1, len(known) // DECILE)])


def clients_of(rounds: Sequence[Round]) -> Clients | None:
    """Return the honest clients of a run; None: its last round does not have them."""
    accuracies = rounds[-1].client_accuracies if rounds else None
    if accuracies is None:
        return None
    num_sampled, num_scored, num_kept = np.zeros((3, len(accuracies)))
    for each in rounds:
        num_sampled[list(each.clients)] += 1
        if each.kept is not None:
            num_scored[list(each.clients)] += 1
            num_kept[list({*each.kept})] += 1
    accuracy = np.array(accuracies, dtype=np.float64)
    # A Byzantine client that was never sampled is known by its missing accuracy alone.
    num_sampled[np.isnan(accuracy) & (num_sampled == 0)] = np.nan
    byzantine = list(set[int]().union(*map(attrgetter("byzantine"), rounds)))
    num_scored[byzantine], num_sampled[byzantine] = 0, np.nan
    shares = np.full(len(accuracies), np.nan)
    np.divide(num_kept, num_scored, out=shares, where=num_scored > 0)
    return Clients(
        accuracy=accuracy,
        kept=np.round(shares, DECIMALS),
        sampled=np.round(num_sampled / len(rounds), DECIMALS),
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The numbers that tables print of a run; None: not known."""

    best: float | None
    """The largest accuracy of all rounds."""
    final: float | None
    """The last accuracy that was measured."""
    last_ten: float | None
    """The mean of the last ten accuracies."""
    kept_byzantine: float | None
    """The Byzantine selection rate: the share of the sampled Byzantine clients that were kept."""
    byzantine_weight: float | None
    """The Byzantine clients' share of all weights, mean over the rounds under attack."""
    deviation: float | None
    """How far the update is from the honest mean, mean over the rounds under attack; over all
    rounds if there is no attack."""
    test_loss: float | None = None
    """The last loss on the test set that was measured."""
    client_accuracy: float | None = None
    """Accuracy on the own label distribution of a client, mean over the honest clients and the
    last ten tests."""
    worst_decile: float | None = None
    """The mean of the lowest tenth of these accuracies, mean over the last ten tests."""
    least_kept: float | None = None
    """The share of its rounds in which a client was kept, mean of the lowest tenth of the honest
    clients."""

    @property
    def honest_share(self) -> float | None:
        """The honest clients' share of all weights, which Figure 1 of the paper shows."""
        return None if self.byzantine_weight is None else 1.0 - self.byzantine_weight


def summary_of(series: Series, *, attack: str, clients: Clients | None = None) -> Summary:
    """Summarise a run; under the attack "none" Byzantine clients are honest.

    What is recorded of single clients is always of those that are not Byzantine in any attack.
    """
    known = series.accuracy[~np.isnan(series.accuracy)]
    losses = _as_exported(series.test_loss[~np.isnan(series.test_loss)])
    is_attacked = (series.num_byzantine > 0) & (attack != "none")
    counted = is_attacked & ~np.isnan(series.num_kept_byzantine)
    total = int(series.num_byzantine[counted].sum())
    return Summary(
        best=float(known.max()) if len(known) else None,
        final=float(known[-1]) if len(known) else None,
        last_ten=_mean(known[-NUM_LAST:]),
        kept_byzantine=float(series.num_kept_byzantine[counted].sum() / total) if total else None,
        byzantine_weight=_mean(_as_exported(series.byzantine_weight[is_attacked])),
        test_loss=float(losses[-1]) if len(losses) else None,
        client_accuracy=_last(series.client_accuracy),
        worst_decile=_last(series.worst_decile),
        least_kept=None if clients is None else clients.least_kept,
        deviation=_mean(
            _as_exported(series.deviation[is_attacked] if is_attacked.any() else series.deviation)
        ),
    )


def _last(values: NDArray[np.float64]) -> float | None:
    """Return the mean of the last ten values that were measured."""
    return _mean(_as_exported(values[~np.isnan(values)][-NUM_LAST:]))


def _as_exported(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round to the digits of an export: a table is the same from folders and from exports."""
    return np.array([float(to_digits(value)) for value in values.tolist()])


def _mean(values: NDArray[np.float64]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None
