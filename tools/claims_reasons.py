"""Claims about why: rules that collapse, and updates far from the honest mean."""

from pathlib import Path
from statistics import fmean

from claims_cells import BASES, METRICS, Cells, shared
from claims_numbers import Claim, counted, seeds_told, signed, verdict, with_error
from outvote.results.run import Result

COLLAPSE = 0.5
"""A rule collapses if it reaches less than this share of what GAS makes of it."""


def reason_claims(folder: Path) -> list[Claim]:
    """Return the claims about RFA and DnC, and of Figure 2."""
    found = [
        _rescued(folder, "table1-cifar10", "CIFAR-10", "rfa", "RFA"),
        _rescued(folder, "table1-femnist", "FEMNIST", "rfa", "RFA"),
        _rescued(folder, "table1-femnist", "FEMNIST", "dnc", "DnC"),
        _deviation_is_lower(folder),
    ]
    return [claim for claim in found if claim is not None]


def _rescued(folder: Path, suite: str, data: str, base: str, name: str) -> Claim | None:
    """Compare the columns in which the paper's own numbers say so."""
    cells = Cells(folder, suite)
    printed = cells.part.printed()
    rows, collapses, known, missing = [], [], [], []
    for column in cells.part.values:
        theirs = [printed[rule, column].accuracy for rule in (base, f"gas({base})")]
        if theirs[0] >= COLLAPSE * theirs[1]:
            continue
        both = [cells.values((rule, column), METRICS["best"]) for rule in (base, f"gas({base})")]
        alone, inside = shared(both)
        if not alone:
            missing.append(str(column))
            continue
        means = [fmean(each.values()) for each in (alone, inside)]
        collapses.append(means[0] < COLLAPSE * means[1])
        known.append(alone)
        ours = [f"{mean:.1f} ({paper:.1f})" for mean, paper in zip(means, theirs, strict=True)]
        gain = with_error({seed: inside[seed] - alone[seed] for seed in alone})
        rows.append([str(column), *ours, f"{gain} ({signed(theirs[1] - theirs[0])})"])
    if not rows:
        return None
    return Claim(
        f"{name} collapses, and GAS rescues it (Table 1, {data})",
        verdict(collapses) if any(collapses) else f"Cannot be seen: our {name} does not collapse",
        seeds_told(known),
        [["best (paper)", name, f"GAS({name})", "gain"], *rows],
        [
            *(
                []
                if data == "FEMNIST"
                else ["In words the paper says so of FEMNIST only; here its numbers do."]
            ),
            "The columns in which the paper's number is less than half of that with GAS.",
            *([f"Not played: {', '.join(missing)}."] if missing else []),
        ],
    )


def _deviation_is_lower(folder: Path) -> Claim | None:
    cells = Cells(folder, "figure2-deviation")
    rows, is_lower, known, missing = [], [], [], []
    for base in BASES:
        places = [(rule, "lie") for rule in (base, f"gas({base})")]
        alone, inside = shared([cells.values(place, _deviation) for place in places])
        if not alone:
            missing.append(base)
            continue
        means = [fmean(each.values()) for each in (alone, inside)]
        is_lower.append(means[1] < means[0])
        known.append(alone)
        closer = sum(inside[seed] < alone[seed] for seed in alone)
        told = f"{closer} of {counted(len(alone), 'seed')}"
        rows.append([base, *(f"{mean:.2f}" for mean in means), told])
    if not rows:
        return None
    return Claim(
        "GAS brings the update closer to the honest mean (Figure 2)",
        verdict(is_lower),
        seeds_told(known),
        [["distance", "alone", "inside GAS", "closer inside GAS in"], *rows],
        [
            "Means over the rounds in which somebody lied.",
            *([f"Not played: {', '.join(missing)}."] if missing else []),
        ],
    )


def _deviation(result: Result) -> float:
    return result.deviation
