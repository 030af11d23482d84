"""Audits as text: the clients of one, or a line for each of several."""

from collections.abc import Iterator, Sequence, Sized
from dataclasses import asdict
from functools import partial
from math import isnan
from typing import TYPE_CHECKING, Any

import click

from outvote.cli.output import Column, clean, number, print_table

if TYPE_CHECKING:
    from outvote.report.audit import Audit
    from outvote.report.audit_clients import ClientRecord
    from outvote.report.audit_truth import Detection
    from outvote.results.run import Result

LEGEND = (
    "Suspicion: mean rank of the client's score within its rounds, 0 to 1, ± what chance would\n"
    "do to clients that are all alike (0.5). It says who is steadily unlike the others, not why:\n"
    "that may be an attack, or data that nobody else has. Ordered by suspicion minus error."
)
NUM_NAMED = 3
MAX_NAME, MAX_REASON = 40, 80
"""So many characters are printed; --json and the page have more."""


def print_audit(audit: "Audit", top: int) -> None:
    """Print the most suspicious clients, and how well liars were found if that is known."""
    from outvote.report.audit_clients import client_records
    from outvote.report.audit_truth import detection

    records = client_records(audit)
    rounds, clients = _counted(audit.rounds, "round"), _counted(audit.clients, "client")
    title = f"{audit.title}: {rounds}, {clients}"
    columns = list(_columns(records))
    rows = [[draw(each) for _, draw in columns] for each in records[:top]]
    print_table([column for column, _ in columns], rows, title)
    if len(records) > top:
        click.echo(f"{len(records) - top} more: --top {len(records)}")
    unlike = [each.client for each in records if each.stands_out]
    if unlike:
        listed = clean(_listed([_cut(each, MAX_NAME) for each in unlike], top))
        click.echo(f"More than three errors above 0.5: {listed}.")
        click.echo(f"Of {clients} all alike, chance alone would put {_expected(records)} there.")
    found = detection(audit, records)
    if found is not None:
        click.echo(_told(found))
    click.echo(LEGEND)
    if num_lost := audit.about.get("lines that cannot be read"):
        click.echo(f"Warning: {_counted(range(num_lost), 'line')} cannot be read.", err=True)


def _told(found: "Detection") -> str:
    if not found.num_liars:
        return f"Nobody lies here; {_percent(found.honest_kept)} of what was sent was kept."
    return (
        f"Of what was dropped, {_percent(found.drop_precision)} came from liars; of what liars "
        f"sent, {_percent(found.drop_recall)} was dropped, of what the honest sent "
        f"{_percent(found.honest_kept)} was kept.\n"
        f"Of the {found.num_liars} most suspicious clients {_percent(found.top_precision)} lie."
    )


def shown_audit(audit: "Audit") -> dict[str, Any]:
    """Return the same for JSON, with all clients."""
    from outvote.report.audit_clients import client_records
    from outvote.report.audit_truth import detection

    records = client_records(audit)
    found = detection(audit, records)
    return {
        "title": audit.title,
        "about": dict(audit.about),
        "rounds": len(audit.rounds),
        "detection": None if found is None else asdict(found),
        "clients": [
            {**asdict(each), "drop_rate": each.drop_rate, "stands_out": each.stands_out}
            for each in records
        ],
    }


def print_overview(results: "Sequence[Result]") -> None:
    """Print a line for each run."""
    titles = ["run", "rounds", "precision", "recall", "honest kept", "top", "most suspicious"]
    columns = [Column(title, is_number=title not in ("run", titles[-1])) for title in titles]
    rows = []
    for result, records, found in _audits(results):
        rows.append(
            [
                result.name,
                str(len(result.series)),
                _percent(found.drop_precision),
                _percent(found.drop_recall),
                _percent(found.honest_kept),
                _percent(found.top_precision),
                ", ".join(_named(each) for each in records[:NUM_NAMED]),
            ]
        )
    print_table(columns, rows)
    click.echo(
        "Precision: share of what was dropped that liars had sent. Recall: share of what they\n"
        "sent that was dropped. Top: share of liars among as many most suspicious; *: liar.\n"
        "More on one: outvote audit FOLDER --run NAME"
    )


def shown_overview(results: "Sequence[Result]") -> list[dict[str, Any]]:
    """Return the same for JSON."""
    return [
        {
            "run": result.name,
            "rounds": len(result.series),
            **asdict(found),
            "most_suspicious": [each.client for each in records[:NUM_NAMED]],
        }
        for result, records, found in _audits(results)
    ]


def _audits(
    results: "Sequence[Result]",
) -> "Iterator[tuple[Result, list[ClientRecord], Detection]]":
    from outvote.report.audit import audit_run
    from outvote.report.audit_clients import client_records
    from outvote.report.audit_truth import detection

    for result in results:
        audit = audit_run(result)
        assert audit is not None
        records = client_records(audit)
        found = detection(audit, records)
        assert found is not None
        yield result, records, found


def _columns(records: "Sequence[ClientRecord]") -> Iterator[tuple[Column, Any]]:
    """Yield the columns that say something, and how each is drawn."""
    yield Column("client"), lambda each: _cut(each.client, MAX_NAME)
    if any(each.is_byzantine for each in records):
        yield Column("truth"), lambda each: "liar" if each.is_byzantine else ""
    yield Column("suspicion", is_number=True), lambda each: _rank(each.suspicion)
    yield Column("±", is_number=True), lambda each: _rank(each.error)
    yield Column("sampled", is_number=True), lambda each: str(each.num_sampled)
    yield Column("dropped", is_number=True), lambda each: str(each.num_dropped)
    yield Column("rate", is_number=True), lambda each: _percent(each.drop_rate)
    yield Column("streak", is_number=True), lambda each: str(each.longest_streak)
    if any(each.num_rejected for each in records):
        yield Column("not finite", is_number=True), lambda each: str(each.num_rejected)
    for name in records[0].faults if records else ():
        if any(each.faults[name] for each in records):
            yield Column(name, is_number=True), lambda each, name=name: str(each.faults[name])
    for name in ("norm", "cosine"):
        if not all(isnan(getattr(each, name)) for each in records):
            yield Column(name, is_number=True), partial(_measured, name=name)
    yield Column("last seen", is_number=True), lambda each: number(each.last_seen, 9)
    if any(each.reason for each in records):
        yield Column("last reason"), lambda each: _cut(each.reason, MAX_REASON)


def _listed(names: Sequence[str], most: int) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _named(record: "ClientRecord") -> str:
    return f"{_cut(record.client, MAX_NAME)}{'*' if record.is_byzantine else ''}"


def _cut(text: str, most: int) -> str:
    """Put a text of somebody else on one line of limited length."""
    text = " ".join(text[: 2 * most].split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _counted(things: Sized, what: str) -> str:
    return f"{len(things):,} {what}{'' if len(things) == 1 else 's'}"


def _expected(records: "Sequence[ClientRecord]") -> str:
    from outvote.report.audit_clients import CHANCE

    number = CHANCE * sum(not isnan(each.suspicion) for each in records)
    return "fewer than one" if number < 1 else f"about {number:.0f}"


def _measured(record: "ClientRecord", name: str) -> str:
    return number(getattr(record, name), 3)


def _rank(value: float) -> str:
    return "-" if isnan(value) else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None or isnan(value) else f"{100 * value:.0f} %"
