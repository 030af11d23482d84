"""Random rows: noise in place of the gradient (Gaussian), or on top of it (Noise)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Generator, Tensor

from outvote.attacks.attack import Attack, AttackOutput
from outvote.attacks.context import AttackContext
from outvote.attacks.parameters import check_number
from outvote.axes import Rows
from outvote.ops.process import fresh, mapped, work_dtype

Fill = Callable[[Tensor, Generator, int], object]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian(Attack):
    r"""Normal noise instead of a gradient, independent for each attacker.

    $$ b_i \sim N(0, \sigma^2 I) $$

    Needs: nothing. Differs from the paper: sigma is 1, 200 in the Krum paper.
    Reference: Blanchard et al., NeurIPS 2017.

    >>> Gaussian(sigma=200)([[1.0, 2.0]], num_byzantine=3, seed=0).shape
    (3, 2)
    """

    name: ClassVar[str] = "gaussian"
    sees_own: ClassVar[bool] = False
    is_colluding: ClassVar[bool] = False
    is_random: ClassVar[bool] = True

    sigma: float = 1.0
    """The standard deviation of the noise."""

    def __post_init__(self) -> None:
        check_number("gaussian: sigma", self.sigma, low=0)

    def craft(self, context: AttackContext) -> AttackOutput:
        """Draw the rows."""
        return AttackOutput(rows=normal_rows(context, self.sigma))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Noise(Attack):
    r"""Normal noise on top of the client's own gradient, independent for each attacker.

    $$ b_i = g_i + N(0, \sigma^2 I) $$

    Needs: own (default: the honest mean). Differs from the paper: nothing.
    Reference: Li et al., AAAI 2019 (RSA), among others.

    >>> Noise(sigma=0)([[1.0, 2.0]], num_byzantine=1, own=[[5.0, 6.0]])
    array([[5., 6.]])
    """

    name: ClassVar[str] = "noise"
    is_colluding: ClassVar[bool] = False
    is_random: ClassVar[bool] = True

    sigma: float = 0.5
    """The standard deviation of the noise."""

    def __post_init__(self) -> None:
        check_number("noise: sigma", self.sigma, low=0)

    def craft(self, context: AttackContext) -> AttackOutput:
        """Add noise to the attackers' own gradients."""
        rows = normal_rows(context, self.sigma).add_(context.own_rows)
        return AttackOutput(rows=rows)


def random_rows(context: AttackContext, fill: Fill) -> Rows:
    """Return rows [runs, attackers, dim], each filled by `fill` with a generator of its own.

    A run so draws the same alone and in a batch. Where a run has fewer attackers the rows are 0,
    and nothing is drawn for them.
    """
    shape = (context.num_runs, context.num_attackers, context.dim)
    rows = fresh(shape, work_dtype(context.gradients.dtype), context.device)

    def draw(position: tuple[int, int]) -> None:
        run, attacker = position
        if attacker >= context.num_byzantine[run]:
            rows[run, attacker] = 0
            return
        stream = context.stream.fold_in(f"attacker-{attacker}")
        fill(rows[run, attacker], stream.generator(run, context.device), run)

    positions = [(run, attacker) for run in range(shape[0]) for attacker in range(shape[1])]
    mapped(draw, positions, context.device)
    return rows


def normal_rows(context: AttackContext, sigma: float) -> Rows:
    """Return normal noise, independent for each attacker."""
    rows = random_rows(context, lambda row, generator, _: row.normal_(generator=generator))
    return rows.mul_(min(sigma, torch.finfo(rows.dtype).max))
