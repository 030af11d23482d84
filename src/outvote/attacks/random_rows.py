"""Random rows: one stream per attacker, so that a run stream the same alone and among others."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from outvote.attacks.context import AttackContext
from outvote.axes import Rows
from outvote.fresh import fresh
from outvote.precision import work_dtype
from outvote.threads import mapped

Fill = Callable[[Tensor, Generator, int], object]


def random_rows(context: AttackContext, fill: Fill) -> Rows:
    """Return rows [runs, attackers, dim], each filled by a generator of its own.

    `fill` is also told the run.
    Attackers that a run does not have send zeros, and nothing is drawn for them.
    """
    shape = (context.num_runs, context.num_attackers, context.dim)
    rows = fresh(shape, work_dtype(context.gradients.dtype), context.device)

    def draw(place: tuple[int, int]) -> None:
        run, attacker = place
        if attacker >= context.num_byzantine[run]:
            rows[run, attacker] = 0
            return
        stream = context.stream.fold_in(f"attacker-{attacker}")
        fill(rows[run, attacker], stream.generator(run, context.device), run)

    places = [(run, attacker) for run in range(shape[0]) for attacker in range(shape[1])]
    mapped(draw, places, context.device)
    return rows


def normal_rows(context: AttackContext, sigma: float) -> Rows:
    """Return normal noise, independent for each attacker."""
    rows = random_rows(context, lambda row, generator, _: row.normal_(generator=generator))
    return rows.mul_(min(sigma, torch.finfo(rows.dtype).max))
