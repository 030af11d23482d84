"""Samples of any kind in memory: features, images, token ids; targets of any shape."""

import hashlib
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from outvote.data.faults import DamagedDataError
from outvote.errors import check_choice

Array = NDArray[Any]
Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
CHANNELS = ("auto", "first", "last")
MOST_CHANNELS = 4
IGNORED = -100
"""A class target that does not count, as in torch's cross entropy."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrayDataset:
    """Samples, one array per argument of the model, and their targets."""

    name: str
    """The name of the dataset."""
    train_inputs: tuple[Array, ...]
    """Arrays ``[samples, ...]``. Bytes are divided by 255 before a model gets them."""
    train_targets: Array
    """``[samples, ...]``: whole numbers are classes, -100 does not count; others are values."""
    test_inputs: tuple[Array, ...]
    """Like `train_inputs`, of the samples to test on."""
    test_targets: Array
    """Like `train_targets`."""
    num_classes: int | None
    """None: targets are not classes."""
    source: str
    """What the data is, and where it was found."""
    train_groups: Array | None = None
    """The group (such as a writer, a book, a carrier) of every training sample."""
    test_groups: Array | None = None
    """Like `train_groups`."""
    is_channels_last: bool = False
    """Whether the first array are images whose last axis are channels."""
    class_names: tuple[str, ...] | None = None
    """In the order of the classes, where they have names."""
    group_names: tuple[str, ...] | None = None
    """In the order of the groups, where these are numbers from 0."""
    mean: tuple[float, ...] | None = None
    """Of images that are stored as bytes, per channel, of pixels scaled to [0, 1]: a model gets
    (x / 255 - mean) / std. None: samples are not normalised."""
    std: tuple[float, ...] | None = None
    """Likewise."""
    pixels: str = ""
    """What 0 and 255 mean."""

    def __post_init__(self) -> None:
        """Check what users rely on."""
        for part in ("train", "test"):
            self._check_part(part)
        for number, (one, two) in enumerate(zip(self.train_inputs, self.test_inputs, strict=True)):
            if one.shape[1:] != two.shape[1:] or one.dtype.kind != two.dtype.kind:
                raise ValueError(
                    f"train and test must have samples of one kind, got {_kind(one)} and "
                    f"{_kind(two)}{'' if number == 0 else f' as argument {number}'}."
                )
        for part, groups, targets in (
            ("training", self.train_groups, self.train_targets),
            ("test", self.test_groups, self.test_targets),
        ):
            if groups is not None and len(groups) != len(targets):
                raise ValueError(
                    f"groups must have one entry for each of the {len(targets)} {part} samples, "
                    f"got {len(groups)}."
                )

        if self.mean is not None and self._channels != (len(self.mean), len(self.std or ())):
            raise ValueError(
                f"{self.name}: mean and std are for images stored as bytes, one number a channel, "
                f"got {len(self.mean)} for {_kind(self.train_images)}."
            )

    @property
    def _channels(self) -> tuple[int, int]:
        """How many numbers mean and std must have; -1: none."""
        is_images = self.is_channels_last and self.train_images.dtype == np.uint8
        number = self.shape[-1] if is_images and len(self.train_inputs) == 1 else -1
        return number, number

    def _check_part(self, part: str) -> None:
        inputs: tuple[Array, ...] = getattr(self, f"{part}_inputs")
        targets: Array = getattr(self, f"{part}_targets")
        if not len(targets):
            raise ValueError(f"{part} must have at least one sample, got none.")
        for values in inputs:
            if len(values) != len(targets):
                raise ValueError(
                    f"{part} must have one target per sample, got {len(values)} samples and "
                    f"{len(targets)} targets."
                )
        for what, values in (*(("samples", each) for each in inputs), ("targets", targets)):
            if values.dtype.kind not in "biuf":
                raise TypeError(f"{part}: {what} must be numbers, got {values.dtype}; encode them.")
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                raise ValueError(
                    f"{part}: {what} must be finite in float32, got NaN, infinity or more than "
                    "3e38; remove or replace them."
                )
        if self.num_classes is not None:
            counted = targets[targets != IGNORED]
            if counted.size and not 0 <= counted.min() <= counted.max() < self.num_classes:
                raise ValueError(
                    f"{part}: targets must be classes from 0 to {self.num_classes - 1} (or "
                    f"{IGNORED}, which does not count), got {counted.min()} to {counted.max()}; "
                    "number the classes from 0, or pass floating-point targets for regression."
                )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample, of the first array; images: height, width, channels."""
        shape = self.train_inputs[0].shape[1:]
        is_channels_first = len(shape) == 3 and not self.is_channels_last
        return (*shape[1:], shape[0]) if is_channels_first else shape

    @property
    def train_images(self) -> Array:
        """The first array of the training samples."""
        return self.train_inputs[0]

    @property
    def test_images(self) -> Array:
        """The first array of the test samples."""
        return self.test_inputs[0]

    @property
    def train_labels(self) -> Array | None:
        """The class of every training sample; None where a sample has no single class."""
        return self._labels(self.train_targets)

    @property
    def test_labels(self) -> Array | None:
        """Likewise, of the test samples."""
        return self._labels(self.test_targets)

    def _labels(self, targets: Array) -> Array | None:
        return targets if self.num_classes is not None and targets.ndim == 1 else None


def image_dataset(
    *,
    train_images: Images,
    train_labels: Labels,
    test_images: Images,
    test_labels: Labels,
    class_names: tuple[str, ...],
    **groups: Any,
) -> ArrayDataset:
    """Return the images of files, without a name; what does not fit together is damage."""
    for images in (train_images, test_images):
        if images.ndim != 4 or images.dtype != np.uint8:
            raise DamagedDataError(
                "images must be bytes [samples, height, width, channels], got "
                f"{_kind(images)}; check the files."
            )
    try:
        return ArrayDataset(
            name="images",
            train_inputs=(train_images,),
            train_targets=train_labels,
            test_inputs=(test_images,),
            test_targets=test_labels,
            num_classes=len(class_names),
            source="",
            is_channels_last=True,
            class_names=class_names,
            **groups,
        )
    except (ValueError, TypeError) as error:
        raise DamagedDataError(f"{error} Check the files.") from error


def make_dataset(
    train: Any, test: Any, *, name: str, groups: Any = None, channels: str = "auto"
) -> ArrayDataset:
    """Make a dataset of what a user has.

    `train` and `test` are pairs (samples, targets), or torch datasets of pairs that fit into
    memory. Samples are one array or tensor, or a tuple of them: the arguments of the model.
    `channels`: which axis of images are channels; "auto": the last if it has at most four entries
    and the first has more.
    """
    check_choice("channels", channels, CHANNELS)
    train_inputs, train_targets = _pair("train", train)
    test_inputs, test_targets = _pair("test", test)
    if len(train_inputs) != len(test_inputs):
        raise ValueError(
            f"train and test must have as many arrays of samples, got {len(train_inputs)} and "
            f"{len(test_inputs)}."
        )
    has_classes = train_targets.dtype.kind in "biu"
    if has_classes != (test_targets.dtype.kind in "biu"):
        raise ValueError(
            f"targets must be whole numbers in train and test or in none, got "
            f"{train_targets.dtype} and {test_targets.dtype}."
        )
    if has_classes:
        train_targets, test_targets = train_targets.astype("int64"), test_targets.astype("int64")
    return ArrayDataset(
        name=name,
        train_inputs=train_inputs,
        train_targets=train_targets,
        test_inputs=test_inputs,
        test_targets=test_targets,
        num_classes=max(2, int(train_targets.max()) + 1) if has_classes else None,
        source="arrays of the caller",
        train_groups=None if groups is None else _groups(groups),
        is_channels_last=_are_channels_last(train_inputs[0], channels),
    )


def _are_channels_last(images: Array, channels: str) -> bool:
    if images.ndim != 4:
        return False
    if channels != "auto":
        return channels == "last"
    return bool(images.shape[-1] <= MOST_CHANNELS < images.shape[1])


def _pair(part: str, given: Any) -> tuple[tuple[Array, ...], Array]:
    """Return the arrays of the samples, and the targets."""
    if isinstance(given, tuple | list) and len(given) == 2:
        samples, targets = given
    elif hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        samples, targets = _collected(part, given)
    else:
        raise TypeError(
            f"{part} must be a pair (samples, targets), a torch dataset, or the name of a dataset, "
            f"got {type(given).__name__}."
        )
    several = samples if isinstance(samples, tuple) else (samples,)
    inputs = tuple(_array(f"{part}: samples", each) for each in several)
    return inputs, _array(f"{part}: targets", targets)


def _collected(part: str, dataset: Any) -> tuple[Any, Any]:
    """Read a torch dataset into memory."""
    if not len(dataset):
        raise ValueError(f"{part} must have at least one sample, got none.")
    items = [dataset[number] for number in range(len(dataset))]
    first = items[0]
    if not isinstance(first, tuple | list) or len(first) < 2:
        raise TypeError(
            f"{part}: a dataset must give (sample, target) for every index, got "
            f"{type(first).__name__}; wrap it so that it does."
        )
    columns = [
        _stacked(f"{part}: column {k}", [item[k] for item in items]) for k in range(len(first))
    ]
    return tuple(columns[:-1]), columns[-1]


def _stacked(what: str, values: list[Any]) -> Array:
    arrays = [_array(what, value) for value in values]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise ValueError(f"{what} must have one shape in all samples, got {sorted(shapes)[:3]}.")
    return np.stack(arrays)


def _array(what: str, values: Any) -> Array:
    """Return an array that torch takes: floats are float32, whole numbers int64 or bytes."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":
            values = values.float()
        values = values.numpy()
    try:
        array = np.asarray(values)
    except ValueError as error:
        reason = str(error).rstrip(".")
        raise ValueError(
            f"{what} must be an array of one shape: {reason}; several arguments of a model are a "
            "tuple of arrays."
        ) from error
    with np.errstate(over="ignore"):  # What is too large is found with NaN and infinity.
        if array.dtype.kind == "f":
            array = array.astype(np.float32, copy=False)
        elif array.dtype.kind in "iu" and array.dtype != np.uint8:
            array = array.astype(np.int64, copy=False)
    return array if array.flags.c_contiguous and array.flags.writeable else array.copy()


def _groups(groups: Any) -> Array:
    """Return one number or name per sample; other values are numbered as they first occur."""
    values = groups.tolist() if hasattr(groups, "tolist") else list(groups)
    array = (
        np.asarray(values) if not any(isinstance(each, tuple | list) for each in values) else None
    )
    if array is not None and array.ndim == 1 and array.dtype.kind in "iuU":
        is_text = {isinstance(each, str) for each in values}
        if len(is_text) == 1:
            return array
    try:
        numbers = {each: number for number, each in enumerate(dict.fromkeys(values))}
    except TypeError as error:
        raise TypeError(f"groups must have one number or name per sample: {error}.") from error
    return np.array([numbers[each] for each in values])


def _kind(values: Array) -> str:
    return f"{values.dtype} {list(values.shape[1:])}"


def sha256_of(*arrays: np.ndarray[Any, Any]) -> str:
    """Return the sha256 of the bytes of some arrays, one after the other."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
