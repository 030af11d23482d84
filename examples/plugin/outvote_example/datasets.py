"""The dataset `few-clothes`."""

import numpy as np
from numpy.typing import NDArray

from outvote.data import load

Pair = tuple[NDArray[np.float32], NDArray[np.int64]]


def few_clothes() -> tuple[Pair, Pair]:
    """Return every tenth image of fashion-mnist-small: 600 for training and 200 for the test."""
    images = load("fashion-mnist-small")
    train = (_scaled(images.train_images[::10]), images.train_labels[::10].astype(np.int64))
    test = (_scaled(images.test_images[::10]), images.test_labels[::10].astype(np.int64))
    return train, test


def _scaled(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    return images.astype(np.float32) / 127.5 - 1
