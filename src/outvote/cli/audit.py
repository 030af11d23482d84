"""`outvote audit FOLDER`: which clients look suspicious, in simulation or production."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import isnan
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outvote.cli.output import (
    UNKNOWN,
    NumberColumn,
    file_option,
    number,
    print_json,
    print_listing,
    print_table,
    print_text,
)
from outvote.cli.runs import read_runs
from outvote.cli.verb import Verb, typed_command, usage_errors
from outvote.errors import plural
from outvote.markup import clean

if TYPE_CHECKING:
    from outvote.report.audit import Audit, ClientSummary, Detection
    from outvote.results.run import Result

WAIT_SECONDS = 2.0
LEGEND = (
    "Suspicion: mean rank of the client's score within its rounds, 0 to 1, ± what chance would do "
    "to clients that are all alike (0.5). A high one means steadily unlike the others: by an "
    "attack, or by data that no other client has. Ordered by suspicion minus error."
)
OVERVIEW_NOTE = (
    "Precision: share of what was dropped that Byzantine clients had sent.\n"
    "Recall: share of what they sent that was dropped.\n"
    "Top: share of Byzantine clients among as many most suspicious; *: Byzantine.\n"
    "More on one: outvote audit FOLDER --run NAME"
)
NUM_NAMED = 3
MAX_NAME, MAX_REASON = 40, 80
"""So many characters are printed; --json and the page have more."""


@click.command("audit", cls=Verb)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--run", "name", help="Of several runs, the one with this in its name, or its hash.")
@click.option("--top", type=click.IntRange(min=1), default=20, help="Clients.")
@click.option("--follow", is_flag=True, help="Print again when a round is added; Ctrl-C ends it.")
@file_option("Write an HTML file too: every verdict, for any browser.")
def command(
    folder: Path, name: str | None, top: int, follow: bool, output: Path | None, as_json: bool
) -> None:
    """Show which clients look suspicious, and why.

    FOLDER is the folder of a run, of a suite, or the audit log that a server in production writes;
    it may be read while it is written. Of several runs there is a line each; --run picks one.

    \b
    outvote audit runs/demo --run gas-krum-lie
    outvote audit audit-log -o audit.html
    """  # noqa: D301  (click wants the backspace)
    num_shown = None
    try:
        while True:
            log, results = _read(folder, name)
            num_rounds = sum(len(result.series) for result in results)
            num_rounds += 0 if log is None else len(log.rounds)
            if num_rounds != num_shown:
                _show(log, results, top, as_json)
                if output is not None:
                    _write(log, results, output, as_json)
                num_shown = num_rounds
            if not follow:
                return
            time.sleep(WAIT_SECONDS)
    except KeyboardInterrupt:
        if not follow:
            raise


def _read(folder: Path, name: str | None) -> "tuple[Audit | None, list[Result]]":
    """Return the audit log in a folder, or else its runs."""
    from outvote.report.audit import audit_log, choose_run
    from outvote.results.disk import StoreError

    if not folder.is_dir():
        raise click.UsageError(f"there is no folder {folder}; check the path.")
    try:
        log = audit_log(folder)
    except StoreError as error:
        raise click.UsageError(f"{error}; give the folder of a whole log.") from error
    if log is None:
        results = read_runs([folder])
        with usage_errors(ValueError):
            return None, results if name is None else [choose_run(results, name)]
    if name is not None:
        raise click.UsageError(f"{folder} is one log; leave out --run.")
    return log, []


def _show(log: "Audit | None", results: "list[Result]", top: int, as_json: bool) -> None:
    from outvote.report.audit import audit_run

    if log is None and len(results) > 1:
        _show_overview(results, as_json)
        return
    audit = log or audit_run(results[0])
    assert audit is not None
    print_json(shown_audit(audit)) if as_json else print_audit(audit, top)


def _write(log: "Audit | None", results: "list[Result]", output: Path, as_json: bool) -> None:
    from outvote.report.html_report import write_log_audit, write_run_audits

    if log is not None:
        write_log_audit(log, output, command=typed_command())
    else:
        write_run_audits(results, output, command=typed_command())
    if not as_json:
        print_text(f"{output}: open it in a browser.")


def print_audit(audit: "Audit", top: int) -> None:
    """Print the most suspicious clients, and how well they match the truth if that is known."""
    from outvote.report.audit import findings

    records, found = _summarised(audit)
    rounds, clients = plural(len(audit.rounds), "round"), plural(len(audit.clients), "client")
    title = f"{audit.title}: {rounds}, {clients}"
    columns = list(_columns(records))
    rows = [[draw(each) for _, draw in columns] for each in records[:top]]
    print_table([column for column, _ in columns], rows, title)
    if len(records) > top:
        print_text(f"{len(records) - top} more: --top {len(records)}")
    for sentence in findings(audit, records):
        print_text(clean(sentence))
    if found is not None:
        print_text(_detection_text(found))
    print_text(LEGEND)
    if which := audit.about.get("which"):
        print_text(f"This is {which} here; give the folder of another to see that.")
    if num_lost := audit.about.get("lines that cannot be read"):
        click.echo(f"Warning: {plural(num_lost, 'line')} cannot be read.", err=True)


def _detection_text(found: "Detection") -> str:
    if not found.num_byzantine:
        return f"No attack; {_percent(found.honest_kept)} of what clients sent was kept."
    return (
        f"Dropped: {_percent(found.drop_precision)} came from Byzantine clients (precision). "
        f"Byzantine: {_percent(found.drop_recall)} was dropped (recall). "
        f"Honest: {_percent(found.honest_kept)} was kept.\n"
        f"Of the {found.num_byzantine} most suspicious clients {_percent(found.top_precision)} "
        "are Byzantine."
    )


def shown_audit(audit: "Audit") -> dict[str, Any]:
    """Return the same for JSON, with all clients."""
    from outvote.report.audit import findings, overview

    records, found = _summarised(audit)
    return {
        "title": audit.title,
        "about": dict(audit.about),
        "rounds": len(audit.rounds),
        "detection": None if found is None else asdict(found),
        "outcomes": overview(audit).totals,
        "findings": list(findings(audit, records)),
        "clients": [{**asdict(each), "stands_out": each.stands_out} for each in records],
    }


def _show_overview(results: "Sequence[Result]", as_json: bool) -> None:
    """Show a line for each run."""
    from outvote.report.audit import audit_run

    shares = {
        "precision": "drop_precision",
        "recall": "drop_recall",
        "honest kept": "honest_kept",
        "top": "top_precision",
    }
    rows, data = [], []
    for result in results:
        audit = audit_run(result)
        assert audit is not None
        records, found = _summarised(audit)
        assert found is not None
        first, num_rounds = records[:NUM_NAMED], len(result.series)
        percents = [_percent(getattr(found, share)) for share in shares.values()]
        names = [_cut(each.client, MAX_NAME) + "*" * bool(each.is_byzantine) for each in first]
        rows.append([result.name, str(num_rounds), *percents, ", ".join(names)])
        about = {"run": result.name, "rounds": num_rounds, **asdict(found)}
        data.append({**about, "most_suspicious": [each.client for each in first]})
    columns = ["run", *map(NumberColumn, ("rounds", *shares)), "most suspicious"]
    print_listing(as_json, data, columns, rows, OVERVIEW_NOTE)


def _summarised(audit: "Audit") -> "tuple[list[ClientSummary], Detection | None]":
    from outvote.report.audit import client_summaries, detection

    records = client_summaries(audit)
    return records, detection(audit, records)


def _columns(records: "Sequence[ClientSummary]") -> Iterator[tuple[str, Any]]:
    """Yield the columns that are not empty, and how each is printed."""
    yield "client", lambda each: _cut(each.client, MAX_NAME)
    if any(each.is_byzantine for each in records):
        yield "truth", lambda each: "Byzantine" if each.is_byzantine else ""
    yield NumberColumn("suspicion"), lambda each: _known(each.suspicion, ".2f")
    yield NumberColumn("±"), lambda each: _known(each.error, ".2f")
    yield NumberColumn("sampled"), lambda each: str(each.num_sampled)
    yield NumberColumn("dropped"), lambda each: _known(each.num_dropped)
    yield NumberColumn("rate"), lambda each: _percent(each.drop_rate)
    yield NumberColumn("streak"), lambda each: _known(each.longest_streak)
    counts: dict[str, Any] = {"not finite": lambda each: each.num_rejected}
    for name in records[0].faults if records else ():
        counts[name] = lambda each, name=name: each.faults[name]
    for name in ("norm", "cosine"):
        counts[f"{name} outlier"] = attrgetter(f"num_{name}_outliers")
    for name, count in counts.items():
        if any(map(count, records)):
            yield NumberColumn(name), lambda each, count=count: str(count(each))
    for name in ("norm", "cosine", "distance"):
        if not all(isnan(getattr(each, name)) for each in records):
            yield NumberColumn(name), lambda each, name=name: number(getattr(each, name), 3)
    yield NumberColumn("last seen"), lambda each: number(each.last_seen, 9)
    if any(each.reason for each in records):
        yield "last reason", lambda each: _cut(each.reason, MAX_REASON)


def _cut(text: str, most: int) -> str:
    """Put a text of unknown origin on one line of limited length."""
    text = " ".join(text[: 2 * most].split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _known(value: float | None, form: str = "") -> str:
    return UNKNOWN if value is None or isnan(value) else format(value, form)


def _percent(value: float | None) -> str:
    return _known(value, ".0%").replace("%", " %")
