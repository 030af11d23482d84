"""The cells that claims are counted from: values by seed, so that only pairs are compared."""

from collections.abc import Callable, Sequence
from functools import cached_property
from math import isnan
from pathlib import Path
from typing import Any

from outvote.report.provenance import settings_text
from outvote.results.collect import collect
from outvote.results.run import Result
from outvote.suites.suite import read_suite

BASES = ("multi-krum", "bulyan", "median", "rfa", "dnc", "trimmed-mean")
Metric = Callable[[Result], float]
METRICS: dict[str, Metric] = {
    "best": lambda result: 100 * result.best,
    "last ten": lambda result: 100 * result.last_ten,
}
"""Accuracies in percent."""
Place = tuple[str, Any]
"""A rule, and the value of the column."""
BySeed = dict[int, float]


class Cells:
    """The runs of one part of a suite that are over, by rule, column and seed."""

    def __init__(
        self, folder: Path, suite: str, part: str = "main", only: Sequence[str] = ()
    ) -> None:
        """Read the export of a suite, or of some rules; if there is none, no cell has a run."""
        own = folder / f"{suite}.toml"
        parts = read_suite(str(own) if own.exists() else suite).parts
        self.part = next(each for each in parts if each.name == part)
        path = folder / f"{suite}.csv.gz"
        found = collect([path]) if path.exists() else []
        self.runs = [
            each
            for each in found
            if each.is_over and self.part.holds(each) and (not only or each.rule in only)
        ]

    @cached_property
    def _by_place(self) -> dict[Place, dict[int, Result]]:
        places: dict[Place, dict[int, Result]] = {}
        for each in self.runs:
            place = each.rule, each.setting(self.part.columns)
            seeds = places.setdefault(place, {})
            if each.seed in seeds:
                raise ValueError(
                    f"{each.suite} has two runs of {place[0]}, {place[1]}, seed {each.seed}: which "
                    "of them is meant? Export those of one setting only."
                )
            seeds[each.seed] = each
        return places

    @property
    def columns(self) -> list[Any]:
        """The columns that have a run, in the order of the suite."""
        known = {column for _, column in self._by_place}
        return [column for column in self.part.values if column in known]

    @property
    def settings(self) -> str:
        """What all runs share."""
        return settings_text(self.runs)

    @property
    def helpless(self) -> set[str]:
        """The rules that were told of liars, and in no run could reckon with one."""
        able = {each.rule for each in self.runs if each.series.num_byzantine_used.any()}
        told = {each.rule for each in self.runs if each.series.num_byzantine_assumed.any()}
        return told - able

    def values(self, place: Place, metric: Metric) -> BySeed:
        """Return what the runs of a cell came to; those without a number are left out."""
        runs = self._by_place.get(place, {})
        found = {seed: metric(runs[seed]) for seed in sorted(runs)}
        return {seed: value for seed, value in found.items() if not isnan(value)}

    def gains(self, better: Place, worse: Place, metric: Metric) -> BySeed:
        """Return how far one cell is above another, for the seeds that both have."""
        ours, theirs = shared([self.values(better, metric), self.values(worse, metric)])
        # So that a difference of one point is one, whatever floats make of it.
        return {seed: round(ours[seed] - theirs[seed], 6) for seed in ours}


def shared(cells: Sequence[BySeed]) -> list[BySeed]:
    """Return the values of the seeds that all cells have."""
    seeds = set.intersection(*map(set, cells)) if cells else set()
    return [{seed: cell[seed] for seed in sorted(seeds)} for cell in cells]
