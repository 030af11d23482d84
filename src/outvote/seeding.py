"""Where randomness comes from: a seed per run, and a named stream for every use of it.

A stream is a function of (seed, name) alone. Asking twice for the same stream gives the same
numbers, so a wrapper that works in pieces (GAS over chunks of groups) sees one and the same draw in
every piece, and no global generator is ever touched.
"""

import hashlib
import os
import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock, local
from typing import Any

import numpy as np
import torch
from torch import Tensor

CPU = torch.device("cpu")
# From here on torch draws 64 bits for each entry of a permutation.
LARGEST_WITH_SHORT_DRAWS = (2**32 - 1) // 20

_GENERATORS = local()

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

    def generators(self, device: torch.device) -> list[torch.Generator]:
        """Return one fresh generator per run on `device`."""
        return [self._generator(seed, device) for seed in self.seeds]

    def generator(self, run: int, device: torch.device) -> torch.Generator:
        """Return a fresh generator for one of the runs."""
        return self._generator(self.seeds[run], device)

    def permutations(self, size: int, device: torch.device) -> Tensor:
        """Return one random order of `size` things per run, [runs, size] int32.

        Drawn on the host: the same on every device.
        """
        orders = [
            torch.randperm(size, generator=generator, dtype=torch.int32)
            for generator in self.generators(CPU)
        ]
        drawn = orders[0].unsqueeze(0) if len(orders) == 1 else torch.stack(orders)
        return drawn.to(device, non_blocking=True)  # A GPU need not end what it is at.

    def samples(self, size: int, num_drawn: int, device: torch.device) -> Tensor:
        """Return the first `num_drawn` of `permutations`, [runs, num_drawn] int32.

        Few of many are drawn without the rest.
        """
        if 4 * num_drawn > size or size >= LARGEST_WITH_SHORT_DRAWS:
            return self.permutations(size, device)[:, :num_drawn]
        drawn = [_first_of_permutation(size, num_drawn, seed) for seed in self.derived()]
        return torch.from_numpy(np.stack(drawn)).to(device, non_blocking=True)

    def signed_sizes(self, size: int, device: torch.device) -> Tensor:
        """Return `size` numbers per run, of sizes from 0.5 to 1.5 and random signs, in float64.

        Drawn on the host: the same on every device.
        """
        generator, drawn = _generator_of_thread(), np.empty((len(self.seeds), size))
        for run, seed in enumerate(self.derived()):
            generator.seed(seed & 0xFFFFFFFF)
            drawn[run] = generator.random_sample(size)
        drawn = 2 * drawn - 1
        drawn += np.copysign(0.5, drawn)
        return torch.from_numpy(drawn).to(device, non_blocking=True)

    def derived(self) -> tuple[int, ...]:
        """Return one seed per run, for code that draws from generators of its own."""
        return tuple(map(self._derive, self.seeds))

    def _generator(self, seed: int, device: torch.device) -> torch.Generator:
        return torch.Generator(device).manual_seed(self._derive(seed))

    def _derive(self, seed: int) -> int:
        digest = hashlib.blake2b(f"{seed}{self.path}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) >> 1


def _generator_of_thread() -> np.random.RandomState:
    """Return a generator to be seeded: making one takes longer than seeding it."""
    generator: np.random.RandomState | None = getattr(_GENERATORS, "one", None)
    if generator is None:
        generator = _GENERATORS.one = np.random.RandomState(0)
    return generator


def _first_of_permutation(size: int, num_drawn: int, seed: int) -> np.ndarray:
    """Return the first entries of `torch.randperm` on a CPU.

    It swaps entry 0, 1, 2, ... with one drawn from there on, so that the first entries need the
    first draws only; torch and numpy seed the same generator in the same way.
    """
    generator = _generator_of_thread()
    generator.seed(seed & 0xFFFFFFFF)
    bits = generator.randint(2**32, size=num_drawn, dtype=np.uint32)
    drawn = np.arange(num_drawn) + bits % np.arange(size, size - num_drawn, -1)
    result = drawn.copy()
    # All others hold their own number when they are drawn.
    is_special = drawn < num_drawn
    is_special[drawn[is_special]] = True
    # Numbers drawn twice are among the few that share their last bits with another.
    last_bits = drawn & 0xFFFF
    alike = np.flatnonzero(np.bincount(last_bits)[last_bits] > 1)
    alike = alike[np.argsort(drawn[alike])]
    are_same = drawn[alike[1:]] == drawn[alike[:-1]]
    is_special[alike[1:][are_same]] = is_special[alike[:-1][are_same]] = True
    content: dict[int, int] = {}
    for k in np.flatnonzero(is_special).tolist():
        other = int(drawn[k])
        result[k] = content.get(other, other)
        content[other] = content.get(k, k)
    return result.astype(np.int32)


_MOST = 2**32
# All threads share these generators: one thread at a time has them.
_LOCK = [RLock()]


def _renew() -> None:
    _LOCK[0] = RLock()


if hasattr(os, "register_at_fork"):
    # Another thread of the parent, which a forked process does not have, may hold the lock.
    os.register_at_fork(after_in_child=_renew)


@contextmanager
def seeded_generators(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global generators, from which a model may draw, and restore them afterwards."""
    with _LOCK[0]:
        python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  (the model's own)
        try:
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                torch.default_generator.manual_seed(seed)
                if device.type == "cuda":
                    torch.cuda.manual_seed(seed)  # noqa: TID251  (restored)
                random.seed(seed)
                np.random.seed(seed % _MOST)  # noqa: NPY002
                yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


@contextmanager
def alone() -> Iterator[None]:
    """Keep other threads from training and from the global generators.

    Meanwhile no network has the weights of a client, and nobody else draws.
    """
    with _LOCK[0]:
        yield


def states_outside_torch() -> tuple[Any, ...]:
    """Return the states of the global generators of Python and NumPy."""
    numpy: Any = np.random.get_state()  # noqa: NPY002
    return random.getstate(), numpy[1].tolist(), numpy[2:]
