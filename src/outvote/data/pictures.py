"""Decoding pictures with Pillow, which is imported here only."""

from pathlib import Path
from typing import Any

import numpy as np

from outvote.data.dataset import Images
from outvote.data.faults import DamagedDataError


def pillow() -> Any:
    """Return Pillow's Image module, or say how to get it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "pictures are read with Pillow, which is missing; install it: pip install pillow"
        ) from error
    return Image


def read_rgb(path: Path) -> Images:
    """Decode a whole picture, [height, width, 3]."""
    return np.asarray(_decode(path))


def read_square(path: Path, size: int) -> Images:
    """Decode a picture, bring its short side to size * 256 / 224, cut out the centre.

    With the size 224 this is "resize 256, centre crop 224". Bilinear, as torchvision does it.
    """
    colours = _decode(path)
    short = round(size * 256 / 224)
    width, height = colours.size
    if width <= height:
        scaled = (short, int(short * height / width))
    else:
        scaled = (int(short * width / height), short)
    colours = colours.resize(scaled, pillow().Resampling.BILINEAR)
    left, top = (round((side - size) / 2) for side in scaled)
    return np.asarray(colours.crop((left, top, left + size, top + size)))


def _decode(path: Path) -> Any:
    image = pillow()
    # What Pillow raises on files that are no pictures, cut off, or absurdly large.
    unreadable = (OSError, ValueError, SyntaxError, TypeError, LookupError, EOFError)
    try:
        with image.open(path) as picture:
            return picture.convert("RGB")
    except (*unreadable, image.DecompressionBombError) as error:
        raise DamagedDataError(f"{path} is no readable picture: {error}; get it again.") from error
