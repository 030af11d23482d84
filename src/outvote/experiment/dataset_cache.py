"""The datasets of a sweep: listed ones and a user's own, each loaded once."""

from collections.abc import Sequence
from operator import itemgetter
from typing import final

import numpy as np
import torch

from outvote.data.array_dataset import Array, ArrayDataset, make_dataset, sha256_of
from outvote.data.catalog import DATASETS
from outvote.data.loader import load
from outvote.experiment.run_spec import DataSpec
from outvote.results.schema import DataUsed
from outvote.training.samples import ArraySamples, ByteImages, Samples
from outvote.user_objects import find_own, is_own

DataKey = tuple[str, int | None]


@final
class DatasetCache:
    """The datasets of a sweep: each is loaded once, and identified by its checksum."""

    def __init__(self) -> None:
        """Start empty."""
        self._datasets: dict[DataKey, ArrayDataset] = {}
        self._used: dict[DataKey, DataUsed] = {}
        self._num_groups: dict[DataKey, int] = {}

    def dataset(self, data: DataSpec) -> ArrayDataset:
        """Return a dataset; the first time it is loaded."""
        if data.key not in self._datasets:
            if is_own("dataset", data.name, DATASETS):
                self._datasets[data.key] = load_own(data.name)
            else:
                self._datasets[data.key] = load(data.name, size=data.image_size)
        return self._datasets[data.key]

    def used(self, data: DataSpec) -> DataUsed:
        """Return the source, sizes and checksum of a dataset."""
        if data.key not in self._used:
            found = self.dataset(data)
            self._used[data.key] = DataUsed(
                name=found.name,
                source=found.source,
                num_train=len(found.train_targets),
                num_test=len(found.test_targets),
                checksum=sha256_of(*arrays_of(found)),
            )
        return self._used[data.key]

    def labels(self, data: DataSpec) -> Array:
        """Return the class of every training sample."""
        found = self.dataset(data).train_labels
        if found is None:
            raise ValueError(
                f"data.partition = {data.partition!r} needs one class per sample, and {data.name} "
                "has none; choose 'iid' or 'by-group', or pass a list of indices."
            )
        return found

    def groups(self, data: DataSpec) -> Array:
        """Return the group (such as a writer) of every training sample."""
        found = self.dataset(data).train_groups
        if found is None:
            raise ValueError(
                f"data.partition = 'by-group' needs groups of samples, and {data.name} has none; "
                "choose another partition, or pass groups."
            )
        return found

    def num_groups(self, data: DataSpec) -> int:
        """Return how many groups there are; asked for every run, counted once."""
        if data.key not in self._num_groups:
            self._num_groups[data.key] = len(np.unique(self.groups(data)))
        return self._num_groups[data.key]


def load_own(name: str) -> ArrayDataset:
    """Load a user's dataset: an `ArrayDataset`, or a function that returns what `simulate` takes.

    The function returns ``(train, test)`` or ``(train, test, groups)``.
    """
    found = find_own("dataset", name)
    found = found() if callable(found) else found
    if isinstance(found, ArrayDataset):
        return found
    if not isinstance(found, tuple) or len(found) not in (2, 3):
        raise ValueError(
            f"data.name: {name} must return (train, test) or (train, test, groups), got "
            f"{type(found).__name__}."
        )
    return make_dataset(*found[:2], name=name, groups=found[2] if len(found) == 3 else None)


def arrays_of(found: ArrayDataset) -> list[Array]:
    """Return all arrays of a dataset, in the order in which its checksum takes them."""
    arrays = [*found.train_inputs, *found.test_inputs, found.train_targets, found.test_targets]
    for groups in (found.train_groups, found.test_groups):
        if groups is not None:
            arrays.append(groups)
    return arrays


def samples_on(
    device: torch.device, found: ArrayDataset, inputs: Sequence[Array], targets: Array
) -> Samples:
    """Put samples of a dataset on a device."""
    if found.mean is not None and found.std is not None:
        return ByteImages(inputs[0], targets, mean=found.mean, std=found.std, device=device)
    return ArraySamples(inputs, targets, device=device, is_channels_last=found.is_channels_last)


def few_samples(found: ArrayDataset) -> Samples:
    """Return the samples that a model is tried on: the first, and those with extreme values.

    A token id beyond the vocabulary of a model is then found before anything trains.
    """
    inputs, targets = [], []
    for some, own in (
        (found.train_inputs, found.train_targets),
        (found.test_inputs, found.test_targets),
    ):
        rows = {0, len(own) - 1}
        for array in some:
            if array.dtype.kind in "iu" and array.dtype != np.uint8:
                width = max(1, array.size // len(array))
                rows |= {int(array.argmax()) // width, int(array.argmin()) // width}
        chosen = sorted(rows)
        inputs.append(map(itemgetter(chosen), some))
        targets.append(own[chosen])
    joined = list(map(np.concatenate, zip(*inputs, strict=True)))
    return samples_on(torch.device("cpu"), found, joined, np.concatenate(targets))
