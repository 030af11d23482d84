"""Claims about how much of the update is the liars'."""

from math import isnan, nan
from pathlib import Path
from statistics import fmean

from claims_cells import BASES, Cells, shared
from claims_numbers import NOISE, Claim, seeds_told, verdict
from outvote.results.run import Result

EQUAL = ("multi-krum", "dnc")
"""Those that give all whom they keep the same weight, as all GAS forms do."""
SUITES = {"table1-cifar10": "CIFAR-10", "table1-femnist": "FEMNIST"}


def share_claims(folder: Path) -> list[Claim]:
    """Return the claim that GAS gets rid of liars, for each data set."""
    found = [_fewer_liars(Cells(folder, suite), data) for suite, data in SUITES.items()]
    return [claim for claim in found if claim is not None]


def liars_share(result: Result) -> float:
    """Return in percent what of the update is the liars', where somebody lied; NaN: not known."""
    if not isnan(result.byzantine_weight):
        return 100 * result.byzantine_weight
    series = result.series
    is_mean = bool(series.num_byzantine_assumed.any()) and not series.num_byzantine_used.any()
    if not (result.rule in EQUAL or result.rule.startswith("gas(") or is_mean):
        return nan
    is_known = (series.num_byzantine > 0) & (series.num_kept > 0)
    shares = series.num_kept_byzantine[is_known] / series.num_kept[is_known]
    return 100 * float(shares.mean()) if len(shares) else nan


def _fewer_liars(cells: Cells, data: str) -> Claim | None:
    rows, is_less, known, num_cells = [], [], [], len(BASES) * len(cells.columns)
    for base in BASES:
        row = [base]
        for column in cells.columns:
            places = [(rule, column) for rule in (base, f"gas({base})")]
            alone, inside = shared([cells.values(place, liars_share) for place in places])
            if not alone:
                row.append("not recorded")
                continue
            means = [fmean(each.values()) for each in (alone, inside)]
            is_less.append(means[1] < means[0] - NOISE)
            known.append(alone)
            row.append(f"{means[0]:.1f} → {means[1]:.1f}")
        rows.append(row)
    if not is_less:
        return None
    return Claim(
        f"GAS gets rid of liars: less of the update is theirs than without it (Table 1, {data})",
        verdict(is_less) if 2 * len(is_less) >= num_cells else "Cannot be told yet",
        seeds_told(known),
        [["percent, alone → inside GAS", *map(str, cells.columns)], *rows],
        [
            "Means over the rounds in which somebody lied; less counts from 1 point on.",
            f"Known of {len(is_less)} of {num_cells} cells; judged if half of them are known.",
        ],
    )
