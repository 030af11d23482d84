"""Claims of Figure 1: what six rules make of clients that are alike, and of clients that differ."""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from claims_cells import BASES, METRICS, Cells, shared
from claims_numbers import NOISE, Claim, seeds_told, verdict
from claims_shares import liars_share

WANT_ALL = ("multi-krum", "rfa", "dnc")
"""Those that try to take in all honest clients."""
WANT_FEW = ("median", "trimmed-mean", "bulyan")
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
        theirs = shared([each.values((base, "lie"), liars_share) for each in both])
        if theirs[0]:
            shares[base] = [fmean(each.values()) for each in theirs]
        told = [f"{share:.1f} %" for share in shares.get(base, [])] or ["not recorded"] * 2
        rows.append([base, *(f"{mean:.1f}" for mean in means), *told])
    if not rows:
        return []
    head = ["", "best, alike", "best, different", "liars' share, alike", "liars' share, different"]
    text = "Rules lose accuracy when clients differ (Figure 1)"
    first = Claim(text, verdict(lose), seeds_told(known), [head, *rows], [SHARE_NOTE])
    return [first, *_let_in([row[0] for row in rows], shares, seeds_told(known))]


def _let_in(played: list[str], shares: dict[str, list[float]], seeds: str) -> list[Claim]:
    """Judge who lets liars in, by their share of the update where it is known."""
    claims: list[tuple[str, tuple[str, ...], Callable[[float, float], bool]]] = [
        (
            "Multi-Krum, RFA and DnC let in more of the liars when clients differ (Figure 1)",
            WANT_ALL,
            lambda alike, different: different > alike + NOISE,
        ),
        (
            "Median, trimmed mean and Bulyan keep the liars out, alike or different (Figure 1)",
            WANT_FEW,
            lambda alike, different: max(alike, different) < FAIR_SHARE / 2,
        ),
    ]
    found = []
    for text, names, is_so in claims:
        own = [name for name in names if name in played]
        holds = {name: is_so(*shares[name]) for name in own if name in shares}
        said = verdict(list(holds.values())) if holds else "Cannot be told yet"
        if own:
            found.append(Claim(text, said, seeds, [], [_counted(own, holds)]))
    return found


def _counted(names: list[str], holds: dict[str, bool]) -> str:
    words = {True: "yes", False: "no", None: "not recorded"}
    told = ", ".join(f"{name} {words[holds.get(name)]}" for name in names)
    return f"{told}; the numbers are above."
