"""What a loaded dataset is: plain numpy arrays and the facts that training needs."""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from outvote.data.faults import DamagedDataError

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrays:
    """What a reader gets out of files; the fields are those of Dataset."""

    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    class_names: tuple[str, ...]
    train_groups: Labels | None = None
    test_groups: Labels | None = None
    group_names: tuple[str, ...] | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dataset:
    """Samples, labels and how to normalise them.

    A picture x goes into a model as (x / 255 - mean) / std, channel by channel.
    """

    name: str
    train_images: Images
    """uint8 [samples, height, width, channels]"""
    train_labels: Labels
    """int64, from 0"""
    test_images: Images
    test_labels: Labels
    class_names: tuple[str, ...]
    """In the order of the labels."""
    mean: tuple[float, ...]
    """Per channel, of pixels scaled to [0, 1]."""
    std: tuple[float, ...]
    pixels: str
    """What 0 and 255 mean."""
    source: str
    """The form the data was found in, and where."""
    train_groups: Labels | None = None
    """The writer of every training picture, where that is known."""
    test_groups: Labels | None = None
    group_names: tuple[str, ...] | None = None
    """The names of the writers."""

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The height, width and channels of a picture."""
        _, height, width, channels = self.train_images.shape
        return height, width, channels

    def __post_init__(self) -> None:
        """Check what every user relies on: whoever wrote the files may have been wrong."""
        self._check_part("training", self.train_images, self.train_labels, self.train_groups)
        self._check_part("test", self.test_images, self.test_labels, self.test_groups)
        channels = self.shape[-1]
        if self.test_images.shape[1:] != self.shape or channels != len(self.mean):
            raise DamagedDataError(
                f"{self.name}: the training pictures are {list(self.shape)}, the test pictures "
                f"{list(self.test_images.shape[1:])}, mean and std have {len(self.mean)} channels; "
                "all must agree."
            )

    def _check_part(self, part: str, images: Images, labels: Labels, groups: Labels | None) -> None:
        if images.ndim != 4 or images.dtype != np.uint8 or not len(images):
            raise DamagedDataError(
                f"{self.name}: the {part} pictures must be bytes [samples, height, width, "
                f"channels], at least one, got {images.dtype} {list(images.shape)}; check the "
                "files."
            )
        for what, values in (("labels", labels), ("groups", groups)):
            if values is not None and (values.shape != images.shape[:1] or values.dtype != "int64"):
                raise DamagedDataError(
                    f"{self.name}: {len(images)} {part} pictures need as many int64 {what}, got "
                    f"{values.dtype} {list(values.shape)}; check the files."
                )
        if not 0 <= labels.min() <= labels.max() < self.num_classes:
            raise DamagedDataError(
                f"{self.name}: the {part} labels must be 0 to {self.num_classes - 1}, got "
                f"{labels.min()} to {labels.max()}; check the files."
            )
