"""Any folder of images, train/<class>/* and val/<class>/*, such as ImageNet-12.

Decoded once into one array in the cache, and again when the folder changed.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from outvote.data.array_dataset import ArrayDataset, Images, image_dataset
from outvote.data.cache import decoded_once
from outvote.data.faults import DamagedDataError
from outvote.data.image_files import read_square

SIZE = 224
TEST_FOLDERS = ("val", "test")
NUM_NAMED = 10


def has_images(folder: Path) -> bool:
    """Return whether the folder is laid out as images by class."""
    return _is_part(folder / "train") and any(_is_part(folder / part) for part in TEST_FOLDERS)


def read_image_folder(folder: Path, *, size: Any = SIZE) -> ArrayDataset:
    """Read all images as size x size, from the cache where they have been read before."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"size must be a whole number of pixels, 1 or more, got {size!r}.")
    class_names, train, test = _list(folder)
    images = _decoded(folder, (*train, *test), size)
    number = {name: label for label, name in enumerate(class_names)}
    labels = np.array([number[path.parent.name] for path in (*train, *test)], dtype=np.int64)
    num_train = len(train)
    return image_dataset(
        train_images=images[:num_train],
        train_labels=labels[:num_train],
        test_images=images[num_train:],
        test_labels=labels[num_train:],
        class_names=class_names,
    )


def _is_part(folder: Path) -> bool:
    return folder.is_dir() and any(child.is_dir() for child in folder.iterdir())


def _list(folder: Path) -> tuple[tuple[str, ...], list[Path], list[Path]]:
    """Return the classes, and the training and test images, in the order of their names."""
    test = next(folder / part for part in TEST_FOLDERS if _is_part(folder / part))
    names = [
        tuple(sorted(child.name for child in part.iterdir() if child.is_dir()))
        for part in (folder / "train", test)
    ]
    if names[0] != names[1]:
        odd = sorted(set(names[0]) ^ set(names[1]))
        raise DamagedDataError(
            f"{folder / 'train'} and {test} must have the same classes, but only one "
            f"has {', '.join(odd[:NUM_NAMED])}; add or remove them."
        )
    train_paths, test_paths = (
        [path for name in names[0] for path in _files(part / name)]
        for part in (folder / "train", test)
    )
    return names[0], train_paths, test_paths


def _files(folder: Path) -> list[Path]:
    """List the images of a class; hidden files (.DS_Store and the like) are none."""
    files = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    if not files:
        raise DamagedDataError(f"{folder} is empty; put images there or remove it.")
    return files


def _decoded(root: Path, paths: Sequence[Path], size: int) -> Images:
    make = partial(_decode_all, paths=paths, size=size)
    kept = decoded_once(root, paths, f"{size}.npy", make)
    try:
        array: Images = np.load(kept)
    except (ValueError, EOFError):  # Truncated since; it can be made again.
        kept.unlink()
        array = np.load(decoded_once(root, paths, f"{size}.npy", make))
    return array


def _decode_all(target: Path, paths: Sequence[Path], size: int) -> None:
    """Decode with all cores into a file, as memory need not hold everything twice.

    Every image that cannot be read is counted, the first are named.
    """
    shape = (len(paths), size, size, 3)
    array = np.lib.format.open_memmap(target, mode="w+", dtype=np.uint8, shape=shape)

    def decode(index: int) -> str:
        try:
            array[index] = read_square(paths[index], size)
        except DamagedDataError:
            return str(paths[index])
        return ""

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as threads:
        bad = [path for path in threads.map(decode, range(len(paths))) if path]
    if bad:
        more = f" and {len(bad) - NUM_NAMED} more" if len(bad) > NUM_NAMED else ""
        raise DamagedDataError(
            f"{len(bad)} of {len(paths)} files are no readable images: "
            f"{', '.join(bad[:NUM_NAMED])}{more}; repair or remove them."
        )
    array.flush()
