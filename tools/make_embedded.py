"""Make the embedded dataset from the idx files of Fashion-MNIST.

    python tools/make_embedded.py FOLDER

FOLDER holds the four files, plain or gzip, from the official page or from the Debian package
dataset-fashion-mnist. They are checked first. The first 600 training and 200 test images of every
class are taken, in the order of the original. The file that comes out is the same, bit for bit,
wherever zlib is the same; the arrays in it always are, and the loader checks those.
"""

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outvote.data.array_dataset import sha256_of
from outvote.data.mnist import EMBEDDED, FASHION, FASHION_MD5, read_idx

NUM_TRAIN, NUM_TEST = 600, 200


def main(folder: Path) -> None:
    """Write the file into the package and say what is in it."""
    whole = read_idx(folder, md5=FASHION_MD5, class_names=FASHION)
    train = first_of_each_class(whole.train_labels, NUM_TRAIN)
    test = first_of_each_class(whole.test_labels, NUM_TEST)
    arrays = {
        "train_images": whole.train_images[train, ..., 0],
        "train_labels": whole.train_labels[train].astype(np.uint8),
        "test_images": whole.test_images[test, ..., 0],
        "test_labels": whole.test_labels[test].astype(np.uint8),
    }
    np.savez_compressed(EMBEDDED, allow_pickle=False, **arrays)
    size = EMBEDDED.stat().st_size
    sys.stdout.write(f"{EMBEDDED.name}: {size:,} bytes, sha256 {sha256_of(*arrays.values())}\n")


def first_of_each_class(labels: NDArray[np.int64], num: int) -> NDArray[np.int64]:
    """Return the indices of the first `num` samples of every class, in increasing order."""
    picked = [np.flatnonzero(labels == label)[:num] for label in np.unique(labels)]
    return np.sort(np.concatenate(picked))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
