"""A run as tables, figures and reports see it, whether from its folder or from an export."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from outvote.results.faults import DamagedFileError
from outvote.results.folder import RunFolder
from outvote.results.labels import label, parameters
from outvote.results.schema import Environment, Round, Status, Timing

NUM_LAST = 10


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
    num_told: NDArray[np.int64]
    num_used: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of rounds."""
        return len(self.round)


SERIES = tuple(field.name for field in fields(Series))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """One run: its settings, what became of it, and its rounds."""

    suite: str
    name: str
    """Of its folder: rule, attack, seed and hash."""
    config: Mapping[str, Any]
    """All settings, nested as in config.toml."""
    status: Status
    environment: Environment | None
    series: Series
    seconds: float
    """How long its rounds took, each shared equally by the runs that were played together."""
    num_images: int
    """How many pictures its clients were trained on."""
    folder: RunFolder | None
    """None: it comes from an export, and of the clients one by one nothing is known."""

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
        first, _, rest = key.partition(".")
        if first in ("rule", "attack"):
            text = self.config[first]
            return parameters(text).get(rest) if rest else label(text)
        found: Any = self.config
        for word in key.split("."):
            found = found.get(word) if isinstance(found, Mapping) else None
        return found

    @property
    def is_over(self) -> bool:
        """Whether it is a result: finished or diverged."""
        return self.status.outcome in ("finished", "diverged")

    @property
    def best(self) -> float:
        """The largest accuracy of all rounds; NaN if it was never tested."""
        known = self._accuracies
        return float(known.max()) if len(known) else float("nan")

    @property
    def final(self) -> float:
        """The last accuracy that was measured; NaN if none was."""
        known = self._accuracies
        return float(known[-1]) if len(known) else float("nan")

    @property
    def last_ten(self) -> float:
        """The mean of the last ten accuracies."""
        known = self._accuracies
        return float(known[-NUM_LAST:].mean()) if len(known) else float("nan")

    @property
    def kept_byzantine(self) -> float:
        """The share of the liars sampled that had a share in the update; NaN if there were none."""
        lied = int(self.series.num_byzantine.sum())
        return float(self.series.num_kept_byzantine.sum() / lied) if lied else float("nan")

    @property
    def _accuracies(self) -> NDArray[np.float64]:
        accuracy = self.series.accuracy
        known: NDArray[np.float64] = accuracy[~np.isnan(accuracy)]
        return known


def read_result(folder: RunFolder) -> Result | None:
    """Read a run from its folder; None if it was never begun."""
    status = folder.status()
    if status is None:
        return None
    path = folder.path / "config.toml"
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None  # Status comes first when a run is about to begin.
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DamagedFileError(f"{path} cannot be read: {error}") from error
    rounds = folder.rounds()
    return Result(
        suite=str(config.get("suite", folder.path.parent.name)),
        name=folder.path.name,
        config=config,
        status=status,
        environment=folder.environment(),
        series=series_of(rounds),
        seconds=_seconds(folder.timings()),
        num_images=sum(each.num_pictures or 0 for each in rounds),
        folder=folder,
    )


def series_of(rounds: Sequence[Round]) -> Series:
    """Turn the lines of a run into arrays."""

    def real(name: str) -> NDArray[np.float64]:
        values = [getattr(each, name) for each in rounds]
        return np.array([np.nan if value is None else value for value in values], dtype=float)

    def whole(values: list[int]) -> NDArray[np.int64]:
        return np.array(values, dtype=np.int64)

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
        num_told=whole([each.num_told for each in rounds]),
        num_used=whole([each.num_used for each in rounds]),
    )


def _seconds(timings: Sequence[Timing]) -> float:
    return sum(each.seconds / max(each.num_runs, 1) for each in timings)
