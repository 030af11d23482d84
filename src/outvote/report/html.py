"""One file that shows everything: no network, no scripts but its own, opens from disk."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from outvote.report.audit import Audit
from outvote.report.audit_clients import HOW_SUSPICION_IS_COMPUTED
from outvote.report.grid import runs_of
from outvote.report.html_audit import shortened
from outvote.report.html_facts import RoundInfo, commands_of, facts_of, title_and_lead
from outvote.report.html_runs import log_entries, run_entries
from outvote.report.html_tables import grid_entries
from outvote.report.layout import grids_of
from outvote.report.table_text import not_run
from outvote.results.disk import write_whole
from outvote.results.run import Result

SCRIPTS = ("base", "chart", "table", "curves", "matrix", "ranking", "run", "page")
NAMES = {
    "rule": "Rule",
    "num_byzantine": "Liars reckoned with",
    "byzantine_fraction": "Share of liars reckoned with",
    "outvote": "Version",
    "started": "Started",
    "last round": "Last round",
    "rounds without an update": "Rounds without an update",
    "last of them": "Last of them",
    "lines that cannot be read": "Lines that cannot be read",
}
"""What a log's own settings are called."""
ICON = (
    "%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Crect width='16' height='16'"
    " rx='4' fill='%230b6478'/%3E%3Cpath d='M4 8.5l2.6 2.6L12 5.4' fill='none' stroke='%23fff'"
    " stroke-width='2'/%3E%3C/svg%3E"
)


def write_report(
    results: Sequence[Result], path: Path, *, command: str = "", suites: Sequence[str] = ()
) -> None:
    """Write tables, curves and audits of all runs to one HTML file.

    `command` is what the reader types to get the same page, `suites` are files of suites that do
    not come with outvote.
    """
    title, lead = title_and_lead(results)
    # A table without a single run says nothing: it is only named.
    all_grids = grids_of(results, sources=suites)
    grids = [grid for grid in all_grids if runs_of([grid])]
    page = {"grids": grid_entries(grids, results), **run_entries(results)}
    text = render(
        kind="report",
        title=title,
        lead=lead,
        facts=facts_of(results),
        commands=commands_of(grids, command),
        page=page,
        not_run=not_run(all_grids),
    )
    write_whole(path, text.encode("utf-8"), stays="what was there stays")


def write_run_audits(results: Sequence[Result], path: Path, *, command: str = "") -> None:
    """Write the audits of simulated runs to one HTML file."""
    title, _ = title_and_lead(results)
    text = render(
        kind="audit",
        title=f"Audit of {results[0].name if len(results) == 1 else title}",
        lead="Who was judged how in every round, and who looks suspicious.",
        facts=facts_of(results),
        commands=[command] if command else [],
        page={"grids": [], **run_entries(results)},
    )
    write_whole(path, text.encode("utf-8"), stays="what was there stays")


def write_log_audit(audit: Audit, path: Path, *, command: str = "") -> None:
    """Write the audit of a production log to one HTML file."""
    facts = [
        (shortened(NAMES.get(key, key)), shortened(str(value)))
        for key, value in audit.about.items()
    ]
    counts = [("Rounds", f"{len(audit.rounds):,}"), ("Clients", f"{len(audit.clients):,}")]
    text = render(
        kind="audit",
        title=f"Audit of {audit.title}",
        lead="Who was judged how in every round, and who looks suspicious.",
        facts=[*counts, *facts],
        commands=[command] if command else [],
        page={"grids": [], **log_entries(audit)},
    )
    write_whole(path, text.encode("utf-8"), stays="what was there stays")


def render(
    *,
    kind: str,
    title: str,
    lead: str,
    facts: RoundInfo,
    commands: Sequence[str],
    page: Mapping[str, Any],
    not_run: str = "",
) -> str:
    """Return the page; what comes from files is text in it, never markup."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    style, script = _template("page.css"), _script()
    # Autoescape is on: only the two texts of our own and the escaped data are marked as safe.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(_template("page.html")).render(
        kind=kind,
        title=title,
        lead=lead,
        facts=facts,
        commands=commands,
        grids=page["grids"],
        not_run=not_run,
        how=HOW_SUSPICION_IS_COMPUTED,
        policy=policy(style, script),
        icon=Markup(ICON),
        style=Markup(style),
        script=Markup(script),
        data=Markup(inert(page)),
    )


def inert(page: Mapping[str, Any]) -> str:
    r"""Return JSON that cannot end the element it stands in, nor begin another.

    >>> inert({"rule": "</script>"})
    '{"rule":"\\u003c/script\\u003e"}'
    """
    text = msgspec.json.encode(page).decode("utf-8")
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def policy(style: str, script: str) -> str:
    """Return what the page may do: run its own script, use its own style, and nothing else."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _script() -> str:
    parts = "\n".join(_template(f"{name}.js") for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}}})();'


def _template(name: str) -> str:
    return (files("outvote.report") / "templates" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
