"""What the files of a run hold."""

from typing import Literal

from msgspec import Struct

VERSION = 2
"""Of the layout of a run folder."""
OLDEST = 0
"""The oldest layout that is still read; 0 is that of a folder that does not tell its version: as 1,
but the lines of metrics.jsonl may lack num_pictures; 1 and 0 have the names in `renamed.METRICS`."""

Outcome = Literal["running", "interrupted", "failed", "finished", "diverged"]
OVER: tuple[Outcome, ...] = ("finished", "diverged")
"""The outcomes that are results."""


class Diagnosis(Struct, frozen=True, kw_only=True):
    """What theory asks about a round; null: not known, not finite, or it does not apply."""

    kappa: float | None = None
    """How far the honest client that differs most is from the mean of the honest ones."""
    sigma: float | None = None
    """How far batches are from all pictures, of the honest client where that is largest."""
    honest_diameter: float | None = None
    resilience: float | None = None
    """The constant lambda of the rule, or of the rule inside GAS."""
    bound_factor: float | None = None
    """Of the paper's bound on the squared deviation, GAS only."""
    certificate: float | None = None
    """What the deviation cannot exceed, GAS only."""


class Round(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of metrics.jsonl; null stands for what is not finite, or was not measured."""

    round: int
    num_samples: int | None = None
    loss: float | None
    accuracy: float | None
    clients: tuple[int, ...]
    byzantine: tuple[int, ...]
    num_byzantine_assumed: int
    num_byzantine_used: int
    kept: tuple[int, ...] | None
    """Clients with a positive weight; None: the rule cannot report who was kept."""
    rejected: tuple[int, ...]
    scores: tuple[float | None, ...]
    deviation: float | None
    honest_norm: float | None
    byzantine_weight: float | None = None
    diagnostics: Diagnosis | None = None
    """Left out of the lines of runs that do not ask for it."""


class Timing(Struct, frozen=True, kw_only=True):
    """One line of timings.jsonl: a round of all runs that were played together."""

    round: int
    seconds: float
    num_runs: int
    images: int
    """How many pictures all their clients were trained on."""


class Status(Struct, frozen=True, kw_only=True):
    """What became of a run: status.json."""

    outcome: Outcome
    round: int
    """The last round that was played and saved."""
    num_rounds: int
    reason: str = ""
    version: int = VERSION


class Layout(Struct, frozen=True, kw_only=True):
    """What can be read of any status.json, whoever wrote it."""

    version: int = 0


class DataUsed(Struct, frozen=True, kw_only=True):
    """The pictures that a run was played on."""

    name: str
    source: str
    """The form they were found in, and where."""
    num_train: int
    num_test: int
    checksum: str
    """Of all pictures, labels and writers."""


class Environment(Struct, frozen=True, kw_only=True):
    """Where a run was played: env.json."""

    outvote: str
    python: str
    torch: str
    numpy: str
    system: str
    device: str
    precision: str
    num_threads: int
    commit: str | None
    data: DataUsed | None = None
    date: str | None = None
    """The day on which it was begun or went on, UTC."""
