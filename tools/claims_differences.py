"""Where Table 1 comes out otherwise than printed: the cells that differ by more than 5 points."""

from pathlib import Path
from typing import NamedTuple

from claims_numbers import signed
from outvote.report.layout import grids_of
from outvote.results.collect import collect

SUITES = {
    "table1-cifar10": "CIFAR-10",
    "table1-cifar100": "CIFAR-100",
    "table1-femnist": "FEMNIST",
    "table1-imagenet12": "ImageNet-12",
}
FAR = 5.0


class Compared(NamedTuple):
    """One cell of ours beside the paper's."""

    data: str
    rule: str
    attack: str
    ours: float
    paper: float
    difference: float
    """Ours minus the paper's, as the page of the table has it."""


def differences(folder: Path) -> list[str]:
    """Return the lines of the section; none if there is nothing to compare."""
    found = [each for suite, data in SUITES.items() for each in _compared(folder, suite, data)]
    far = [each for each in found if abs(each.difference) > FAR]
    if not found:
        return []
    lines = [
        f"## Table 1: where ours and the paper's numbers differ by more than {FAR:g} points",
        "",
    ]
    for data in dict.fromkeys(each.data for each in found):
        lines.append(f"- {data}: {_told([each for each in found if each.data == data])}")
    if far:
        lines += [
            "",
            "| data | rule | attack | ours | paper | difference |",
            "|---|---|---|---:|---:|---:|",
        ]
    lines += [
        f"| {each.data} | {each.rule} | {each.attack} | {each.ours:.1f} | {each.paper:.1f} | "
        f"{signed(each.difference)} |"
        for each in sorted(
            far, key=lambda each: (list(SUITES.values()).index(each.data), -abs(each.difference))
        )
    ]
    return [*lines, ""]


def _compared(folder: Path, suite: str, data: str) -> list[Compared]:
    path = folder / f"{suite}.csv.gz"
    if not path.exists():
        return []
    found = []
    for grid in grids_of(collect([path]), part="main"):
        for rule, cells in zip(grid.rows, grid.cells, strict=True):
            for attack, cell in zip(grid.titles, cells, strict=True):
                spread, difference = cell.spread("best"), cell.difference("best")
                if spread is None or cell.printed is None or difference is None:
                    continue
                paper = cell.printed.accuracy
                found.append(Compared(data, rule, attack, spread.mean, paper, difference))
    return found


def _told(cells: list[Compared]) -> str:
    words = []
    for name, is_gas in (("without GAS", False), ("with GAS", True)):
        own = [each for each in cells if each.rule.startswith("gas(") == is_gas]
        up = sum(each.difference > FAR for each in own)
        down = sum(each.difference < -FAR for each in own)
        words.append(f"{name} ours are higher in {up} and lower in {down} of {len(own)} cells")
    return "; ".join(words)
