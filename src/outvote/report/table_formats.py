"""A rendered table as text, in Markdown, LaTeX, CSV, JSON and HTML."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, NamedTuple

from outvote.markup import Bold, html_table
from outvote.report.cells import METRICS, UNSCALED, Cell, Metric, runs_of
from outvote.report.provenance import provenance_of
from outvote.report.rendered_table import (
    MINUS,
    UNKNOWN,
    Rendered,
    RenderedCell,
    RenderedRow,
    RenderedTable,
    not_run,
    value_of,
)

DIGITS = 4
MARKDOWN_SPECIAL = re.compile(r"[\\|*<>`\[\]]|(?<!\w)_|_(?!\w)")
LATEX_SPECIAL = {letter: f"\\{letter}" for letter in "{}$&#_%"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    '"': "''",
    "±": r"$\pm$",
    "β": r"$\beta$",
    "δ": r"$\delta$",
    UNKNOWN: "--",
    MINUS: "$-$",
}


class TextPart(NamedTuple):
    """The tables of one part of a suite, for a terminal."""

    title: str
    tables: list[tuple[str, list[str], list[list[str]]]]
    """Caption, columns after that of the rules, rows."""
    notes: list[str]


def as_text(rendered: Rendered) -> list[TextPart]:
    """Return all tables as plain fields; * marks what Markdown has in bold."""
    found = []
    for title, group in groupby(rendered.parts, key=lambda tables: tables[0].grid.suite_title):
        parts = list(group)
        for tables in parts:
            first = tables[0]
            if not runs_of([first.grid]):
                continue
            heading = ": ".join(filter(None, (title, first.grid.title)))
            shown = [
                (
                    " ".join([*(first.about if table is first else ()), table.caption])
                    + "".join(f" {note.replace('Bold:', '*:')}" for note in table.footnotes),
                    table.headings,
                    [[row.rule, *map(_text_cell, _cells(row))] for row in table.rows],
                )
                for table in tables
            ]
            found.append(TextPart(heading, shown, list(first.gaps)))
        if found and (named := not_run([tables[0].grid for tables in parts])):
            found[-1].notes.append(named)
    return found


def _cells(row: RenderedRow) -> list[RenderedCell]:
    return [*row.cells, *([] if row.worst is None else [row.worst])]


def _text_cell(cell: RenderedCell) -> str:
    return "*" * cell.is_bold + cell.text + _after_mean(cell)


def markdown(rendered: Rendered) -> str:
    """Return all tables as GitHub shows them, suite by suite, and where they come from."""
    blocks = []
    for title, group in groupby(rendered.parts, key=lambda tables: tables[0].grid.suite_title):
        parts = list(group)
        blocks.append(f"## {_markdown(title)}")
        for tables in parts:
            if runs_of([tables[0].grid]):
                blocks += _markdown_section(tables)
        named = not_run([tables[0].grid for tables in parts])
        blocks += [_markdown(named)] if named else []
    blocks += ["---", _markdown(rendered.provenance.text())]
    blocks += [f"    {command}" for command in rendered.provenance.commands]
    return "\n\n".join(blocks) + "\n"


def _markdown(text: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    return MARKDOWN_SPECIAL.sub(lambda found: f"\\{found[0]}", " ".join(text.split()))


def _markdown_section(tables: Sequence[RenderedTable]) -> list[str]:
    first = tables[0]
    blocks = [f"### {_markdown(first.grid.title)}"] if first.grid.title else []
    if first.about:
        blocks.append(_markdown(" ".join(first.about)))
    for table in tables:
        blocks += [" ".join([table.caption, *table.footnotes]), _markdown_table(table)]
    return [*blocks, *first.gaps]


def _markdown_table(table: RenderedTable) -> str:
    lines = [
        ["rule", *map(_markdown, table.headings)],
        ["---", *("---:" for _ in table.headings)],
    ]
    for row in table.rows:
        lines.append([_markdown(row.rule), *map(_markdown_cell, _cells(row))])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _markdown_cell(cell: RenderedCell) -> str:
    mean = f"**{cell.text}**" if cell.is_bold else cell.text
    return mean + _after_mean(cell)


def _after_mean(cell: RenderedCell) -> str:
    notes = list(cell.notes)
    if cell.paper is not None:
        difference = "" if cell.difference is None else f", {cell.difference.text}"
        notes.insert(0, f"paper {cell.paper.text}{difference}")
    std = "" if cell.std is None else f" ± {cell.std.text}"
    return std + (f" ({'; '.join(notes)})" if notes else "")


def html(rendered: Rendered) -> str:
    """Return all tables for a notebook: no script, no style sheet."""
    blocks = []
    for tables in rendered.parts:
        first = tables[0]
        if not runs_of([first.grid]):
            continue
        heading = ": ".join(filter(None, (first.grid.suite_title, first.grid.title)))
        notes = [*first.gaps, *provenance_of([first.grid]).protocol_notes()]
        for table in tables:
            head = " ".join([f"{heading}.", *first.about, table.caption, *table.footnotes])
            blocks.append(_html_table(table, head, " ".join(notes)))
    return "".join(blocks)


def _html_table(table: RenderedTable, title: str, note: str) -> str:
    rows = [[row.rule, *map(_html_cell, _cells(row))] for row in table.rows]
    return html_table(["rule", *table.headings], rows, title=title, note=note)


def _html_cell(cell: RenderedCell) -> str:
    text = cell.text + _after_mean(cell)
    return Bold(text) if cell.is_bold else text


def latex(rendered: Rendered) -> str:
    """Return a table environment for each table, for a paper; the preamble needs booktabs."""
    provenance = rendered.provenance
    named = not_run([tables[0].grid for tables in rendered.parts])
    comments = [provenance.text(), *provenance.commands, named]
    head = [f"% {' '.join(text.split())}" for text in comments if text]
    environments = [
        _latex_environment(table, is_first=place == 0)
        for tables in rendered.parts
        if runs_of([tables[0].grid])
        for place, table in enumerate(tables)
    ]
    return "\n".join([*head, r"% Needs \usepackage{booktabs}.", *environments]) + "\n"


def _latex(text: str) -> str:
    """Return text that LaTeX shows as it is; letters that it may not know become numbers."""
    return "".join(
        LATEX_SPECIAL.get(each)
        or (each if each.isascii() and each.isprintable() else f"[U+{ord(each):04X}]")
        for each in " ".join(text.split())
    )


def _latex_environment(table: RenderedTable, *, is_first: bool) -> str:
    grid = table.grid
    which = table.caption.partition(",")[0] if table.metrics else table.metric
    name = f"{grid.suite} {grid.part or grid.title} {'' if is_first else which}"
    label = "-".join("".join(c if c.isascii() and c.isalnum() else " " for c in name).split())
    heading = ": ".join(text for text in (grid.suite_title, grid.title) if text)
    caption = [f"{heading}.", table.caption, *table.footnotes, *table.fine_print]
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        r"\small",
        r"\setlength{\tabcolsep}{4pt}",
        rf"\caption{{{_latex(' '.join(caption))}}}",
        rf"\label{{tab:{label}}}",
        rf"\begin{{tabular}}{{l{'r' * len(table.headings)}}}",
        r"\toprule",
        _latex_line(["rule", *map(_latex, table.headings)]),
        r"\midrule",
        *_latex_body(table),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def _latex_body(table: RenderedTable) -> Iterator[str]:
    """Yield the lines of the rows, with a gap between rules that are not compared."""
    before = table.rows[0].family if table.rows else ""
    for row in table.rows:
        if table.has_rivals and row.family != before:
            yield r"\addlinespace"
        before = row.family
        cells = [*row.cells, *([] if row.worst is None else [row.worst])]
        yield _latex_line([_latex(row.rule), *map(_latex_cell, cells)])
        if any(cell.paper is not None for cell in row.cells):
            yield _latex_line([r"\quad\footnotesize paper", *map(_latex_paper, cells)])


def _latex_cell(cell: RenderedCell) -> str:
    if cell.mean is None:
        return _latex(cell.missing)
    mean = rf"\textbf{{{cell.mean.text}}}" if cell.is_bold else cell.mean.text
    after = [f"± {cell.std.text}"] if cell.std is not None else []
    after += [f"({'; '.join(cell.notes)})"] if cell.notes else []
    return " ".join([mean, *map(_latex, after)])


def _latex_paper(cell: RenderedCell) -> str:
    """Return the paper's value, and ours minus it, for the line below our own."""
    if cell.paper is None:
        return ""
    difference = "" if cell.difference is None else f" ({cell.difference.text})"
    return rf"\footnotesize {_latex(cell.paper.text + difference)}"


def _latex_line(cells: Sequence[str]) -> str:
    return rf"{' & '.join(cells)} \\"


def records(rendered: Rendered) -> list[dict[str, Any]]:
    """Return one flat record for each cell, with all metrics; None: no number.

    All but the deviation are in percent. `metric` is the chosen one, or else the first that the
    table shows. `is_worst` is whether this column is the row's worst case; None: there is no worst
    case. With the paper's numbers, `difference` is that of the metric to the paper's value.
    """
    return [
        {
            **_place(table, row.rule),
            "column": table.grid.column_key,
            "value": value,
            **_numbers(cell.runs),
            "metric": table.metric,
            "is_worst": None
            if row.worst is None or row.worst.column is None
            else row.worst.column == column,
            **(_printed(cell) if rendered.paper else {}),
        }
        for table, *_ in rendered.parts
        for row in table.rows
        for column, (value, cell) in enumerate(zip(table.grid.columns, row.cells, strict=True))
    ]


def to_csv(rendered: Rendered) -> str:
    """Return the records as CSV; an empty field: no number."""
    found = records(rendered)
    file = io.StringIO()
    writer = csv.DictWriter(file, list(found[0]) if found else [], lineterminator="\n")
    writer.writeheader()
    for each in found:
        lists = {key: " ".join(map(str, each[key])) for key in ("seeds", "protocols")}
        writer.writerow(each | lists)
    return file.getvalue()


def as_json(rendered: Rendered) -> dict[str, Any]:
    """Return the records, the worst case of each row, and where all of it comes from.

    `metric` is the one that was chosen; None: each table has its usual one.
    """
    return {
        "metric": rendered.metric,
        "cells": records(rendered),
        "worst_cases": [
            {**_place(table, row.rule), **_worst(table, row.worst, paper=rendered.paper)}
            for table, *_ in rendered.parts
            for row in table.rows
            if row.worst is not None
        ],
        "provenance": asdict(rendered.provenance),
    }


def _place(table: RenderedTable, rule: str) -> dict[str, str]:
    grid = table.grid
    return {"suite": grid.suite, "part": grid.part, "title": grid.title, "rule": rule}


def _numbers(cell: Cell) -> dict[str, Any]:
    result: dict[str, Any] = {
        "seeds": cell.seeds,
        "num_seeds": len(cell.seeds),
        "num_wanted": cell.num_wanted,
        "num_runs": len(cell.results),
        "num_rounds": next((each.setting("rounds") for each in cell.results), None),
        "protocols": cell.protocols,
        "num_diverged": cell.num_diverged,
        "num_unfinished": len(cell.unfinished),
    }
    for name in METRICS:
        mean, std, _ = cell.spread(name) or (None, None, 0)
        result |= {f"{name}_mean": _rounded(mean, name), f"{name}_std": _rounded(std, name)}
    return result


def _rounded(value: float | None, metric: Metric) -> float | None:
    """Return a percentage to four decimals, a length to so many digits that it is as exact."""
    if value is None:
        return None
    return float(f"{value:.{DIGITS + 2}g}") if metric in UNSCALED else round(value, DIGITS)


def _printed(cell: RenderedCell) -> dict[str, float | None]:
    printed = cell.runs.printed if cell.paper else None
    return {
        "paper": value_of(cell.paper),
        "paper_std": None if printed is None else printed.std,
        "difference": value_of(cell.difference),
    }


def _worst(table: RenderedTable, worst: RenderedCell, *, paper: bool) -> dict[str, Any]:
    printed = {"paper": value_of(worst.paper), "difference": value_of(worst.difference)}
    return {
        "metric": table.metric,
        "value": None if worst.column is None else table.grid.columns[worst.column],
        "mean": _rounded(value_of(worst.mean), table.metric),
        "is_partial": worst.is_partial,
        **(printed if paper else {}),
    }
