"""Claims about settings: the number of groups, liars unknown in number, clients that differ."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from claims_cells import BASES, METRICS, BySeed, Cells, Metric, shared
from claims_numbers import NOISE, Claim, seeds_told, signed, verdict, with_error

BETAS = (0.3, 0.5, 0.7)


def setting_claims(folder: Path) -> list[Claim]:
    """Return the claims of Tables 3, 4 and 5."""
    found = (_groups_rise_then_fall(folder), *_unknown_f(folder), _beta(folder))
    return [claim for claim in found if claim is not None]


def _groups_rise_then_fall(folder: Path) -> Claim | None:
    cells = Cells(folder, "table3-num-groups")
    rows, shapes, known = [], [], []
    for rule in cells.part.rows:
        values = [cells.values((rule, p), METRICS["best"]) for p in cells.columns]
        paired = shared([each for each in values if each])
        if not paired or not paired[0]:
            continue
        means = [fmean(each.values()) for each in paired]
        shapes.append(_rises_then_falls(means))
        known.append(paired[0])
        texts = iter(f"{mean:.1f}" for mean in means)
        rows.append(
            [
                rule,
                *(
                    _beside(next(texts), cells, rule, p) if each else "not run"
                    for p, each in zip(cells.columns, values, strict=True)
                ),
            ]
        )
    if not rows:
        return None
    return Claim(
        "With the number of groups p, accuracy first rises, then falls (Table 3)",
        verdict(shapes),
        seeds_told(known),
        [["best (paper)", *(f"p = {p:,}" for p in cells.columns)], *rows],
    )


def _rises_then_falls(means: Sequence[float]) -> bool:
    peak = int(np.argmax(means))
    ends = means[0], means[-1]
    return 0 < peak < len(means) - 1 and all(means[peak] - end > NOISE for end in ends)


def _beside(text: str, cells: Cells, rule: str, column: Any) -> str:
    printed = cells.part.printed().get((rule, column))
    return text if printed is None else f"{text} ({printed.accuracy:.1f})"


def _unknown_f(folder: Path) -> list[Claim]:
    cells = Cells(folder, "table4-unknown-f")
    printed = cells.part.printed()
    fractions = [told for told in cells.columns if told != "oracle"]
    rows, is_mild, is_best, known = [], [], [], []
    for rule in cells.part.rows:
        row = [rule]
        for told in fractions:
            gains = cells.gains((rule, told), (rule, "oracle"), METRICS["best"])
            if not gains:
                row.append("not run")
                continue
            known.append(gains)
            is_mild.append(fmean(gains.values()) > -5)
            is_best.append(fmean(gains.values()) <= NOISE)
            paper = printed[rule, told].accuracy - printed[rule, "oracle"].accuracy
            row.append(f"{with_error(gains)} ({signed(paper)})")
        rows.append(row)
    if not known:
        return []
    head = ["gain over the known number (paper)", *(f"δ = {each}" for each in fractions)]
    seeds, mild = seeds_told(known), "Not knowing the number of liars costs little (Table 4)"
    return [
        Claim(mild, verdict(is_mild), seeds, [head, *rows]),
        Claim(
            "GAS is best where the number of liars is known (Table 4)",
            verdict(is_best),
            seeds,
            [],
            ["Counted where an estimate is not better by more than 1 point; numbers above."],
        ),
    ]


def _beta(folder: Path) -> Claim | None:
    outer, middle = Cells(folder, "table5-heterogeneity"), Cells(folder, "table1-cifar10")
    sources = [(outer, 0.3), (middle, "lie"), (outer, 0.7)]
    bases = [base for base in BASES if all(_gas(*each, base, "best") for each in sources)]
    rows, grows, known = [], [], []
    for name in METRICS:
        by_beta = [[_gas(*each, base, name) for base in bases] for each in sources]
        paired = shared([cell for cells in by_beta for cell in cells])
        if not paired or not paired[0]:
            return None
        known.append(paired[0])
        means = [_mean_by_seed(paired[k * len(bases) : (k + 1) * len(bases)]) for k in range(3)]
        grows.append(fmean(means[0].values()) > fmean(means[2].values()) + NOISE)
        rows.append([name, *map(with_error, means)])
    rows.append(["paper", *(signed(_printed(*each, bases)) for each in sources)])
    missing = [base for base in BASES if base not in bases]
    return Claim(
        "GAS gains more where clients differ more (Table 5)",
        verdict(grows),
        seeds_told(known),
        [["mean gain under LIE", *(f"β = {beta}" for beta in BETAS)], *rows],
        [f"Left out, because runs are missing: {', '.join(missing)}."] if missing else [],
    )


def _gas(cells: Cells, column: Any, base: str, metric: str) -> BySeed:
    chosen: Metric = METRICS[metric]
    return cells.gains((f"gas({base})", column), (base, column), chosen)


def _mean_by_seed(cells: Sequence[BySeed]) -> BySeed:
    return {seed: fmean(cell[seed] for cell in cells) for seed in cells[0]}


def _printed(cells: Cells, column: Any, bases: Sequence[str]) -> float:
    printed = cells.part.printed()
    return fmean(
        printed[f"gas({base})", column].accuracy - printed[base, column].accuracy for base in bases
    )
