"""Claims of Figure 1: what six rules make of clients that are alike, and of clients that differ."""

from math import isnan, nan
from pathlib import Path
from statistics import fmean

from claims_cells import BASES, METRICS, Cells, shared
from claims_numbers import NOISE, Claim, seeds_told, verdict
from outvote.results.run import Result

WANT_ALL = ("multi-krum", "rfa", "dnc")
"""Those that try to take in all honest clients."""
WANT_FEW = ("median", "trimmed-mean", "bulyan")
EQUAL = ("multi-krum", "dnc")
"""Those that give all whom they keep the same weight."""
FAIR_SHARE = 20.0
"""Percent: the liars' share of the clients."""
SHARE_NOTE = (
    "The liars are 20 % of the clients; their share of the update is that of the weights, or of "
    "the coordinates that come from them. Runs of earlier versions tell it only of rules that give "
    "all whom they keep the same weight."
)


def motivation_claims(folder: Path) -> list[Claim]:
    """Compare clients that are alike with clients that differ, rule by rule."""
    both = [Cells(folder, "figure1-motivation", part) for part in ("iid", "non-iid")]
    rows, known, lose = [], [], []
    shares: dict[str, list[float]] = {}
    for base in BASES:
        best = shared([each.values((base, "lie"), METRICS["best"]) for each in both])
        if not best[0]:
            continue
        known.append(best[0])
        means = [fmean(each.values()) for each in best]
        lose.append(means[1] < means[0] - NOISE)
        theirs = shared([each.values((base, "lie"), _liars_share) for each in both])
        if theirs[0]:
            shares[base] = [fmean(each.values()) for each in theirs]
        told = [f"{share:.1f} %" for share in shares.get(base, [])] or ["not recorded"] * 2
        rows.append([base, *(f"{mean:.1f}" for mean in means), *told])
    if not rows:
        return []
    head = ["", "best, alike", "best, different", "liars' share, alike", "liars' share, different"]
    text = "Rules lose accuracy when clients differ (Figure 1)"
    first = Claim(text, verdict(lose), seeds_told(known), [head, *rows], [SHARE_NOTE])
    return [first, *_let_in(shares, seeds_told(known))]


def _let_in(shares: dict[str, list[float]], seeds: str) -> list[Claim]:
    """Judge who lets liars in, by their share of the update where it is known."""
    more = {name: shares[name] for name in WANT_ALL if name in shares}
    out = {name: shares[name] for name in WANT_FEW if name in shares}
    claims = [
        (
            "Multi-Krum, RFA and DnC let in more of the liars when clients differ (Figure 1)",
            {name: there > here + NOISE for name, (here, there) in more.items()},
        ),
        (
            "Median, trimmed mean and Bulyan keep the liars out, alike or different (Figure 1)",
            {name: max(found) < FAIR_SHARE / 2 for name, found in out.items()},
        ),
    ]
    return [
        Claim(text, verdict(list(holds.values())), seeds, [], [_counted(holds)])
        for text, holds in claims
        if holds
    ]


def _counted(holds: dict[str, bool]) -> str:
    told = ", ".join(f"{name} {'yes' if is_so else 'no'}" for name, is_so in holds.items())
    return f"{told}; the numbers are above."


def _liars_share(result: Result) -> float:
    """Return in percent what of the update is the liars', where somebody lied."""
    if not isnan(result.byzantine_weight):
        return 100 * result.byzantine_weight
    if result.rule not in EQUAL:
        return nan
    series = result.series
    lied = series.num_byzantine > 0
    return 100 * float((series.num_kept_byzantine[lied] / series.num_kept[lied]).mean())
