"""A table as data: rows of rules, columns of one setting, and a cell for every pair."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from outvote.report.cells import LIARS, USUAL, Cell, Metric, Worst, goodness, worst_of
from outvote.report.naming import family, title_of
from outvote.results.run import Result
from outvote.suites.paper import Printed
from outvote.suites.suite import Kind


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """One table."""

    suite: str
    suite_title: str
    part: str
    """The name of the part of the suite; empty: the layout was found automatically."""
    title: str
    kind: Kind
    column_key: str
    """The setting that the columns differ in, such as "attack" or "data.beta"."""
    rows: tuple[str, ...]
    columns: tuple[Any, ...]
    """The values of that setting."""
    cells: tuple[tuple[Cell, ...], ...]
    """By row and column."""
    source: str = ""
    """What `outvote bench` takes to play it, a name or a file; empty: no suite is known."""

    @property
    def titles(self) -> list[str]:
        """The headings of the columns."""
        return [title_of(self.column_key, value) for value in self.columns]

    @property
    def results(self) -> list[Result]:
        """All runs that are over, row by row."""
        return [each for row in self.cells for cell in row for each in cell.results]

    @property
    def has_printed(self) -> bool:
        """Whether the paper has numbers for any cell."""
        return any(cell.printed is not None for row in self.cells for cell in row)

    @property
    def has_worst(self) -> bool:
        """Whether a worst case over the columns says something."""
        return self.column_key == "attack" and len(self.columns) > 1

    @property
    def usual_seeds(self) -> int:
        """How many seeds most cells have that have any."""
        counts = Counter(len(cell.seeds) for row in self.cells for cell in row if cell.results)
        return max(counts, key=lambda number: (counts[number], number), default=0)

    @property
    def is_even(self) -> bool:
        """Whether all cells that have any seeds have as many."""
        found = {len(cell.seeds) for row in self.cells for cell in row if cell.results}
        return len(found) <= 1

    @property
    def has_rivals(self) -> bool:
        """Whether a rule and a wrapped form of it are both there."""
        return bool(self._rivals())

    def metrics(self, chosen: Metric | None) -> tuple[Metric, ...]:
        """Return what is shown: what was chosen, or else what this table is about."""
        if chosen is not None:
            return (chosen,)
        usual = USUAL[self.kind] if self.results else USUAL[self.kind][:1]
        if self.knows_weights:
            return usual
        return tuple("kept_byzantine" if each == "byzantine_weight" else each for each in usual)

    @property
    def knows_weights(self) -> bool:
        """Whether any run tells the liars' share; those of earlier versions do not."""
        return any(cell.spread("byzantine_weight") for row in self.cells for cell in row)

    def worst(self, row: int, metric: Metric) -> Worst | None:
        """Return the worst column of a row; where nobody lies no liar can be kept."""
        cells = {
            column: cell
            for column, cell in enumerate(self.cells[row])
            if metric not in LIARS or self.columns[column] != "none"
        }
        return worst_of(cells, metric)

    def best(self, metric: Metric) -> set[tuple[int, int]]:
        """Return the cells to be set in bold: the best of a rule and its wrapped forms.

        If no two rows share a rule inside, it is the best of each column.
        """
        return {
            (row, column)
            for group in self._rivals() or [list(range(len(self.rows)))]
            for column in range(len(self.columns))
            for row in self._winners(group, column, metric)
        }

    def _rivals(self) -> list[list[int]]:
        groups: dict[str, list[int]] = {}
        for number, row in enumerate(self.rows):
            groups.setdefault(family(row), []).append(number)
        return [group for group in groups.values() if len(group) > 1]

    def _winners(self, group: Sequence[int], column: int, metric: Metric) -> list[int]:
        known = {}
        for row in group:
            spread = self.cells[row][column].spread(metric)
            if spread is not None:
                known[row] = goodness(spread, metric)
        top = max(known.values(), default=0.0)
        return [row for row in known if known[row] == top] if len(known) > 1 else []


def runs_of(grids: Sequence[Grid]) -> list[Result]:
    """Return all runs in some tables, also those that are not over."""
    cells = [cell for grid in grids for row in grid.cells for cell in row]
    return [each for cell in cells for each in (*cell.results, *cell.unfinished)]


class Placed(NamedTuple):
    """A run, and where it belongs."""

    row: str
    column: Any
    result: Result


def fill(
    placed: Sequence[Placed],
    rows: Sequence[str],
    columns: Sequence[Any],
    *,
    num_wanted: int,
    printed: Mapping[tuple[str, Any], Printed] | None = None,
) -> tuple[tuple[Cell, ...], ...]:
    """Put runs into cells."""
    by_place: dict[tuple[str, Any], list[Result]] = {}
    for row, column, result in placed:
        by_place.setdefault((row, column), []).append(result)

    def cell(row: str, column: Any) -> Cell:
        found = sorted(by_place.get((row, column), []), key=lambda each: (each.seed, each.name))
        return Cell(
            results=tuple(each for each in found if each.is_over),
            unfinished=tuple(each for each in found if not each.is_over),
            num_wanted=num_wanted,
            printed=(printed or {}).get((row, column)),
        )

    return tuple(tuple(cell(row, column) for column in columns) for row in rows)
