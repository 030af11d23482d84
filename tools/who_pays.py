"""The tables of docs/concepts/who-pays.md: what honest clients get from each rule."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from marks import put_between
from outvote.report.cells import SHORT, WHO_PAYS, Metric
from outvote.results.collect import collect
from outvote.results.run import Result
from outvote.suites.suite import read_suite

PAGE = Path(__file__).parents[1] / "docs" / "concepts" / "who-pays.md"
BEGIN, END = "<!-- who pays, made by tools/results_pages.py -->", "<!-- end of who pays -->"
NAME = "who-pays-small"
ATTACKS = {"none": "no attack", "lie": "LIE"}
COMPARED: tuple[Metric, ...] = ("last_ten", "worst_decile")
WITH = "mean"
"""The rule that the others are compared with, seed by seed."""


def who_pays(folder: Path) -> str:
    """Return both tables."""
    runs = collect([folder / f"{NAME}.csv.gz"])
    rules = read_suite(str(folder / f"{NAME}.toml")).parts[0].rows
    others = [rule for rule in rules if rule != WITH]
    between = f"Minus the {WITH}, seed by seed: the mean difference, the smallest and the largest."
    return "\n\n".join([_means(runs, rules), between, _differences(runs, others)])


def with_who_pays(page: str, folder: Path) -> str:
    """Return the page with the tables put between its marks."""
    return put_between(page, BEGIN, END, who_pays(folder))


def _means(runs: Sequence[Result], rules: Sequence[str]) -> str:
    """Return the means over seeds in percent, without an attack / under LIE."""
    rows = []
    for rule in rules:
        cells = [
            " / ".join(
                f"{fmean(_seeds(runs, rule, attack, name).values()):.1f}" for attack in ATTACKS
            )
            for name in WHO_PAYS
        ]
        rows.append([rule, *cells])
    return _table(["rule", *(SHORT[name] for name in WHO_PAYS)], rows)


def _differences(runs: Sequence[Result], rules: Sequence[str]) -> str:
    """Return how much more than the mean a rule has, in points."""
    columns = [(attack, name) for attack in ATTACKS for name in COMPARED]
    rows = [[rule, *(_difference(runs, rule, *each) for each in columns)] for rule in rules]
    titles = [f"{SHORT[name]}: {ATTACKS[attack]}" for attack, name in columns]
    return _table(["rule", *titles], rows)


def _difference(runs: Sequence[Result], rule: str, attack: str, name: Metric) -> str:
    ours, theirs = (_seeds(runs, each, attack, name) for each in (rule, WITH))
    found = [ours[seed] - theirs[seed] for seed in sorted(ours)]
    text = f"{fmean(found):+.1f} [{min(found):+.1f}, {max(found):+.1f}]"
    return text.replace("-", "−")


def _seeds(runs: Sequence[Result], rule: str, attack: str, name: Metric) -> dict[int, float]:
    return {
        run.seed: 100 * float(getattr(run, name))
        for run in runs
        if (run.rule, run.attack) == (rule, attack)
    }


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(titles)} |", f"|---|{'---:|' * (len(titles) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
