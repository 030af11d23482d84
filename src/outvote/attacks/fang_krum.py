"""Fang's attack on Krum: the largest step against the signs that Krum would still take."""

import numpy as np
import torch
from numpy.typing import NDArray

from outvote.attacks.context import AttackContext, norm
from outvote.attacks.crafted import Forged
from outvote.attacks.search import scaled
from outvote.attacks.statistics import Wanted

Array = NDArray[np.float64]


def fool_krum(context: AttackContext, threshold: float) -> Forged:
    """Send -lambda * sign(mean); all that Krum looks at follows from inner products."""
    wanted = Wanted(spread=True, norms=True, products=True, toward=lambda mean, _: mean.sign())
    found = context.measured(wanted)
    # Whoever diverged was left out.
    seen = context if found.is_used is context.is_honest else context.checked
    assert found.products is not None
    assert found.along is not None
    assert found.squared_norms is not None
    signs = found.mean.sign()
    sides = (signs.double() * found.mean.double()).sum(dim=-1)
    norms = norm(seen.gradients)
    squares = found.squared_norms
    pairs = (squares.unsqueeze(-1) + squares.unsqueeze(-2) - 2 * found.products).clamp(min=0)
    num_nonzero = signs.abs().double().sum(dim=-1)
    lambdas = []
    for run, num_byzantine in enumerate(context.num_byzantine):
        used = slice(None) if found.is_used is None else found.is_used[run].cpu()
        far = pairs[run].cpu()[used][:, used].numpy()
        lengths = norms[run].cpu()[used].numpy()
        along = (found.along[run] + sides[run]).cpu()[used].numpy()
        beside = (lengths, along, float(num_nonzero[run]))
        lambdas.append(largest_lambda(far, beside, num_byzantine, (context.dim, threshold)))
    factor = torch.tensor(lambdas, dtype=torch.float64, device=context.device)
    return Forged(rows=scaled(-factor, signs).unsqueeze(1), factor=factor)


def largest_lambda(
    pairs: Array,
    beside: tuple[Array, Array, float],
    num_byzantine: int,
    facts: tuple[int, float],
) -> float:
    """Halve lambda until Krum takes the attackers' row; return the last one tried.

    `beside`: the clients' lengths, their inner products with the signs, the length of the signs
    squared. `facts`: the number of coordinates, and the threshold.
    """
    (lengths, along, num_nonzero), (dim, threshold) = beside, facts
    if len(lengths) == 0 or num_nonzero == 0 or num_byzantine == 0:
        return 0.0
    # Of clients longer than 1e154 squares are infinite, and so are the attackers' distances.
    with np.errstate(over="ignore", invalid="ignore"):
        first = first_lambda(np.sqrt(pairs), lengths, num_byzantine, dim)
        step = min(first, float(np.finfo(np.float64).max))
        while True:
            far = lengths**2 + 2 * step * along + step * step * num_nonzero
            if step <= threshold or takes_attackers(pairs, far.clip(0), num_byzantine):
                return step
            step /= 2


def first_lambda(distances: Array, lengths: Array, num_byzantine: int, dim: int) -> float:
    """Return where to start: above any lambda that can work, but for a few neighbours."""
    num_clients = len(lengths) + num_byzantine
    num_neighbours = max(0, num_clients - 2 * num_byzantine - 2)
    nearest = np.sort(distances, axis=-1)[:, 1 : num_neighbours + 1]
    spread = nearest.sum(axis=-1).min() / max(1, num_clients - 2 * num_byzantine - 1)
    return float((spread + lengths.max()) / np.sqrt(dim))


def takes_attackers(pairs: Array, far: Array, num_byzantine: int) -> bool:
    """Tell whether Krum takes the row that all attackers send, `far` (squared) from the honest."""
    num_neighbours = max(1, len(far) - 2)
    others = np.repeat(far[:, None], num_byzantine, axis=1)
    seen = np.sort(np.concatenate([pairs, others], axis=1), axis=1)
    honest = seen[:, 1 : num_neighbours + 1].sum(axis=1).min()
    twins = np.zeros(num_byzantine - 1)
    return bool(np.sort(np.concatenate([twins, far]))[:num_neighbours].sum() <= honest)
