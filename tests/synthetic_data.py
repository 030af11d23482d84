"""Small datasets in the forms that outvote reads, the same bytes on any machine and for ever.

Nothing is drawn from a generator whose stream a new version may change: every byte comes from
SHAKE-256, and images have the size that the reader would bring them to.
"""

import hashlib
import json

import numpy as np
from PIL import Image


def pixels(name, *shape):
    """Bytes that depend on the name alone."""
    content = hashlib.shake_256(name.encode()).digest(int(np.prod(shape)))
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def write_image_folder(folder, *, size, num_classes, num_train, num_test):
    """Images by class, train/<class>/* and val/<class>/*, to be read with the image size `size`.

    The reader scales the short side to size * 256 / 224 and cuts out the centre: at that size
    nothing is left to interpolate.
    """
    side = round(size * 256 / 224)
    for part, number in (("train", num_train), ("val", num_test)):
        for label in range(num_classes):
            place = folder / part / f"class{label}"
            place.mkdir(parents=True)
            shade = np.uint8(127 * label // max(1, num_classes - 1))
            for k in range(number):
                image = pixels(f"{part} {label} {k}", side, side, 3) // 2 + shade
                Image.fromarray(image).save(place / f"{k:03}.png")


def write_leaf(folder, *, num_writers, num_classes, num_train, num_test):
    """Handwriting with its writers, as LEAF's JSON: train/*.json and test/*.json."""
    for part, number in (("train", num_train), ("test", num_test)):
        (folder / part).mkdir(parents=True)
        users = [f"writer{writer}" for writer in range(num_writers)]
        content = {
            "users": users,
            "user_data": {
                user: {
                    # As many as the writer's number more, so that clients differ in size.
                    "x": [
                        (pixels(f"{part} {user} {k}", 784) // 2 / 255 + 0.05 * (k % num_classes))
                        .clip(0, 1)
                        .tolist()
                        for k in range(number + writer)
                    ],
                    "y": [k % num_classes for k in range(number + writer)],
                }
                for writer, user in enumerate(users)
            },
        }
        (folder / part / "all.json").write_text(json.dumps(content))
