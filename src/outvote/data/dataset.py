"""A dataset in memory, as numpy arrays; errors for data that is missing or damaged."""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
FETCH_AGAIN = "delete it and fetch it again"


class MissingDataError(FileNotFoundError):
    """A dataset is not in the folders that were searched."""


class DamagedDataError(ValueError):
    """Files are there, but they are not what they should be."""


class FetchError(OSError):
    """A download failed; no unfinished file has the name of a finished one."""


def fetch_again(fault: str) -> DamagedDataError:
    """Return the error of a file that fetching repairs."""
    return DamagedDataError(f"{fault}; {FETCH_AGAIN}.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrays:
    """What a reader gets out of files."""

    train_images: Images
    """uint8 [samples, height, width, channels]"""
    train_labels: Labels
    """int64, from 0"""
    test_images: Images
    """Like `train_images`, of the samples to test on."""
    test_labels: Labels
    """Like `train_labels`."""
    class_names: tuple[str, ...]
    """In the order of the labels."""
    train_groups: Labels | None = None
    """The writer of every training image, where that is known."""
    test_groups: Labels | None = None
    """Likewise, of the test images."""
    group_names: tuple[str, ...] | None = None
    """The names of the writers."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dataset(Arrays):
    """Samples, labels and how to normalise them.

    An image x goes into a model as (x / 255 - mean) / std, channel by channel.
    """

    name: str
    """The name of the dataset."""
    mean: tuple[float, ...]
    """Per channel, of pixels scaled to [0, 1]."""
    std: tuple[float, ...]
    """Likewise."""
    pixels: str
    """What 0 and 255 mean."""
    source: str
    """The form the data was found in, and where."""

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The height, width and channels of an image."""
        _, height, width, channels = self.train_images.shape
        return height, width, channels

    @property
    def train_inputs(self) -> tuple[Images]:
        """The training images, as an `ArrayDataset` has them."""
        return (self.train_images,)

    @property
    def train_targets(self) -> Labels:
        """The training labels, as an `ArrayDataset` has them."""
        return self.train_labels

    @property
    def test_inputs(self) -> tuple[Images]:
        """The test images, as an `ArrayDataset` has them."""
        return (self.test_images,)

    @property
    def test_targets(self) -> Labels:
        """The test labels, as an `ArrayDataset` has them."""
        return self.test_labels

    def __post_init__(self) -> None:
        """Check what users rely on: the files may be wrong."""
        self._check_part("training", self.train_images, self.train_labels, self.train_groups)
        self._check_part("test", self.test_images, self.test_labels, self.test_groups)
        channels = self.shape[-1]
        if self.test_images.shape[1:] != self.shape or channels != len(self.mean):
            raise DamagedDataError(
                f"{self.name}: the training images are {list(self.shape)}, the test images "
                f"{list(self.test_images.shape[1:])}, mean and std have {len(self.mean)} channels; "
                "all must agree."
            )

    def _check_part(self, part: str, images: Images, labels: Labels, groups: Labels | None) -> None:
        if images.ndim != 4 or images.dtype != np.uint8 or not len(images):
            raise DamagedDataError(
                f"{self.name}: the {part} images must be bytes [samples, height, width, "
                f"channels], at least one, got {images.dtype} {list(images.shape)}; check the "
                "files."
            )
        for what, values in (("labels", labels), ("groups", groups)):
            if values is not None and (values.shape != images.shape[:1] or values.dtype != "int64"):
                raise DamagedDataError(
                    f"{self.name}: {len(images)} {part} images need as many int64 {what}, got "
                    f"{values.dtype} {list(values.shape)}; check the files."
                )
        if not 0 <= labels.min() <= labels.max() < self.num_classes:
            raise DamagedDataError(
                f"{self.name}: the {part} labels must be 0 to {self.num_classes - 1}, got "
                f"{labels.min()} to {labels.max()}; check the files."
            )
