"""Where randomness comes from: a seed per run, and a named stream for every use of it.

A stream is a function of (seed, name) alone. Asking twice for the same stream gives the same
numbers, so a wrapper that works in pieces (GAS over chunks of groups) sees one and the same draw in
every piece, and no global generator is ever touched.
"""

import hashlib
import secrets
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from outvote.errors import renamed

Seed = int | np.random.Generator | torch.Generator | None


def seed_from(source: Seed) -> int:
    """Turn a seed, a generator (one draw is taken from it) or None (fresh entropy) into a seed."""
    if source is None:
        return secrets.randbits(63)
    if isinstance(source, np.random.Generator):
        return int(source.integers(2**63))
    if isinstance(source, torch.Generator):
        drawn = torch.randint(2**63 - 1, (), generator=source, device=source.device)
        return int(drawn)
    if isinstance(source, bool) or not isinstance(source, int | np.integer):
        raise TypeError(
            "seed must be an integer, a numpy or torch generator, or None, "
            f"got {type(source).__name__}."
        )
    if source < 0:
        raise ValueError(f"seed must be 0 or larger, got {source}.")
    return int(source)


@dataclass(frozen=True, slots=True)
class RandomStream:
    """The random streams of a batch of runs, one seed each."""

    seeds: tuple[int, ...]
    path: str = ""

    def fold_in(self, name: str) -> "RandomStream":
        """Return the streams of a part: other names give other streams."""
        return RandomStream(self.seeds, f"{self.path}/{name}")

    def under(self, name: str) -> "RandomStream":
        """Return `fold_in`, which had this name in 0.1."""
        renamed("stream.under", "stream.fold_in")
        return self.fold_in(name)

    def generators(self, device: torch.device) -> list[torch.Generator]:
        """Return one fresh generator per run on `device`."""
        return [self._generator(seed, device) for seed in self.seeds]

    def generator(self, run: int, device: torch.device) -> torch.Generator:
        """Return a fresh generator for one of the runs."""
        return self._generator(self.seeds[run], device)

    def permutations(self, size: int, device: torch.device) -> Tensor:
        """Return one random order of `size` things per run, [runs, size] int32.

        Drawn where the data lives: the same seed gives another order on another kind of device.
        """
        orders = [
            torch.randperm(size, generator=generator, device=device, dtype=torch.int32)
            for generator in self.generators(device)
        ]
        return orders[0].unsqueeze(0) if len(orders) == 1 else torch.stack(orders)

    def derived(self) -> tuple[int, ...]:
        """Return one seed per run, for code that draws from generators of its own."""
        return tuple(self._derive(seed) for seed in self.seeds)

    def _generator(self, seed: int, device: torch.device) -> torch.Generator:
        return torch.Generator(device).manual_seed(self._derive(seed))

    def _derive(self, seed: int) -> int:
        digest = hashlib.blake2b(f"{seed}{self.path}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) >> 1
