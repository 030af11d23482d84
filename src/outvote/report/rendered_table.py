"""The one rendered table: every number, text, note and footnote that any format shows.

Markdown, LaTeX, CSV, JSON and the HTML page decide nothing again: they only write this down.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, final

from outvote.errors import plural
from outvote.report.cells import (
    ACCURACIES,
    METRICS,
    MORE_IS_BETTER,
    OF_BYZANTINE,
    SHORT,
    UNSCALED,
    WHO_PAYS,
    Cell,
    Grid,
    Metric,
    family,
    grouped,
    runs_of,
    shown,
    title_of,
)
from outvote.report.layout import CODE, edited_files
from outvote.report.provenance import Provenance, missing_commands, provenance_of, settings_text
from outvote.results.labels import is_same, label
from outvote.results.run import Result

MINUS, UNKNOWN = "−", "–"
EMPTY = Cell()


class Number(NamedTuple):
    """A number and how it is printed."""

    value: float
    text: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedCell:
    """A cell: its number beside the paper's, or why there is none."""

    mean: Number | None
    """Over the seeds; in percent unless the metric is a deviation."""
    std: Number | None = None
    missing: str = ""
    """Why there is no mean; "–": it does not apply or is not known."""
    paper: Number | None = None
    difference: Number | None = None
    """Ours minus the paper's, in points."""
    is_bold: bool = False
    notes: tuple[str, ...] = ()
    runs: Cell = EMPTY
    column: int | None = None
    """Of a worst case: the column where the rule does worst."""
    is_partial: bool = False
    """Of a worst case: columns are missing, so the true worst case may be worse."""

    @property
    def text(self) -> str:
        """The mean as printed, or why there is none."""
        return self.missing if self.mean is None else self.mean.text

    @property
    def note(self) -> str:
        """What is missing or went wrong, on one line."""
        return ", ".join([*([self.missing] if self.missing else []), *self.notes])


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedRow:
    """A rule, its cells, and its worst case over the columns."""

    rule: str
    family: str
    """The rule inside all wrappers."""
    cells: tuple[RenderedCell, ...]
    worst: RenderedCell | None
    """None: the columns are no attacks."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedTable:
    """One metric of one grid, or several metrics of one of its columns."""

    grid: Grid
    """The suite, the part, and the runs."""
    metric: Metric
    caption: str
    rows: tuple[RenderedRow, ...]
    footnotes: tuple[str, ...]
    """One sentence for each thing that needs an explanation."""
    has_rivals: bool
    """Whether a rule and a wrapped form of it are both there."""
    metrics: tuple[Metric, ...] = ()
    """Of a table of one column: what its own columns are. Empty: they are those of the grid."""

    @property
    def has_worst(self) -> bool:
        """Whether rows have a worst case."""
        return any(row.worst is not None for row in self.rows)

    @property
    def headings(self) -> list[str]:
        """All columns after that of the rules."""
        if self.metrics:
            return [SHORT[metric] for metric in self.metrics]
        return [*self.grid.titles, *(["worst case"] if self.has_worst else [])]

    @property
    def has_paper(self) -> bool:
        """Whether any cell has the paper's number."""
        return any(cell.paper is not None for row in self.rows for cell in row.cells)

    @property
    def about(self) -> list[str]:
        """Return the settings that its runs share, and what names of rows and columns leave out."""
        settings = settings_text(self.grid.results)
        return [*([f"{settings}."] if settings else []), *self.fine_print]

    @property
    def fine_print(self) -> list[str]:
        """Return what the names of rows and columns leave out."""
        grid = self.grid
        texts = [
            each.config[axis]
            for axis in ("rule", "attack")
            if not grid.column_key.startswith(f"{axis}.")
            for each in grid.results
        ]
        columns = grid.columns if grid.column_key == "attack" else ()
        named = {name.partition(CODE)[0] for name in (*grid.rows, *columns)}
        hidden = [
            each
            for each in dict.fromkeys(texts)
            if each not in {label(each), *named} and not any(is_same(each, row) for row in named)
        ]
        runs_by_row = {
            row: [run for cell in cells for run in cell.results]
            for row, cells in zip(grid.rows, grid.cells, strict=True)
        }
        helpless = [
            row for row, runs in runs_by_row.items() if runs and all(map(_is_helpless, runs))
        ]
        found = [f"Columns differ in rounds: {lengths}."] if (lengths := lengths_of(grid)) else []
        found += [f"Not the defaults: {', '.join(hidden)}."] if hidden else []
        for path in edited_files(grid.results):
            found.append(
                f"{path} was edited between these runs: code is its version, the beginning of what "
                f"b2sum -l 128 {path} prints."
            )
        if helpless:
            found.append(f"Tolerates no Byzantine client among so few: {', '.join(helpless)}.")
        return found

    @property
    def gaps(self) -> list[str]:
        """Return what is missing or uncertain, and the remedy."""
        cells = self.grid.all_cells
        lacking = sum(not cell.is_complete for cell in cells)
        repeated = sum(cell.num_repeated for cell in cells)
        found = []
        if lacking:
            has_part = bool(self.grid.part)
            commands = [f"`{each}`" for each in missing_commands(self.grid)] if has_part else []
            remedy = f"; run them with {', and '.join(commands)}" if commands else ""
            found.append(f"{lacking} of {len(cells)} cells lack runs{remedy}.")
        if repeated:
            found.append(
                f"{repeated} runs have the seed of another run in their cell, as when the code of "
                "a rule was changed; all are counted."
            )
        return found


class Rendered(NamedTuple):
    """All tables of some runs."""

    parts: list[list[RenderedTable]]
    """For each grid its tables: one for each metric that it shows."""
    metric: Metric | None
    """The chosen metric; None: each part shows its usual ones."""
    paper: bool
    """Whether the paper's numbers were asked for."""
    provenance: Provenance


def render(
    grids: Sequence[Grid],
    metric: Metric | None = None,
    *,
    paper: bool = False,
    clients: bool = False,
) -> Rendered:
    """Render all tables; without a metric, each shows what its part is about.

    With `clients`, tables of what honest clients get follow: see `render_clients`.
    """
    parts = []
    for grid in grids:
        tables = [render_table(grid, each, paper=paper) for each in grid.metrics(metric)]
        if clients or (grid.kind == "clients" and metric is None):
            tables += render_clients(grid)
        parts.append(tables)
    return Rendered(parts, metric, paper, provenance_of(grids))


def render_clients(grid: Grid) -> list[RenderedTable]:
    """Render who pays for each rule: a table for each column that has runs."""
    columns = [k for k in range(len(grid.columns)) if any(row[k].results for row in grid.cells)]
    return [
        _clients_table(grid, k, footnotes=_explained() if k == columns[0] else ()) for k in columns
    ]


def _clients_table(grid: Grid, column: int, footnotes: tuple[str, ...]) -> RenderedTable:
    """Render what honest clients get in one column: rows are rules, columns are metrics."""
    groups, usual = _rivals(grid.rows), grid.usual_seeds
    cells = [
        [_cell(row[column], metric, usual, paper=False) for metric in WHO_PAYS]
        for row in grid.cells
    ]
    for place, metric in enumerate(WHO_PAYS):
        _mark_winners(cells, place, groups, metric)
    return RenderedTable(
        grid=grid,
        metric=WHO_PAYS[0],
        caption=_clients_caption(grid, column),
        rows=tuple(
            RenderedRow(rule=rule, family=family(rule), cells=tuple(own), worst=None)
            for rule, own in zip(grid.rows, cells, strict=True)
        ),
        footnotes=footnotes,
        has_rivals=bool(groups),
        metrics=WHO_PAYS,
    )


def _clients_caption(grid: Grid, column: int) -> str:
    is_attack, title = grid.column_key == "attack", grid.titles[column]
    where = f"{'under' if is_attack else 'at'} {title}"
    if is_attack and grid.columns[column] == "none":
        where = f"without an attack{title.removeprefix('none')}"
    how = "" if grid.usual_seeds == 1 and grid.is_even else "mean ± standard deviation, "
    return f"Who pays {where}, in percent: {how}{seeds_of(grid)}."


def _explained() -> tuple[str, ...]:
    """Return what the columns of a table of clients are."""
    return tuple(
        f"{SHORT[metric][0].upper()}{SHORT[metric][1:]}: {METRICS[metric]}." for metric in WHO_PAYS
    )


def render_table(grid: Grid, metric: Metric, *, paper: bool = False) -> RenderedTable:
    """Render one metric of a grid."""
    groups = _rivals(grid.rows)
    usual = grid.usual_seeds
    cells = [[_cell(each, metric, usual, paper=paper) for each in row] for row in grid.cells]
    for column in range(len(grid.columns)):
        _mark_winners(cells, column, groups, metric)
    has_worst = grid.column_key == "attack" and len(grid.columns) > 1
    rows = tuple(
        RenderedRow(
            rule=rule,
            family=family(rule),
            cells=tuple(own),
            worst=_worst(grid, own, metric) if has_worst else None,
        )
        for rule, own in zip(grid.rows, cells, strict=True)
    )
    return RenderedTable(
        grid=grid,
        metric=metric,
        caption=_caption(grid, metric),
        rows=rows,
        footnotes=tuple(_footnotes(rows, metric, has_rivals=bool(groups))),
        has_rivals=bool(groups),
    )


def points(value: float) -> str:
    """Return a percentage with two decimals."""
    return f"{value + 0.0:.2f}"


def signed(value: float) -> str:
    """Return a difference with its sign; zero has none."""
    text = f"{value:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text.replace("-", MINUS)


def number(value: float, metric: Metric, digits: int = 3) -> str:
    """Return a percentage with two decimals, or a length with some digits.

    >>> number(71.256, "best"), number(0.04, "deviation"), number(123.4, "deviation")
    ('71.26', '0.0400', '123')
    """
    return f"{value:#.{digits}g}".rstrip(".") if metric in UNSCALED else points(value)


def _cell(cell: Cell, metric: Metric, usual_seeds: int, *, paper: bool) -> RenderedCell:
    spread, notes = cell.spread(metric), []
    if cell.results and len(cell.seeds) != usual_seeds:
        notes.append(seeds_text(len(cell.seeds), cell.num_wanted))
    if cell.num_diverged and spread is not None:
        notes.append(f"{cell.num_diverged} diverged")
    if spread is not None and spread.num < len(cell.results):
        notes.append(f"{spread.num} of {len(cell.results)} measured")
    printed = cell.printed if paper and metric in ACCURACIES else None
    return RenderedCell(
        mean=spread and Number(spread.mean, number(spread.mean, metric)),
        std=_number(spread and spread.std, lambda value: number(value, metric, digits=2)),
        missing="" if spread else missing(cell, metric),
        paper=_number(printed and printed.accuracy, points),
        difference=_number(printed and cell.difference(metric), signed),
        notes=tuple(notes),
        runs=cell,
    )


def _number(value: float | None, text: Callable[[float], str]) -> Number | None:
    return None if value is None else Number(value, text(value))


def value_of(number: Number | None) -> float | None:
    """Return the value of a number, if there is one."""
    return None if number is None else number.value


def missing(cell: Cell, metric: Metric) -> str:
    """Return why a cell has no number."""
    if cell.results and metric in OF_BYZANTINE and _without_kept(cell):
        return UNKNOWN
    if cell.results:
        return "diverged" if cell.num_diverged else "not measured"
    outcomes = {each.status.outcome for each in cell.unfinished}
    if "failed" in outcomes:
        return "failed"
    return "unfinished" if outcomes else "not run"


def _without_kept(cell: Cell) -> Literal["", "no attack", "unknown"]:
    """Return why the selection rate of a cell does not exist; empty if it does."""
    if cell.spread("kept_byzantine") is not None:
        return ""
    has_byzantine = any(
        each.attack != "none" and each.series.num_byzantine.any() for each in cell.results
    )
    return "unknown" if has_byzantine else "no attack"


def seeds_text(number: int, wanted: int) -> str:
    """Return how many seeds there are, and how many there should be.

    >>> seeds_text(2, 5), seeds_text(5, 5), seeds_text(1, 1)
    ('2 of 5 seeds', '5 seeds', '1 seed')
    """
    return f"{number} of {wanted} seeds" if number < wanted else plural(number, "seed")


def seeds_of(grid: Grid) -> str:
    """Return how many seeds the cells of a table have."""
    wanted = max(cell.num_wanted for cell in grid.all_cells)
    seeds = seeds_text(grid.usual_seeds, wanted)
    return seeds if grid.is_even else f"{seeds} unless a cell notes otherwise"


def lengths_of(grid: Grid) -> str:
    """Return which columns have how many rounds; empty if there is one number."""
    return "; ".join(
        f"{', '.join(title_of(grid.column_key, grid.columns[k]) for k in columns)} {rounds:,}"
        for rounds, columns in grid.columns_of_rounds.items()
    )


def _goodness(mean: Number, metric: Metric) -> float:
    """Return a number that is larger the better the rule; what prints alike is alike."""
    value = shown(mean.value, metric)
    return value if metric in MORE_IS_BETTER else -value


def _rivals(rows: Sequence[str]) -> list[list[int]]:
    """Return the indices of rows that share the rule inside all wrappers."""
    groups = grouped(range(len(rows)), lambda index: family(rows[index]))
    return [group for group in groups.values() if len(group) > 1]


def _mark_winners(
    cells: list[list[RenderedCell]], column: int, groups: list[list[int]], metric: Metric
) -> None:
    """Make the best of each group of rows bold, or of the whole column if there are no groups."""
    for group in groups or [list(range(len(cells)))]:
        for row in _winners({row: cells[row][column] for row in group}, metric):
            cells[row][column] = replace(cells[row][column], is_bold=True)


def _winners(cells: Mapping[int, RenderedCell], metric: Metric) -> list[int]:
    """Return the best of a rule and its wrapped forms, or of a column; a single one is none."""
    known = {row: _goodness(cell.mean, metric) for row, cell in cells.items() if cell.mean}
    top = max(known.values(), default=0.0)
    return [row for row in known if known[row] == top] if len(known) > 1 else []


def _worst(grid: Grid, cells: Sequence[RenderedCell], metric: Metric) -> RenderedCell:
    """Return the worst case of a row; without an attack there is nothing to keep."""
    counted = {
        column: cell
        for column, cell in enumerate(cells)
        if metric not in OF_BYZANTINE or grid.columns[column] != "none"
    }
    known = {k: cell.mean for k, cell in counted.items() if cell.mean is not None}
    if not known:
        is_run = any(cell.runs.results for cell in cells)
        return RenderedCell(
            mean=None, missing="no number" if is_run else "not run", is_partial=True
        )
    column = min(known, key=lambda k: _goodness(known[k], metric))
    mean, is_partial = known[column], len(known) < len(counted)
    papers = [cell.paper.value for cell in counted.values() if cell.paper is not None]
    paper = min(papers) if len(papers) == len(counted) else None
    gap = None if paper is None or is_partial else round(round(mean.value, 2) - paper, 2)
    return RenderedCell(
        mean=mean,
        paper=_number(paper, points),
        difference=_number(gap, signed),
        notes=(f"{len(known)} of {len(counted)}",) if is_partial else (),
        column=column,
        is_partial=is_partial,
    )


def _caption(grid: Grid, metric: Metric) -> str:
    if not grid.results:
        return "None of these runs is finished."
    title, unit = METRICS[metric], "" if metric in UNSCALED else ", in percent"
    how = "" if grid.usual_seeds == 1 and grid.is_even else "mean ± standard deviation, "
    return f"{title[0].upper()}{title[1:]}{unit}: {how}{seeds_of(grid)}."


def _footnotes(rows: Sequence[RenderedRow], metric: Metric, *, has_rivals: bool) -> list[str]:
    cells = [cell for row in rows for cell in row.cells]
    found = []
    if any(cell.is_bold for cell in cells):
        among = "a rule and its wrapped forms" if has_rivals else "each column"
        found.append(f"Bold: the best of {among}.")
    has_worst = any(row.worst is not None for row in rows)
    if has_worst and any(cell.runs.results for cell in cells):
        which = "smallest" if metric in MORE_IS_BETTER else "largest"
        found.append(f"Worst case: the {which} mean of a row, in brackets if columns are missing.")
    why = {_without_kept(cell.runs) for cell in cells if cell.missing == UNKNOWN}
    if why:
        reasons = ["no Byzantine client took part"] if "no attack" in why else []
        if "unknown" in why:
            reasons.append("the rule does not report which clients it kept")
        found.append(f"{UNKNOWN}: {', or '.join(reasons)}.")
    if any(cell.paper is not None for cell in cells):
        found.append("Paper: the best accuracy that it prints, and ours minus it.")
    return found


def _is_helpless(run: Result) -> bool:
    """Return whether Byzantine clients were assumed and the rule never tolerated one."""
    return bool(run.series.num_byzantine_assumed.any()) and not run.series.num_byzantine_used.any()


def not_run(grids: Sequence[Grid]) -> str:
    """Name the tables without a single run, which are left out; empty if there are none."""
    names = [grid.title or grid.suite_title for grid in grids if not runs_of([grid])]
    return f"Not run, though the suite has it: {'; '.join(names)}." if names else ""
