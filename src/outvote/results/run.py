"""A run as tables, figures and reports read it, from its folder or from an export."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import nan
from operator import attrgetter
from typing import Any, final

import msgspec

from outvote.results.check import check_run
from outvote.results.checkpoint import Checkpoint
from outvote.results.folder import RunFolder
from outvote.results.labels import label, user_files, user_objects, value_of
from outvote.results.round import Round
from outvote.results.schema import Environment, Status, Timing
from outvote.results.series import Clients, Series, Summary, clients_of, series_of, summary_of


class _Number:
    """A number of a result's `Summary`, but NaN if it is not known."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, result: "Result", owner: type) -> float:
        found: float | None = getattr(result.summary, self.name)
        return nan if found is None else found


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """One run: its settings, its status, and its rounds."""

    suite: str
    name: str
    """Of its folder: rule, attack, seed and hash."""
    config: Mapping[str, Any]
    """All settings, nested as in config.toml."""
    status: Status
    environment: Environment | None
    series: Series
    seconds: float
    """The time of its rounds; a round is shared equally by the runs that train together."""
    num_samples: int
    """How many samples its clients trained on."""
    folder: RunFolder | None
    """None: it comes from an export, which has no rounds of single clients."""
    clients: Clients | None = None
    """Its honest clients one by one; None: not recorded, as where targets are not classes."""
    faults: tuple[str, ...] = ()
    """What is wrong with files that its numbers do not depend on: the audit, the times."""

    @property
    def hash(self) -> str:
        """The checksum of its settings."""
        return self.name.rpartition("-")[2]

    @property
    def seed(self) -> int:
        """The seed of everything random."""
        return int(self.config["seed"])

    @cached_property
    def rule(self) -> str:
        """The name of the rule, without parameters."""
        return label(self.config["rule"])

    @cached_property
    def attack(self) -> str:
        """The name of the attack, without parameters."""
        return label(self.config["attack"])

    def setting(self, key: str) -> Any:
        """Return a setting such as "data.beta" or "rule.num_groups"; None if there is none.

        "rule" and "attack" are the names without parameters.
        """
        return value_of(self.config, key)

    def code_of(self, key: str) -> dict[str, str]:
        """Return the checksums of the user's files of "rule" or "attack", by path.

        Of other packages, it is the version by the name of the package.
        """
        code = (self.environment and self.environment.code) or ()
        known = {each.path: each.checksum for each in code}
        text = self.config[key]
        in_files = {path: known.get(path, "unknown") for path in user_files(text)}
        packages = (self.environment and self.environment.packages) or ()
        versions = {each.package: each.version for each in packages if each.kind == key}
        return in_files | user_objects(text) | versions

    @property
    def is_over(self) -> bool:
        """Whether it is a result: finished or diverged."""
        return self.status.is_over

    @cached_property
    def summary(self) -> Summary:
        """The run in a few numbers."""
        return summary_of(self.series, attack=self.attack, clients=self.clients)

    best = _Number()
    final = _Number()
    last_ten = _Number()
    kept_byzantine = _Number()
    byzantine_weight = _Number()
    honest_share = _Number()
    deviation = _Number()
    test_loss = _Number()
    client_accuracy = _Number()
    worst_decile = _Number()
    least_kept = _Number()


def read_result(folder: RunFolder) -> Result | None:
    """Read and check a run from its folder; None if it was never started.

    Damage to what its numbers depend on is a DamagedFileError.
    """
    found = check_run(folder)
    found.raise_fault()
    if found.status is None or found.config is None:
        return None  # The status may be written before the settings.
    return Result(
        suite=str(found.config.get("suite", folder.path.parent.name)),
        name=folder.path.name,
        config=found.config,
        status=found.status,
        environment=found.environment,
        series=series_of(found.rounds),
        seconds=sum(each.seconds / max(each.num_runs, 1) for each in folder.timings()),
        num_samples=sum(each.num_samples for each in found.rounds),
        folder=folder,
        clients=clients_of(found.rounds),
        faults=found.texts(),
    )


@final
class KeptRun:
    """The results of a run that stay in memory: what a `Writer` is for a folder."""

    metrics_sum = ""
    """A checkpoint in memory needs no checksum of the rounds."""

    def __init__(self, config: str, checksum: str) -> None:
        """Begin with nothing; `config` is the text of config.toml."""
        self.config, self.checksum = config, checksum
        self.status: Status | None = None
        self.environment: Environment | None = None
        self.rounds: list[Round] = []
        self.seconds = 0.0
        self.checkpoint: Checkpoint | None = None

    def resume(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the checkpoint of a stack that was split; None: start anew."""
        return self.checkpoint, []

    def begin(self, round_: int, environment: Environment) -> None:
        """Remove the records after a round."""
        del self.rounds[round_:]
        self.environment = environment

    def add(self, round_: Round, timing: Timing) -> None:
        """Record a round as a file has it: what is not finite is None."""
        line = msgspec.json.encode(round_.line())
        self.rounds.append(msgspec.json.decode(line, type=Round))
        self.seconds += timing.seconds / timing.num_runs

    def save(self, checkpoint: Checkpoint, status: Status) -> None:
        """Keep a checkpoint to resume from."""
        self.checkpoint, self.status = checkpoint, status

    def write_status(self, status: Status) -> None:
        """Keep the status."""
        self.status = status

    def close(self) -> None:
        """Nothing is locked."""

    def result(self, suite: str, name: str) -> Result | None:
        """Return the run; None if it never began to train."""
        if self.status is None or self.environment is None:
            return None
        return Result(
            suite=suite,
            name=name,
            config=tomllib.loads(self.config),
            status=self.status,
            environment=self.environment,
            series=series_of(self.rounds),
            seconds=self.seconds,
            num_samples=sum(map(attrgetter("num_samples"), self.rounds)),
            folder=None,
            clients=clients_of(self.rounds),
        )
