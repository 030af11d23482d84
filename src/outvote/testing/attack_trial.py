"""The attack under test, and the rounds that it is tested on."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outvote.attacks.attack import Attack, AttackOutput
from outvote.attacks.run_attack import run_attack
from outvote.rules.aggregate import aggregate
from outvote.rules.gas import GAS
from outvote.rules.krum import MultiKrum
from outvote.rules.rule import known
from outvote.testing.trial import Array, Gradients

# Honest clients, attackers, coordinates, and the size of the gradients.
SIZES = ((5, 1, 1, 1.0), (8, 2, 5, 1.0), (9, 4, 12, 1000.0), (3, 3, 7, 1e-3))
DEFENCE = GAS(MultiKrum(), num_groups=3)


@dataclass(frozen=True, slots=True)
class Scenario:
    """The gradients of the honest clients, and what the attackers would have sent honestly."""

    honest: Array
    own: Array

    def __str__(self) -> str:
        """Return what is needed to reproduce the failure."""
        parts = {"honest": self.honest, "own": self.own}
        shown = {
            name: " ".join(np.array2string(rows, separator=", ", precision=17).split())
            for name, rows in parts.items()
        }
        return ", ".join(f"{name} {rows.dtype} {shown[name]}" for name, rows in parts.items())


@dataclass(frozen=True, slots=True)
class AttackTrial:
    """An attack under test."""

    attack: Attack
    seed: int
    device: torch.device
    sample_shape: tuple[int, ...] = (1, 28, 28)

    @property
    def name(self) -> str:
        """The text of the attack, or the name of its class if it has none."""
        return str(self.attack) or type(self.attack).__name__

    def random(self, *key: int) -> np.random.Generator:
        """Return a generator of its own for every use."""
        return np.random.default_rng([self.seed, *key])

    def scenario(self, num_honest: int, num_byzantine: int, dim: int, size: float) -> Scenario:
        """Return float64 gradients of clients that differ, away from the origin, without ties."""
        random = self.random(num_honest, num_byzantine, dim)
        centre = random.normal(size=dim) + 1.5
        shape = (num_honest + num_byzantine, dim)
        rows = size * (centre + random.normal(size=shape))
        return Scenario(rows[:num_honest], rows[num_honest:])

    def scenarios(self) -> Iterator[Scenario]:
        """Yield rounds of several sizes."""
        for sizes in SIZES:
            yield self.scenario(*sizes)

    def given(self, rows: Array) -> Array | Tensor:
        """Return rows as numpy on the CPU, and as a tensor on any other device."""
        return rows if self.device.type == "cpu" else torch.from_numpy(rows.copy()).to(self.device)

    def inspect(self, honest: Gradients, own: Gradients, **info: Any) -> AttackOutput:
        """Call the attack, with a rule to ask."""
        info = {"num_byzantine": len(own), "seed": self.seed, "rule": partial(DEFENCE), **info}
        return self.attack.inspect(honest, own=own, **info)

    def output(self, one: Scenario, **info: Any) -> AttackOutput:
        """Attack one round."""
        return self.inspect(self.given(one.honest), self.given(one.own), **info)

    def rows(self, one: Scenario, **info: Any) -> Array:
        """Return the rows of a round as float64."""
        rows = self.output(one, **info).rows
        if isinstance(rows, Tensor):
            rows = rows.double().cpu().numpy()
        return np.asarray(rows, dtype=np.float64)

    def attacked(self, rows: Tensor, is_byzantine: Tensor, **info: Any) -> tuple[Tensor, Any]:
        """Attack a batch of runs as the simulator does."""
        counts = is_byzantine.sum(dim=1).tolist()

        def defence(gradients: Tensor, seeds: Any) -> tuple[Tensor, Tensor]:
            found = aggregate(DEFENCE, gradients, num_byzantine=counts, seeds=list(seeds))
            return known(found.vector), known(found.weights) > 0

        return run_attack(self.attack, rows.to(self.device), is_byzantine, defence=defence, **info)
