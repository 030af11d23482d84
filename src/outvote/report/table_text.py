"""The words of a table that all formats share: captions, notes and numbers."""

from collections.abc import Sequence
from math import isnan

from outvote.report.cells import (
    ACCURACIES,
    LESS_IS_BETTER,
    LIARS,
    TITLES,
    Cell,
    Metric,
    Spread,
    Worst,
    is_percent,
)
from outvote.report.grid import Grid, runs_of
from outvote.report.replaying import missing_command
from outvote.results.labels import label
from outvote.results.run import Result

MINUS = "−"


def points(value: float) -> str:
    """Return a percentage with two decimals."""
    return f"{value + 0.0:.2f}"


def signed(value: float) -> str:
    """Return a difference with its sign; nothing has none."""
    text = f"{value:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text.replace("-", MINUS)


def number(value: float, metric: Metric, digits: int = 3) -> str:
    """Return a percentage with two decimals, or a length with some digits.

    >>> number(71.256, "best"), number(0.04, "deviation"), number(123.4, "deviation")
    ('71.26', '0.0400', '123')
    """
    return points(value) if is_percent(metric) else f"{value:#.{digits}g}".rstrip(".")


def mean_and_std(spread: Spread, metric: Metric) -> tuple[str, str]:
    """Return the mean, and what comes after it."""
    std = "" if spread.std is None else f" ± {number(spread.std, metric, digits=2)}"
    return number(spread.mean, metric), std


def missing(cell: Cell, metric: Metric) -> str:
    """Say why a cell has no number; "-" if it can have none, because nobody lied."""
    if cell.results and metric in LIARS and isnan(cell.results[0].kept_byzantine):
        return "-"
    if cell.results:
        return "diverged" if cell.num_diverged else "not measured"
    outcomes = {each.status.outcome for each in cell.unfinished}
    if "failed" in outcomes:
        return "failed"
    return "not over" if outcomes else "not run"


def notes(cell: Cell, grid: Grid, metric: Metric) -> list[str]:
    """Return what must be known to read a number."""
    found, spread = [], cell.spread(metric)
    if cell.results and len(cell.seeds) != grid.usual_seeds:
        found.append(seeds_told(len(cell.seeds), cell.num_wanted))
    if cell.num_diverged and spread is not None:
        found.append(f"{cell.num_diverged} diverged")
    if spread is not None and spread.num < len(cell.results):
        found.append(f"{spread.num} of {len(cell.results)} measured")
    return found


def seeds_told(number: int, wanted: int) -> str:
    """Tell how many seeds there are, and how many there should be.

    >>> seeds_told(2, 5), seeds_told(5, 5), seeds_told(1, 1)
    ('2 of 5 seeds', '5 seeds', '1 seed')
    """
    if number < wanted:
        return f"{number} of {wanted} seeds"
    return f"{number} seed{'' if number == 1 else 's'}"


def worst_notes(worst: Worst) -> list[str]:
    """Say how much of a row a worst case knows."""
    return [f"{worst.num_known} of {worst.num_columns}"] if worst.is_partial else []


def no_worst(grid: Grid, row: int) -> str:
    """Say why a row has no worst case."""
    return "not run" if all(cell.is_missing for cell in grid.cells[row]) else "no number"


def caption(grid: Grid, metric: Metric) -> str:
    """Say what the numbers are."""
    if not grid.results:
        return "None of these runs is over."
    title, unit = TITLES[metric], ", in percent" if is_percent(metric) else ""
    how = "" if grid.usual_seeds == 1 and grid.is_even else "mean ± standard deviation, "
    return f"{title[0].upper()}{title[1:]}{unit}: {how}{seeds_of(grid)}."


def seeds_of(grid: Grid) -> str:
    """Tell how many seeds the cells of a table have."""
    wanted = max(cell.num_wanted for row in grid.cells for cell in row)
    seeds = seeds_told(grid.usual_seeds, wanted)
    return seeds if grid.is_even else f"{seeds} unless a cell says otherwise"


def not_run(grids: Sequence[Grid]) -> str:
    """Name the tables without a single run, which say nothing; empty if there are none."""
    names = [grid.title or grid.suite_title for grid in grids if not runs_of([grid])]
    return f"Nothing was run, as the suite has it, of: {'; '.join(names)}." if names else ""


def has_paper(grid: Grid, metric: Metric) -> bool:
    """Tell whether the paper has numbers to stand beside ours."""
    return grid.has_printed and metric in ACCURACIES


def reading_help(grid: Grid, metric: Metric, *, paper: bool) -> list[str]:
    """Return one sentence for each thing in a table that does not explain itself."""
    said = []
    if grid.best(metric):
        among = "a rule and its wrapped forms" if grid.has_rivals else "each column"
        said.append(f"Bold: the best of {among}.")
    if grid.has_worst and grid.results:
        which = "largest" if metric in LESS_IS_BETTER else "smallest"
        said.append(f"Worst case: the {which} mean of a row, in brackets if columns are missing.")
    if any(_is_without_liars(cell, metric) for row in grid.cells for cell in row):
        said.append("-: nobody lied.")
    if paper and has_paper(grid, metric):
        said.append("Paper: the best accuracy that it prints, and ours minus it.")
    return said


def fine_print(grid: Grid) -> list[str]:
    """Return what the names of rows and columns leave out."""
    texts = [
        each.config[axis]
        for axis in ("rule", "attack")
        if not grid.column_key.startswith(f"{axis}.")
        for each in grid.results
    ]
    shown = {*grid.rows, *map(str, grid.columns)}
    hidden = [text for text in dict.fromkeys(texts) if label(text) != text and text not in shown]
    helpless = [
        row
        for row, cells in zip(grid.rows, grid.cells, strict=True)
        if all(map(_is_helpless, runs := [run for cell in cells for run in cell.results])) and runs
    ]
    said = [f"Other than by default: {', '.join(hidden)}."] if hidden else []
    if helpless:
        said.append(f"Can tolerate no liar among so few clients: {', '.join(helpless)}.")
    return said


def _is_helpless(run: Result) -> bool:
    """Tell whether a rule was told of liars, and never could reckon with one."""
    return bool(run.series.num_byzantine_assumed.any()) and not run.series.num_byzantine_used.any()


def _is_without_liars(cell: Cell, metric: Metric) -> bool:
    return cell.spread(metric) is None and missing(cell, metric) == "-"


def gaps(grid: Grid) -> list[str]:
    """Say what is missing or doubtful, and what to do about it."""
    cells = [cell for row in grid.cells for cell in row]
    lacking = sum(not cell.is_complete for cell in cells)
    repeated = sum(cell.num_repeated for cell in cells)
    said = []
    if lacking:
        said.append(f"{lacking} of {len(cells)} cells lack runs{_remedy(grid)}.")
    if repeated:
        said.append(
            f"{repeated} runs have the seed of another run in their cell, as when the code of a "
            "rule was changed; all are counted."
        )
    return said


def _remedy(grid: Grid) -> str:
    if not grid.part:
        return ""
    return f"; `{missing_command(grid)}` plays those of the suite"
