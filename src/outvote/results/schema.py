"""The content of a run's files, but for its rounds."""

import hashlib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

VERSION = 2
"""Of the layout of a run folder: no other is read."""

Outcome = Literal["running", "interrupted", "failed", "finished", "diverged"]
OVER: tuple[Outcome, ...] = ("finished", "diverged")
"""The outcomes that are results."""


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


class LayoutNumber(Struct, frozen=True, kw_only=True):
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
    """How the clients trained: stacked, vmap or sequential, and why. None: not recorded."""
    code: tuple[CodeUsed, ...] | None = None
    """The user's files of the rule and the attack. None: not recorded."""
    packages: tuple[PackageUsed, ...] | None = None
    """What came from other packages. None: not recorded."""
    native: str | None = None
    """The level of the C kernels that rules used on a CPU. None: plain torch, or not recorded."""
