"""A run to be played, and the folder that it is kept in."""

from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import final

import msgspec

from outvote.experiment.spec import Spec
from outvote.experiment.toml import to_toml
from outvote.results.faults import DamagedFileError
from outvote.results.folder import RunFolder, Writer
from outvote.results.schema import DataUsed, Outcome


@final
@dataclass(frozen=True, slots=True)
class Job:
    """One run of a suite."""

    spec: Spec
    suite: str
    root: Path
    hash: str
    """That of the settings when the plan was made."""

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.spec.label}-{self.hash}"

    @property
    def folder(self) -> RunFolder:
        """The folder of its results."""
        return RunFolder(self.root / self.suite / self.name)

    def check_code(self) -> None:
        """Refuse to play code that is not what the folder is named after."""
        if self.spec.hash != self.hash:
            raise ValueError(
                f"the file of {self.spec.rule} or {self.spec.attack} was changed since the sweep "
                "began; run the same command again to play what it is now."
            )

    def known_data(self) -> str | None:
        """Return the checksum of the pictures it was played on, as far as that can be read."""
        try:
            environment = self.folder.environment()
        except DamagedFileError:
            return None
        return environment.data.checksum if environment and environment.data else None

    def other_data(self, known: str | None, now: DataUsed) -> str:
        """Tell that the pictures are not those that it was played on; "" if they are."""
        if known is None or known == now.checksum:
            return ""
        return (
            f"{self.folder.path} was played on other pictures of {now.name}: checksum "
            f"{known[:16]} expected, got {now.checksum[:16]} from {now.source}; bring the former "
            "ones back, or choose another --output."
        )

    def writer(self) -> Writer:
        """Take hold of the folder."""
        config = to_toml(self.spec, self.suite).encode()
        return Writer(self.folder, config, self.hash)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What became of a run."""

    job: Job
    outcome: Outcome | str
    reason: str = ""
    is_new: bool = True
    """False if it was over before."""


def told(error: Exception) -> str:
    """Return a fault as one sentence."""
    return f"{type(error).__name__}: {error}".rstrip(".") + "."


def stack_key(spec: Spec) -> Hashable:
    """Return what runs must share to be played together."""
    members = spec.federation
    shape = msgspec.structs.replace(members, byzantine=0, assumed_byzantine="oracle")
    return (
        spec.data.name,
        spec.data.image_size,
        spec.model,
        spec.training,
        spec.server,
        spec.precision,
        spec.aggregate,
        spec.diagnostics,
        spec.rounds,
        spec.evaluate_every,
        shape,
    )
