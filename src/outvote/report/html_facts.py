"""What a page says about its runs as a whole: how many, when, where, with what."""

from collections.abc import Sequence
from datetime import UTC, datetime

from outvote.report.grid import Grid
from outvote.report.replaying import replay_commands
from outvote.results.run import Result
from outvote.results.schema import Environment
from outvote.suites.suite import read_suite, suite_names

RoundInfo = list[tuple[str, str]]


def title_and_lead(results: Sequence[Result]) -> tuple[str, str]:
    """Return the title of the suites and, if it is only one, what it is about."""
    names = list(dict.fromkeys(result.suite for result in results))
    known = [read_suite(name) if name in suite_names() else None for name in names]
    titles = [
        name if suite is None else suite.title for name, suite in zip(names, known, strict=True)
    ]
    first = known[0] if len(known) == 1 else None
    return ", ".join(titles), "" if first is None else " ".join(first.description.split())


def commands_of(grids: Sequence[Grid], command: str) -> list[str]:
    """Return what to type to get the same runs and the same page."""
    played = replay_commands(grids)
    if not command:
        return played
    makes_runs = command.startswith(("outvote demo", "outvote bench", "outvote run"))
    return [command] if makes_runs else [*played, command]


def facts_of(results: Sequence[Result]) -> RoundInfo:
    """Return pairs of what and how much, for the head of the page."""
    environments = list({each.environment for each in results if each.environment is not None})
    seeds = {result.seed for result in results}
    num_rounds = sum(len(result.series) for result in results)
    return [
        ("Runs", _runs(results)),
        ("Seeds", f"{len(seeds):,}"),
        ("Rounds", f"{num_rounds:,}"),
        ("Samples trained on", f"{sum(result.num_samples for result in results):,}"),
        ("Time", duration(sum(result.seconds for result in results))),
        ("Played", dates_of(results)),
        ("Hardware", _joined(environments, "device", "num_threads", "system")),
        ("Precision", _joined(environments, "precision")),
        ("Versions", versions_of(environments)),
        ("Commit", _commits(environments)),
    ]


def dates_of(results: Sequence[Result]) -> str:
    """Return the first and last day on which the runs were played, as far as they say so."""
    told = [each.environment.date for each in results if each.environment is not None]
    days = sorted({day for day in told if day is not None}) or _days_of_files(results)
    if not days:
        return "unknown"
    return days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"


def versions_of(environments: Sequence[Environment]) -> str:
    """Return what was used, each version once."""
    names = ("outvote", "torch", "numpy", "python")
    return ", ".join(
        f"{name} {' and '.join(sorted({getattr(each, name) for each in environments}))}"
        for name in names
        if environments
    )


def duration(seconds: float) -> str:
    """Return a time as people say it.

    >>> duration(5040), duration(42.4)
    ('1 h 24 min', '42 s')
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60:,} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _days_of_files(results: Sequence[Result]) -> list[str]:
    """Return the days on which the folders were written to; runs of old did not say when."""
    times = [
        path.stat().st_mtime
        for result in results
        if result.folder is not None
        for name in ("config.toml", "status.json")
        if (path := result.folder.path / name).exists()
    ]
    return sorted({str(datetime.fromtimestamp(time, UTC).date()) for time in times})


def _runs(results: Sequence[Result]) -> str:
    over = sum(result.is_over for result in results)
    diverged = sum(result.status.outcome == "diverged" for result in results)
    notes = [f"{diverged} diverged"] if diverged else []
    if over < len(results):
        notes.append(f"{len(results) - over} not over")
    return f"{len(results):,}" + (f" ({', '.join(notes)})" if notes else "")


def _joined(environments: Sequence[Environment], *names: str) -> str:
    told = {tuple(_told(each, name) for name in names) for each in environments}
    return "; ".join(", ".join(each) for each in sorted(told)) or "unknown"


def _told(environment: Environment, name: str) -> str:
    value = getattr(environment, name)
    return f"{value} thread{'' if value == 1 else 's'}" if name == "num_threads" else str(value)


def _commits(environments: Sequence[Environment]) -> str:
    found = sorted({each.commit for each in environments if each.commit is not None})
    return ", ".join(commit[:12] for commit in found) or "unknown"
