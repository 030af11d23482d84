"""`outvote list runs` and `outvote list suites`: what was played, and what can be."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outvote.cli.output import Column, one_line, print_json, print_table
from outvote.errors import closest

if TYPE_CHECKING:
    from outvote.results.index import Entry

NUMBERS = ("best", "final", "last 10", "liars kept")


def list_runs(output: Path, suite: str | None, rebuild: bool, as_json: bool) -> None:
    """List the runs of a store."""
    from outvote.results.faults import StoreError
    from outvote.results.index import list_runs as indexed

    if not output.is_dir():
        raise click.UsageError(f"there is no folder {output}; play runs, or give another --output.")
    try:
        found = indexed(output, lambda text: click.echo(one_line(text), err=True), rebuild=rebuild)
    except StoreError as error:
        raise click.UsageError(str(error)) from error
    suites = list(dict.fromkeys(entry.suite for entry in found))
    if suite is not None and suite not in suites:
        raise click.UsageError(
            f"no runs of a suite {suite!r} in {output}; {closest(suite, suites)}"
        )
    chosen = [entry for entry in found if suite in (None, entry.suite)]
    if as_json:
        print_json([_told(entry) for entry in chosen])
        return
    if not chosen:
        click.echo(f"No runs in {output}.")
        return
    rows = [
        [
            entry.suite,
            entry.rule,
            entry.attack,
            str(entry.seed),
            entry.hash,
            entry.outcome,
            f"{entry.round}/{entry.num_rounds}",
            *map(_percent, (entry.best, entry.final, entry.last_ten, entry.kept_byzantine)),
        ]
        for entry in chosen
    ]
    texts = [Column(title) for title in ("suite", "rule", "attack")]
    about = [Column("seed", True), Column("hash"), Column("outcome"), Column("rounds", True)]
    print_table([*texts, *about, *(Column(title, True) for title in NUMBERS)], rows)
    click.echo("Accuracies in percent; liars kept: the share of them with a say in the update.")


def list_suites(as_json: bool) -> None:
    """List the suites that come with outvote."""
    from outvote.experiment.suites import plan_suite
    from outvote.suites.suite import read_suite, suite_names

    suites = [read_suite(name) for name in suite_names()]
    num_runs = {suite.name: len(plan_suite(suite).specs) for suite in suites}
    if as_json:
        print_json(
            [
                {
                    "name": suite.name,
                    "title": suite.title,
                    "description": suite.description.strip(),
                    "num_runs": num_runs[suite.name],
                    "parts": [{"name": part.name, "title": part.title} for part in suite.parts],
                }
                for suite in suites
            ]
        )
        return
    rows = [
        [
            suite.name,
            suite.title,
            str(num_runs[suite.name]),
            ", ".join(part.name for part in suite.parts),
        ]
        for suite in suites
    ]
    print_table([Column("suite"), Column("title"), Column("runs", True), Column("parts")], rows)
    click.echo("To play one: outvote bench NAME")


def _told(entry: "Entry") -> dict[str, Any]:
    return {key: value for key, value in entry._asdict().items() if key != "stamp"}


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
