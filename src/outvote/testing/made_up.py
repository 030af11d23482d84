"""Made-up gradients of clients that differ: a recipe, no data and no training."""

from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from outvote.errors import check_kind
from outvote.seeding import RandomStream

SHARE_OF_COORDINATES = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUp:
    r"""The recipe: a common gradient, a shift of each client's own, and noise.

    $$ g_i = m + h \, u_i c_i + s \, e_i $$

    m and e_i are normal vectors of length about 1. c_i is one too, but on a random tenth of the
    coordinates alone, as if client i had seen other classes than the rest. The factors u_i are
    uniform in [0.5, 1.5]: some clients are more unusual than others. Attackers would be like that
    too if they were honest. Made up: real gradients differ in other ways.
    """

    num_clients: int = 50
    """All clients, the attackers included."""
    num_byzantine: int = 10
    """How many of them attack."""
    dim: int = 10_000
    """How many coordinates a gradient has."""
    heterogeneity: float = 2.0
    """h: the length of a client's own shift, in lengths of the common gradient."""
    noise: float = 1.0
    """s: the length of the noise, in lengths of the common gradient."""
    seed: int = 0
    """Where all randomness comes from."""

    def __post_init__(self) -> None:
        """Check that there is an honest client, and that the lengths are lengths."""
        lowest = {"num_clients": 1, "num_byzantine": 0, "dim": 1, "seed": 0}
        for name, low in lowest.items():
            check_kind(name, getattr(self, name), int)
            if getattr(self, name) < low:
                raise ValueError(f"{name} must be at least {low}, got {getattr(self, name)}.")
        if self.num_byzantine >= self.num_clients:
            raise ValueError(
                f"num_byzantine must be below the {self.num_clients} of num_clients, got "
                f"{self.num_byzantine}; somebody must be honest."
            )
        for name in ("heterogeneity", "noise"):
            check_kind(name, getattr(self, name), float)
            if not (isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(
                    f"{name} must be finite and at least 0, got {getattr(self, name)}."
                )


def made_up_round(recipe: MadeUp) -> tuple[Tensor, Tensor]:
    """Draw a round: the gradients of the honest, and what the attackers would have sent."""
    generator = RandomStream((recipe.seed,)).fold_in("made-up").generator(0, torch.device("cpu"))
    shape = (recipe.num_clients, recipe.dim)

    def normal(*size: int) -> Tensor:
        drawn: Tensor = torch.randn(size, generator=generator) / float(recipe.dim) ** 0.5
        return drawn

    common = normal(recipe.dim)
    strength = 0.5 + torch.rand(recipe.num_clients, 1, generator=generator)
    is_own = torch.rand(shape, generator=generator) < SHARE_OF_COORDINATES
    shift = normal(*shape) * is_own * strength / SHARE_OF_COORDINATES**0.5
    rows = common + recipe.heterogeneity * shift + recipe.noise * normal(*shape)
    num_honest = recipe.num_clients - recipe.num_byzantine
    return rows[:num_honest], rows[num_honest:]
