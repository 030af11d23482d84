"""A federation: which client owns which samples, and which clients are Byzantine."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from outvote.seeding import RandomStream
from outvote.server.selection import draw


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Federation:
    """The clients of one run."""

    parts: tuple[Tensor, ...]
    """The samples of each client, as indices into the training set."""
    is_byzantine: tuple[bool, ...]
    """Which clients are Byzantine, for the whole run."""

    def __post_init__(self) -> None:
        """Check that every client has data."""
        if len(self.parts) != len(self.is_byzantine):
            raise ValueError(
                f"is_byzantine must have one entry for each of the {len(self.parts)} clients, got "
                f"{len(self.is_byzantine)}."
            )
        sizes = list(map(len, self.parts))
        if not sizes or min(sizes) == 0:
            raise ValueError(
                f"every client must own data, client {sizes.index(0) if sizes else 0} of "
                f"{len(self.parts)} owns none; use fewer clients or a larger min_size."
            )

    @property
    def num_clients(self) -> int:
        """How many clients there are."""
        return len(self.parts)

    @property
    def num_byzantine(self) -> int:
        """How many of them are Byzantine."""
        return sum(self.is_byzantine)


def make_federation(
    parts: Sequence[Any], *, num_byzantine: int | None = None, fraction: float = 0.0, seed: int = 0
) -> Federation:
    """Draw the Byzantine clients: a number of them, or a fraction rounded up."""
    num_clients = len(parts)
    count = ceil(fraction * num_clients - 1e-9) if num_byzantine is None else num_byzantine
    if not 0 <= count <= num_clients:
        raise ValueError(
            f"the number of Byzantine clients must be from 0 to the {num_clients} clients there "
            f"are, got {count}."
        )
    order = (
        RandomStream((seed,))
        .fold_in("who-is-byzantine")
        .permutations(num_clients, torch.device("cpu"))
    )
    is_byzantine = [False] * num_clients
    for client in order[0, :count].tolist():
        is_byzantine[client] = True
    samples = []
    for part in parts:
        samples.append(torch.as_tensor(np.asarray(part), dtype=torch.int64))
    return Federation(parts=tuple(samples), is_byzantine=tuple(is_byzantine))


def count_sampled(num_clients: int, *, ratio: float | None, number: int | None) -> int:
    """Return how many clients take part in a round: a number, or a ratio rounded up."""
    count = ceil((1.0 if ratio is None else ratio) * num_clients - 1e-9)
    count = count if number is None else number
    if not 1 <= count <= num_clients:
        raise ValueError(
            f"from 1 to {num_clients} clients can be sampled in a round, got {count}; change the "
            "number or the ratio."
        )
    return count


def sample_clients(
    num_clients: int,
    num_sampled: int,
    stream: RandomStream,
    number: int,
    weights: Sequence[float] | None = None,
) -> list[int]:
    """Return the clients of a round, drawn without replacement, in ascending order.

    All are alike, or have `weights`: equal ones give the same clients as none. Drawn on the host:
    the same on every device.
    """
    stream = stream.fold_in("sampling").fold_in(str(number))
    order = stream.permutations(num_clients, torch.device("cpu"))[0]
    if weights is None:
        return sorted(order[:num_sampled].tolist())
    # Sorted waits in a random order are as good as independent ones.
    waits = torch.empty(num_clients, dtype=torch.float64)
    waits.exponential_(generator=stream.fold_in("waits").generator(0, waits.device))
    by_client = torch.empty_like(waits)
    by_client[order.long()] = waits.sort().values
    return draw(weights, by_client.tolist(), num_sampled)
