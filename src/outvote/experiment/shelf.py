"""The datasets of a sweep: each is loaded once, and known by its checksum."""

from typing import final

import numpy as np

from outvote.data.checksum import sha256_of
from outvote.data.dataset import Dataset, Labels
from outvote.data.loader import load
from outvote.results.schema import DataUsed


@final
class Shelf:
    """Keeps what was loaded."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._datasets: dict[str, Dataset] = {}
        self._used: dict[str, DataUsed] = {}

    def dataset(self, name: str) -> Dataset:
        """Return a dataset; the first time it is loaded."""
        if name not in self._datasets:
            self._datasets[name] = load(name)
        return self._datasets[name]

    def used(self, name: str) -> DataUsed:
        """Tell which pictures these are."""
        if name not in self._used:
            self._used[name] = _describe(self.dataset(name))
        return self._used[name]

    def groups(self, name: str) -> Labels:
        """Return the writer of every training picture."""
        found = self.dataset(name).train_groups
        if found is None:
            raise ValueError(
                f"data.partition = 'by-group' needs to know the writers, and {name} has none; "
                "choose another partition."
            )
        return found

    def num_groups(self, name: str) -> int:
        """Return how many writers there are."""
        return len(np.unique(self.groups(name)))


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
