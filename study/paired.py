"""Paired differences between cells of a suite, their 95 % intervals, and verdicts from these."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import lru_cache
from math import copysign, isnan, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from outvote.report.paired import BySeed, independent, shared, t_quantile
from outvote.results.collect import collect
from outvote.results.run import Result
from outvote.suites.suite import Part, read_suite

BASES = ("multi-krum", "bulyan", "median", "rfa", "dnc", "trimmed-mean")
Metric = Callable[[Result], float]
METRICS: dict[str, Metric] = {
    "best": lambda result: 100 * result.best,
    "last ten": lambda result: 100 * result.last_ten,
}
"""Accuracies in percent."""
Cell = tuple[str, Any]
"""A rule, and the value of the column."""
Groups = Mapping[str, Sequence[BySeed]]
"""Differences of several cells, by the group that a table shows them under."""


class Cells:
    """The runs of one part of a suite that are over, by rule, column and seed."""

    def __init__(
        self,
        folder: Path,
        suite: str,
        part: str = "main",
        only: Sequence[str] = (),
        attacks: Sequence[str] = (),
    ) -> None:
        """Read the export of a suite, or of some rules; without an export no cell has a run.

        `attacks` are the columns that are wanted, where columns are attacks.
        """
        own, path = folder / f"{suite}.toml", folder / f"{suite}.csv.gz"
        self.part, found = _read_part(suite, part, _stamp(own), _stamp(path))
        self.columns = [each for each in self.part.values if not attacks or each in attacks]
        self.printed = self.part.printed()
        found = [each for each in found if not only or each.rule in only]
        self.runs = [each for each in found if each.setting(self.part.columns) in self.columns]
        self._by_cell: dict[Cell, dict[int, Result]] = {}
        for each in self.runs:
            cell = each.rule, each.setting(self.part.columns)
            if each.seed in self._by_cell.setdefault(cell, {}):
                raise ValueError(
                    f"{suite} has two runs of {cell[0]}, {cell[1]}, seed {each.seed}; export the "
                    "runs of one setting only."
                )
            self._by_cell[cell][each.seed] = each

    def joined(self, others: Sequence["Cells"]) -> "Cells":
        """Return these cells with those of other parts; of two runs of a seed, the first counts."""
        result = copy(self)
        found = dict.fromkeys(column for each in (self, *others) for column in each.columns)
        order = dict.fromkeys(column for _, column in self.printed if column in found)
        result.columns = list(order | found)
        result._by_cell = {}
        for each in (self, *others):
            for cell, runs in each._by_cell.items():
                own = result._by_cell.setdefault(cell, {})
                own.update({seed: run for seed, run in runs.items() if seed not in own})
        result.runs = [run for runs in result._by_cell.values() for run in runs.values()]
        return result

    def means(self, rules: Sequence[str]) -> list[str]:
        """Return the rules that equal the mean, since they tolerate no Byzantine client here."""
        able = {each.rule for each in self.runs if each.series.num_byzantine_used.any()}
        asked = {each.rule for each in self.runs if each.series.num_byzantine_assumed.any()}
        return [rule for rule in rules if rule in asked - able]

    def values(self, cell: Cell, metric: Metric) -> BySeed:
        """Return the metric of a cell by seed; runs without a number are left out."""
        runs = self._by_cell.get(cell, {})
        found = {seed: metric(runs[seed]) for seed in sorted(runs)}
        return {seed: value for seed, value in found.items() if not isnan(value)}

    def side(self, cell: Cell, metrics: Mapping[str, Metric]) -> "Side":
        """Return one side of a comparison, with the paper's number if it prints one."""
        found = self.printed.get(cell)
        values = {name: self.values(cell, metric) for name, metric in metrics.items()}
        return Side(values, found.accuracy if found and "best" in metrics else None)


Stamp = tuple[Path, int, int]
"""A file as it is now: its path, the time of its last change, and its size."""


def _stamp(path: Path) -> Stamp | None:
    if not path.exists():
        return None
    facts = path.stat()
    return path, facts.st_mtime_ns, facts.st_size


@lru_cache(maxsize=128)  # A page asks for the same cells many times.
def _read_part(
    suite: str, name: str, own: Stamp | None, export: Stamp | None
) -> tuple[Part, list[Result]]:
    """Return a part of a suite, and its runs that are over."""
    parts = read_suite(suite if own is None else str(own[0])).parts
    part = next(each for each in parts if each.name == name)
    return part, part.held(_read_export(export))


@lru_cache(maxsize=32)
def _read_export(export: Stamp | None) -> list[Result]:
    return [] if export is None else [each for each in collect([export[0]]) if each.is_over]


class Side(NamedTuple):
    """One side of a comparison: values by metric and seed, and the paper's."""

    values: Mapping[str, BySeed]
    paper: float | None

    def __sub__(self, other: "Side") -> "Side":
        """Return the gain over another, seed by seed."""
        both = self.paper, other.paper
        paper = None if both[0] is None or both[1] is None else both[0] - both[1]
        pairs = {name: shared([own, other.values[name]]) for name, own in self.values.items()}
        values = {name: {seed: a[seed] - b[seed] for seed in a} for name, (a, b) in pairs.items()}
        return Side(values, paper)


class Interval(NamedTuple):
    """A mean difference and its 95 % interval: mean ± half, None where there is one value."""

    mean: float
    half: float | None
    num: int
    unit: str
    """What a value is: the mean of a seed over all cells, or a cell of the only seed."""

    @property
    def side(self) -> int:
        """1 if the whole interval is above zero, -1 if it is below, 0 if it contains zero."""
        half = float("inf") if self.half is None else self.half
        return (self.mean > half) - (self.mean < -half)

    def __str__(self) -> str:
        if self.half is None:
            return signed(self.mean)
        low, high = signed(self.mean - self.half), signed(self.mean + self.half)
        return f"{signed(self.mean)} [{low}, {high}]"


def interval(cells: Iterable[BySeed]) -> Interval | None:
    """Return the mean over cells and seeds with a t interval; None if no cell has a seed.

    A value is a seed's mean over the cells, or a cell of the only seed: see `independent`.
    """
    values, unit = independent(cells)
    if not values:
        return None
    num = len(values)
    half = t_quantile(num) * stdev(values) / sqrt(num) if num > 1 else None
    return Interval(fmean(values), half, num, "seed" if unit == "seed" else "cell")


def verdict(groups: Groups) -> tuple[str, Interval | None]:
    """Decide whether all differences are above zero, and return the interval that decides."""
    whole = interval(cell for cells in groups.values() for cell in cells)
    if whole is None:
        return "Not recorded", None
    sides = [found.side for cells in groups.values() if (found := interval(cells)) is not None]
    worst, best = min(whole.side, *sides), max(whole.side, *sides)
    if whole.side < 0 or (worst < 0 and best <= 0):
        text = "Does not hold"
    elif best <= 0:
        text = "Not enough seeds" if whole.unit == "seed" else "undecided"
    else:
        text = "Holds" if whole.side > 0 and worst >= 0 else "Holds in part"
    if whole.unit == "seed":
        return text, whole
    hint = "" if whole.half is None else f"; over the cells of one seed: {text.lower()}"
    return f"Not enough seeds{hint}", whole


def signed(value: float, digits: int = 1) -> str:
    """Return points with their sign; zero has none.

    Sums in another order differ in their last bits, so all tables round ties away from zero.
    """
    text = f"{value + copysign(1e-9, value):+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "−")
