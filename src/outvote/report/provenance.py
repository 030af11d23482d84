"""Where the numbers of a table come from: runs, machines, versions, settings."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

from outvote.report.differing import ordered
from outvote.report.grid import Grid, runs_of
from outvote.report.naming import title_of
from outvote.report.replaying import replay_commands
from outvote.results.run import Result


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What the environments of runs say, each value once and in order."""

    num_runs: int
    seeds: list[int]
    devices: list[str]
    outvote: list[str]
    torch: list[str]
    commits: list[str]
    precisions: list[str]
    dates: list[str]
    commands: list[str]
    """What plays them again."""
    num_samples: int
    """How many pictures all clients were trained on."""
    run_seconds: float
    """What all rounds took; runs that were played together share the time."""
    unfinished: dict[str, int]
    """How many runs are not over and not counted, by what became of them."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    def told(self) -> str:
        """Tell it in a few short sentences."""
        seeds = _counted(len(self.seeds), "seed")
        software = f"outvote {_listed(self.outvote)} and torch {_listed(self.torch)}"
        when = _days(self.dates)
        where = f"{_listed(self.devices)} in {_listed(self.precisions)}"
        commits = _listed([_short(commit) for commit in self.commits])
        parts = [
            f"{_counted(self.num_runs, 'run')} with {seeds}.",
            f"Played on {where}, with {software}{when}.",
            f"Commit: {commits}.",
            f"{self.num_samples:,} images in {self.run_seconds:,.0f} run-seconds.",
        ]
        if not self.num_runs:
            parts = ["No run is over."]
        if self.unfinished:
            told = ", ".join(f"{number} {name}" for name, number in self.unfinished.items())
            parts.append(f"Not counted, because not over: {told}.")
        return " ".join(parts)


def provenance_of(grids: Sequence[Grid]) -> Provenance:
    """Sum up where the runs of tables were played; one that is in several counts once."""
    once = {(each.suite, each.name): each for each in runs_of(grids)}
    over = [once[key] for key in sorted(once) if once[key].is_over]
    rest = Counter(each.status.outcome for each in once.values() if not each.is_over)
    found = [each.environment for each in over if each.environment is not None]
    return Provenance(
        num_runs=len(over),
        seeds=ordered(each.seed for each in over),
        devices=ordered(each.device for each in found),
        outvote=ordered(each.outvote for each in found),
        torch=ordered(each.torch for each in found),
        commits=ordered(each.commit for each in found if each.commit is not None),
        precisions=ordered(each.precision for each in found),
        dates=ordered(each.date for each in found if each.date is not None),
        commands=replay_commands(grids),
        num_samples=sum(each.num_samples for each in over),
        run_seconds=round(sum(each.seconds for each in over), 1),
        unfinished={str(name): rest[name] for name in sorted(rest)},
    )


def settings_told(results: Sequence[Result]) -> str:
    """Tell the settings that matter most, as far as all runs share them."""
    told = []
    for key, phrase in PHRASES.items():
        values = ordered(each.setting(key) for each in results)
        if len(values) == 1 and values[0] is not None:
            told.append(phrase(values[0]))
    partitions = {each.setting("data.partition") for each in results}
    betas = ordered(each.setting("data.beta") for each in results)
    if partitions == {"dirichlet"} and len(betas) == 1:
        told.append(title_of("data.beta", betas[0]))
    return ", ".join(told)


def _part_of(what: str) -> Callable[[Any], str]:
    def phrase(value: Any) -> str:
        return f"{value} {what}" if isinstance(value, int) else f"{100 * value:g} % {what}"

    return phrase


PHRASES: dict[str, Callable[[Any], str]] = {
    "data.name": str,
    "model.name": str,
    "rounds": "{} rounds".format,
    "federation.num_clients": "{} clients".format,
    "federation.byzantine": _part_of("liars"),
    "federation.sampled": _part_of("sampled"),
    "data.partition": str,
}


def _days(dates: Sequence[str]) -> str:
    if len(dates) < 2:
        return f", on {dates[0]}" if dates else ""
    return f", from {dates[0]} to {dates[-1]}"


def _short(commit: str) -> str:
    name, plus, changes = commit.partition("+")
    return f"{name[:12]}{plus}{changes}"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _listed(values: Sequence[str]) -> str:
    return ", ".join(values) or "unknown"
