"""Other readings than ours: attacks along the standard deviation, and Krum for Multi-Krum."""

from pathlib import Path
from statistics import fmean
from typing import Any

from claims_cells import METRICS, Cells, shared
from claims_numbers import Claim, seeds_told, signed
from claims_pairs import on_pairs

KRUM = ("krum", "gas(krum)")
WHOSE_SIDE = (
    "Along the deviation of the gradients, which is against that of updates, their negative. The "
    "first author's later code works on updates: it subtracts in LIE, which for the other two is "
    "inferred. The code released with the paper has LIE alone of the three: on the same side, but "
    "with the variance for the deviation."
)
NOT_THEIR_CODE = (
    "A guess from numbers alone: Multi-Krum in the code released with the paper averages n − f "
    "clients, as ours does."
)


def side_claims(folder: Path) -> list[Claim]:
    """Return what the probes tell of the paper's claims, and of its Multi-Krum."""
    if not (folder / "probes.toml").exists():
        return []
    sides = Cells(folder, "probes", "other-side")
    table1 = Cells(folder, "table1-cifar10")
    readings = Cells(folder, "probes", "rules", KRUM)
    found = [_pairs(table1, sides), _krum(table1, readings, sides)]
    return [claim for claim in found if claim is not None]


def _pairs(table1: Cells, sides: Cells) -> Claim | None:
    """Compare the pairs under attacks on the other side of the honest mean than in Table 1."""
    return on_pairs(
        sides,
        "GAS(A) is at least as accurate as A, under LIE, Min-Max and Min-Sum along the standard "
        "deviation (probes, CIFAR-10)",
        group=lambda pair: _attack_of(pair.column),
        notes=[WHOSE_SIDE, *_nearness(table1, sides)],
    )


def _krum(table1: Cells, readings: Cells, sides: Cells) -> Claim | None:
    """Compare Krum, which takes one client, with what the paper prints for Multi-Krum."""
    best = METRICS["best"]
    printed = {
        (rule, _attack_of(column)): number.accuracy
        for (rule, column), number in table1.part.printed().items()
    }
    rows, known, far, own = [], [], [], []
    for cells, beside, column in _columns(table1, readings, sides):
        attack = _attack_of(column)
        one, inside = shared([cells.values((rule, column), best) for rule in KRUM])
        many = beside.values(("multi-krum", _like(beside, column)), best)
        if not one or not one.keys() <= many.keys():
            continue
        paper = [printed[rule, attack] for rule in ("multi-krum", "gas(multi-krum)")]
        ours = [fmean(each.values()) for each in (one, inside)]
        far.append(abs(ours[0] - paper[0]))
        own.append(abs(fmean(many[seed] for seed in one) - paper[0]))
        known.append(one)
        both = [f"{mean:.1f} ({number:.1f})" for mean, number in zip(ours, paper, strict=True)]
        gains = f"{signed(ours[1] - ours[0])} ({signed(paper[1] - paper[0])})"
        rows.append([attack, *both, gains])
    if not rows:
        return None
    told = (
        f"Krum is {fmean(far):.1f} points from the paper's Multi-Krum on average, our Multi-Krum "
        f"{fmean(own):.1f}. It fits if that is less than half."
    )
    return Claim(
        "A reading of ours: the paper's Multi-Krum takes one client, as Krum does (CIFAR-10)",
        "Fits" if fmean(far) < fmean(own) / 2 else "Does not fit",
        seeds_told(known),
        [["best (paper's Multi-Krum)", "Krum", "GAS(Krum)", "gain"], *rows],
        [
            told,
            NOT_THEIR_CODE,
            "LIE, Min-Max and Min-Sum along the deviation, as in the claim above.",
            *_left_out(table1, readings, [row[0] for row in rows]),
        ],
    )


def _columns(table1: Cells, readings: Cells, sides: Cells) -> list[tuple[Cells, Cells, Any]]:
    """Return the columns with Krum: where they are, and where Multi-Krum is beside it."""
    along = [_attack_of(column) for column in sides.part.values]
    others = [column for column in readings.part.values if _attack_of(column) not in along]
    return [
        *((readings, table1, column) for column in others),
        *((sides, sides, column) for column in sides.part.values),
    ]


def _left_out(table1: Cells, readings: Cells, attacks: list[str]) -> list[str]:
    """Tell what Krum reaches under LIE on the side that was not taken, and what was not played."""
    against = readings.values((KRUM[0], "lie"), METRICS["best"])
    missing = [each for each in map(_attack_of, table1.part.values) if each not in attacks]
    notes = []
    if against:
        mean = fmean(against.values())
        notes.append(f"Under LIE against the deviation, Krum reaches {mean:.1f}.")
    return [*notes, *([f"Not played: {', '.join(missing)}."] if missing else [])]


def _like(cells: Cells, column: str) -> Any:
    """Return the column of the same attack."""
    return next(each for each in cells.part.values if _attack_of(each) == _attack_of(column))


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
