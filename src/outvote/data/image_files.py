"""Decoding images with Pillow, which is imported here only."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from outvote.data.array_dataset import Images
from outvote.data.faults import DamagedDataError
from outvote.limits import TooLargeError
from outvote.text import short_line

MOST_PIXELS = 100_000_000
"""Of one image; the mosaics of CIFAR have 61 million."""


def read_rgb(path: Path) -> Images:
    """Decode a whole image, [height, width, 3]."""
    return np.asarray(_decode(path))


def read_square(path: Path, size: int) -> Images:
    """Decode an image, scale its short side to size * 256 / 224, cut out the centre.

    With the size 224 this is "resize 256, centre crop 224". Bilinear, as torchvision does it.
    """
    image = _decode(path)
    short = round(size * 256 / 224)
    width, height = image.size
    if width <= height:
        scaled = (short, int(short * height / width))
    else:
        scaled = (int(short * width / height), short)
    if scaled[0] * scaled[1] > MOST_PIXELS:
        raise DamagedDataError(
            f"{path} is too long for its width: {width} x {height} pixels; take it out."
        )
    image = image.resize(scaled, _pillow().Resampling.BILINEAR)
    left, top = (round((side - size) / 2) for side in scaled)
    return np.asarray(image.crop((left, top, left + size, top + size)))


def _decode(path: Path) -> Any:
    pillow = _pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
            with pillow.open(path) as image:
                _check_size(*image.size)
                return image.convert("RGB")
    # Pillow raises nearly anything on files that are no images, truncated, or absurdly large.
    except Exception as error:
        why = short_line(error) or type(error).__name__
        raise DamagedDataError(f"{path} is no readable image: {why}; get it again.") from error


def _check_size(width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise TooLargeError(f"{width} x {height} pixels, at most {MOST_PIXELS:,} are read")


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "images are read with Pillow, which is missing; install it: pip install pillow"
        ) from error
    return Image
