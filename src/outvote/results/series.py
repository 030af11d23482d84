"""What is told of a run round by round, as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import final

import numpy as np
from numpy.typing import NDArray

from outvote.results.schema import Diagnosis, Round

UNKNOWN = Diagnosis()


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """What is told round by round; NaN: not measured, or not finite."""

    round: NDArray[np.int64]
    accuracy: NDArray[np.float64]
    loss: NDArray[np.float64]
    deviation: NDArray[np.float64]
    """How far the update was from the mean of the honest gradients."""
    honest_norm: NDArray[np.float64]
    num_sampled: NDArray[np.int64]
    num_byzantine: NDArray[np.int64]
    """How many of those sampled lied."""
    num_kept: NDArray[np.int64]
    num_kept_byzantine: NDArray[np.int64]
    num_rejected: NDArray[np.int64]
    num_byzantine_assumed: NDArray[np.int64]
    num_byzantine_used: NDArray[np.int64]
    byzantine_weight: NDArray[np.float64]
    """The liars' share of the weights; NaN in runs of earlier versions, which did not tell."""
    kappa: NDArray[np.float64]
    """Diagnostics from here on, NaN in runs without: see `schema.Diagnosis`."""
    sigma: NDArray[np.float64]
    honest_diameter: NDArray[np.float64]
    resilience: NDArray[np.float64]
    bound_factor: NDArray[np.float64]
    certificate: NDArray[np.float64]

    def __len__(self) -> int:
        """Return the number of rounds."""
        return len(self.round)


DIAGNOSTICS = Diagnosis.__struct_fields__
OPTIONAL = ("byzantine_weight", *DIAGNOSTICS)
"""Those that not every run has."""
SERIES = tuple(field.name for field in fields(Series) if field.name not in OPTIONAL)
"""Those that every run has."""
REAL = ("accuracy", "loss", "deviation", "honest_norm", *OPTIONAL)
"""Those that are no counts."""


def to_digits(value: float) -> str:
    """Return a number that is no accuracy as an export has it."""
    return f"{value:.5g}"


def series_of(rounds: Sequence[Round]) -> Series:
    """Turn the lines of a run into arrays."""

    def real(name: str, items: Sequence[Round | Diagnosis] = rounds) -> NDArray[np.float64]:
        values = [getattr(each, name) for each in items]
        return np.array([np.nan if value is None else value for value in values], dtype=float)

    def whole(values: list[int]) -> NDArray[np.int64]:
        return np.array(values, dtype=np.int64)

    diagnoses = [each.diagnostics or UNKNOWN for each in rounds]
    return Series(
        round=whole([each.round for each in rounds]),
        accuracy=real("accuracy"),
        loss=real("loss"),
        deviation=real("deviation"),
        honest_norm=real("honest_norm"),
        num_sampled=whole([len(each.clients) for each in rounds]),
        num_byzantine=whole([len(each.byzantine) for each in rounds]),
        num_kept=whole([len(each.kept) for each in rounds]),
        num_kept_byzantine=whole([len(set(e.kept) & set(e.byzantine)) for e in rounds]),
        num_rejected=whole([len(each.rejected) for each in rounds]),
        num_byzantine_assumed=whole([each.num_byzantine_assumed for each in rounds]),
        num_byzantine_used=whole([each.num_byzantine_used for each in rounds]),
        byzantine_weight=real("byzantine_weight"),
        **{name: real(name, diagnoses) for name in DIAGNOSTICS},
    )
