"""The global generators of torch, Python and NumPy, seeded for one client and then put back."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import numpy as np
import torch

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
    """Keep other threads from training: meanwhile no network has the weights of a client."""
    with _LOCK[0]:
        yield


def states_outside_torch() -> tuple[Any, ...]:
    """Return the states of the global generators of Python and NumPy."""
    numpy: Any = np.random.get_state()  # noqa: NPY002
    return random.getstate(), numpy[1].tolist(), numpy[2:]
