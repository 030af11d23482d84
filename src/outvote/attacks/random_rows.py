"""Random rows: one stream per attacker, so that a run draws the same alone and among others."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from outvote.attacks.scene import Scene
from outvote.axes import Rows
from outvote.fresh import fresh
from outvote.precision import work_dtype
from outvote.threads import mapped

Fill = Callable[[Tensor, Generator, int], object]


def random_rows(scene: Scene, fill: Fill) -> Rows:
    """Return rows [runs, attackers, dim], each filled by a generator of its own.

    `fill` is also told the run.
    Attackers that a run does not have send zeros, and nothing is drawn for them.
    """
    shape = (scene.num_runs, scene.num_attackers, scene.dim)
    rows = fresh(shape, work_dtype(scene.gradients.dtype), scene.device)

    def draw(place: tuple[int, int]) -> None:
        run, attacker = place
        if attacker >= scene.num_byzantine[run]:
            rows[run, attacker] = 0
            return
        draws = scene.draws.under(f"attacker-{attacker}")
        fill(rows[run, attacker], draws.generator(run, scene.device), run)

    places = [(run, attacker) for run in range(shape[0]) for attacker in range(shape[1])]
    mapped(draw, places, scene.device)
    return rows


def normal_rows(scene: Scene, sigma: float) -> Rows:
    """Return normal noise, independent for each attacker."""
    rows = random_rows(scene, lambda row, generator, _: row.normal_(generator=generator))
    return rows.mul_(min(sigma, torch.finfo(rows.dtype).max))
