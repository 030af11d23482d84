"""The datasets of a sweep: each is loaded once, and known by its checksum."""

from typing import final

import numpy as np

from outvote.data.checksum import sha256_of
from outvote.data.dataset import Dataset, Labels
from outvote.data.loader import load
from outvote.experiment.spec import Data
from outvote.results.schema import DataUsed

Wanted = tuple[str, int | None]
"""Which pictures: the name of a dataset, and their size where that can be participants."""


def wanted(data: Data) -> Wanted:
    """Return which pictures settings ask for."""
    return data.name, data.image_size


@final
class DatasetCache:
    """Keeps what was loaded."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._datasets: dict[Wanted, Dataset] = {}
        self._used: dict[Wanted, DataUsed] = {}
        self._num_groups: dict[Wanted, int] = {}

    def dataset(self, data: Data) -> Dataset:
        """Return a dataset; the first time it is loaded."""
        key = wanted(data)
        if key not in self._datasets:
            self._datasets[key] = load(data.name, size=data.image_size)
        return self._datasets[key]

    def used(self, data: Data) -> DataUsed:
        """Tell which pictures these are."""
        key = wanted(data)
        if key not in self._used:
            self._used[key] = _describe(self.dataset(data))
        return self._used[key]

    def groups(self, data: Data) -> Labels:
        """Return the writer of every training picture."""
        found = self.dataset(data).train_groups
        if found is None:
            raise ValueError(
                f"data.partition = 'by-group' needs to know the writers, and {data.name} has none; "
                "choose another partition."
            )
        return found

    def num_groups(self, data: Data) -> int:
        """Return how many writers there are; asked for every run, counted once."""
        key = wanted(data)
        if key not in self._num_groups:
            self._num_groups[key] = len(np.unique(self.groups(data)))
        return self._num_groups[key]


def _describe(data: Dataset) -> DataUsed:
    groups = [each for each in (data.train_groups, data.test_groups) if each is not None]
    pictures = (data.train_images, data.test_images)
    return DataUsed(
        name=data.name,
        source=data.source,
        num_train=len(data.train_images),
        num_test=len(data.test_images),
        checksum=sha256_of(*pictures, data.train_labels, data.test_labels, *groups),
    )
