"""EVERY_RULE: each rule, each wrapper around each rule, some nestings, and their exemptions.

A row maps a rule's text to {check: reason}. Wrappers are a product, not a list: what a wrapper
passes on of the exemptions inside and what it adds is stated once per wrapper; the few combinations
that differ stand in DIFFERENT.
"""

from collections.abc import Callable, Iterable

import pytest

import outvote as ov
from outvote.rules.rule_spec import RULES

Exempt = dict[str, str]

ORIGIN = {
    "translation-equivariant": "it measures lengths from the origin",
    "scale-equivariant": "it clips to a fixed length",
}
SHORTENED = {
    **ORIGIN,
    "one-client": "a long gradient is shortened even if it is the only one",
    "unanimous": "long gradients are shortened even if all agree",
    "inside-the-box": "a shortened gradient is nearer to the origin than those sent",
}
NO_MEAN = {"mean-without-byzantine": "SPEC 0.6: it does not become the mean for f = 0"}
SHORTENED_MEAN = {"mean-without-byzantine": "it averages shortened gradients"}
TIES = {"permutation-invariant": "the last choice is between mutual neighbours; the lower row wins"}
LOWER = {"sign-equivariant": "the lower of two middle values becomes the upper one"}
FEW_NEIGHBOURS = {"breakdown": "three Byzantine clients who agree are each other's two neighbours"}
MIXED_TIES = {"permutation-invariant": "mixed rows are often equal; of equal sets the first wins"}

SCALES = {"geometric-scales": "the longest gradient hides the next; norm-filter is the remedy"}

PLAIN: dict[str, Exempt] = {
    "mean": {},
    "median": {},
    "trimmed-mean": {},
    "meamed": {},
    "krum": NO_MEAN,
    "multi-krum": {},
    "bulyan": TIES,
    "rfa": {**SCALES, "breakdown": "three steps from the mean do not leave a client at 1e30"},
    "geometric-median": {},
    "dnc": {**SCALES, "breakdown": "outliers in different directions hide one another (SPEC 2.6)"},
    "mda": {"permutation-invariant": "of equally tight sets the first is taken"},
    "centered-clipping": SHORTENED,
    "norm-clipping": SHORTENED,
}
ALONE: dict[str, Exempt] = {
    "fltrust": {
        **ORIGIN,
        "scale-equivariant": "the update is as long as the reference",
        "sign-equivariant": "the reference does not turn around with the clients",
        "one-client": "a client is rescaled to the reference, or not trusted",
        "unanimous": "clients are rescaled to the reference, or not trusted",
        "inside-the-box": "clients are rescaled to the reference",
    },
    "foolsgold": {
        "breakdown": "it drops clients that are alike, not clients that are far away",
        "geometric-scales": "it drops clients that are alike, not clients that are far away",
        "unanimous": "clients that all send the same are all suspected",
        "translation-equivariant": "it compares directions from the origin",
        "inside-the-box": "the weights do not sum to 1, as in the authors' code",
    },
    "signguard": {
        "translation-equivariant": "it compares norms and signs",
        "sign-equivariant": "of two clusters of one size the first in their order is taken",
    },
}
OTHER_PARAMETERS: dict[str, Exempt] = {
    "median(even=lower)": LOWER,
    "krum(num_neighbours=2, power=1)": {**NO_MEAN, **FEW_NEIGHBOURS},
    "multi-krum(num_selected=2, num_neighbours=2, power=4)": {**NO_MEAN, **FEW_NEIGHBOURS},
    "bulyan(selection=one-shot)": {},
    "bulyan(even=lower)": {**TIES, **LOWER},
    "rfa(num_iterations=8, smoothing=0.1, start=zero)": {
        "translation-equivariant": "it starts at the origin",
        "scale-equivariant": "the smoothing is an absolute length",
    },
    "dnc(num_iterations=2, num_coordinates=3, removal_factor=1.5)": PLAIN["dnc"],
    "geometric-median(tolerance=1e-6, max_iterations=40)": {
        "geometric-scales": "40 steps from the mean do not leave a client at 1e38"
    },
    "mda(max_steps=100000)": PLAIN["mda"],
    "centered-clipping(radius=0.3, num_iterations=2)": SHORTENED,
    "norm-clipping(max_norm=0.3)": SHORTENED,
    "clip(median, max_norm=0.3)": SHORTENED,
    "signguard(lower=0.6, upper=1.2, window=0.5)": ALONE["signguard"],
    "foolsgold(normalise=true)": {
        **ALONE["foolsgold"],
        "inside-the-box": "nobody is trusted, and the update is 0, if all are alike",
    },
}


def of_gas(inside: Exempt) -> Exempt:
    """GAS averages rows as they were sent; only its scores depend on the rule inside."""
    passed_on = ("permutation-invariant", *SCALES, *ORIGIN)
    return {check: inside[check] for check in passed_on if check in inside}


def of_bucketing(inside: Exempt) -> Exempt:
    return {
        **inside,
        "permutation-invariant": "the buckets are drawn by position",
        "mean-without-byzantine": "the last bucket is smaller and counts as much",
    }


def of_nnm(inside: Exempt) -> Exempt:
    """For f = 0 every mixed row is the mean, whatever rule comes next, unless it shortens."""
    others = {check: reason for check, reason in inside.items() if check not in NO_MEAN}
    return {**others, **(SHORTENED_MEAN if "one-client" in inside else {})}


def of_clip(inside: Exempt) -> Exempt:
    """Nobody is far away after clipping to a fixed length."""
    ties = {check: reason for check, reason in inside.items() if check in TIES}
    return {**ties, **SHORTENED, **SHORTENED_MEAN}


def of_adaptive_clip(inside: Exempt) -> Exempt:
    """ARC clips to a length among those sent: nothing is absolute, nobody stays far away."""
    gone = ("breakdown", *SCALES)
    others = {check: reason for check, reason in inside.items() if check not in gone}
    return {**others, "translation-equivariant": ORIGIN["translation-equivariant"]}


WRAPPERS: dict[str, Callable[[Exempt], Exempt]] = {
    "gas({}, num_groups=4)": of_gas,
    "bucketing({})": of_bucketing,
    "nnm({})": of_nnm,
    "clip({})": of_clip,
    "clip({}, max_norm=adaptive)": of_adaptive_clip,
    "clip({}, max_norm=honest)": of_adaptive_clip,
    "norm-filter({}, factor=1)": of_adaptive_clip,
}
NESTED: dict[str, Exempt] = {
    "gas(bucketing(rfa, size=2), num_groups=3)": of_gas(of_bucketing(SCALES)),
    "bucketing(gas(median, num_groups=3), size=2)": of_bucketing({}),
    "gas(nnm(bulyan), num_groups=3)": of_gas(MIXED_TIES),
    "gas(gas(median, num_groups=2), num_groups=3)": {},
    "gas(clip(multi-krum, max_norm=adaptive), num_groups=3)": of_gas(of_adaptive_clip({})),
    "gas(multi-krum, num_groups=3, split=contiguous)": {},
    "gas(multi-krum, num_groups=3, split=ceil)": {},
    "bucketing(trimmed-mean, size=3, f_rule=ceil)": of_bucketing({}),
    "bucketing(nnm(median))": of_bucketing({}),
    "nnm(bucketing(median))": of_nnm(of_bucketing({})),
    "nnm(clip(krum))": of_nnm(of_clip({})),
    "clip(nnm(trimmed-mean))": of_clip({}),
    "norm-filter(gas(rfa, num_groups=3))": of_adaptive_clip({}),
    "norm-filter(gas(dnc, num_groups=3), factor=1)": of_adaptive_clip({}),
    "gas(clip(rfa, max_norm=honest), num_groups=3)": of_gas(of_adaptive_clip({})),
}
DIFFERENT: dict[str, Exempt] = {
    "gas(geometric-median, num_groups=4)": {
        "permutation-invariant": "not unique for an even number of clients on one coordinate",
        "translation-equivariant": "not unique for an even number of clients on one coordinate",
    },
    "nnm(meamed)": MIXED_TIES,
    # Without the longest gradients no such choice is left in the trials.
    "norm-filter(bulyan, factor=1)": of_adaptive_clip({}),
    "norm-filter(mda, factor=1)": of_adaptive_clip({}),
    # Mixed rows are nearly the same: no matter which of the last ones is chosen.
    "nnm(bulyan)": {},
    "nnm(mda)": MIXED_TIES,
    **{
        wrapper.format(inside): exempt
        for wrapper in (
            "clip({}, max_norm=adaptive)",
            "clip({}, max_norm=honest)",
            "norm-filter({}, factor=1)",
        )
        for inside, exempt in {
            # For f = 0 no client is too long, and the mean tolerates no Byzantine client.
            "mean": {},
            "median": of_adaptive_clip(NO_MEAN),
            "rfa": of_adaptive_clip(NO_MEAN),
            "geometric-median": of_adaptive_clip(NO_MEAN),
            "centered-clipping": {**SHORTENED, **SHORTENED_MEAN},
            "norm-clipping": {**SHORTENED, **SHORTENED_MEAN},
        }.items()
    },
}
WRAPPED: dict[str, Exempt] = {
    wrapper.format(inside): exempt(PLAIN[inside])
    for wrapper, exempt in WRAPPERS.items()
    for inside in PLAIN
}
ROWS: dict[str, Exempt] = {
    **PLAIN,
    **ALONE,
    **OTHER_PARAMETERS,
    **WRAPPED,
    **NESTED,
    **DIFFERENT,
}


def needed(text: str, exempt: Exempt) -> Exempt:
    """The mean is asked only of rules that use f."""
    out = () if ov.make_rule(text).traits.uses_num_byzantine else NO_MEAN
    return {check: reason for check, reason in exempt.items() if check not in out}


EVERY_RULE: dict[str, Exempt] = {text: needed(text, exempt) for text, exempt in ROWS.items()}
# In the fast tests every rule is inside one wrapper (multi-krum inside GAS), every wrapper around
# one or two rules, and there are some of the nestings and of the other parameters.
SLOW_RULES = {
    wrapper.format(inside)
    for i, wrapper in enumerate(WRAPPERS)
    for j, inside in enumerate(PLAIN)
    if (j - i) % len(WRAPPERS) != 5
} | {*(text for k, text in enumerate(NESTED) if k % 4), *[*OTHER_PARAMETERS][1::2]}
FAST_RULES = [text for text in EVERY_RULE if text not in SLOW_RULES]


def cases(texts: Iterable[str]) -> list:
    """Rules as parameters of a test; those of SLOW_RULES are slow."""
    return [pytest.param(text, marks=[pytest.mark.slow] * (text in SLOW_RULES)) for text in texts]


WRAPPER_NAMES = sorted({template.split("(")[0] for template in WRAPPERS})
WRAPPABLE_NAMES = [
    name
    for name, kind in RULES.items()
    if name not in WRAPPER_NAMES and kind().traits.can_be_wrapped
]
