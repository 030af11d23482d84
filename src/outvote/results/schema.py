"""The content of a run's files."""

import hashlib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

VERSION = 2
"""Of the layout of a run folder: no other is read."""

Outcome = Literal["running", "interrupted", "failed", "finished", "diverged"]
OVER: tuple[Outcome, ...] = ("finished", "diverged")
"""The outcomes that are results."""


class Diagnosis(Struct, frozen=True, kw_only=True):
    """The quantities of the theory in a round; null: not known, not finite, or not applicable."""

    kappa: float | None = None
    """How far the honest client that differs most is from the mean of the honest ones."""
    sigma: float | None = None
    """How far batch gradients are from the full gradient: the largest of any honest client."""
    honest_diameter: float | None = None
    resilience: float | None = None
    """The constant lambda of the rule, or of the rule inside GAS."""
    bound_factor: float | None = None
    """Of the paper's bound on the squared deviation, GAS only."""
    certificate: float | None = None
    """An upper bound of the deviation, GAS only."""


class Measured(Struct, frozen=True, kw_only=True):
    """The convergence analysis in a round of plain SGD, in the unit of a gradient; null: not known.

    The paper's inequality is that the descents of all rounds are at least the bounds of them.
    """

    full_loss: float | None = None
    """L: mean over all honest clients of the loss on all their samples, before the round."""
    gradient_norm: float | None = None
    gradient_deviation: float | None = None
    """How far the update divided by the learning rate is from the gradient of L."""
    lipschitz: float | None = None
    """The change of the gradient relative to that of the weights."""
    deviation_bound: float | None = None
    """Of the root mean square of the deviation, with all constants."""
    printed_bound: float | None = None
    """The same as the paper prints it, GAS only."""
    descent: float | None = None
    """How much L fell in the round."""
    descent_bound: float | None = None


class Round(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of metrics.jsonl; null: not finite, or not measured."""

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
    test_loss: float | None = None
    """Absent where the accuracy is the measure and the loss is the default."""
    client_accuracy: float | None = None
    """Absent where targets are not classes, as the next two."""
    worst_decile: float | None = None
    client_accuracies: tuple[float | None, ...] | None = None
    """Only in the last round of a run; None: a Byzantine client, or nothing to test on."""
    diagnostics: Diagnosis | None = None
    """Absent unless the run asks for it."""
    theory: Measured | None = None
    """Likewise."""


class Timing(Struct, frozen=True, kw_only=True):
    """One line of timings.jsonl: a round of all runs that train together."""

    round: int
    seconds: float
    num_runs: Annotated[int, Meta(lt=1 << 32)]
    images: int
    """How many samples all their clients trained on."""


class Sums(Struct, frozen=True, kw_only=True):
    """Checksums of a run that is over: BLAKE2b, 128 bits, as `b2sum -l 128` prints them."""

    run: str
    """The hash of the settings."""
    files: dict[str, str]
    """Of the other files, by name; without the checkpoint, which has its own."""
    checksum: str = ""
    """Of status.json: see `Status.checksum`."""


class Status(Struct, frozen=True, kw_only=True):
    """The state of a run: status.json."""

    outcome: Outcome
    round: int
    """The last round that was completed and saved."""
    num_rounds: int
    reason: str = ""
    version: int = VERSION
    sums: Sums | None = None
    """None: not over."""

    @property
    def is_over(self) -> bool:
        """Whether the run is a result: finished or diverged."""
        return self.outcome in OVER

    def checksum(self) -> str:
        """Return the checksum of the status itself."""
        sums = self.sums and msgspec.structs.replace(self.sums, checksum="")
        plain = msgspec.json.encode(msgspec.structs.replace(self, sums=sums), order="sorted")
        return hashlib.blake2b(plain, digest_size=16).hexdigest()

    def with_sums(self, run: str, files: dict[str, str]) -> "Status":
        """Return it with the checksums of all files, and its own."""
        whole = msgspec.structs.replace(self, sums=Sums(run=run, files=files))
        assert whole.sums is not None
        sums = msgspec.structs.replace(whole.sums, checksum=whole.checksum())
        return msgspec.structs.replace(whole, sums=sums)


class Layout(Struct, frozen=True, kw_only=True):
    """The part of status.json that every version has."""

    version: int = 0


class DataUsed(Struct, frozen=True, kw_only=True):
    """The dataset of a run."""

    name: str
    source: str
    """The form of the files, and where they lay."""
    num_train: int
    num_test: int
    checksum: str
    """Of all samples, labels and groups."""


class CodeUsed(Struct, frozen=True, kw_only=True):
    """A user's file of a rule or an attack."""

    path: str
    """As the text of the rule or attack has it."""
    checksum: str
    """BLAKE2b, 128 bits, as `b2sum -l 128` prints it."""


class PackageUsed(Struct, frozen=True, kw_only=True):
    """A rule, attack, model or dataset of another package."""

    kind: str
    name: str
    package: str
    version: str


class Environment(Struct, frozen=True, kw_only=True):
    """The machine and the versions of a run: env.json."""

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
    """The day on which it started or resumed, UTC."""
    protocol: int = 1
    """Raised where the same settings give other numbers; not recorded before 2."""
    revision: int | None = None
    """Of the protocol: raised where results changed by rounding alone. None: before 2."""
    trainer: str | None = None
    """How the clients trained: stacked, vmap or sequential, and why. None: before 0.2."""
    code: tuple[CodeUsed, ...] | None = None
    """The user's files of the rule and the attack. None: not recorded, in earlier versions."""
    packages: tuple[PackageUsed, ...] | None = None
    """What came from other packages. None: not recorded, in earlier versions."""
    native: str | None = None
    """The level of the C kernels that rules used on a CPU. None: plain torch, or not recorded."""
