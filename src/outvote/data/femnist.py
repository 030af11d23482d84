"""FEMNIST: handwriting with its writers, as LEAF's JSON or as the npz subset.

Pixels are round(255 x) of LEAF's x in [0, 1]; the paper is white, 255.
"""

from pathlib import Path

import numpy as np

from outvote.data.checksum import check_sum, sha256_of
from outvote.data.class_names import DIGITS_AND_LETTERS
from outvote.data.dataset import Arrays
from outvote.data.leaf import Samples, read_json_files, split_within_writers
from outvote.data.npz import read_npz

SUBSET = "femnist_leaf_subset.npz"
SUBSET_KEYS = ("train_x", "train_y", "train_writer", "test_x", "test_y", "test_writer", "writers")
SUBSET_SHA256 = "c304243526a1f1e17bff6089f26fc4598f7cd84d325e95b6913c616caf7a3c25"


def has_leaf(folder: Path) -> bool:
    """Tell whether LEAF's JSON is there, split or not."""
    is_split = all(any((folder / part).glob("*.json")) for part in ("train", "test"))
    return is_split or bool(_unsplit_files(folder))


def read_leaf(folder: Path, *, split_seed: int = 0) -> Arrays:
    """Read LEAF's JSON; without a split of its own, 9 of 10 samples of each writer are training."""
    if files := _unsplit_files(folder):
        train, test = split_within_writers(read_json_files(folder, files, "all"), split_seed)
    else:
        train, test = (
            read_json_files(folder, sorted((folder / part).glob("*.json")), part)
            for part in ("train", "test")
        )
    return _with_numbers(train, test)


def read_subset(folder: Path, *, sha256: str = SUBSET_SHA256) -> Arrays:
    """Read the npz subset; writers without training data are left out, as the paper needs none."""
    path = folder / SUBSET
    arrays = read_npz(path, SUBSET_KEYS, "get it again")
    check_sum(str(path), sha256, sha256_of(*arrays), "get it again")
    train_x, train_y, train_writer, test_x, test_y, test_writer, writers = arrays
    is_used = np.isin(test_writer, np.unique(train_writer))
    return Arrays(
        train_images=train_x[..., None],
        train_labels=train_y.astype(np.int64),
        test_images=test_x[is_used][..., None],
        test_labels=test_y[is_used].astype(np.int64),
        class_names=DIGITS_AND_LETTERS,
        train_groups=train_writer.astype(np.int64),
        test_groups=test_writer[is_used].astype(np.int64),
        group_names=tuple(str(name) for name in writers[: int(train_writer.max()) + 1]),
    )


def _unsplit_files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("all_data*.json"), *folder.glob("all_data/*.json")])


def _with_numbers(train: Samples, test: Samples) -> Arrays:
    """Number the writers in the order of their names."""
    names = np.unique(np.concatenate([train.writers, test.writers]))
    return Arrays(
        train_images=train.images,
        train_labels=train.labels,
        test_images=test.images,
        test_labels=test.labels,
        class_names=DIGITS_AND_LETTERS,
        train_groups=np.searchsorted(names, train.writers).astype(np.int64),
        test_groups=np.searchsorted(names, test.writers).astype(np.int64),
        group_names=tuple(str(name) for name in names),
    )
