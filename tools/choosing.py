"""The table of docs/how-to/choose.md: what is left of a model in the worst of the attacks."""

from collections import defaultdict
from pathlib import Path
from statistics import fmean

from marks import put_between
from outvote.results.collect import collect
from paired import BASES

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "choose.md"
BEGIN, END = "<!-- worst cases, made by tools/results_pages.py -->", "<!-- end of worst cases -->"
DATA = {
    "table1-cifar10": "CIFAR-10, 5 of 50",
    "table1-cifar100": "CIFAR-100, 5 of 50",
    "table1-femnist": "FEMNIST, 18 of 395",
    "tiny-imagenet12": "Tiny-ImageNet, 5 of 50",
}


def worst_cases(folder: Path) -> str:
    """Return the table: per rule and data, the smallest mean of the last ten rounds, in percent."""
    found = {suite: _worst(folder / f"{suite}.csv.gz") for suite in DATA}
    attacks = ["", *(_attacks(folder / f"{suite}.csv.gz") for suite in DATA)]
    lines = [f"| rule | {' | '.join(DATA.values())} |", f"|---|{'---:|' * len(DATA)}"]
    lines.append(f"| *{'* | *'.join(['attacks', *attacks[1:]])}* |")
    for rule in (name for base in BASES for name in (base, f"gas({base})")):
        numbers = [f"{found[suite][rule]:.1f}" for suite in DATA]
        lines.append(f"| {rule} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def with_worst_cases(page: str, folder: Path) -> str:
    """Return the page with the table put between its marks."""
    return put_between(page, BEGIN, END, worst_cases(folder))


def _runs(export: Path) -> dict[tuple[str, str], list[float]]:
    """Return the accuracies of the last ten rounds by rule and attack; p is 1,000."""
    cells = defaultdict(list)
    for run in collect([export]):
        is_main = "num_groups=100)" not in run.config["rule"]
        if run.is_over and is_main and run.attack != "none":
            cells[run.rule, run.attack].append(100 * run.last_ten)
    return cells


def _worst(export: Path) -> dict[str, float]:
    worst: dict[str, float] = {}
    for (rule, _), values in _runs(export).items():
        worst[rule] = min(worst.get(rule, 100.0), fmean(values))
    return worst


def _attacks(export: Path) -> str:
    names = list(dict.fromkeys(attack for _, attack in _runs(export)))
    return ", ".join(sorted(names)) if len(names) < 3 else f"the worst of {len(names)}"
