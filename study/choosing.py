"""The table of docs/how-to/choose.md: what is left of a model in the worst of the attacks."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from marks import put_between
from paired import METRICS, Cells
from regimes import AGAINST, ALONG, LATER, PRINTED, RULES, reading

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "choose.md"
BEGIN, END = "<!-- worst cases, made by study/results_pages.py -->", "<!-- end of worst cases -->"


def _sides(suite: str) -> Callable[[Path], list[Cells]]:
    return lambda folder: [Cells(folder, suite, part) for part in ("main", "other-side")]


def _all_clients(suite: str) -> Callable[[Path], list[Cells]]:
    return lambda folder: [Cells(folder, suite, "all-clients")]


DATA: dict[str, Callable[[Path], list[Cells]]] = {
    "CIFAR-10, all 50, later training": lambda folder: [reading(folder, LATER)],
    "CIFAR-10, all 50, printed training": lambda folder: [reading(folder, PRINTED)],
    "CIFAR-10, 5 of 50": lambda folder: [reading(folder, name) for name in (ALONG, AGAINST)],
    "CIFAR-100, 5 of 50": _sides("table1-cifar100"),
    "CIFAR-100, all 50": _all_clients("table1-cifar100"),
    "FEMNIST, 18 of 395": _sides("table1-femnist"),
    "Tiny-ImageNet, 5 of 50": _sides("tiny-imagenet12"),
    "Tiny-ImageNet, all 50": _all_clients("tiny-imagenet12"),
}
"""The runs of each column; an attack with another sign counts as an attack of its own."""


def worst_cases(folder: Path) -> str:
    """Return the table: per rule and data, the smallest mean of the last ten rounds, in percent.

    In brackets: how many attacks a rule was run under, if fewer than others.
    """
    found = {title: _last_ten(make(folder)) for title, make in DATA.items()}
    most = {title: max(map(len, means.values())) for title, means in found.items()}
    lines = [f"| rule | {' | '.join(DATA)} |", f"|---|{'---:|' * len(DATA)}"]
    attacks = [_attacks(means) for means in found.values()]
    lines.append(f"| *{'* | *'.join(['attacks', *attacks])}* |")
    for rule in RULES:
        numbers = []
        for title, means in found.items():
            own = means[rule]
            note = f" ({len(own)})" if 0 < len(own) < most[title] else ""
            numbers.append(f"{min(own.values()):.1f}{note}" if own else "–")
        lines.append(f"| {rule} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def with_worst_cases(page: str, folder: Path) -> str:
    """Return the page with the table put between its marks."""
    return put_between(page, BEGIN, END, worst_cases(folder))


def _last_ten(sources: Sequence[Cells]) -> dict[str, dict[str, float]]:
    """Return the means of the last ten rounds by rule, and by attack with its sign."""
    found: dict[str, dict[str, float]] = {}
    for rule in RULES:
        own = found.setdefault(rule, {})
        for number, cells in enumerate(sources):
            for attack in cells.columns:
                values = cells.values((rule, attack), METRICS["last ten"])
                if values and attack != "none":
                    side = number if attack in ("lie", "min-max", "min-sum") else ""
                    own[f"{attack}{side}"] = fmean(values.values())
    return found


def _attacks(means: dict[str, dict[str, float]]) -> str:
    names = sorted({name for own in means.values() for name in own})
    short = [name.rstrip("01") for name in names]
    return ", ".join(short) if len(names) < 3 else f"the worst of {len(names)}"
