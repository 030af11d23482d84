"""A run to be played, and the folder that it is kept in."""

from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import final

import msgspec

from outvote.experiment.spec import Spec
from outvote.experiment.toml import to_toml
from outvote.results.folder import RunFolder, Writer
from outvote.results.schema import Outcome


@final
@dataclass(frozen=True, slots=True)
class Job:
    """One run of a suite."""

    spec: Spec
    suite: str
    root: Path

    @property
    def folder(self) -> RunFolder:
        """The folder of its results."""
        return RunFolder(self.root / self.suite / self.spec.name)

    def writer(self) -> Writer:
        """Take hold of the folder."""
        config = to_toml(self.spec, self.suite).encode()
        return Writer(self.folder, config, self.spec.hash)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What became of a run."""

    job: Job
    outcome: Outcome | str
    reason: str = ""
    is_new: bool = True
    """False if it was over before."""


def stack_key(spec: Spec) -> Hashable:
    """Return what runs must share to be played together."""
    members = spec.federation
    shape = msgspec.structs.replace(members, byzantine=0, told="oracle")
    return (
        spec.data.name,
        spec.model,
        spec.training,
        spec.server,
        spec.precision,
        spec.aggregate,
        spec.rounds,
        spec.evaluate_every,
        shape,
    )
