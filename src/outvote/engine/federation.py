"""A federation: who owns which samples, who is Byzantine, how well the model fits each client."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, isnan
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outvote.data.array_dataset import IGNORED
from outvote.seeding import RandomStream
from outvote.server.selection import draw
from outvote.training.objective import Strata
from outvote.training.samples import Samples


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


WORST = 10
"""The worst tenth of the clients is a decile."""
DECIMALS = 4
"""Of the accuracy of a single client."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class ClientTests:
    r"""How much each stratum of the test targets counts for each client.

    Strata are the classes, or the groups of the samples where clients are groups and the test
    samples have groups too: a client that is a writer is tested on images of that writer. What
    counts for a client is the histogram of its training targets over the strata.

    $$ a_i = \sum_c n_{ic} a_c / \sum_c n_{ic}, a_c = correct_c / tested_c, tested_c > 0 $$
    """

    strata: Strata
    num_tested: NDArray[np.float64]
    """How many test targets each stratum has."""
    of_training: NDArray[np.int64]
    """The stratum of every training target, ``[samples, targets]``; -1: it does not count."""
    _histograms: dict[Federation, "_Histogram"] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        train: Samples,
        test: Samples,
        num_classes: int | None,
        groups: tuple[Any, Any] | None = None,
    ) -> "ClientTests | None":
        """Return the tests by class, or by the groups of training and test samples.

        None: targets are not classes.
        """
        own, tested = train.targets, test.targets
        if num_classes is None or own.is_floating_point() or tested.is_floating_point():
            return None
        if max(int(own.max()), int(tested.max())) >= num_classes:
            return None
        if groups is None:
            of_training, of_test, num = own.cpu(), tested.cpu(), num_classes
        else:
            names, numbers = np.unique(np.concatenate(groups), return_inverse=True)
            by_sample = torch.from_numpy(numbers.reshape(-1))
            first, second = by_sample[: len(own)], by_sample[len(own) :]
            of_training, of_test = _at_targets(first, own), _at_targets(second, tested)
            num = len(names)
        is_tested = tested.cpu() != IGNORED
        return cls(
            Strata(of_test.clamp(min=0).to(tested.device), num),
            torch.bincount(of_test[is_tested], minlength=num).double().numpy(),
            of_training.where(own.cpu() != IGNORED, -1).reshape(len(own), -1).numpy(),
        )

    def accuracies(self, federation: Federation, correct: Tensor) -> NDArray[np.float64]:
        """Return the accuracy on the own distribution of each client; NaN: nothing to test on."""
        if federation not in self._histograms:
            self._histograms[federation] = self._histogram(federation)
        own = self._histograms[federation]
        by_stratum = correct.numpy() / np.maximum(self.num_tested, 1)
        totals = np.bincount(
            own.client, own.count * by_stratum[own.stratum], federation.num_clients
        )
        counts = np.bincount(own.client, own.count, federation.num_clients)
        return np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)

    def _histogram(self, federation: Federation) -> "_Histogram":
        """Count the training targets of every client in strata that have test targets."""
        parts = list(map(Tensor.numpy, federation.parts))
        strata = self.of_training[np.concatenate(parts)]
        owner = np.repeat(np.arange(len(parts)), list(map(len, parts)))
        owner = np.broadcast_to(owner[:, None], strata.shape)
        is_counted = (strata >= 0) & (self.num_tested[strata] > 0)
        pairs = owner[is_counted] * self.strata.num + strata[is_counted]
        found, counts = np.unique(pairs, return_counts=True)
        return _Histogram(*divmod(found, self.strata.num), counts.astype(np.float64))


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Histogram:
    """Only what is not 0: clients that are groups have one stratum of thousands."""

    client: NDArray[np.int64]
    stratum: NDArray[np.int64]
    count: NDArray[np.float64]


def _at_targets(of_sample: Tensor, targets: Tensor) -> Tensor:
    """Return the number of each sample at all of its targets."""
    return of_sample.view(-1, *[1] * (targets.dim() - 1)).expand(targets.shape)


@final
@dataclass(frozen=True, slots=True)
class ClientAccuracy:
    """The clients of a run in two numbers, and one by one; None: not known."""

    mean: float | None = None
    """Over the honest clients."""
    worst_decile: float | None = None
    each: tuple[float | None, ...] | None = None
    """By client, to four decimals; None for Byzantine clients, and without a test target."""


def client_accuracy(
    tests: ClientTests | None, federation: Federation, correct: Tensor | None
) -> ClientAccuracy:
    """Return how the honest clients fare; nothing is known where targets are not classes."""
    if tests is None or correct is None:
        return ClientAccuracy()
    found = tests.accuracies(federation, correct)
    found[np.array(federation.is_byzantine)] = np.nan
    known = np.sort(found[~np.isnan(found)])
    if not len(known):
        return ClientAccuracy()
    rounded = []
    for value in found.tolist():
        rounded.append(None if isnan(value) else round(value, DECIMALS))
    return ClientAccuracy(
        mean=float(known.mean()),
        worst_decile=float(known[: num_worst(len(known))].mean()),
        each=tuple(rounded),
    )


def num_worst(num_clients: int) -> int:
    """Return how many clients the worst decile has: a tenth, at least one.

    >>> num_worst(40), num_worst(19), num_worst(3)
    (4, 1, 1)
    """
    return max(1, num_clients // WORST)
