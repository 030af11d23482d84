"""The tables of docs/concepts/who-pays.md: what honest clients get from each rule."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from marks import put_between
from outvote.report.cells import SHORT, WHO_PAYS, Metric
from outvote.results.collect import collect
from outvote.results.run import Result
from outvote.suites.suite import read_suite
from paired import Cells
from regimes import ALONG, PRINTED, RULES, reading

PAGE = Path(__file__).parents[1] / "docs" / "concepts" / "who-pays.md"
BEGIN, END = "<!-- who pays, made by study/results_pages.py -->", "<!-- end of who pays -->"
NAME = "who-pays-small"
ATTACKS = {"none": "no attack", "lie": "LIE"}
COMPARED: tuple[Metric, ...] = ("last_ten", "worst_decile")
WITH = "mean"
"""The rule that the others are compared with, seed by seed."""
BEGIN_LARGE = "<!-- who pays on larger data, made by study/results_pages.py -->"
END_LARGE = "<!-- end of who pays on larger data -->"
LARGE: Mapping[str, Callable[[Path], Cells]] = {
    "CIFAR-10, all 50, printed training": lambda folder: reading(folder, PRINTED),
    "CIFAR-10, 5 of 50": lambda folder: reading(folder, ALONG),
    "CIFAR-100, 5 of 50": lambda folder: Cells(folder, "table1-cifar100"),
    "CIFAR-100, all 50": lambda folder: Cells(folder, "table1-cifar100", "all-clients"),
    "FEMNIST, 18 of 395": lambda folder: Cells(folder, "table1-femnist"),
    "Tiny-ImageNet, 5 of 50": lambda folder: Cells(folder, "tiny-imagenet12"),
    "Tiny-ImageNet, all 50": lambda folder: Cells(folder, "tiny-imagenet12", "all-clients"),
}
"""Runs of the paper's suites; LIE, Min-Max and Min-Sum have sign = +1."""


def who_pays(folder: Path) -> str:
    """Return both tables."""
    runs = collect([folder / f"{NAME}.csv.gz"])
    rules = read_suite(str(folder / f"{NAME}.toml")).parts[0].rows
    others = [rule for rule in rules if rule != WITH]
    between = f"Minus the {WITH}, seed by seed: the mean difference, the smallest and the largest."
    return "\n\n".join([_means(runs, rules), between, _differences(runs, others)])


def with_who_pays(page: str, folder: Path) -> str:
    """Return the page with the tables put between its marks."""
    page = put_between(page, BEGIN, END, who_pays(folder))
    return put_between(page, BEGIN_LARGE, END_LARGE, on_larger_data(folder))


def on_larger_data(folder: Path) -> str:
    """Return accuracy and worst decile of each rule: means over the attacks of most rules."""
    found = {title: make(folder) for title, make in LARGE.items()}
    attacks = {title: shared_attacks(cells) for title, cells in found.items()}
    rows = [["*attacks*", *(f"*{', '.join(each)}*" for each in attacks.values())]]
    for rule in RULES:
        cells = [_both(found[title], rule, attacks[title]) for title in found]
        rows.append([rule, *cells])
    return _table(["rule", *found], rows)


def shared_attacks(cells: Cells) -> list[str]:
    """Return the attacks with a recorded worst decile that as many rules as any attack have."""
    known = {attack: _rules_with(cells, attack) for attack in cells.columns}
    most = max(known.values(), key=len, default=set())
    return [attack for attack, own in known.items() if own and own >= most]


def _rules_with(cells: Cells, attack: str) -> set[str]:
    return {rule for rule in RULES if cells.values((rule, attack), _percent("worst_decile"))}


def _both(cells: Cells, rule: str, attacks: Sequence[str]) -> str:
    """Return the means over attacks of accuracy and worst decile, each of the last ten rounds."""
    texts = []
    for name in COMPARED:
        # A seed counts where its worst decile is known: older runs have the accuracy alone.
        values = [
            fmean(own[seed] for seed in known)
            for attack in attacks
            if (known := cells.values((rule, attack), _percent("worst_decile")))
            and (own := cells.values((rule, attack), _percent(name)))
        ]
        texts += [f"{fmean(values):.1f}"] if values else []
    return " / ".join(texts) or "–"


def _percent(name: Metric) -> Callable[[Result], float]:
    return lambda run: 100 * float(getattr(run, name))


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
