"""Remedies for GAS where Byzantine clients have many scales: how far each lets the update move.

What they cost where gradients are not too long: benchmarks/scales-small.toml.

    python benchmarks/scale_remedies.py
"""

import warnings
from dataclasses import KW_ONLY, dataclass, replace

import numpy as np
import torch

import outvote as ov
from outvote.rules import distances


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
            return far.argsort(dim=-1, stable=True).argsort(dim=-1).double()

        scores = groups.total(ranks)
        kept = distances.average_of_smallest(scores, matrix.num_clients - info.num_byzantine)
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
    names = list(candidates(ov.Mean()))
    print("| rule inside, n, rows of | " + " | ".join(names) + " |")
    print("|---|" + "---:|" * len(names))
    for inside, num_clients, scales in BREAKS:
        num_honest = num_clients - len(scales)
        honest = np.random.default_rng(0).normal(size=(num_honest, 1000)) + 1
        rows = np.concatenate([np.outer(scales, np.ones(1000)), honest])
        cells = []
        for rule in candidates(ov.make_rule(inside)).values():
            update = rule.inspect(rows, num_byzantine=len(scales), seed=0).update
            cells.append(f"{np.abs(update - honest.mean(axis=0)).max():.2g}")
        print(f"| {inside}, {num_clients}, {scales} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
