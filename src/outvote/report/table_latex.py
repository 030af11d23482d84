"""Tables in LaTeX, for a paper: booktabs, the best in bold."""

from collections.abc import Sequence

from outvote.report.cells import Metric
from outvote.report.grid import Grid, runs_of
from outvote.report.naming import family
from outvote.report.provenance import provenance_of
from outvote.report.table_text import (
    MINUS,
    caption,
    fine_print,
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

SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    '"': "''",
    "±": r"$\pm$",
    "β": r"$\beta$",
    "δ": r"$\delta$",
    MINUS: "$-$",
}


def latex(grids: Sequence[Grid], metric: Metric | None = None, *, paper: bool = False) -> str:
    """Return a table environment for each grid; the preamble needs booktabs.

    Without a metric, a table shows what it is about; for that some need two environments.
    """
    provenance = provenance_of(grids)
    told = [provenance.told(), *provenance.commands, not_run(grids)]
    head = [f"% {_comment(text)}" for text in told if text]
    tables = [
        _environment(grid, each, paper=paper and has_paper(grid, each), is_again=place > 0)
        for grid in grids
        if runs_of([grid])
        for place, each in enumerate(grid.metrics(metric))
    ]
    return "\n".join([*head, r"% Needs \usepackage{booktabs}.", *tables]) + "\n"


def escape(text: str) -> str:
    """Return text that LaTeX shows as it is; letters that it may not know become numbers."""
    return "".join(_letter(letter) for letter in " ".join(text.split()))


def _letter(letter: str) -> str:
    if letter in SPECIAL:
        return SPECIAL[letter]
    return letter if letter.isascii() and letter.isprintable() else f"[U+{ord(letter):04X}]"


def _comment(text: str) -> str:
    return " ".join(text.split())


def _environment(grid: Grid, metric: Metric, *, paper: bool, is_again: bool) -> str:
    label = _key(f"{grid.suite} {grid.part or grid.title} {metric if is_again else ''}")
    titles = [*grid.titles, *(["worst case"] if grid.has_worst else [])]
    heading = ": ".join(text for text in (grid.suite_title, grid.title) if text)
    said = [f"{heading}.", caption(grid, metric), *reading_help(grid, metric, paper=paper)]
    said += fine_print(grid)
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        r"\small",
        r"\setlength{\tabcolsep}{4pt}",
        rf"\caption{{{escape(' '.join(said))}}}",
        rf"\label{{tab:{label}}}",
        rf"\begin{{tabular}}{{l{'r' * len(titles)}}}",
        r"\toprule",
        _line(["rule", *titles]),
        r"\midrule",
        *_body(grid, metric, paper=paper),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def _key(words: str) -> str:
    kept = "".join(c if c.isascii() and c.isalnum() else " " for c in words)
    return "-".join(kept.split())


def _body(grid: Grid, metric: Metric, *, paper: bool) -> list[str]:
    """Return the lines of the rows, with a gap between rules that are not compared."""
    bold, lines = grid.best(metric), []
    for place, row in enumerate(grid.rows):
        if place and grid.has_rivals and family(row) != family(grid.rows[place - 1]):
            lines.append(r"\addlinespace")
        cells = [
            _cell(grid, place, column, metric, is_bold=(place, column) in bold)
            for column in range(len(grid.columns))
        ]
        lines.append(_joined([escape(row), *cells, *_worst(grid, place, metric)]))
        if paper and any(cell.printed is not None for cell in grid.cells[place]):
            lines.append(_paper_line(grid, place, metric))
    return lines


def _cell(grid: Grid, row: int, column: int, metric: Metric, *, is_bold: bool) -> str:
    cell = grid.cells[row][column]
    spread = cell.spread(metric)
    if spread is None:
        return escape(missing(cell, metric))
    mean, std = mean_and_std(spread, metric)
    more = notes(cell, grid, metric)
    told = f" ({'; '.join(more)})" if more else ""
    return (rf"\textbf{{{mean}}}" if is_bold else mean) + escape_after(std + told)


def escape_after(text: str) -> str:
    """Escape what follows a number, with its space."""
    return f" {escape(text)}" if text else ""


def _worst(grid: Grid, row: int, metric: Metric) -> list[str]:
    if not grid.has_worst:
        return []
    worst = grid.worst(row, metric)
    if worst is None:
        return [no_worst(grid, row)]
    more = worst_notes(worst)
    return [number(worst.spread.mean, metric) + escape_after(f"({more[0]})" if more else "")]


def _paper_line(grid: Grid, row: int, metric: Metric) -> str:
    """Return the paper's values, and ours minus them, below our own."""
    texts = [
        _printed(None if cell.printed is None else cell.printed.accuracy, cell.difference(metric))
        for cell in grid.cells[row]
    ]
    if grid.has_worst:
        worst = grid.worst(row, metric)
        texts.append("" if worst is None else _printed(worst.printed, worst.difference))
    return _joined([r"\quad\footnotesize paper", *texts])


def _printed(value: float | None, difference: float | None) -> str:
    if value is None:
        return ""
    told = "" if difference is None else f" ({signed(difference)})"
    return rf"\footnotesize {escape(points(value) + told)}"


def _line(cells: Sequence[str]) -> str:
    return _joined([escape(cell) for cell in cells])


def _joined(cells: Sequence[str]) -> str:
    return rf"{' & '.join(cells)} \\"
