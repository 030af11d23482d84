"""The accuracy of the global model on the own distribution of each client."""

from dataclasses import dataclass, field
from math import isnan
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outvote.data.array_dataset import IGNORED
from outvote.engine.federation import Federation
from outvote.training.objective import Strata
from outvote.training.samples import Samples

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
