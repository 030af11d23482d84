"""CIFAR-10 and CIFAR-100 in whichever form they are found: batches, archive or mosaics."""

import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from outvote.data.checksum import check_sum, sha256_of
from outvote.data.dataset import Arrays, Images, Labels
from outvote.data.faults import DamagedDataError
from outvote.data.mosaic import SIDE
from outvote.data.python_batch import read_batch

Parts = tuple[list[Images], Labels]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Cifar:
    """What tells CIFAR-10 and CIFAR-100 apart."""

    folder: str
    """The folder inside the official archive."""
    archive: str
    batches: tuple[str, ...]
    """The last one is the test set."""
    label_key: str
    mosaic_key: str
    class_names: tuple[str, ...]
    images_sha256: str
    """Of the pictures [samples, 32, 32, 3], training then test."""
    labels_sha256: str
    """Of the labels as bytes, training then test."""


def has_batches(place: Path, cifar: Cifar) -> bool:
    """Tell whether the unpacked batches are there, in their folder or without it."""
    return all((_batch_folder(place, cifar) / name).is_file() for name in cifar.batches)


def read_batches(place: Path, cifar: Cifar) -> Arrays:
    """Read the unpacked batches."""
    folder = _batch_folder(place, cifar)
    contents = {name: (folder / name).read_bytes() for name in cifar.batches}
    return _finish(_decode(contents, cifar, folder), cifar, folder)


def read_archive(place: Path, cifar: Cifar) -> Arrays:
    """Read the batches out of the official archive, without unpacking it."""
    path = place / cifar.archive
    wanted = {f"{cifar.folder}/{name}": name for name in cifar.batches}
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.name in wanted else None
                if file is not None:
                    contents[wanted[member.name]] = file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DamagedDataError(
            f"{path} cannot be unpacked: {error}; delete it and fetch it again."
        ) from error
    if missing := [name for name in cifar.batches if name not in contents]:
        raise DamagedDataError(f"{path} lacks {', '.join(missing)}; delete it and fetch it again.")
    return _finish(_decode(contents, cifar, path), cifar, path)


def read_mosaics(place: Path, cifar: Cifar, read: Callable[[Path, str], Parts]) -> Arrays:
    """Read mosaics of either kind."""
    return _finish(read(place, cifar.mosaic_key), cifar, place)


def _batch_folder(place: Path, cifar: Cifar) -> Path:
    return place / cifar.folder if (place / cifar.folder).is_dir() else place


def _decode(contents: dict[str, bytes], cifar: Cifar, where: Path) -> Parts:
    images, labels = [], []
    for name in cifar.batches:
        what = f"{name} in {where}"
        batch = read_batch(contents[name], what)
        pictures, classes = batch.get("data"), batch.get(cifar.label_key)
        images.append(_channels_last(pictures, what))
        if not isinstance(classes, list) or not all(type(label) is int for label in classes):
            raise DamagedDataError(
                f"{what} has no {cifar.label_key}; delete it and fetch it again."
            )
        labels.append(np.array(classes, dtype=np.int64))
    return images, np.concatenate(labels)


def _channels_last(pictures: Any, what: str) -> Images:
    width = 3 * SIDE * SIDE
    if not isinstance(pictures, np.ndarray) or pictures.ndim != 2 or pictures.shape[1] != width:
        raise DamagedDataError(
            f"{what} has no pictures of {width} bytes; delete it and fetch it again."
        )
    whole = pictures.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(whole)


def _finish(parts: Parts, cifar: Cifar, where: Path) -> Arrays:
    """Check the pictures and labels against the original, and cut off the test set."""
    images, labels = parts
    check_sum(f"{cifar.folder} in {where}", cifar.images_sha256, sha256_of(*images))
    got = sha256_of(labels.astype(np.uint8))
    check_sum(f"the labels of {cifar.folder} in {where}", cifar.labels_sha256, got)
    num_train = sum(len(part) for part in images[:-1])
    return Arrays(
        train_images=np.concatenate(images[:-1]),
        train_labels=labels[:num_train],
        test_images=np.array(images[-1]),
        test_labels=labels[num_train:],
        class_names=cifar.class_names,
    )
