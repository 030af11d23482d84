"""From gains to counts, means with their errors, words and verdicts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, stdev
from typing import final

from claims_cells import BySeed, shared
from outvote.report.rendered_table import MINUS

NOISE = 1.0
"""ClientMatrix: the same run played twice differs by less than this in most cases (see replays)."""


@final
@dataclass(frozen=True)
class Claim:
    """One sentence of the paper, in our words, and what became of it."""

    text: str
    verdict: str
    seeds: str
    table: list[list[str]]
    """Its first row is the heading."""
    notes: list[str] = field(default_factory=list)


@final
@dataclass(frozen=True)
class Counted:
    """The gains of several cells, counted and averaged."""

    cells: tuple[BySeed, ...]
    """ClientMatrix by seed; a cell without seeds is left out."""

    @property
    def means(self) -> list[float]:
        """The mean of each cell over its seeds."""
        return [round(fmean(cell.values()), 6) for cell in self.cells]

    @property
    def told(self) -> str:
        """How many cells are higher, the same within noise, and lower."""
        up = sum(mean > NOISE for mean in self.means)
        down = sum(mean < -NOISE for mean in self.means)
        return f"{up} / {len(self.means) - up - down} / {down}"

    @property
    def agreement(self) -> str:
        """In how many cells of several seeds all of them are higher, and all are lower."""
        several = [list(cell.values()) for cell in self.cells if len(cell) > 1]
        up = sum(min(gains) > 0 for gains in several)
        down = sum(max(gains) < 0 for gains in several)
        whole = "" if len(several) == len(self.cells) else f" of {len(several)}"
        return f"{up} / {down}{whole}" if several else "-"

    @property
    def mean(self) -> str:
        """The mean over cells and the seeds that all cells have, with its error over seeds."""
        if not self.cells:
            return "-"
        cells = shared(self.cells)
        seeds = list(cells[0])
        if not seeds:
            return f"{signed(fmean(self.means))} (no seed is in all cells)"
        by_seed = {seed: fmean(cell[seed] for cell in cells) for seed in seeds}
        most = max(len(cell) for cell in self.cells)
        few = f" ({counted(len(seeds), 'seed')})" if len(seeds) < most else ""
        return with_error(by_seed) + few


def gains_of(cells: Iterable[BySeed]) -> Counted:
    """Return the cells that have seeds."""
    return Counted(tuple(cell for cell in cells if cell))


def with_error(by_seed: BySeed) -> str:
    """Return a mean over seeds, and its standard error if there are several."""
    values = list(by_seed.values())
    mean = signed(fmean(values))
    return mean if len(values) < 2 else f"{mean} ± {stdev(values) / sqrt(len(values)):.1f}"


def signed(value: float) -> str:
    """Return points with their sign; nothing has none."""
    text = f"{value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", MINUS)


def counted(number: int, what: str) -> str:
    """Return a number and its word: 1 seed, 3 seeds."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def seeds_told(cells: Iterable[BySeed]) -> str:
    """Tell how many seeds the cells that have any have: 3 seeds, or 1 to 3 seeds."""
    numbers = sorted({len(cell) for cell in cells if cell})
    if not numbers:
        return "no seed"
    least, most = numbers[0], numbers[-1]
    return counted(most, "seed") if least == most else f"{least} to {most} seeds"


def verdict(is_not_worse: Sequence[bool], is_better: Sequence[bool] | None = None) -> str:
    """Judge by shares; without `is_better` what is not worse is better."""
    share = fmean(is_not_worse)
    gain = share if is_better is None else fmean(is_better)
    if share >= 0.9 and gain >= 0.5:
        return "Holds"
    return "Holds in part" if share >= 0.5 else "Does not hold"


def verdict_on_gains(gains: Counted) -> str:
    """Judge a claim about pairs; what is lower more often than higher is no gain."""
    is_lower = [mean < -NOISE for mean in gains.means]
    is_higher = [mean > NOISE for mean in gains.means]
    if sum(is_lower) > sum(is_higher):
        return "Does not hold"
    return verdict([not each for each in is_lower], is_higher)
