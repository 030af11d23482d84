"""One HTML file that shows everything: no network, no scripts but its own, opens from disk."""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from outvote.errors import duration, plural
from outvote.report.audit import Audit
from outvote.report.cells import Grid, runs_of
from outvote.report.html_data import grid_entries, log_entries, run_entries, shortened
from outvote.report.layout import grids_of
from outvote.report.provenance import provenance_of, rerun_commands
from outvote.report.rendered_table import not_run
from outvote.report.theory import COLUMNS, NUM_TEXT, theory_rows
from outvote.results.disk import write_whole
from outvote.results.run import Result
from outvote.results.schema import Environment
from outvote.suites.suite import read_suite, suite_names

if TYPE_CHECKING:
    from outvote.report.compare import Comparison

Facts = list[tuple[str, str]]
"""Pairs of a name and a value, for the head of a page."""
SCRIPTS = (
    "base",
    "chart",
    "table",
    "curves",
    "matrix",
    "ranking",
    "overview",
    "run",
    "page",
    "scroll",
)
# Of a page that a server keeps up to date.
LIVE_SCRIPTS = (*SCRIPTS, "watch")
NAMES = {
    "num_byzantine": "Byzantine clients assumed",
    "byzantine_fraction": "Byzantine fraction assumed",
    "outvote": "Version",
}


def write_report(
    results: Sequence[Result],
    path: Path,
    *,
    command: str = "",
    suites: Sequence[str] = (),
    comparison: "Comparison | None" = None,
) -> None:
    """Write tables, curves and audits of all runs to one HTML file.

    `command` is what the reader types to get the same page, `suites` are files of suites that do
    not come with outvote; a comparison has a section of its own.
    """
    _write(path, report_page(results, command=command, suites=suites, comparison=comparison))


def report_page(
    results: Sequence[Result],
    *,
    command: str = "",
    suites: Sequence[str] = (),
    comparison: "Comparison | None" = None,
    version: str | None = None,
) -> bytes:
    """Return the page of all runs; with a `version`, one that asks its server for another."""
    title, lead = title_and_lead(results)
    all_grids = grids_of(results, sources=suites)
    grids = [grid for grid in all_grids if runs_of([grid])]
    return _rendered(
        kind="report",
        title=title,
        lead=lead,
        facts=facts_of(results),
        notes=provenance_of(grids).protocol_notes(),
        commands=page_commands(grids, command),
        page={"grids": grid_entries(grids, results), **run_entries(results)},
        not_run=not_run(all_grids),
        comparison=comparison,
        theory=theory_rows(results),
        version=version,
    )


def write_run_audits(results: Sequence[Result], path: Path, *, command: str = "") -> None:
    """Write the audits of simulated runs to one HTML file."""
    name = results[0].name if len(results) == 1 else title_and_lead(results)[0]
    _write(path, _audit_page(name, facts_of(results), run_entries(results), command))


def write_log_audit(audit: Audit, path: Path, *, command: str = "") -> None:
    """Write the audit of a production log to one HTML file."""
    _write(path, log_page(audit, command=command))


def log_page(audit: Audit, *, command: str = "", version: str | None = None) -> bytes:
    """Return the page of a production log; with a `version`, one that asks for another."""
    counts = [("Rounds", f"{len(audit.rounds):,}"), ("Clients", f"{len(audit.clients):,}")]
    about = [
        (shortened(NAMES.get(key, key[:1].upper() + key[1:])), shortened(str(value)))
        for key, value in audit.about.items()
    ]
    return _audit_page(audit.title, [*counts, *about], log_entries(audit), command, version)


def _audit_page(
    name: str,
    facts: Facts,
    entries: Mapping[str, Any],
    command: str,
    version: str | None = None,
) -> bytes:
    return _rendered(
        kind="audit",
        title=f"Audit of {name}",
        lead="The verdict on every client in every round, and which clients look suspicious.",
        facts=facts,
        commands=[command] if command else [],
        page={"grids": [], **entries},
        version=version,
    )


def _write(path: Path, page: bytes) -> None:
    write_whole(path, page, stays="what was there stays")


def _rendered(
    *,
    page: Mapping[str, Any],
    notes: Sequence[str] = (),
    not_run: str = "",
    comparison: "Comparison | None" = None,
    theory: Sequence[Sequence[str]] = (),
    version: str | None = None,
    **parts: Any,
) -> bytes:
    """Return the page; what comes from files is text in it, never markup."""
    from jinja2 import Environment as Templates
    from jinja2 import StrictUndefined
    from markupsafe import Markup

    names = SCRIPTS if version is None else LIVE_SCRIPTS
    scripts = "\n".join(_template(f"{name}.js") for name in names)
    style, script = _template("page.css"), f'(() => {{\n"use strict";\n{scripts}}})();'
    # Autoescape is on: only the two texts of our own and the escaped data are marked as safe.
    templates = Templates(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    text = templates.from_string(_template("page.html")).render(
        **parts,
        grids=page["grids"],
        notes=notes,
        not_run=not_run,
        comparison=comparison,
        theory={"columns": COLUMNS, "num_text": NUM_TEXT, "rows": theory} if theory else None,
        version=version,
        policy=_policy(style, script, asks_server=version is not None),
        style=Markup(style),
        script=Markup(script),
        data=Markup(_inert(page)),
    )
    return text.encode("utf-8")


def _inert(page: Mapping[str, Any]) -> str:
    r"""Return JSON that cannot end the element it stands in, nor begin another.

    >>> _inert({"rule": "</script>"})
    '{"rule":"\\u003c/script\\u003e"}'
    """
    text = msgspec.json.encode(page).decode("utf-8")
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _policy(style: str, script: str, *, asks_server: bool) -> str:
    """Return what the page may do: run its own script, use its own style, ask its own server."""
    digests = [hashlib.sha256(text.encode("utf-8")).digest() for text in (script, style)]
    run, use = (f"'sha256-{base64.b64encode(digest).decode('ascii')}'" for digest in digests)
    asks = " connect-src 'self';" if asks_server else ""
    return (
        f"default-src 'none'; script-src {run}; style-src {use}; "
        f"img-src data:;{asks} base-uri 'none'; form-action 'none'"
    )


def _template(name: str) -> str:
    return (files("outvote.report") / "templates" / name).read_text(encoding="utf-8")


def title_and_lead(results: Sequence[Result]) -> tuple[str, str]:
    """Return the titles of the suites and, if it is only one, its description."""
    names = list(dict.fromkeys(result.suite for result in results))
    known = {name: read_suite(name) for name in names if name in suite_names()}
    titles = [known[name].title if name in known else name for name in names]
    lead = known[names[0]].description if len(names) == 1 and known else ""
    return ", ".join(titles), " ".join(lead.split())


def page_commands(grids: Sequence[Grid], command: str) -> list[str]:
    """Return what to type to get the same runs and the same page."""
    if command.startswith(("outvote demo", "outvote bench", "outvote run")):
        return [command]
    return [*rerun_commands(grids), *([command] if command else [])]


def facts_of(results: Sequence[Result]) -> Facts:
    """Return how many runs there are, and when, where and with which versions they were run."""
    found = [each.environment for each in results if each.environment is not None]
    left = {
        "diverged": sum(result.status.outcome == "diverged" for result in results),
        "unfinished": sum(not result.is_over for result in results),
    }
    notes = ", ".join(f"{number} {name}" for name, number in left.items() if number)
    days = sorted({each.date for each in found if each.date})
    versions = [
        f"{name} {_listed((getattr(each, name) for each in found), ' and ')}"
        for name in ("outvote", "torch", "numpy", "python")
        if found
    ]
    return [
        ("Runs", f"{len(results):,}{f' ({notes})' if notes else ''}"),
        ("Seeds", f"{len({result.seed for result in results}):,}"),
        ("Rounds", f"{sum(len(result.series) for result in results):,}"),
        ("Samples trained on", f"{sum(result.num_samples for result in results):,}"),
        ("Time", duration(sum(result.seconds for result in results))),
        ("Date", _listed({*days[:1], *days[-1:]}, " to ")),
        ("Hardware", _listed(map(_hardware, found), "; ")),
        ("Precision", _listed((each.precision for each in found), "; ")),
        ("Versions", ", ".join(versions)),
        ("Commit", _listed(((each.commit or "unknown")[:12] for each in found), ", ")),
    ]


def _listed(values: Iterable[str], between: str) -> str:
    return between.join(sorted(set(values))) or "unknown"


def _hardware(environment: Environment) -> str:
    threads = plural(environment.num_threads, "thread")
    return f"{environment.device}, {threads}, {environment.system}"
