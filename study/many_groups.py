"""GAS by number of groups, all 50 clients, later training: tables of the export many-groups.

Runs with p = 1,000 are those of table1-cifar10-all-clients.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean

from marks import put_between
from outvote.results.collect import collect
from outvote.results.run import Result
from paired import METRICS, BySeed, Metric, Side, interval, shared, signed
from regimes import ALL_CLIENTS, ATTACKS, LATER, SIDED, reading

NAME = "many-groups"
RULES: Mapping[str, str] = {
    "multi-krum": "Multi-Krum",
    "bulyan": "Bulyan",
    "median": "Median",
    "rfa": "RFA",
    "trimmed-mean": "trimmed mean",
}
"""The rules inside GAS, and what a table calls them."""
FEW, SOME, MANY = 1_000, 100_000, 1_000_000
"""The numbers of groups."""
KEPT: dict[str, Metric] = {"kept": lambda run: 10 * run.kept_byzantine}
"""Byzantine clients that were kept, of the ten of a round."""
BEGIN = "<!-- many-groups, made by study/results_pages.py -->"
END = "<!-- end of many-groups -->"

Cell = tuple[str, str]
"""A rule with its parameters, and an attack."""


class ByGroups:
    """The runs of GAS with p = 1,000, 100,000 and 1,000,000, by rule, attack and seed."""

    def __init__(self, folder: Path) -> None:
        """Read the export, and that of Table 1 with all clients."""
        found = [each for each in collect([folder / f"{NAME}.csv.gz"]) if each.is_over]
        self.few = reading(folder, LATER)
        self._runs: dict[Cell, dict[int, Result]] = {}
        for each in found:
            cell = str(each.config["rule"]), each.attack
            self._runs.setdefault(cell, {})[each.seed] = each

    def values(self, base: str, groups: int, attack: str, metric: Metric) -> BySeed:
        """Return a metric of GAS around a rule by seed."""
        if groups == FEW:
            return self.few.values((f"gas({base})", attack), metric)
        runs = self._runs.get((f"gas({base}, num_groups={groups})", attack), {})
        return {seed: metric(runs[seed]) for seed in sorted(runs)}

    def side(self, base: str, groups: int, attack: str) -> Side:
        """Return one side of a comparison; the paper has no such number."""
        found = {
            name: self.values(base, groups, attack, metric) for name, metric in METRICS.items()
        }
        return Side(found, None)

    def seeds(self, attack: str) -> list[int]:
        """Return the seeds that p = 1,000 and 1,000,000 have for all rules."""
        own = product(RULES, (FEW, MANY))
        return list(shared([self.values(*each, attack, METRICS["best"]) for each in own])[0])


def is_run(folder: Path) -> bool:
    """Whether both exports are there."""
    exports = (folder / f"{name}.csv.gz" for name in (NAME, ALL_CLIENTS))
    return (folder / f"{ALL_CLIENTS}.toml").exists() and all(each.exists() for each in exports)


def table_by_groups(folder: Path) -> str:
    """Return accuracies and Byzantine clients kept, for each rule and number of groups.

    A column has the seeds that p = 1,000 and 1,000,000 share; a cell with fewer is in italics.
    """
    found = ByGroups(folder)
    seeds = {attack: found.seeds(attack) for attack in ATTACKS}
    heads = [f"{attack} ({_count(len(own))})" for attack, own in seeds.items()]
    lines = [["GAS with", "p", *heads, "worst"], ["---", "---:", *("---:" for _ in (*heads, ""))]]
    for base, name in RULES.items():
        for p in (FEW, SOME, MANY):
            cells = {
                attack: {
                    metric: {seed: own[seed] for seed in seeds[attack] if seed in own}
                    for metric, measure in (METRICS | KEPT).items()
                    if (own := found.values(base, p, attack, measure))
                }
                for attack in ATTACKS
            }
            texts = [_cell(cells[attack], len(seeds[attack])) for attack in ATTACKS]
            worst = [min(fmean(own[name].values()) for own in cells.values()) for name in METRICS]
            lines.append([name, f"{p:,}", *texts, " / ".join(map(_points, worst))])
    return _table(lines)


def _cell(values: Mapping[str, BySeed], num_seeds: int) -> str:
    best, last, kept = (_points(fmean(own.values())) for own in values.values())
    text = f"{best} / {last} ({kept})"
    return text if len(values["best"]) == num_seeds else f"*{text}*"


def with_many_groups(page: str, folder: Path) -> str:
    """Return the first page of the results with the table between its marks."""
    return put_between(page, BEGIN, END, table_by_groups(folder))


SECTIONS = """
---

The sections below are made by `study/results_pages.py` from the exports of this page and of
[table1-cifar10-all-clients](table1-cifar10-all-clients.md), which has the same rules with
p = 1,000. Differences are of runs of the same seed, in points, best round / last ten rounds; in
brackets is the 95 % Student interval over three seeds, and a number without one is of seed 0 alone.
With p = 1,000, seeds 0 and 1, and seed 2 under LIE, Min-Max and IPM, are of protocol 1, which draws
other random groups.

### Against a thousand groups, by attack

{by_attack}

### Against other rules, under LIE, Min-Max and Min-Sum

GAS(A) with p = 1,000,000 minus the rule of the column, mean of the three attacks. GAS(DnC) and
GAS(Krum) have p = 1,000; with more groups they were not run.

{others}
"""


def sections(folder: Path) -> str:
    """Return what the page of the suite has after the table: paired differences."""
    return SECTIONS.format(by_attack=differences_by_attack(folder), others=against_others(folder))


def differences_by_attack(folder: Path) -> str:
    """Return GAS with more groups minus GAS with p = 1,000, by rule, p and attack."""
    found = ByGroups(folder)
    lines = [["GAS with", "p", *ATTACKS], ["---", "---:", *("---:" for _ in ATTACKS)]]
    for base, name in RULES.items():
        for p in (SOME, MANY):
            gains = [found.side(base, p, each) - found.side(base, FEW, each) for each in ATTACKS]
            lines.append([name, f"{p:,}", *(_both([each]) for each in gains)])
    return _table(lines)


def against_others(folder: Path) -> str:
    """Return GAS with p = 1,000,000 minus other rules, mean of three attacks."""
    found = ByGroups(folder)
    others = {
        "GAS(A), p = 1,000": "gas({})",
        "A alone": "{}",
        "GAS(DnC), p = 1,000": "gas(dnc)",
        "GAS(Krum), p = 1,000": "gas(krum)",
    }
    lines = [["rule A", *others], ["---", *("---:" for _ in others)]]
    for base, name in RULES.items():
        texts = []
        for other in others.values():
            sides = (found.few.side((other.format(base), attack), METRICS) for attack in SIDED)
            own = (found.side(base, MANY, attack) for attack in SIDED)
            texts.append(_both([one - two for one, two in zip(own, sides, strict=True)]))
        lines.append([name, *texts])
    return _table(lines)


def _both(gains: Sequence[Side]) -> str:
    return " / ".join(str(interval(each.values[name] for each in gains)) for name in METRICS)


def _points(value: float) -> str:
    return signed(value).removeprefix("+")


def _count(num: int) -> str:
    return f"{num} seed{'s' * (num > 1)}"


def _table(lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
