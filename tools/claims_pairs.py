"""Claims about pairs of rules: GAS(A) against A, and against Bucketing(A)."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from claims_cells import BASES, METRICS, BySeed, Cells
from claims_numbers import (
    Claim,
    Counted,
    gains_of,
    seeds_told,
    verdict_on_gains,
)

MOST_NAMED = 6


class Pair(NamedTuple):
    """Two rules that are compared in one column."""

    base: str
    better: str
    worse: str
    column: Any


GasAgainst = Mapping[str, tuple[str, str]]
WITHOUT: GasAgainst = {base: (f"gas({base})", base) for base in BASES}
BUCKETING: GasAgainst = {base: (f"gas({base})", f"bucketing({base})") for base in BASES}
Gains = dict[Pair, BySeed]


def pair_claims(folder: Path) -> list[Claim]:
    """Return the claims of Tables 1, 2, 5, 6 and 7, and of Table 1 on other data."""
    at_least = "GAS(A) is at least as accurate as A"
    better = "GAS(A) is more accurate than Bucketing(A) in most cases (Table 2)"
    found = [
        on_pairs(
            Cells(folder, "table1-cifar10"), f"{at_least}, under each attack (Table 1, CIFAR-10)"
        ),
        _mild_for_dnc(folder),
        on_pairs(Cells(folder, "table2-bucketing"), better, BUCKETING),
        on_pairs(
            Cells(folder, "table5-heterogeneity"),
            "GAS(A) beats A for β = 0.3 and 0.7 (Table 5)",
            group=lambda pair: f"β = {pair.column}",
        ),
        on_pairs(
            Cells(folder, "table6-num-byzantine"),
            "GAS(A) beats A for 5 and 15 liars of 50 (Table 6)",
            group=lambda pair: f"{pair.column} liars",
        ),
        on_pairs(
            Cells(folder, "table7-num-clients"),
            "GAS(A) beats A for 75 and 100 clients (Table 7)",
            group=lambda pair: f"{pair.column} clients",
        ),
    ]
    others = {
        "table1-femnist": f"{at_least}, under each attack (Table 1, FEMNIST)",
        "table1-cifar100": f"{at_least}, under each attack (Table 1, CIFAR-100)",
        "table1-imagenet12": f"{at_least}, under each attack (Table 1, ImageNet-12)",
        "tiny-imagenet12": f"{at_least} on 12 classes of Tiny-ImageNet (a stand-in of our own)",
    }
    for suite, text in others.items():
        if (folder / f"{suite}.csv.gz").exists():
            cells = Cells(folder, suite)
            found.append(on_pairs(cells, text, notes=[f"Played: {cells.settings}."]))
    return [claim for claim in found if claim is not None]


def on_pairs(
    cells: Cells,
    text: str,
    rules: GasAgainst = WITHOUT,
    group: Callable[[Pair], str] = lambda pair: str(pair.column),
    judge: Callable[[Gains], str] | None = None,
    notes: Sequence[str] = (),
) -> Claim | None:
    """Compare pairs in every column, all together and by group; None if no pair has a seed."""
    pairs = [Pair(base, *rules[base], column) for column in cells.part.values for base in rules]
    gains = {name: _gains(cells, pairs, name) for name in METRICS}
    best = gains["best"]
    if not best:
        return None
    return Claim(
        text,
        verdict_on_gains(gains_of(best.values())) if judge is None else judge(best),
        seeds_told(best.values()),
        _table(gains, _printed(cells, list(best)), group),
        [*notes, *_helpless(cells, {pair.worse for pair in best}), *_left_out(pairs, best)],
    )


def _mild_for_dnc(folder: Path) -> Claim | None:
    def judge(best: Gains) -> str:
        means = gains_of(gain for pair, gain in best.items() if pair.base == "dnc").means
        if not means:
            return "Not played"
        return "Holds" if abs(sum(means) / len(means)) < 3 else "Does not hold"

    return on_pairs(
        Cells(folder, "table1-cifar10"),
        "The gain over DnC is mild on CIFAR-10 (Table 1)",
        group=lambda pair: pair.base,
        judge=judge,
    )


def _gains(cells: Cells, pairs: Sequence[Pair], metric: str) -> Gains:
    found = {
        pair: cells.gains((pair.better, pair.column), (pair.worse, pair.column), METRICS[metric])
        for pair in pairs
    }
    return {pair: gains for pair, gains in found.items() if gains}


def _printed(cells: Cells, pairs: Sequence[Pair]) -> Gains:
    """Return the paper's gains of the same cells, as of one seed."""
    printed = cells.part.printed()
    places = {pair: ((pair.better, pair.column), (pair.worse, pair.column)) for pair in pairs}
    return {
        pair: {0: round(printed[ours].accuracy - printed[theirs].accuracy, 6)}
        for pair, (ours, theirs) in places.items()
        if ours in printed and theirs in printed
    }


def _table(
    gains: Mapping[str, Gains], printed: Gains, group: Callable[[Pair], str]
) -> list[list[str]]:
    has_several = any(len(cell) > 1 for cell in gains["best"].values())
    groups = dict.fromkeys(group(pair) for pair in gains["best"])
    head = ["", "cells"]
    for name in gains:
        head += [f"{name}: higher / same / lower", *(["all seeds higher / lower"] * has_several)]
        head.append("mean gain")
    head += ["paper: higher / same / lower", "mean gain"] if printed else []
    rows = []
    for wanted in (None, *groups):
        chosen = [
            gains_of(cell for pair, cell in each.items() if wanted in (None, group(pair)))
            for each in (*gains.values(), *([printed] if printed else []))
        ]
        row = ["all" if wanted is None else wanted, str(len(chosen[0].cells))]
        for number, each in enumerate(chosen):
            row += _told(each, has_several=has_several and number < len(gains))
        rows.append(row)
    return [head, *rows]


def _told(gains: Counted, *, has_several: bool) -> list[str]:
    return [gains.told, *([gains.agreement] if has_several else []), gains.mean]


def _helpless(cells: Cells, rules: Collection[str]) -> list[str]:
    """Name the rules that take everybody in, because they can tolerate nobody."""
    names = cells.helpless
    found = [rule for rule in cells.part.rows if rule in rules and rule in names]
    text = "Among so few clients can tolerate no liar, and is the mean of what it is given"
    return [f"{text}: {', '.join(found)}."] if found else []


def _left_out(pairs: Sequence[Pair], known: Gains) -> list[str]:
    """Name the columns and pairs that cannot be compared yet."""
    columns = {pair.column for pair in known}
    without = list(dict.fromkeys(str(pair.column) for pair in pairs if pair.column not in columns))
    single = [pair for pair in pairs if pair.column in columns and pair not in known]
    notes = [f"Not played: {', '.join(without)}."] if without else []
    if len(single) > MOST_NAMED:
        notes.append(f"Left out, because one rule of the pair has no run: {len(single)} cells.")
    elif single:
        names = ", ".join(f"{pair.better} ({pair.column})" for pair in single)
        notes.append(f"Left out, because one rule of the pair has no run: {names}.")
    return notes
