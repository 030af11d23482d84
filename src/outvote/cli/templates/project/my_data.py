"""Data of your own: `name = "my_data.py:data"` under [data] in outvote.toml."""

import numpy as np
from numpy.typing import NDArray
from outvote.data import load

Pair = tuple[NDArray[np.float32], NDArray[np.int64]]


def data() -> tuple[Pair, Pair]:
    """Return (train, test), each a pair (samples, targets).

    Replace the body: read a CSV file with numpy or pandas, a folder of images, token
    ids. Samples are arrays of any shape, one row per sample; targets are classes from
    0, or floating-point values to regress on. Return (train, test, groups) with one
    group per training sample, such as a hospital or an author, for `partition =
    "by-group"`.
    """
    # Images of clothes that come with outvote: no network needed.
    images = load("fashion-mnist-small")
    train = (scaled(images.train_images), images.train_labels.astype(np.int64))
    test = (scaled(images.test_images), images.test_labels.astype(np.int64))
    return train, test


def scaled(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return pixels from -1 to 1."""
    return images.astype(np.float32) / 127.5 - 1
