"""Remedies for GAS where Byzantine clients have many scales: how far each lets the update move.

What they cost where gradients are not too long: benchmarks/scales-small.toml.

    python benchmarks/scale_remedies.py [-o FILE]
"""

import argparse
import warnings
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from timing import circumstances, write_json

import outvote as ov
from outvote.ops.order import average_of_smallest


@dataclass(frozen=True, slots=True)
class RankGAS(ov.Wrapper):
    """GAS whose scores are sums of ranks of the distances, not of the distances."""

    _: KW_ONLY
    num_groups: int = 1000

    @property
    def traits(self) -> ov.Traits:
        """As of GAS."""
        traits = super(RankGAS, self).traits
        return replace(traits, selects_clients=True, uses_sample_counts=False)

    def max_byzantine(self, num_clients: int) -> int:
        """Return n - 1, as GAS."""
        return max(0, num_clients - 1)

    def compute(self, matrix: ov.ClientMatrix, info: ov.RoundInfo) -> ov.Aggregation:
        """Average the clients with the smallest sums of ranks."""
        groups = matrix.split("balanced", self.num_groups, info)
        inside = replace(self.inside_info(info, matrix.num_clients), wants_weights=False)

        def ranks(group: ov.ClientMatrix) -> torch.Tensor:
            far = group.distances_to(self.compute_inside(group, inside))
            rank = far.argsort(dim=-1, stable=True).argsort(dim=-1).double()
            return rank.sum(dim=-2)

        scores = groups.total(ranks)
        kept = average_of_smallest(scores, matrix.num_clients - info.num_byzantine)
        return ov.Aggregation(weights=kept, scores=scores, num_groups=groups.num_groups)


# Rule inside, clients, and the rows of the Byzantine ones, every entry alike.
BREAKS = (
    ("rfa", 15, (1e38, 1e35, 1e32)),
    ("dnc", 11, (1e38, 1e35, 1e32)),
    ("bulyan", 5, (100.0, 30.0)),
    ("rfa", 15, (40.0, 20.0, 10.0)),
    ("dnc", 11, (40.0, 20.0, 10.0)),
)


def candidates(inside: ov.Rule) -> dict[str, ov.Rule]:
    """Every remedy around one rule."""
    gas = ov.GAS(inside)
    return {
        "gas": gas,
        "clip(gas, adaptive)": ov.Clip(gas, max_norm="adaptive"),
        "clip(gas, honest)": ov.Clip(gas, max_norm="honest"),
        "gas(clip(adaptive))": ov.GAS(ov.Clip(inside, max_norm="adaptive")),
        "gas(clip(honest))": ov.GAS(ov.Clip(inside, max_norm="honest")),
        "norm-filter(gas)": ov.NormFilter(gas),
        "rank-gas": RankGAS(inside),
    }


def main() -> None:
    """Print, for every break and remedy, the largest entry of update - honest mean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    found = []
    names = list(candidates(ov.Mean()))
    print("| rule inside, n, rows of | " + " | ".join(names) + " |")
    print("|---|" + "---:|" * len(names))
    for inside, num_clients, scales in BREAKS:
        num_honest = num_clients - len(scales)
        honest = np.random.default_rng(0).normal(size=(num_honest, 1000)) + 1
        rows = np.concatenate([np.outer(scales, np.ones(1000)), honest])
        row = {}
        for name, rule in candidates(ov.make_rule(inside)).items():
            update = rule.inspect(rows, num_byzantine=len(scales), seed=0).update
            row[name] = float(np.abs(update - honest.mean(axis=0)).max())
        cells = " | ".join(f"{value:.2g}" for value in row.values())
        print(f"| {inside}, {num_clients}, {scales} | {cells} |")
        found.append({"inside": inside, "clients": num_clients, "scales": scales, "moves": row})
    if options.output:
        conditions = circumstances(torch.device("cpu"))
        write_json(options.output, {"circumstances": conditions, "rows": found})


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
