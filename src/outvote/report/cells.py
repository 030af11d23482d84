"""One cell of a table: what the runs of several seeds came to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot, isnan, sqrt
from typing import Literal, NamedTuple, final, get_args

from outvote.results.run import Result
from outvote.suites.paper import Printed
from outvote.suites.suite import Kind

Metric = Literal["best", "final", "last_ten", "kept_byzantine", "byzantine_weight", "deviation"]
METRICS: tuple[Metric, ...] = get_args(Metric)
ACCURACIES: tuple[Metric, ...] = ("best", "final", "last_ten")
"""Those that the paper has numbers for."""
LIARS: tuple[Metric, ...] = ("kept_byzantine", "byzantine_weight")
"""Those that can only be told where somebody lied."""
LESS_IS_BETTER: tuple[Metric, ...] = (*LIARS, "deviation")
USUAL: dict[Kind, tuple[Metric, ...]] = {
    "table": ("best",),
    "selection": ("byzantine_weight", "best"),
    "deviation": ("deviation",),
}
"""What a part is about, unless somebody asks for another metric."""
TITLES: dict[Metric, str] = {
    "best": "best accuracy of all rounds",
    "final": "accuracy after the last round",
    "last_ten": "mean accuracy of the last ten tests",
    "kept_byzantine": "share of the sampled liars that were kept",
    "byzantine_weight": "liars' share of the update: of the weights that the rule gave",
    "deviation": "distance of the update to the honest mean, where somebody lied",
}

SHORT_TITLES: dict[Metric, str] = {
    "best": "best accuracy",
    "final": "final accuracy",
    "last_ten": "accuracy, last ten",
    "kept_byzantine": "liars kept",
    "byzantine_weight": "liars' share",
    "deviation": "deviation",
}


class Spread(NamedTuple):
    """The mean over seeds, in percent unless it is a deviation."""

    mean: float
    std: float | None
    """Of the sample; None for one seed."""
    num: int


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cell:
    """The runs of one rule in one column."""

    results: tuple[Result, ...] = ()
    """Those that are over, by seed."""
    unfinished: tuple[Result, ...] = ()
    """Those that failed, were interrupted or are still played."""
    num_wanted: int = 0
    """How many seeds the suite asks for; 0: it does not say."""
    printed: Printed | None = None
    """What the paper has."""

    @property
    def seeds(self) -> list[int]:
        """The seeds of the runs that are over."""
        return sorted({each.seed for each in self.results})

    @property
    def num_repeated(self) -> int:
        """How many runs have the seed of another, as when the code of a rule was changed."""
        return len(self.results) - len(self.seeds)

    @property
    def num_diverged(self) -> int:
        """How many runs diverged."""
        return sum(each.status.outcome == "diverged" for each in self.results)

    @property
    def is_missing(self) -> bool:
        """Whether no run is over."""
        return not self.results

    @property
    def is_complete(self) -> bool:
        """Whether all seeds that are asked for are there."""
        return not self.is_missing and len(self.seeds) >= self.num_wanted

    def spread(self, metric: Metric) -> Spread | None:
        """Return mean and deviation over the seeds; None if there is no number."""
        scale = 100 if is_percent(metric) else 1
        return spread_of([scale * float(getattr(each, metric)) for each in self.results])

    def difference(self, metric: Metric) -> float | None:
        """Return ours minus the paper's, in points; None if one is not there."""
        ours = self.spread(metric)
        if ours is None or self.printed is None or metric not in ACCURACIES:
            return None
        return round(shown(ours.mean, metric) - self.printed.accuracy, 2)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Worst:
    """The worst column of a row, by its mean."""

    spread: Spread
    column: int
    num_known: int
    num_columns: int
    printed: float | None
    """The worst accuracy that the paper has; None unless it has all columns."""

    @property
    def is_partial(self) -> bool:
        """Whether columns are missing: then the worst may be worse."""
        return self.num_known < self.num_columns

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, in points; None unless both are whole."""
        if self.printed is None or self.is_partial:
            return None
        return round(round(self.spread.mean, 2) - self.printed, 2)


def spread_of(values: Sequence[float]) -> Spread | None:
    """Return mean and sample deviation of the values that are numbers."""
    known = [value for value in values if not isnan(value)]
    if not known:
        return None
    mean = sum(known) / len(known)
    if len(known) == 1:
        return Spread(mean, None, 1)
    # Not a sum of squares: that of the deviations of runs that diverged may be too large.
    std = hypot(*(value - mean for value in known)) / sqrt(len(known) - 1)
    return Spread(mean, std, len(known))


def worst_of(cells: Mapping[int, Cell], metric: Metric) -> Worst | None:
    """Return the column where a rule does worst, of cells by column; None if nothing is known."""
    spreads = [(k, cell.spread(metric)) for k, cell in cells.items()]
    known = [(k, spread) for k, spread in spreads if spread is not None]
    if not known:
        return None
    column, spread = min(known, key=lambda pair: goodness(pair[1], metric))
    printed = [cell.printed.accuracy for cell in cells.values() if cell.printed is not None]
    has_all = len(printed) == len(cells) and metric in ACCURACIES
    return Worst(
        spread=spread,
        column=column,
        num_known=len(known),
        num_columns=len(cells),
        printed=min(printed) if has_all else None,
    )


def goodness(spread: Spread, metric: Metric) -> float:
    """Return a number that is larger the better the rule; what prints alike is alike."""
    number = shown(spread.mean, metric)
    return -number if metric in LESS_IS_BETTER else number


def is_percent(metric: Metric) -> bool:
    """Tell whether a metric is a share; a deviation is a length."""
    return metric != "deviation"


def shown(mean: float, metric: Metric) -> float:
    """Return a mean as tables print it, so that their differences add up."""
    return round(mean, 2) if is_percent(metric) else float(f"{mean:.3g}")
