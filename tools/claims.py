"""The paper's claims against our numbers: python tools/claims.py FOLDER > claims.md.

FOLDER holds the exports of docs/results. Every number comes from them; a claim's verdict follows
from the shares and means that stand beside it, by the rules at the end of the page.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from outvote.results.collect import collect
from outvote.results.run import Result
from outvote.suites.suite import read_suite

BASES = ("multi-krum", "bulyan", "median", "rfa", "dnc", "trimmed-mean")
NOISE = 1.0
"""Points: the same run played twice differs by less than this in most cases (see replays)."""
Metric = Callable[[Result], float]
METRICS: dict[str, Metric] = {
    "best": lambda result: result.best,
    "last ten": lambda result: result.last_ten,
}


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper, in our words, and what became of it."""

    text: str
    verdict: str
    numbers: list[str]


def main() -> None:
    """Print the page."""
    folder = Path(sys.argv[1])
    claims = [claim for make in CLAIMS if (claim := make(folder)) is not None]
    lines = [HEAD]
    for number, claim in enumerate(claims, 1):
        lines += [f"## {number}. {claim.text}", "", f"**{claim.verdict}.**", ""]
        lines += [f"- {each}" for each in claim.numbers] + [""]
    sys.stdout.write("\n".join([*lines, FOOT]))


class Cells:
    """The runs of one suite, by rule, column and seed."""

    def __init__(self, folder: Path, suite: str, part: str = "main") -> None:
        """Read the export of the suite."""
        self.part = next(each for each in read_suite(suite).parts if each.name == part)
        path = folder / f"{suite}.csv.gz"
        found = collect([path]) if path.exists() else []
        self.runs = [each for each in found if each.is_over and self.part.holds(each)]

    def of(self, rule: str, column: Any) -> dict[int, Result]:
        """Return the runs of a cell by seed."""
        return {
            each.seed: each
            for each in self.runs
            if each.rule == rule and each.setting(self.part.columns) == column
        }

    @property
    def seeds(self) -> int:
        """How many seeds the cells have at least."""
        return min(
            (len(self.of(rule, column)) for rule in self.part.rows for column in self.part.values),
            default=0,
        )

    def gains(self, better: str, worse: str, column: Any, metric: Metric) -> list[float]:
        """Return in points how far one rule is above another, seed by seed."""
        ours, theirs = self.of(better, column), self.of(worse, column)
        return [
            100 * (metric(ours[seed]) - metric(theirs[seed]))
            for seed in sorted(ours)
            if seed in theirs
        ]


def gas_beats_its_base(folder: Path) -> Claim | None:
    """Table 1."""
    cells = Cells(folder, "table1-cifar10")
    return _pairs(
        cells,
        "GAS(A) is at least as accurate as A, under each attack (Table 1, CIFAR-10)",
        [(f"gas({base})", base) for base in BASES],
        by=lambda base, column: str(column),
    )


def gas_beats_bucketing(folder: Path) -> Claim | None:
    """Table 2."""
    cells = Cells(folder, "table2-bucketing")
    return _pairs(
        cells,
        "GAS(A) is more accurate than Bucketing(A) in most cases (Table 2)",
        [(f"gas({base})", f"bucketing({base})") for base in BASES],
        by=lambda base, column: str(column),
    )


def mild_for_dnc(folder: Path) -> Claim | None:
    """Table 1, the DnC rows."""
    cells = Cells(folder, "table1-cifar10")
    if not cells.seeds:
        return None
    numbers = []
    for name, metric in METRICS.items():
        gains = {base: _mean_gain(cells, base, metric) for base in BASES}
        told = ", ".join(f"{base} {gain:+.1f}" for base, gain in gains.items())
        numbers.append(f"{name}: mean gain of GAS over the six attacks, in points: {told}")
    dnc = _mean_gain(cells, "dnc", METRICS["best"])
    is_mild = abs(dnc) < 3
    return Claim(
        "The gain over DnC is mild on CIFAR-10",
        "Holds" if is_mild else "Does not hold",
        [*numbers, f"{cells.seeds} seeds or more in every cell"],
    )


def rfa_is_rescued(folder: Path) -> Claim | None:
    """Table 1, the RFA rows."""
    cells = Cells(folder, "table1-cifar10")
    if not cells.seeds:
        return None
    printed, numbers, collapses = cells.part.printed(), [], 0
    for column in cells.part.values:
        alone = 100 * fmean(each.best for each in cells.of("rfa", column).values())
        inside = 100 * fmean(each.best for each in cells.of("gas(rfa)", column).values())
        paper = printed["rfa", column].accuracy, printed["gas(rfa)", column].accuracy
        collapses += alone < 20
        numbers.append(
            f"{column}: RFA {alone:.1f}, GAS(RFA) {inside:.1f} "
            f"(paper {paper[0]:.1f}, {paper[1]:.1f})"
        )
    verdict = "Holds" if collapses else "Cannot be seen on CIFAR-10: our RFA does not collapse"
    return Claim("RFA collapses, and GAS rescues it", verdict, numbers)


def groups_rise_then_fall(folder: Path) -> Claim | None:
    """Table 3."""
    cells = Cells(folder, "table3-num-groups")
    if not cells.seeds:
        return None
    numbers, shapes = [], []
    for rule in cells.part.rows:
        means = [
            100 * fmean(each.best for each in cells.of(rule, p).values()) for p in cells.part.values
        ]
        peak = int(np.argmax(means))
        shapes.append(
            0 < peak < len(means) - 1
            and means[peak] - means[0] > NOISE
            and means[peak] - means[-1] > NOISE
        )
        told = ", ".join(
            f"{p:,}: {mean:.1f}" for p, mean in zip(cells.part.values, means, strict=True)
        )
        numbers.append(f"{rule}, by p: {told}")
    return Claim(
        "With the number of groups p, accuracy first rises, then falls (Table 3)",
        _verdict(shapes),
        [*numbers, f"{cells.seeds} seeds or more in every cell"],
    )


def unknown_f_is_mild(folder: Path) -> Claim | None:
    """Table 4."""
    cells = Cells(folder, "table4-unknown-f")
    if not cells.seeds:
        return None
    numbers, mild = [], []
    for delta in (0.1, 0.3):
        losses = {}
        for rule in cells.part.rows:
            known, unknown = (
                fmean(each.best for each in cells.of(rule, told).values())
                for told in ("oracle", delta)
            )
            losses[rule] = 100 * (known - unknown)
        mild += [loss < 5 for loss in losses.values()]
        told = ", ".join(f"{rule} {-loss:+.1f}" for rule, loss in losses.items())
        numbers.append(f"delta = {delta}, against the known number, in points: {told}")
    return Claim(
        "Not knowing the number of liars costs little (Table 4)",
        _verdict(mild),
        [*numbers, f"{cells.seeds} seeds or more in every cell"],
    )


def more_at_smaller_beta(folder: Path) -> Claim | None:
    """Table 5, with the LIE column of Table 1 between."""
    outer, middle = Cells(folder, "table5-heterogeneity"), Cells(folder, "table1-cifar10")
    if not outer.seeds:
        return None
    numbers, grows = [], []
    for name, metric in METRICS.items():
        gains = [
            fmean(
                gain for base in BASES for gain in cells.gains(f"gas({base})", base, column, metric)
            )
            for cells, column in ((outer, 0.3), (middle, "lie"), (outer, 0.7))
        ]
        grows.append(gains[0] > gains[2] + NOISE)
        told = ", ".join(
            f"beta {b}: {gain:+.1f}" for b, gain in zip((0.3, 0.5, 0.7), gains, strict=True)
        )
        numbers.append(f"{name}: mean gain of GAS over the six rules under LIE: {told}")
    return Claim(
        "GAS gains more where clients differ more (Table 5)",
        _verdict(grows),
        [*numbers, f"{outer.seeds} seeds or more in every cell"],
    )


def for_all_f(folder: Path) -> Claim | None:
    """Table 6."""
    return _pairs(
        Cells(folder, "table6-num-byzantine"),
        "GAS(A) beats A for 5 and 15 liars of 50 (Table 6)",
        [(f"gas({base})", base) for base in BASES],
        by=lambda base, column: f"{column} liars",
    )


def for_all_n(folder: Path) -> Claim | None:
    """Table 7."""
    return _pairs(
        Cells(folder, "table7-num-clients"),
        "GAS(A) beats A for 75 and 100 clients (Table 7)",
        [(f"gas({base})", base) for base in BASES],
        by=lambda base, column: f"{column} clients",
    )


def deviation_is_lower(folder: Path) -> Claim | None:
    """Figure 2."""
    cells = Cells(folder, "figure2-deviation")
    if not cells.seeds:
        return None
    numbers, lower = [], []
    for base in BASES:
        alone, inside = (
            fmean(each.deviation for each in cells.of(rule, "lie").values())
            for rule in (base, f"gas({base})")
        )
        lower.append(inside < alone)
        numbers.append(f"{base}: {alone:.2f} alone, {inside:.2f} inside GAS")
    head = "Mean distance of the update to the honest mean, over the rounds in which somebody lied:"
    return Claim(
        "GAS brings the update closer to the honest mean (Figure 2)",
        _verdict(lower),
        [head, *numbers, f"{cells.seeds} seeds or more for every rule"],
    )


def more_liars_kept_when_clients_differ(folder: Path) -> Claim | None:
    """Figure 1."""
    alike, different = (Cells(folder, "figure1-motivation", part) for part in ("iid", "non-iid"))
    if not (alike.seeds and different.seeds):
        return None
    numbers, more = [], []
    for base in BASES:
        shares = [
            100 * fmean(each.kept_byzantine for each in cells.of(base, "lie").values())
            for cells in (alike, different)
        ]
        best = [
            100 * fmean(each.best for each in cells.of(base, "lie").values())
            for cells in (alike, different)
        ]
        more.append(shares[1] > shares[0] or best[1] < best[0] - NOISE)
        numbers.append(
            f"{base}: liars kept {shares[0]:.0f} % (IID), {shares[1]:.0f} % (non-IID); best "
            f"accuracy {best[0]:.1f}, {best[1]:.1f}"
        )
    return Claim(
        "Rules keep more liars, and lose accuracy, when clients differ (Figure 1)",
        _verdict(more),
        [*numbers, f"{min(alike.seeds, different.seeds)} seeds or more for every rule"],
    )


CLAIMS = (
    gas_beats_its_base,
    mild_for_dnc,
    rfa_is_rescued,
    gas_beats_bucketing,
    groups_rise_then_fall,
    unknown_f_is_mild,
    more_at_smaller_beta,
    for_all_f,
    for_all_n,
    deviation_is_lower,
    more_liars_kept_when_clients_differ,
)


def _pairs(
    cells: Cells, text: str, pairs: Sequence[tuple[str, str]], by: Callable[[str, Any], str]
) -> Claim | None:
    if not cells.seeds:
        return None
    numbers = []
    for name, metric in METRICS.items():
        means = {
            (better, column): fmean(cells.gains(better, worse, column, metric))
            for better, worse in pairs
            for column in cells.part.values
        }
        numbers.append(f"{name}: {_counted(means.values())}")
        numbers += [
            f"{name}, {group}: {_counted([m for (b, c), m in means.items() if by(b, c) == group])}"
            for group in dict.fromkeys(by(b, c) for b, c in means)
        ]
    printed = cells.part.printed()
    theirs = [
        printed[better, column].accuracy - printed[worse, column].accuracy
        for better, worse in pairs
        for column in cells.part.values
    ]
    best = [
        fmean(cells.gains(better, worse, column, METRICS["best"]))
        for better, worse in pairs
        for column in cells.part.values
    ]
    return Claim(
        text,
        _verdict([gain > -NOISE for gain in best], [gain > NOISE for gain in best]),
        [*numbers, f"the paper's own numbers: {_counted(theirs)}", f"{cells.seeds} seeds or more"],
    )


def _counted(gains: Iterable[float]) -> str:
    found = list(gains)
    up, down = sum(g > NOISE for g in found), sum(g < -NOISE for g in found)
    return (
        f"higher in {up}, lower in {down}, within {NOISE:g} point in {len(found) - up - down} of "
        f"{len(found)}; mean {fmean(found):+.1f} points"
    )


def _mean_gain(cells: Cells, base: str, metric: Metric) -> float:
    return fmean(
        gain
        for column in cells.part.values
        for gain in cells.gains(f"gas({base})", base, column, metric)
    )


def _verdict(not_worse: Sequence[bool], better: Sequence[bool] | None = None) -> str:
    share = fmean(not_worse)
    gains = share if better is None else fmean(better)
    if share >= 0.9 and gains >= 0.5:
        return "Holds"
    return "Holds in part" if share >= 0.5 else "Does not hold"


HEAD = """\
# The paper's claims

Made by `python tools/claims.py docs/results > docs/results/claims.md` from the exports in this
folder; hardware, versions and commands are on the page of each table. *Best* is the paper's
measure, the largest accuracy of all rounds; *last ten* is the mean of the last ten rounds.
"""
FOOT = f"""\
## How verdicts are made

The same run played twice on a GPU differs by 0.4 points on average and 1.2 at most in its best
accuracy (38 runs, `replays.csv.gz`), so a difference below {NOISE:g} point is no difference. A
claim about pairs holds if GAS is not worse in 90 % of the cells and better in half of them, holds
in part if it is not worse in half of them, and does not hold otherwise; other claims count the
rules for which they are true in the same way. "Seeds" is the number behind every cell: with one
seed, a difference of a few points says little.
"""

if __name__ == "__main__":
    main()
