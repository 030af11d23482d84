"""`outvote demo`: a small federation under attack, on real pictures, in a minute or two."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outvote.cli.output import Column, print_json, print_table
from outvote.cli.run import checkpoint_option, device_option, output_option, set_option
from outvote.cli.verb import Verb, WorkFailed

if TYPE_CHECKING:
    from outvote.cli.played import Played

STORY = """\
6,000 real pictures of clothes, shared among 20 clients that each have much of some kinds and little
of others; 4 of the clients are Byzantine. Attack `none`: they are honest. `lie`: they send the
honest mean, moved by 1.5 standard deviations. `bit-flip`: the opposite of what they learnt.
Playing {num_runs} runs of {rounds} rounds side by side; if stopped, the same command goes on."""


@click.command("demo", cls=Verb)
@set_option
@output_option
@device_option
@checkpoint_option
def command(
    settings: tuple[str, ...], output: Path, device: str, checkpoint_every: float, as_json: bool
) -> int:
    """See what attackers do to an average, and what robust rules and GAS do against it.

    A federation on real pictures that come with outvote: no network needed. Runs that are finished
    are not played again.
    """
    from outvote.cli.simulate import How, play
    from outvote.experiment.suites import plan_suite
    from outvote.suites.suite import read_suite

    try:
        plan = plan_suite(read_suite("demo"), settings)
    except (ValueError, TypeError) as error:
        raise click.UsageError(str(error)) from error
    if not as_json and not settings:
        story = STORY.format(num_runs=len(plan.specs), rounds=plan.specs[0].rounds)
        click.echo(story)
    how = How(output=output, device=device, checkpoint_every=checkpoint_every)
    done = play(plan, how)
    page = _write_page(output / plan.suite)
    if as_json:
        print_json(done.as_json())
    else:
        _print(done, output / plan.suite)
        click.echo(f"Tables, curves and who was suspected, as one page: {page}")
    done.how_to_go_on(shlex.join(["outvote", *sys.argv[1:]]))
    return done.exit_code


def _write_page(folder: Path) -> Path:
    """Write the report of all runs that are there; a browser opens it from the disk."""
    from outvote.cli.runs import read_runs
    from outvote.report.html_report import write_report
    from outvote.results.faults import StoreError

    page = folder / "report.html"
    try:
        write_report(read_runs([folder]), page, command="outvote demo")
    except StoreError as error:
        raise WorkFailed(str(error)) from error
    return page


def _print(done: "Played", folder: Path) -> None:
    rules = list(dict.fromkeys(end.job.spec.rule for end in done.ends))
    attacks = list(dict.fromkeys(end.job.spec.attack for end in done.ends))
    columns = [Column("rule")]
    for attack in attacks:
        columns.append(Column(f"{attack}\naccuracy", is_number=True))
        if attack != "none":
            columns.append(Column("\nliars kept", is_number=True))
    rows = [
        [rule, *(cell for attack in attacks for cell in _cells(done, rule, attack))]
        for rule in rules
    ]
    print_table(columns, rows)
    click.echo(
        "Accuracy: percent of the test pictures, mean over the last ten rounds (and over seeds).\n"
        "Liars kept: the percentage of the liars' updates that had a say. Compare each rule with\n"
        "gas(rule), and all with the mean: lie is made for robust rules, bit-flip hurts the mean.\n"
        f"Every round is in {folder}. Other rules:\n"
        '  outvote demo --set \'rule=["krum", "gas(krum)"]\' --set \'attack=["min-max"]\''
    )


def _cells(done: "Played", rule: str, attack: str) -> Iterator[str]:
    from outvote.cli.played import percent

    found = [
        summary
        for end, summary in zip(done.ends, done.summaries, strict=True)
        if (end.job.spec.rule, end.job.spec.attack) == (rule, attack)
    ]
    yield percent(_mean([summary.last_ten for summary in found]))
    if attack != "none":
        yield percent(_mean([summary.kept_byzantine for summary in found]))


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
