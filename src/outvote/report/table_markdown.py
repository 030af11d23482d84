"""Tables in Markdown, as GitHub shows them."""

import re
from collections.abc import Sequence
from itertools import groupby

from outvote.report.cells import Metric
from outvote.report.grid import Grid, runs_of
from outvote.report.provenance import provenance_of, settings_told
from outvote.report.table_text import (
    caption,
    fine_print,
    gaps,
    has_paper,
    mean_and_std,
    missing,
    no_worst,
    not_run,
    notes,
    number,
    points,
    reading_help,
    signed,
    worst_notes,
)

SPECIAL = re.compile(r"[\\|*<>`\[\]]|(?<!\w)_|_(?!\w)")


def markdown(grids: Sequence[Grid], metric: Metric | None = None, *, paper: bool = False) -> str:
    """Return all tables, suite by suite, and where they come from.

    Without a metric, a table shows what it is about.
    """
    blocks = []
    for title, group in groupby(grids, key=lambda grid: grid.suite_title):
        own = list(group)
        blocks.append(f"## {escape(title)}")
        for grid in own:
            blocks += _section(grid, metric, paper=paper) if runs_of([grid]) else []
        blocks += [escape(text) for text in [not_run(own)] if text]
    provenance = provenance_of(grids)
    blocks += ["---", escape(provenance.told())]
    blocks += [f"    {command}" for command in provenance.commands]
    return "\n\n".join(blocks) + "\n"


def escape(text: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    return SPECIAL.sub(lambda found: f"\\{found[0]}", " ".join(text.split()))


def _section(grid: Grid, chosen: Metric | None, *, paper: bool) -> list[str]:
    settings = settings_told(grid.results)
    said = [*([f"{settings}."] if settings else []), *fine_print(grid)]
    blocks = [f"### {escape(grid.title)}"] if grid.title else []
    if said:
        blocks.append(escape(" ".join(said)))
    for metric in grid.metrics(chosen):
        said = [caption(grid, metric), *reading_help(grid, metric, paper=paper)]
        with_paper = paper and has_paper(grid, metric)
        blocks += [" ".join(said), _table(grid, metric, paper=with_paper)]
    return [*blocks, *gaps(grid)]


def _table(grid: Grid, metric: Metric, *, paper: bool) -> str:
    titles = [*grid.titles, *(["worst case"] if grid.has_worst else [])]
    lines = [
        _line(["rule", *(escape(title) for title in titles)]),
        _line(["---", *("---:" for _ in titles)]),
    ]
    bold = grid.best(metric)
    for place, row in enumerate(grid.rows):
        texts = [
            _cell(grid, place, column, metric, is_bold=(place, column) in bold, paper=paper)
            for column in range(len(grid.columns))
        ]
        if grid.has_worst:
            texts.append(_worst(grid, place, metric, paper=paper))
        lines.append(_line([escape(row), *texts]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(grid: Grid, row: int, column: int, metric: Metric, *, is_bold: bool, paper: bool) -> str:
    cell = grid.cells[row][column]
    spread, more = cell.spread(metric), notes(cell, grid, metric)
    if paper and cell.printed is not None:
        more.insert(0, _paper(cell.printed.accuracy, cell.difference(metric)))
    if spread is None:
        return _with_notes(missing(cell, metric), more)
    mean, std = mean_and_std(spread, metric)
    return _with_notes((f"**{mean}**" if is_bold else mean) + std, more)


def _worst(grid: Grid, row: int, metric: Metric, *, paper: bool) -> str:
    worst = grid.worst(row, metric)
    if worst is None:
        return no_worst(grid, row)
    more = worst_notes(worst)
    if paper and worst.printed is not None:
        more.insert(0, _paper(worst.printed, worst.difference))
    return _with_notes(number(worst.spread.mean, metric), more)


def _paper(printed: float, difference: float | None) -> str:
    told = f"paper {points(printed)}"
    return told if difference is None else f"{told}, {signed(difference)}"


def _with_notes(text: str, more: Sequence[str]) -> str:
    return f"{text} ({'; '.join(more)})" if more else text
