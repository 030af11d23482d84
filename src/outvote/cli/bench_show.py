"""What `outvote bench` prints: the cells of a suite, before and after they are played."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outvote.cli.output import Column, print_json, print_table
from outvote.errors import plural

if TYPE_CHECKING:
    from outvote.cli.played import Played
    from outvote.experiment.forecast import Counts, Forecast, PartForecast
    from outvote.experiment.reading import Plan
    from outvote.suites.suite import Part, Suite


def print_forecast(suite: "Suite", found: "Forecast", store: Path, as_json: bool) -> None:
    """Print what would be played."""
    estimate = _estimate(found, store)
    if as_json:
        about = {"suite": suite.name, "title": suite.title}
        print_json({**about, **asdict(found), "estimate": estimate})
        return
    click.echo(f"{suite.name}: {suite.title}\n")
    for part in found.parts:
        click.echo(f"{part.name}: {_product(part)}")
        click.echo(f"  rules: {', '.join(part.rules)}")
        click.echo(f"  {_columns(part.columns)}: {', '.join(str(each) for each in part.values)}")
        click.echo(f"  {_standing(part.counts)}\n")
    click.echo(f"all: {plural(found.counts.runs, 'run')}, {_standing(found.counts)}")
    click.echo(estimate)


def print_cells(
    suite: "Suite", plans: Sequence["Plan"], done: "Played", folder: Path, as_json: bool
) -> None:
    """Print what was played: a table for each part and its plan, or for programs every run."""
    if as_json:
        print_json(done.as_json())
        return
    for part, plan in zip(suite.parts, plans, strict=True):
        _print_part(part, plan, done)
    num_over = sum(end.outcome in ("finished", "diverged") for end in done.ends)
    click.echo(
        "Best accuracy in percent, mean over seeds; in brackets how many seeds there are, if not "
        f"all.\n{num_over} of {plural(len(done.ends), 'run')} are over. Results: {folder}"
    )


def _print_part(part: "Part", plan: "Plan", done: "Played") -> None:
    from outvote.experiment.places import places_of

    places = places_of(part, plan)
    cells: dict[tuple[str, Any], list[float | None]] = {}
    for end, summary in zip(done.ends, done.summaries, strict=True):
        if end.job.hash in places:
            is_over = end.outcome in ("finished", "diverged")
            found = cells.setdefault(places[end.job.hash], [])
            found.append(summary.best if is_over else None)
    names, values = (list(dict.fromkeys(each[k] for each in places.values())) for k in (0, 1))
    columns = [Column("rule"), *(Column(str(each), is_number=True) for each in values)]
    rows = [[row, *(_cell(cells.get((row, each), [])) for each in values)] for row in names]
    print_table(columns, rows, f"{part.name}: {part.title}")


def _cell(found: list[float | None]) -> str:
    known = [each for each in found if each is not None]
    if not known:
        return "-"
    mean = f"{100 * sum(known) / len(known):.1f}"
    return mean if len(known) == len(found) else f"{mean} ({len(known)} of {len(found)})"


def _product(part: "PartForecast") -> str:
    """Return "360 runs = 12 rules × 6 attacks × 5 seeds"."""
    factors = (len(part.rules), len(part.values), len(part.seeds))
    values = f"{factors[1]} {_columns(part.columns, factors[1])}"
    text = f"{plural(factors[0], 'rule')} × {values} × {plural(factors[2], 'seed')}"
    is_all = factors[0] * factors[1] * factors[2] == part.counts.runs
    return f"{plural(part.counts.runs, 'run')} {'=' if is_all else 'in'} {text}"


def _columns(name: str, number: int = 2) -> str:
    if name == "attack":
        return "attack" if number == 1 else "attacks"
    return f"{'value' if number == 1 else 'values'} of {name}"


def _standing(counts: "Counts") -> str:
    return (
        f"{counts.finished} finished, {counts.half_done} half done, {counts.adoptable} adoptable "
        f"from another suite, {counts.to_do} to do"
    )


def _estimate(found: "Forecast", store: Path) -> str:
    if found.counts.half_done + found.counts.to_do == 0:
        return "nothing is left to play."
    if found.seconds is None:
        return f"no estimate: no run like these is in {store}/."
    text = f"about {_duration(found.seconds)} at the speed of the runs in {store}/"
    if found.num_unknown:
        text += f", and {plural(found.num_unknown, 'run')} more that none there is like"
    return f"{text}."


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
