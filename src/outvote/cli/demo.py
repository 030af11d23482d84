"""`outvote demo`: a small federation under attack, on real images, in a minute or two."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outvote.cli.output import (
    UNKNOWN,
    NumberColumn,
    percent,
    print_json,
    print_paragraph,
    print_table,
    print_text,
)
from outvote.cli.progress import progress_option
from outvote.cli.run_plan import (
    Execution,
    checkpoint_option,
    device_option,
    output_option,
    run_plan,
    set_option,
)
from outvote.cli.runs import read_runs
from outvote.cli.verb import Verb, usage_errors

if TYPE_CHECKING:
    from outvote.cli.run_plan import Outcomes
    from outvote.results.series import Summary

STORY = """\
6,000 real images of clothes, shared among 20 clients that each have many of some classes and few
of others; 4 of the clients are Byzantine, and all clients take part in every round. Attack `none`:
all are honest. `lie(sign=1)`: the Byzantine clients send the honest mean plus 1.5 standard
deviations. `bit-flip`: they send their gradient with the sign flipped. {num_runs} runs of {rounds}
rounds train together; if stopped, the same command resumes."""


@click.command("demo", cls=Verb)
@set_option
@output_option
@device_option
@checkpoint_option
@progress_option
def command(settings: tuple[str, ...], as_json: bool, **how: Any) -> int:
    """See what attackers do to an average, and what robust rules and GAS do against it.

    A federation on real images that come with outvote: no network needed. Finished runs are
    skipped.
    """
    from outvote.experiment.plan import plan_suite
    from outvote.report.html_report import write_report
    from outvote.suites.suite import read_suite

    with usage_errors(ValueError, TypeError):
        plan = plan_suite(read_suite("demo"), settings)
    if not as_json and not settings:
        print_paragraph(STORY.format(num_runs=len(plan.specs), rounds=plan.specs[0].rounds))
    done = run_plan(plan, Execution(**how))
    page = how["output"] / plan.suite / "report.html"
    write_report(read_runs([page.parent]), page, command="outvote demo")
    if as_json:
        print_json(done.as_json())
    else:
        _print(done, page.parent)
        print_text(f"Tables, curves and the audit of all clients, as one page: {page}")
    done.print_how_to_resume()
    return done.exit_code


def _print(done: "Outcomes", folder: Path) -> None:
    rules = list(dict.fromkeys(end.job.spec.rule for end in done.ends))
    attacks = list(dict.fromkeys(end.job.spec.attack for end in done.ends))
    columns: list[str] = ["rule"]
    for attack in attacks:
        columns.append(NumberColumn(f"{attack}\naccuracy"))
        if attack != "none":
            columns.append(NumberColumn("Byzantine\nselected"))
    rows = [
        [rule, *(cell for attack in attacks for cell in _cells(done, rule, attack))]
        for rule in rules
    ]
    print_table(columns, rows)
    for line in _gains(done, rules, attacks):
        print_text(line)
    print_paragraph(
        "Accuracy: percent of the test images, mean over the last ten rounds (and over seeds).\n"
        "Byzantine selected: the selection rate, the percentage of their updates that the rule\n"
        "kept. Compare each rule with gas(rule), and all with the mean. Krum and DnC are good\n"
        "rules inside GAS when all clients take part; others are not, for example these:"
    )
    click.echo(
        '  outvote demo --set \'rule=["median", "gas(median)", "gas(multi-krum)"]\'\n'
        f"Whom the rules dropped: outvote audit {folder}"
    )


def _gains(done: "Outcomes", rules: list[str], attacks: list[str]) -> Iterator[str]:
    """Yield what each GAS variant gains over the rule inside and over the mean."""
    for rule in rules:
        for other in dict.fromkeys((rule.removeprefix("gas(").removesuffix(")"), "mean")):
            if rule.startswith("gas(") and other in rules:
                gains = [_gain(done, rule, other, attack) for attack in attacks]
                yield f"Gain of {rule} over {other}, in points: {', '.join(gains)}"


def _gain(done: "Outcomes", rule: str, other: str, attack: str) -> str:
    mine, theirs = (
        _mean([each.last_ten for each in _found(done, name, attack)]) for name in (rule, other)
    )
    points = UNKNOWN if mine is None or theirs is None else f"{100 * (mine - theirs):+.1f}"
    return f"{attack} {points}"


def _cells(done: "Outcomes", rule: str, attack: str) -> Iterator[str]:
    found = _found(done, rule, attack)
    yield percent(_mean([summary.last_ten for summary in found]))
    if attack != "none":
        yield percent(_mean([summary.kept_byzantine for summary in found]))


def _found(done: "Outcomes", rule: str, attack: str) -> "list[Summary]":
    return [
        summary
        for end, summary in zip(done.ends, done.summaries, strict=True)
        if (end.job.spec.rule, end.job.spec.attack) == (rule, attack)
    ]


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
