"""GAS against the rules alone where attacks go along the standard deviation of gradients."""

from pathlib import Path

from claims_cells import METRICS, Cells
from claims_numbers import Claim
from claims_pairs import on_pairs


def side_claims(folder: Path) -> list[Claim]:
    """Compare the pairs under attacks along the deviation, where the authors' code has them."""
    if not (folder / "probes.toml").exists():
        return []
    cells = Cells(folder, "probes", "other-side")
    claim = on_pairs(
        cells,
        "GAS(A) is at least as accurate as A, under LIE, Min-Max and Min-Sum on the side of the "
        "mean that the authors' code takes (probes, CIFAR-10)",
        group=lambda pair: _attack_of(pair.column),
        notes=_nearness(Cells(folder, "table1-cifar10"), cells),
    )
    return [] if claim is None else [claim]


def _attack_of(column: str) -> str:
    return column.partition("(")[0]


def _nearness(ours: Cells, theirs: Cells) -> list[str]:
    """Tell how far both sides are from the paper's numbers, in the cells that both have."""
    best = METRICS["best"]
    printed = {
        (rule, _attack_of(column)): (number.accuracy, ours.values((rule, column), best))
        for (rule, column), number in ours.part.printed().items()
    }
    lines = []
    for name, is_gas in (("Without GAS", False), ("With GAS", True)):
        here, there = [], []
        for column in theirs.part.values:
            for rule in theirs.part.rows:
                known = printed.get((rule, _attack_of(column)))
                values = theirs.values((rule, column), best)
                if known is None or rule.startswith("gas(") != is_gas:
                    continue
                seeds = known[1].keys() & values.keys()
                here += [abs(known[1][seed] - known[0]) for seed in seeds]
                there += [abs(values[seed] - known[0]) for seed in seeds]
        if here:
            lines.append(
                f"{name}, these {len(there)} runs are {sum(there) / len(there):.1f} points from "
                "the paper's numbers on average; those of the same seeds in Table 1, on the other "
                f"side, are {sum(here) / len(here):.1f} points from them."
            )
    return lines
