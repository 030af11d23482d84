"""How often `exclude_outvoted` excludes honest nodes, and how often and how soon Byzantine ones.

python benchmarks/flower_exclusion.py
python benchmarks/flower_exclusion.py -o benchmarks/results/flower-exclusion.json

11 nodes, f = 2. In every round there is a direction of length 1; an honest node sends it plus a
deviation. Half of it is the node's own and the same in all rounds. The deviation of a usual node
is `spread` long, that of three nodes (or one) `factor` times as long. With an attack, two other
nodes are Byzantine. Rates are shares of nodes over all trials; a node counts as excluded if it
ever was in the rounds of a trial. "three drops in a row" is what `exclude_after=3` did in 0.1.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from timing import circumstances, write_json
from torch import Tensor

import outvote as ov
from outvote.attacks.run_attack import run_attack
from outvote.flower.sequential_test import SequentialTest, relative_distances
from outvote.rules.aggregate import Batch, aggregate

NUM_NODES, NUM_BYZANTINE, DIM = 11, 2, 200
RULES = ("multi-krum", "gas(multi-krum)", "gas(median)", "dnc", "bulyan")
RATES = (0.1, 0.05, 0.01, 0.001)
LIMITS = (1.25, 1.5, 2.0, 3.0)
STREAK = 3


@dataclass(frozen=True)
class Case:
    """A federation."""

    name: str
    attack: str = "none"
    factor: float = 1.5
    num_unusual: int = 3
    spread: float = 1.0

    @property
    def has_attack(self) -> bool:
        """Whether two nodes are Byzantine."""
        return self.attack != "none"


CASES = (
    *(Case(f"no attack, three nodes {k} ×", factor=k) for k in (1.0, 1.5, 2.0, 3.0)),
    *(Case(f"no attack, one node {k} ×", factor=k, num_unusual=1) for k in (1.5, 2.0, 3.0)),
    Case("bit-flip × 10", "bit-flip-10"),
    Case("bit-flip, spread 0.5", "bit-flip", spread=0.5),
    Case("bit-flip", "bit-flip"),
    Case("bit-flip, spread 2", "bit-flip", spread=2.0),
    Case("gaussian", "gaussian"),
    Case("lie", "lie"),
    Case("alie", "alie"),
    Case("min-max", "min-max"),
    Case("frame: opposite of node 0", "frame"),
)


def main() -> int:
    """Simulate every case, print one table; write it as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--rules", nargs="+", default=list(RULES))
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    conditions = circumstances(torch.device("cpu")) | {
        "nodes": NUM_NODES,
        "num_byzantine": NUM_BYZANTINE,
        "dim": DIM,
        "trials": options.trials,
        "rounds": options.rounds,
    }
    print(conditions)
    rows = []
    for case in CASES:
        for rule in options.rules:
            row = measure(case, rule, options.trials, options.rounds)
            rows.append(row)
            print(_line(row), flush=True)
    if options.output:
        write_json(options.output, {"circumstances": conditions, "rows": rows})
    return 0


def measure(case: Case, rule: str, num_trials: int, num_rounds: int) -> dict[str, Any]:
    """Simulate one case with one rule; return all rates."""
    is_byzantine = np.zeros(NUM_NODES, dtype=bool)
    is_byzantine[-NUM_BYZANTINE:] = case.has_attack
    is_unusual = np.arange(NUM_NODES) < case.num_unusual
    kinds = {
        "unusual": is_unusual,
        "usual": ~is_unusual & ~is_byzantine,
        "byzantine": is_byzantine,
    }
    is_dropped, distances = simulate(case, rule, num_trials, num_rounds)
    curve = []
    for limit in LIMITS:
        largest = wealths(is_dropped & (distances > limit))
        for rate in RATES:
            when = first_rounds(largest * rate >= 1)
            curve.append({"limit": limit, "rate": rate, **_shares(when, kinds)})
    streaks = first_rounds(streak_of(is_dropped) >= STREAK)
    return {
        "case": case.name,
        "rule": rule,
        "drop rate": _means(is_dropped, kinds),
        "distance": {
            kind: round(float(np.median(distances[..., mask])), 2)
            for kind, mask in kinds.items()
            if mask.any()
        },
        "three drops in a row": _shares(streaks, kinds),
        "curve": curve,
    }


def simulate(
    case: Case, rule: str, num_trials: int, num_rounds: int
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return ``[trials, rounds, nodes]``: who was dropped, and the distances over the median."""
    generator = torch.Generator().manual_seed(0)
    dropped, distances = [], []
    for trial in range(num_trials):
        rows = forge(case, honest_rows(case, num_rounds, generator))
        seeds = [trial * num_rounds + k for k in range(num_rounds)]
        given = {"num_byzantine": [NUM_BYZANTINE] * num_rounds, "seeds": seeds}
        found = aggregate(ov.make_rule(rule), Batch(gradients=rows, **given))
        assert found.weights is not None
        assert isinstance(found.vector, Tensor)
        weights = found.weights.numpy()
        dropped.append(~(weights > 0))
        distances.append(list(_distances(rows, found.vector, weights)))
    return np.array(dropped), np.array(distances)


def _distances(
    rows: Tensor, updates: Tensor, weights: NDArray[np.float64]
) -> Iterator[Sequence[float]]:
    norms, lengths = rows.norm(dim=-1), updates.norm(dim=-1)
    cosines = (rows @ updates.unsqueeze(-1)).squeeze(-1) / norms / lengths.unsqueeze(-1)
    for k in range(len(rows)):
        found = relative_distances(
            norms[k].tolist(), cosines[k].tolist(), weights[k].tolist(), float(lengths[k])
        )
        assert found is not None
        yield found


def honest_rows(case: Case, num_rounds: int, generator: torch.Generator) -> Tensor:
    """Return what honest nodes send, ``[rounds, nodes, dim]``."""
    directions = torch.randn(num_rounds, 1, DIM, generator=generator)
    directions /= directions.norm(dim=-1, keepdim=True)
    scales = torch.full((NUM_NODES, 1), case.spread)
    scales[: case.num_unusual] *= case.factor
    own = torch.randn(1, NUM_NODES, DIM, generator=generator)
    new = torch.randn(num_rounds, NUM_NODES, DIM, generator=generator)
    return directions + scales * (own + new) / (2 * DIM) ** 0.5


def forge(case: Case, rows: Tensor) -> Tensor:
    """Replace the rows of the Byzantine nodes."""
    if not case.has_attack:
        return rows
    last = slice(NUM_NODES - NUM_BYZANTINE, NUM_NODES)
    if case.attack == "bit-flip-10":
        rows[:, last] *= -10
        return rows
    if case.attack == "frame":
        # As far on the other side as node 0 is: the update moves away from node 0.
        middle = rows[:, : last.start].mean(dim=1)
        rows[:, last] = (2 * middle - rows[:, 0]).unsqueeze(1)
        return rows
    is_byzantine = torch.zeros(rows.shape[:2], dtype=torch.bool)
    is_byzantine[:, last] = True
    seeds = list(range(len(rows)))
    return run_attack(ov.make_attack(case.attack), rows, is_byzantine, seeds=seeds)[0]


def wealths(is_against: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the wealth of every node's test after every round, ``[trials, rounds, nodes]``."""
    found = np.zeros(is_against.shape)
    for trial, node in np.ndindex(is_against.shape[0], is_against.shape[2]):
        test = SequentialTest()
        for round_, value in enumerate(is_against[trial, :, node]):
            test.add(is_against=bool(value))
            found[trial, round_, node] = test.wealth
    return found


def streak_of(is_dropped: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return how many drops in a row each round ends."""
    running = np.zeros(is_dropped[:, 0].shape, dtype=np.int64)
    found = np.zeros(is_dropped.shape, dtype=np.int64)
    for round_ in range(is_dropped.shape[1]):
        running = np.where(is_dropped[:, round_], running + 1, 0)
        found[:, round_] = running
    return found


def first_rounds(is_excluded: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the first round after which each node is excluded, ``[trials, nodes]``; inf: never."""
    first = is_excluded.argmax(axis=1) + 1.0
    return np.where(is_excluded.any(axis=1), first, np.inf)


def _shares(when: NDArray[np.float64], kinds: dict[str, NDArray[np.bool_]]) -> dict[str, Any]:
    shares: dict[str, Any] = {
        kind: round(float(np.isfinite(when[:, mask]).mean()), 4)
        for kind, mask in kinds.items()
        if mask.any()
    }
    honest = kinds["usual"] | kinds["unusual"]
    shares["trials with an honest node"] = int(np.isfinite(when[:, honest]).any(axis=1).sum())
    caught = when[:, kinds["byzantine"]]
    caught = caught[np.isfinite(caught)]
    shares["median round"] = float(np.median(caught)) if caught.size else None
    return shares


def _means(values: NDArray[np.bool_], kinds: dict[str, NDArray[np.bool_]]) -> dict[str, float]:
    return {
        kind: round(float(values[..., mask].mean()), 3)
        for kind, mask in kinds.items()
        if mask.any()
    }


def _line(row: dict[str, Any]) -> str:
    at = next(each for each in row["curve"] if (each["limit"], each["rate"]) == (2.0, 0.01))
    return f"{row['case']:28} {row['rule']:16} {row['drop rate']} {row['distance']} {at}"


if __name__ == "__main__":
    sys.exit(main())
