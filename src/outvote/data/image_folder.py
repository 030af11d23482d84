"""Any folder of pictures, train/<class>/* and val/<class>/*, such as ImageNet-12.

Decoded once into one array in the cache, and again when the folder changed.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np

from outvote.data.dataset import Arrays, Images
from outvote.data.decoded import decoded_once
from outvote.data.faults import DamagedDataError
from outvote.data.pictures import read_square

SIZE = 224
TEST_FOLDERS = ("val", "test")
NUM_NAMED = 10


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The pictures of a folder, in the order of their names."""

    root: Path
    class_names: tuple[str, ...]
    train: tuple[Path, ...]
    test: tuple[Path, ...]


def has_pictures(folder: Path) -> bool:
    """Tell whether the folder is laid out as pictures by class."""
    return _is_part(folder / "train") and any(_is_part(folder / part) for part in TEST_FOLDERS)


def read_image_folder(folder: Path, *, size: Any = SIZE) -> Arrays:
    """Read all pictures as size x size, from the cache where they have been read before."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"size must be a whole number of pixels, 1 or more, got {size!r}.")
    listing = _list(folder)
    images = _decoded(listing, size)
    number = {name: label for label, name in enumerate(listing.class_names)}
    paths = [*listing.train, *listing.test]
    labels = np.array([number[path.parent.name] for path in paths], dtype=np.int64)
    num_train = len(listing.train)
    return Arrays(
        train_images=images[:num_train],
        train_labels=labels[:num_train],
        test_images=images[num_train:],
        test_labels=labels[num_train:],
        class_names=listing.class_names,
    )


def _is_part(folder: Path) -> bool:
    return folder.is_dir() and any(child.is_dir() for child in folder.iterdir())


def _list(folder: Path) -> Listing:
    test = next(folder / part for part in TEST_FOLDERS if _is_part(folder / part))
    names = [_class_names(part) for part in (folder / "train", test)]
    if names[0] != names[1]:
        odd = sorted(set(names[0]) ^ set(names[1]))
        raise DamagedDataError(
            f"{folder / 'train'} and {test} must have the same classes, but "
            f"{', '.join(odd[:NUM_NAMED])} stand in one only; add or remove them."
        )
    train_paths, test_paths = (
        tuple(path for name in names[0] for path in _files(part / name))
        for part in (folder / "train", test)
    )
    return Listing(root=folder, class_names=names[0], train=train_paths, test=test_paths)


def _class_names(part: Path) -> tuple[str, ...]:
    return tuple(sorted(child.name for child in part.iterdir() if child.is_dir()))


def _files(folder: Path) -> list[Path]:
    """List the pictures of a class; hidden files (.DS_Store and the like) are none."""
    files = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    if not files:
        raise DamagedDataError(f"{folder} is empty; put pictures there or remove it.")
    return files


def _decoded(listing: Listing, size: int) -> Images:
    """Return all pictures, those for training first; decoded now or earlier."""
    paths = (*listing.train, *listing.test)
    make = partial(_decode_all, paths=paths, size=size)
    kept = decoded_once(listing.root, paths, f"{size}.npy", make)
    try:
        array: Images = np.load(kept)
    except (ValueError, EOFError):  # Cut off behind our back; it can be made again.
        kept.unlink()
        array = np.load(decoded_once(listing.root, paths, f"{size}.npy", make))
    return array


def _decode_all(target: Path, paths: Sequence[Path], size: int) -> None:
    """Decode into a file, so that the memory need not hold everything twice."""
    shape = (len(paths), size, size, 3)
    array = np.lib.format.open_memmap(target, mode="w+", dtype=np.uint8, shape=shape)
    _fill(array, paths, size)
    array.flush()


def _fill(array: Images, paths: Sequence[Path], size: int) -> None:
    """Decode with all cores; every picture that cannot be read is counted, the first are named."""

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
            f"{len(bad)} of {len(paths)} files are no readable pictures: "
            f"{', '.join(bad[:NUM_NAMED])}{more}; repair or remove them."
        )
