"""The paper's claims against our numbers: python tools/claims.py FOLDER > claims.md.

FOLDER holds the exports, claims.toml the words. A claim without runs is left out.
"""

import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from outvote.results.run import Result
from paired import BASES, METRICS, BySeed, Cells, Metric, Side, interval, shared, signed, verdict

WORDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
NOTES, DATA = WORDS["notes"], WORDS["data"]
EQUAL_WEIGHTS = ("multi-krum", "dnc")  # GAS forms give all clients that they keep one weight, too.
BEST = {"best": METRICS["best"]}


def byzantine_share(result: Result) -> float:
    """Return the share of the update in percent that is the Byzantine clients'; NaN: not known."""
    if not isnan(result.byzantine_weight):
        return 100 * result.byzantine_weight
    series = result.series
    is_mean = bool(series.num_byzantine_assumed.any()) and not series.num_byzantine_used.any()
    if not (result.rule in EQUAL_WEIGHTS or result.rule.startswith("gas(") or is_mean):
        return nan
    is_known = (series.num_byzantine > 0) & (series.num_kept > 0)
    shares = series.num_kept_byzantine[is_known] / series.num_kept[is_known]
    return 100 * float(shares.mean()) if len(shares) else nan


DISTANCE: dict[str, Metric] = {"100 × distance": lambda run: 100 * run.deviation}
SHARE: dict[str, Metric] = {"share": byzantine_share}


class Pair(NamedTuple):
    """Two sides that are compared; a claim expects the first to be larger."""

    row: str
    first: Side
    second: Side


Margin = Callable[[float, float], float]
"""What must be above zero, of a pair's two values; None: their difference."""


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper, in our words, and the pairs that decide it."""

    text: str
    pairs: Sequence[Pair]
    titles: Sequence[str] = ("GAS(A)", "A")
    notes: Sequence[str] = ()
    margin: Margin | None = None

    @property
    def is_run(self) -> bool:
        """Whether a pair has a run on both sides."""
        return any(self.margins(pair) for pair in self.pairs)

    def margins(self, pair: Pair) -> BySeed:
        """Return what must be above zero, by seed."""
        name = next(iter(pair.first.values))
        ours, theirs = shared([pair.first.values[name], pair.second.values[name]])
        margin = self.margin or float.__sub__
        return {seed: margin(ours[seed], theirs[seed]) for seed in ours}

    @property
    def lines(self) -> list[str]:
        """Verdict, table and notes."""
        names = dict.fromkeys(pair.row for pair in self.pairs)
        rows = {name: [pair for pair in self.pairs if pair.row == name] for name in names}
        found = {name: [self.margins(pair) for pair in own] for name, own in rows.items()}
        text, whole = verdict(found)
        basis = (
            ""
            if whole is None
            else f": {whole}, n = {whole.num} {whole.unit}{'s' * (whole.num > 1)}"
        )
        missing = [name for name in rows if not any(found[name])]
        named = "; ".join(missing) if len(missing) < 7 else f"{len(missing)} of {len(rows)} rows"
        notes = [*self.notes, *([f"Not run or not recorded: {named}."] if missing else [])]
        lines = [f"**{text}**{basis}.", ""]
        if self.is_run:
            lines += [*self.table([pair for pair in self.pairs if self.margins(pair)]), ""]
        return lines + [f"- {note}" for note in notes] + ([""] if notes else [])

    def table(self, pairs: Sequence[Pair]) -> list[str]:
        """Return a line for all pairs and one for each row."""
        metrics = list(pairs[0].first.values)
        has_paper = any((pair.first - pair.second).paper is not None for pair in pairs)
        head = ["", "cells", *(f"{title}, {metrics[0]}" for title in self.titles)]
        head += [f"difference, {metric}" for metric in metrics]
        head += ["margin"] * (self.margin is not None) + ["difference, paper"] * has_paper
        lines = [head, ["---", *("---:" for _ in head[1:])]]
        names = list(dict.fromkeys(pair.row for pair in pairs))
        for name in ["all", *names] if len(names) > 1 else names:
            own = [pair for pair in pairs if name in ("all", pair.row)]
            sides = [shared([side.values[metrics[0]] for side in pair[1:]]) for pair in own]
            line = [name, str(len(own)), *(_mean(side[k] for side in sides) for k in (0, 1))]
            gains = [pair.first - pair.second for pair in own]
            line += [str(interval(gain.values[metric] for gain in gains)) for metric in metrics]
            line += [str(interval(map(self.margins, own)))] * (self.margin is not None)
            paper = [gain.paper for gain in gains if gain.paper is not None]
            lines.append(line + [signed(fmean(paper)) if paper else "–"] * has_paper)
        return [f"| {' | '.join(line)} |" for line in lines]


def claim(
    key: str, pairs: Sequence[Pair], *notes: str, margin: Margin | None = None, **names: str
) -> Claim:
    """Return a claim with the words of claims.toml."""
    words = WORDS["claims"][key]
    titles = [title.format(**names) for title in words["titles"]]
    found = [*([words["note"]] if "note" in words else []), *notes]
    return Claim(words["text"].format(**names), pairs, titles, found, margin)


def page(folder: Path) -> str:
    """Return the page."""
    lines = [WORDS["head"].lstrip()]
    for number, each in enumerate(claims(folder), 1):
        lines += [f"## {number}. {each.text}", "", *each.lines]
    return "\n".join([*lines, *differences(folder)])


def claims(folder: Path) -> list[Claim]:
    """Return the claims that have runs, in the order of the page."""
    figure2 = Cells(folder, "figure2-deviation")
    shares = {
        suite: gas_pairs(Cells(folder, suite), row="{1}, {0}", metrics=SHARE)
        for suite in ("table1-cifar10", "table1-femnist")
    }
    found = [
        *pair_claims(folder),
        *side_claims(folder),
        rescued(folder, "table1-cifar10", "rfa", "RFA"),
        rescued(folder, "table1-femnist", "rfa", "RFA"),
        rescued(folder, "table1-femnist", "dnc", "DnC"),
        claim("deviation", swapped(gas_pairs(figure2, row="{1}", metrics=DISTANCE))),
        *motivation(folder),
        *(claim("fewer", swapped(pairs), data=DATA[suite]) for suite, pairs in shares.items()),
        rise_then_fall(folder),
        *unknown_f(folder),
        more_where_clients_differ(folder),
    ]
    has_figure = any("Figure 1" in each.text for each in found if each.is_run)
    return [each for each in found if each.is_run or (has_figure and "Figure 1" in each.text)]


def gas_pairs(
    cells: Cells,
    *,
    against: str = "{}",
    row: str = "{}",
    metrics: Mapping[str, Metric] = METRICS,
    bases: Sequence[str] = BASES,
) -> list[Pair]:
    """Return gas(A) beside A, or beside another form of it, for every column and A."""
    pairs = []
    for column in cells.part.values:
        for base in bases:
            name = row.format(attack_of(column), base)
            first, second = ((rule, column) for rule in (f"gas({base})", against.format(base)))
            pairs.append(Pair(name, cells.side(first, metrics), cells.side(second, metrics)))
    return pairs


def pair_claims(folder: Path) -> list[Claim]:
    """Return the claims that GAS(A) is more accurate than A, or than Bucketing(A)."""
    found = []
    for suite, (text, row) in WORDS["suites"].items():
        if (folder / f"{suite}.csv.gz").exists():
            cells = Cells(folder, suite)
            found.append(Claim(text, gas_pairs(cells, row=row), notes=means_of(cells, BASES)))
    first, second = Cells(folder, "table1-cifar10"), Cells(folder, "table2-bucketing")
    mild = gas_pairs(first, bases=["dnc"])
    buckets = gas_pairs(second, against="bucketing({})")
    weak = means_of(second, [f"bucketing({base})" for base in BASES])
    near = claim("mild", mild, margin=lambda ours, theirs: 3 - abs(ours - theirs))
    return [*found[:1], near, claim("bucketing", buckets, *weak), *found[1:]]


def means_of(cells: Cells, rules: Sequence[str]) -> list[str]:
    """Return the note on rules that equal the mean."""
    weak = ", ".join(cells.means(rules))
    return [f"{NOTES['mean']}: {weak}."] if weak else []


def side_claims(folder: Path) -> list[Claim]:
    """Return what the probes show: attacks on the other side of the mean, and Krum."""
    sides, table1 = other_side(folder), Cells(folder, "table1-cifar10")
    if sides is None:
        return []
    readings = Cells(folder, "probes", "rules", ("krum", "gas(krum)"))
    pairs, gains, printed = [], [], []
    for column in table1.part.values:
        is_side = same_attack(sides, column) is not None
        cells, beside = (sides, sides) if is_side else (readings, table1)
        paper = table1.side(("multi-krum", column), METRICS).paper or nan
        many = beside.side(("multi-krum", same_attack(beside, column)), METRICS)
        attack = same_attack(cells, column)
        one, inside = (cells.side((rule, attack), METRICS) for rule in ("krum", "gas(krum)"))
        pairs.append(Pair(attack_of(column), distance(many, paper), distance(one, paper)))
        gains.append((inside - one).values["best"])
        if gains[-1]:
            printed.append((table1.side(("gas(multi-krum)", column), METRICS).paper or nan) - paper)
    against = readings.values(("krum", "lie"), METRICS["best"])
    notes = [
        f"Against it, Krum reaches {_mean([against])} under LIE.",
        f"GAS(Krum) − Krum: {interval(gains)}; paper: {signed(fmean(printed or [nan]))}.",
    ]
    own = claim("side", gas_pairs(sides), *means_of(sides, BASES))
    return [own, claim("krum", pairs, *notes)]


def other_side(folder: Path) -> Cells | None:
    """Return the runs with attacks along the standard deviation."""
    is_there = (folder / "probes.toml").exists()
    return Cells(folder, "probes", "other-side") if is_there else None


def distance(side: Side, paper: float) -> Side:
    """Return how far a side is from a number of the paper."""
    values = {seed: abs(value - paper) for seed, value in side.values["best"].items()}
    return Side({"distance": values}, None)


def rescued(folder: Path, suite: str, base: str, name: str) -> Claim:
    """Compare the columns in which the paper's own numbers collapse."""
    pairs = gas_pairs(Cells(folder, suite), bases=[base])
    pairs = [each for each in pairs if (each.second.paper or nan) < (each.first.paper or nan) / 2]
    names = {"name": name, "data": DATA[suite]}
    return claim("rescued", pairs, margin=lambda ours, theirs: ours / 2 - theirs, **names)


def motivation(folder: Path) -> list[Claim]:
    """Compare clients that are alike with clients that differ, rule by rule (Figure 1)."""
    iid, other = (Cells(folder, "figure1-motivation", part) for part in ("iid", "non-iid"))

    def by_rule(metrics: Mapping[str, Metric], bases: Sequence[str]) -> list[Pair]:
        sides = [[each.side((base, "lie"), metrics) for each in (iid, other)] for base in bases]
        return [Pair(base, *both) for base, both in zip(bases, sides, strict=True)]

    out = by_rule(SHARE, ("median", "trimmed-mean", "bulyan"))
    return [
        claim("lose", by_rule(METRICS, BASES)),
        claim("more", swapped(by_rule(SHARE, ("multi-krum", "rfa", "dnc")))),
        claim("out", out, margin=lambda first, second: 10 - max(first, second)),
    ]


def rise_then_fall(folder: Path) -> Claim:
    """Compare the number of groups that is best in the paper with the smallest and the largest."""
    cells = Cells(folder, "table3-num-groups")
    pairs = []
    for rule in cells.part.rows:
        sides = {p: cells.side((rule, p), METRICS) for p in cells.part.values}
        best = max(sides, key=lambda p: sides[p].paper or 0)
        for end in (cells.part.values[0], cells.part.values[-1]):
            pairs.append(Pair(f"{rule}, p = {best:,} and {end:,}", sides[best], sides[end]))
    return claim("groups", pairs)


def unknown_f(folder: Path) -> list[Claim]:
    """Compare a guessed number of Byzantine clients with the true one."""
    cells = Cells(folder, "table4-unknown-f")
    pairs = []
    for guess in (each for each in cells.part.values if each != "oracle"):
        for rule in cells.part.rows:
            sides = (cells.side((rule, each), METRICS) for each in (guess, "oracle"))
            pairs.append(Pair(f"δ = {guess}", *sides))
    little = claim("unknown", pairs, margin=lambda guessed, known: guessed - known + 5)
    return [little, claim("known", swapped(pairs))]


def more_where_clients_differ(folder: Path) -> Claim:
    """Compare GAS's gains under LIE for the smallest and the largest β."""
    gains: dict[Any, dict[str, Side]] = {0.3: {}, 0.7: {}}
    for pair in gas_pairs(Cells(folder, "table5-heterogeneity"), row="{0} {1}"):
        beta, base = pair.row.split()
        gains[float(beta)][base] = pair.first - pair.second
    pairs = [Pair("under LIE", gains[0.3][base], gains[0.7][base]) for base in BASES]
    return claim("beta", pairs)


def differences(folder: Path) -> list[str]:
    """Return tables: our accuracies beside the paper's, and how near attacks on each side come."""
    sides = other_side(folder)
    ours, near = [], []
    for suite, data in DATA.items():
        cells = Cells(folder, suite)
        for (rule, column), number in cells.printed.items():
            row = f"{data}, {'with' if rule.startswith('gas(') else 'without'} GAS"
            side = cells.side((rule, column), BEST)
            paper = dict.fromkeys(side.values["best"], number.accuracy)
            ours.append(Pair(row, side, Side({"best": paper}, None)))
            if sides is not None and suite == "table1-cifar10":
                other = sides.side((rule, same_attack(sides, column)), BEST)
                both = [distance(each, number.accuracy) for each in (side, other)]
                near.append(Pair(row, *both))
    lines = []
    for key, pairs in (("ours", ours), ("near", near)):
        own = claim(key, pairs)
        known = [pair for pair in pairs if own.margins(pair)]
        lines += [f"## {own.text}", "", *own.table(known), ""] if known else []
    return lines


def swapped(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs the other way round."""
    return [Pair(pair.row, pair.second, pair.first) for pair in pairs]


def same_attack(cells: Cells, column: Any) -> Any:
    """Return the column of the same attack in another part; None if it has none."""
    found = (each for each in cells.part.values if attack_of(each) == attack_of(column))
    return next(found, None)


def attack_of(column: Any) -> str:
    """Return the name of an attack without its parameters, or any other column as text."""
    return str(column).partition("(")[0]


def _mean(cells: Iterable[BySeed]) -> str:
    values = [fmean(cell.values()) for cell in cells if cell]
    return f"{fmean(values):.1f}" if values else "–"


if __name__ == "__main__":
    sys.stdout.write(page(Path(sys.argv[1])))
