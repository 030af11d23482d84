"""Tables of study/results/README.md: what GAS gains on other data than CIFAR-10."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from marks import put_between
from paired import BASES, METRICS, Cells, signed
from regimes import ATTACKS, gain, printed_gain, rounds_by_attack

MADE = "made by study/results_pages.py -->"


class Column(NamedTuple):
    """One attack of one part of a suite."""

    title: str
    cells: Cells
    attack: str

    @property
    def rounds(self) -> int:
        """The rounds of its runs."""
        return rounds_by_attack(self.cells)[self.attack]


PARTS: Mapping[str, Sequence[tuple[str, str]]] = {
    "table1-cifar100": [
        ("main", ""),
        ("other-side", ", sign = −1"),
        ("all-clients", ", all 50"),
    ],
    "table1-femnist": [("main", ""), ("other-side", ", sign = −1")],
    "tiny-imagenet12": [
        ("main", ""),
        ("other-side", ", sign = −1"),
        ("all-clients", ", all 50"),
    ],
}
"""The parts of each suite, and what they add to the name of an attack."""


def with_other_data(page: str, folder: Path) -> str:
    """Return the first page of the results with a table for each of the suites."""
    for suite in PARTS:
        table = gains_by_attack(columns_of(folder, suite))
        page = put_between(page, f"<!-- {suite}, {MADE}", f"<!-- end of {suite} -->", table)
    return page


def columns_of(folder: Path, suite: str) -> list[Column]:
    """Return the attacks with runs, in the order of the parts."""
    found = []
    for part, text in PARTS[suite]:
        cells = Cells(folder, suite, part)
        own = rounds_by_attack(cells)
        found += [Column(f"{each}{text}", cells, each) for each in ATTACKS if each in own]
    return found


def gains_by_attack(columns: Sequence[Column]) -> str:
    """Return the gains: best round / last ten rounds. A column of unusual length has its rounds."""
    usual = Counter(each.rounds for each in columns).most_common(1)[0][0]
    heads = [
        each.title if each.rounds == usual else f"{each.title}, {each.rounds} rounds"
        for each in columns
    ]
    lines = [["GAS(A) − A", *heads], ["---", *("---:" for _ in columns)]]
    for name, bases in {**{base: [base] for base in BASES}, "*mean*": list(BASES)}.items():
        lines.append([name, *(_text(each, bases) for each in columns)])
    paper = [_paper(each) for each in columns]
    lines += [["*paper*", *paper]] if any(each != "–" for each in paper) else []
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _text(column: Column, bases: Sequence[str]) -> str:
    """Return the mean gains; in brackets how many rules were run, if not all."""
    by_metric = []
    for metric in METRICS:
        gains = [gain(column.cells, base, column.attack, metric) for base in bases]
        by_metric.append([fmean(each.values()) for each in gains if each])
    num = len(by_metric[0])
    text = " / ".join(signed(fmean(each)) for each in by_metric if each)
    return f"{text} ({num} rules)" if 0 < num < len(bases) else text or "–"


def _paper(column: Column) -> str:
    """Return the paper's mean gain over the rules that were run."""
    known = [
        found
        for base in BASES
        if gain(column.cells, base, column.attack, "best")
        and (found := printed_gain(column.cells, base, column.attack)) is not None
    ]
    return signed(fmean(known)) if known else "–"
