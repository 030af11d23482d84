"""A table before it is rendered: metrics, the runs of each cell, and the grid of cells."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import hypot, isnan, sqrt
from operator import add
from typing import Any, Literal, NamedTuple, TypeVar, final

from outvote.errors import plural
from outvote.results.labels import outline, plain
from outvote.results.run import Result
from outvote.suites.paper import Printed
from outvote.suites.suite import Kind

Metric = Literal[
    "best",
    "final",
    "last_ten",
    "kept_byzantine",
    "byzantine_weight",
    "deviation",
    "test_loss",
    "client_accuracy",
    "worst_decile",
    "least_kept",
]
Thing = TypeVar("Thing")
Key = TypeVar("Key", bound=Hashable)

METRICS: dict[Metric, str] = {
    "best": "best accuracy of all rounds",
    "final": "accuracy after the last round",
    "last_ten": "mean accuracy of the last ten tests",
    "kept_byzantine": "Byzantine selection rate (share of sampled Byzantine clients kept)",
    "byzantine_weight": "Byzantine weight (the Byzantine clients' share of the rule's weights)",
    "deviation": "distance of the update to the honest mean, in rounds with Byzantine clients",
    "test_loss": "loss on the test set after the last round",
    "client_accuracy": "accuracy on a client's own label distribution, mean over the honest "
    "clients and the last ten tests",
    "worst_decile": "accuracy on a client's own label distribution, worst decile of the honest "
    "clients, mean over the last ten tests",
    "least_kept": "share of its rounds in which an honest client was kept, lowest decile of the "
    "honest clients",
}
"""What each is; all but `UNSCALED` are shares, and only of `MORE_IS_BETTER` more is better."""
UNSCALED: tuple[Metric, ...] = ("deviation", "test_loss")
"""The metrics that are no shares: they are not in percent."""
SHORT: dict[Metric, str] = {
    "best": "best accuracy",
    "final": "final accuracy",
    "last_ten": "accuracy, last ten",
    "kept_byzantine": "Byzantine selection rate",
    "byzantine_weight": "Byzantine weight",
    "deviation": "deviation",
    "test_loss": "test loss",
    "client_accuracy": "client accuracy",
    "worst_decile": "worst decile",
    "least_kept": "least kept",
}
ACCURACIES: tuple[Metric, ...] = ("best", "final", "last_ten")
"""The metrics that the paper prints."""
OF_CLIENTS: tuple[Metric, ...] = ("client_accuracy", "worst_decile", "least_kept")
"""What honest clients get, which not every run has."""
MORE_IS_BETTER: tuple[Metric, ...] = (*ACCURACIES, *OF_CLIENTS)
WHO_PAYS: tuple[Metric, ...] = ("last_ten", *OF_CLIENTS)
"""The columns of the tables that show what honest clients get."""
OF_BYZANTINE: tuple[Metric, ...] = ("kept_byzantine", "byzantine_weight")
"""The metrics that exist only where Byzantine clients took part."""
USUAL: dict[Kind, tuple[Metric, ...]] = {
    "table": ("best",),
    "selection": ("byzantine_weight", "best"),
    "deviation": ("deviation",),
    "clients": ("last_ten",),
}
"""The metrics that each kind of part shows by default."""


class Spread(NamedTuple):
    """The mean over seeds, in percent unless it is one of `UNSCALED`."""

    mean: float
    std: float | None
    """Of the sample; None for one seed."""
    num: int


def spread_of(values: Iterable[float]) -> Spread | None:
    """Return mean and sample deviation of the values that are numbers."""
    known = [value for value in values if not isnan(value)]
    if not known:
        return None
    # Not by `sum`, which compensates from Python 3.12 on: tables are the same on all versions.
    mean = reduce(add, known) / len(known)
    if len(known) == 1:
        return Spread(mean, None, 1)
    # Not a sum of squares: that of the deviations of runs that diverged may overflow.
    std = hypot(*(value - mean for value in known)) / sqrt(len(known) - 1)
    return Spread(mean, std, len(known))


def shown(mean: float, metric: Metric) -> float:
    """Return a mean as tables print it, so that printed differences add up."""
    return float(f"{mean:.3g}") if metric in UNSCALED else round(mean, 2)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cell:
    """The runs of one rule in one column."""

    results: tuple[Result, ...] = ()
    """Finished and diverged runs, by seed."""
    unfinished: tuple[Result, ...] = ()
    """Runs that failed, were interrupted or are still running."""
    num_wanted: int = 0
    """How many seeds the suite asks for; 0: unknown."""
    printed: Printed | None = None
    """The paper's number."""

    @property
    def seeds(self) -> list[int]:
        """The seeds of the finished runs."""
        return sorted({each.seed for each in self.results})

    @property
    def protocols(self) -> list[int]:
        """The protocols of the finished runs, as far as they are known."""
        return sorted({each.environment.protocol for each in self.results if each.environment})

    @property
    def num_repeated(self) -> int:
        """How many runs have the seed of another, as when the code of a rule was changed."""
        return len(self.results) - len(self.seeds)

    @property
    def num_diverged(self) -> int:
        """How many runs diverged."""
        return sum(each.status.outcome == "diverged" for each in self.results)

    @property
    def is_complete(self) -> bool:
        """Whether every seed that the suite asks for is finished."""
        return bool(self.results) and len(self.seeds) >= self.num_wanted

    def spread(self, metric: Metric) -> Spread | None:
        """Return mean and deviation over the seeds; None if there is no number."""
        scale = 1 if metric in UNSCALED else 100
        return spread_of(scale * float(getattr(each, metric)) for each in self.results)

    def difference(self, metric: Metric) -> float | None:
        """Return ours minus the paper's, in points; None if either is missing."""
        ours = self.spread(metric)
        if ours is None or self.printed is None or metric not in ACCURACIES:
            return None
        return round(shown(ours.mean, metric) - self.printed.accuracy, 2)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """The cells of one table: a row for each rule, a column for each value of one setting."""

    suite: str
    suite_title: str
    title: str
    column_key: str
    """The setting that the columns differ in, such as "attack" or "data.beta"."""
    rows: tuple[str, ...]
    columns: tuple[Any, ...]
    """The values of that setting."""
    cells: tuple[tuple[Cell, ...], ...]
    """By row and column."""
    part: str = ""
    """The name of the part of the suite; empty: the layout was found automatically."""
    kind: Kind = "table"
    source: str = ""
    """What `outvote bench` takes to run it, a name or a file; empty: no suite is known."""

    @property
    def titles(self) -> list[str]:
        """The headings of the columns; where others have more rounds, with the number of rounds."""
        titles = [title_of(self.column_key, value) for value in self.columns]
        own = self.columns_of_rounds
        shorter = {k: rounds for rounds in list(own)[1:] for k in own[rounds]}
        return [
            f"{title}, {plural(shorter[k], 'round')}" if k in shorter else title
            for k, title in enumerate(titles)
        ]

    @property
    def columns_of_rounds(self) -> dict[int, list[int]]:
        """The columns that have each number of rounds, the most rounds first.

        Columns without a run are left out. Empty: the number is the same in all columns, or columns
        are not of one number each.
        """
        found: dict[int, list[int]] = {}
        for k in range(len(self.columns)):
            own = {each.setting("rounds") for each in runs_of_cells(row[k] for row in self.cells)}
            if len(own) > 1:
                return {}
            for rounds in own:
                found.setdefault(rounds, []).append(k)
        is_plain = len(found) < 2 or self.column_key == "rounds"
        return {} if is_plain else {rounds: found[rounds] for rounds in sorted(found, reverse=True)}

    @property
    def all_cells(self) -> list[Cell]:
        """The cells, row by row."""
        return [cell for row in self.cells for cell in row]

    @property
    def results(self) -> list[Result]:
        """The finished runs, row by row."""
        return [each for cell in self.all_cells for each in cell.results]

    def column(self, number: int) -> dict[str, Cell]:
        """Return the cells of a column that have finished runs, by row."""
        cells = {row: own[number] for row, own in zip(self.rows, self.cells, strict=True)}
        return {row: cell for row, cell in cells.items() if cell.results}

    @property
    def usual_seeds(self) -> int:
        """How many seeds most cells have that have any."""
        counts = Counter(len(cell.seeds) for cell in self.all_cells if cell.results)
        return max(counts, key=lambda number: (counts[number], number), default=0)

    @property
    def is_even(self) -> bool:
        """Whether all cells that have any seeds have as many."""
        return len({len(cell.seeds) for cell in self.all_cells if cell.results}) <= 1

    def metrics(self, chosen: Metric | None) -> tuple[Metric, ...]:
        """Return the metrics to show: the chosen one, or those usual for this kind of part."""
        if chosen is not None:
            return (chosen,)
        usual = USUAL[self.kind] if self.results else USUAL[self.kind][:1]
        if self.results and all(
            isnan(run.best) and not isnan(run.test_loss) for run in self.results
        ):
            usual = tuple("test_loss" if each in ACCURACIES else each for each in usual)
        if any(cell.spread("byzantine_weight") for cell in self.all_cells):
            return usual
        # Where no run has recorded the weights, who was kept is known.
        return tuple("kept_byzantine" if each == "byzantine_weight" else each for each in usual)


def grouped(things: Iterable[Thing], key: Callable[[Thing], Key]) -> dict[Key, list[Thing]]:
    """Return the things that share a key, in the order in which the keys come first."""
    groups: dict[Key, list[Thing]] = {}
    for each in things:
        groups.setdefault(key(each), []).append(each)
    return groups


def runs_of(grids: Sequence[Grid]) -> list[Result]:
    """Return all runs in some tables, unfinished ones too."""
    return runs_of_cells(cell for grid in grids for cell in grid.all_cells)


def runs_of_cells(cells: Iterable[Cell]) -> list[Result]:
    """Return all runs in some cells, unfinished ones too."""
    return [each for cell in cells for each in (*cell.results, *cell.unfinished)]


SYMBOLS = {
    "data.beta": "β",
    "federation.byzantine": "f",
    "federation.num_clients": "n",
    "federation.sampled": "sampled",
    "federation.assumed_byzantine": "δ",
    "rule.num_groups": "p",
}
WITHOUT_KEY = (
    *("attack", "rule", "data.name", "data.partition", "model.name", "precision"),
    "federation.selection",
)
"""Settings whose values need no name before them."""


def title_of(key: str, value: Any) -> str:
    """Return the heading of a column.

    >>> title_of("data.beta", 0.3), title_of("attack", "lie"), title_of("rule.num_groups", 10000)
    ('β = 0.3', 'lie', 'p = 10,000')
    """
    if value is None:
        return f"no {SYMBOLS.get(key, key)}"
    if key in WITHOUT_KEY or (key == "federation.assumed_byzantine" and value == "oracle"):
        return plain(value)
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else plain(value)
    return f"{SYMBOLS.get(key, key)} = {text}"


def family(row: str) -> str:
    """Return the rule inside all wrappers: rows that share it are compared with each other.

    >>> family("gas(bucketing(rfa))"), family("gas(krum, num_groups=10)"), family("median")
    ('rfa', 'krum', 'median')
    """
    found = outline(row)
    while found.inside:
        found = found.inside[0]
    return found.name
