"""`outvote demo`: a small federation under attack, on real images, in a minute or two."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outvote.cli.output import (
    NumberColumn,
    percent,
    print_json,
    print_table,
    print_text,
)
from outvote.cli.run_plan import EXECUTION, Execution, run_plan, with_options
from outvote.cli.runs import read_runs
from outvote.cli.verb import Verb, usage_errors

if TYPE_CHECKING:
    from outvote.cli.run_plan import Outcomes

STORY = (
    "6,000 real images of clothes, shared among 20 clients that each have many of some classes and "
    "few of others; 4 of the clients are Byzantine, and all clients take part in every round. "
    "Attack `none`: all are honest. `lie(sign=1)`: the Byzantine clients send the honest mean plus "
    "1.5 standard deviations. `bit-flip`: they send their gradient with the sign flipped. "
    "{num_runs} runs of {rounds} rounds train together; if stopped, the same command resumes."
)


@click.command("demo", cls=Verb)
@with_options(EXECUTION)
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
        print_text(STORY.format(num_runs=len(plan.specs), rounds=plan.specs[0].rounds))
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
    print_text(
        "Accuracy: percent of the test images, mean over the last ten rounds (and over seeds). "
        "Byzantine selected: the selection rate, the percentage of their updates that the rule "
        "kept. Compare each rule with gas(rule), and all with the mean. Krum and DnC are good "
        "rules inside GAS when all clients take part; others are not, for example these:"
    )
    click.echo(
        '  outvote demo --set \'rule=["median", "gas(median)", "gas(multi-krum)"]\'\n'
        f"Whom the rules dropped: outvote audit {folder}"
    )


def _cells(done: "Outcomes", rule: str, attack: str) -> Iterator[str]:
    found = [
        summary
        for end, summary in zip(done.ends, done.summaries, strict=True)
        if (end.job.spec.rule, end.job.spec.attack) == (rule, attack)
    ]
    for name in ("last_ten", *(["kept_byzantine"] if attack != "none" else [])):
        known = [value for each in found if (value := getattr(each, name)) is not None]
        yield percent(sum(known) / len(known) if known else None)
