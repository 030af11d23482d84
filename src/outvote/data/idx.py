"""idx files, the form of MNIST and Fashion-MNIST: plain or inside gzip."""

import gzip
import hashlib
import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outvote.data.checksum import check_sum
from outvote.data.dataset import Arrays
from outvote.data.faults import DamagedDataError

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
UNSIGNED_BYTE = 8


def has_idx(folder: Path) -> bool:
    """Tell whether all four files are there, plain or as gzip."""
    return all(_path(folder, name) is not None for name in FILES)


def read_idx(folder: Path, *, md5: Mapping[str, str], class_names: tuple[str, ...]) -> Arrays:
    """Read the four files; `md5` holds the checksum of each without gzip."""
    parts = [_read_file(folder, name, md5[name]) for name in FILES]
    return Arrays(
        train_images=parts[0][..., None],
        train_labels=parts[1].astype(np.int64),
        test_images=parts[2][..., None],
        test_labels=parts[3].astype(np.int64),
        class_names=class_names,
    )


def decode_idx(content: bytes, what: str) -> NDArray[np.uint8]:
    """Turn the bytes of an idx file into an array."""
    header = np.frombuffer(content[:4], dtype=np.uint8)
    if len(header) < 4 or header[:2].any() or header[2] != UNSIGNED_BYTE:
        raise DamagedDataError(f"{what} is no idx file of bytes; delete it and fetch it again.")
    start = 4 + 4 * int(header[3])
    sizes = content[4:start]
    shape = [int(size) for size in np.frombuffer(sizes[: len(sizes) // 4 * 4], dtype=">u4")]
    if len(shape) != header[3] or len(content) - start != prod(shape):
        raise DamagedDataError(
            f"{what} announces the shape {shape} and holds {len(content) - start} bytes; "
            "delete it and fetch it again."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape).copy()


def _read_file(folder: Path, name: str, md5: str) -> NDArray[np.uint8]:
    path = _path(folder, name)
    assert path is not None
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DamagedDataError(
            f"{path} is no whole gzip file: {error}; delete it and fetch it again."
        ) from error
    check_sum(str(path), md5, hashlib.md5(content, usedforsecurity=False).hexdigest())
    return decode_idx(content, str(path))


def _path(folder: Path, name: str) -> Path | None:
    found = (path for path in (folder / name, folder / f"{name}.gz") if path.is_file())
    return next(found, None)
