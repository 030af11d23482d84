"""A search for inputs on which a rule is far from honest means: a lower bound of its lambda."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb, inf
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outvote.attacks.parameters import check_count
from outvote.rules.aggregate import Batch, aggregate
from outvote.rules.rule import Rule, known
from outvote.rules.rule_spec import make_rule

MOST_SUBSETS = 500
"""More sets of honest clients than this are sampled."""
NUM_STARTS = 96
NUM_BEST = 12
NUM_CHILDREN = 8
# In shares of the largest coordinate: diameters up to the first are rounding, and those up to the
# second are not counted, because their ratios would be inexact.
ROUNDING = 1e-12
SMALLEST = 1e-6
Inputs = NDArray[np.float64]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorstCase:
    """The worst input that a search found."""

    rule: str
    """The rule that was searched, as text."""
    num_clients: int
    """n of the input."""
    num_byzantine: int
    """f, which the rule assumed."""
    ratio: float
    """The distance of the result to the mean of n - f clients, in diameters of these: a lower bound
    of lambda. Infinite: these clients agree exactly, and the result is elsewhere, so that the rule
    has no lambda."""
    gradients: Inputs
    """The input, ``[clients, dim]``."""
    honest: tuple[int, ...]
    """The rows of the n - f clients."""


def worst_case(
    rule: Rule | str,
    num_clients: int,
    num_byzantine: int,
    dim: int = 2,
    *,
    num_steps: int = 20,
    seed: int = 0,
    layer_sizes: Sequence[int] | None = None,
) -> WorstCase:
    """Search for the input on which a rule is farthest from the mean of some n - f clients.

    It starts from clusters with outliers near and far, in one or several directions, with copies
    and ties, then changes the worst inputs `num_steps` times. The result is a lower bound of the
    constant lambda of `outvote.resilience`: nothing is proved by an input that is not found.

    `layer_sizes` is for rules that split by layer, and adds up to `dim`; None: two layers, or one
    of one coordinate.

    >>> worst_case("trimmed-mean", 5, 1, dim=1).ratio <= 0.25 + 1e-9
    True
    >>> worst_case("rfa", 5, 1).ratio
    inf
    """
    rule = make_rule(rule)
    for name, value, low in (
        ("num_clients", num_clients, 2),
        ("num_byzantine", num_byzantine, 1),
        ("dim", dim, 1),
        ("num_steps", num_steps, 0),
        ("seed", seed, 0),
    ):
        check_count(name, value, low=low)
    limit = min(rule.max_byzantine(num_clients), (num_clients - 1) // 2)
    if num_byzantine > limit:
        raise ValueError(
            f"{rule} can be resilient against at most {limit} Byzantine of {num_clients} clients, "
            f"got {num_byzantine}; lower num_byzantine."
        )
    random = np.random.default_rng(seed)
    sizes = (dim // 2, dim - dim // 2) if layer_sizes is None else tuple(layer_sizes)
    search = _Search(rule, num_clients, num_byzantine, random, sizes)
    inputs = np.stack([_start(random, num_clients, num_byzantine, dim) for _ in range(NUM_STARTS)])
    ratios, subsets = search.measure(inputs)
    for _ in range(num_steps):
        if np.isinf(ratios).any():
            break
        best = np.argsort(-ratios, kind="stable")[:NUM_BEST]
        children = _changed(random, np.repeat(inputs[best], NUM_CHILDREN, axis=0))
        found, whose = search.measure(children)
        inputs = np.concatenate([inputs[best], children])
        ratios = np.concatenate([ratios[best], found])
        subsets = np.concatenate([subsets[best], whose])
    worst = int(np.argmax(ratios))
    return WorstCase(
        rule=str(rule),
        num_clients=num_clients,
        num_byzantine=num_byzantine,
        ratio=float(ratios[worst]),
        gradients=inputs[worst],
        honest=tuple(search.subsets[subsets[worst]].tolist()),
    )


class _Search:
    """A rule, and the sets of n - f clients that it is compared with."""

    def __init__(
        self,
        rule: Rule,
        num_clients: int,
        num_byzantine: int,
        random: Any,
        layer_sizes: tuple[int, ...],
    ) -> None:
        self.rule, self.num_byzantine, self.layer_sizes = rule, num_byzantine, layer_sizes
        size = num_clients - num_byzantine
        if comb(num_clients, size) <= MOST_SUBSETS:
            subsets = [list(each) for each in combinations(range(num_clients), size)]
        else:
            # The starts have their outliers first.
            drawn = [random.permutation(num_clients)[:size] for _ in range(MOST_SUBSETS - 1)]
            subsets = [[*range(num_byzantine, num_clients)], *map(sorted, drawn)]
        self.subsets = torch.tensor(subsets)

    def measure(self, inputs: Inputs) -> tuple[Inputs, NDArray[np.int64]]:
        """Return for every input the largest ratio, and the number of its subset."""
        rows = torch.from_numpy(inputs)
        num = len(rows)
        # One seed for all: an input is bad for a draw that can happen.
        references = [each[self.num_byzantine :].mean(dim=0) for each in rows]
        batch = Batch(
            gradients=rows,
            num_byzantine=[self.num_byzantine] * num,
            seeds=[0] * num,
            references=references if self.rule.traits.needs_reference else None,
            layer_sizes=self.layer_sizes,
            is_full=False,
        )
        found = aggregate(self.rule, batch)
        ratios, subsets = self._ratios(rows, known(found.vector).to(rows)).max(dim=1)
        return ratios.numpy(), subsets.numpy()

    def _ratios(self, rows: Tensor, results: Tensor) -> Tensor:
        some = rows[:, self.subsets]  # [inputs, subsets, n - f, dim]
        errors = (some.mean(dim=2) - results.unsqueeze(1)).norm(dim=-1)
        apart = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
        pairs = apart[:, self.subsets.unsqueeze(-1), self.subsets.unsqueeze(-2)]
        diameters = pairs.amax(dim=(-2, -1))
        scale = rows.abs().amax(dim=(1, 2)).unsqueeze(1).clamp(min=1e-30)
        ratios = torch.where(diameters > SMALLEST * scale, errors / diameters, 0.0)
        is_elsewhere = (diameters <= ROUNDING * scale) & (errors > SMALLEST * scale)
        return torch.where(is_elsewhere, inf, ratios)


def _start(random: Any, n: int, f: int, dim: int) -> Inputs:
    """Return rows: the f outliers first, near or far, together or in directions of their own."""
    kind = random.integers(3)
    if kind == 0:
        honest = random.normal(size=(n - f, dim))
    elif kind == 1:  # Corners: coordinates have two values.
        honest = random.integers(0, 2, size=(n - f, dim)).astype(float)
    else:
        honest = np.zeros((n - f, dim))
    centre = honest.mean(axis=0) + random.normal(size=dim) * random.choice([0.5, 2.0, 10.0])
    own = random.normal(size=(f, dim)) * random.choice([0.0, 1.0, 10.0])
    if random.integers(2):  # Each along an axis of its own, the first ones the farthest.
        own = np.zeros((f, dim))
        own[np.arange(f), np.arange(f) % dim] = 10.0 / (1 + np.arange(f))
        centre = honest.mean(axis=0)
    return np.concatenate([centre + own, honest])


def _changed(random: Any, inputs: Inputs) -> Inputs:
    """Return inputs in which one row moved by some length, or onto another row."""
    changed = inputs.copy()
    for rows in changed:
        k, other = random.integers(len(rows), size=2)
        if random.random() < 0.3:
            rows[k] = rows[other]
        else:
            scale = float(np.abs(rows - rows[other]).max()) or 1.0
            rows[k] += random.normal(size=rows.shape[1]) * scale * 10.0 ** random.uniform(-2.5, 0)
    return changed
