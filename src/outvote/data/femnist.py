"""FEMNIST: handwriting with its writers, as LEAF's JSON or as the npz subset.

Pixels are round(255 x) of LEAF's x in [0, 1]; the paper is white, 255.
"""

import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outvote.data.array_dataset import ArrayDataset, Images, Labels, image_dataset, sha256_of
from outvote.data.cache import decoded_once
from outvote.data.checksum import check_sum, read_npz
from outvote.data.faults import DamagedDataError
from outvote.text import short_line

DIGITS_AND_LETTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
SIDE = 28
TRAIN_SHARE = 0.9
MOST_KEPT = 1 << 33
"""Bytes of the samples that are kept in the cache."""
SUBSET = "femnist_leaf_subset.npz"
SUBSET_KEYS = ("train_x", "train_y", "train_writer", "test_x", "test_y", "test_writer", "writers")
SUBSET_SHA256 = "c304243526a1f1e17bff6089f26fc4598f7cd84d325e95b6913c616caf7a3c25"


class WriterSamples(NamedTuple):
    """Samples with label and writer."""

    images: Images
    labels: Labels
    writers: NDArray[np.str_]


def has_leaf(folder: Path) -> bool:
    """Return whether LEAF's JSON is there, split or not."""
    is_split = all(any((folder / part).glob("*.json")) for part in ("train", "test"))
    return is_split or bool(_unsplit_files(folder))


def read_leaf(folder: Path, *, split_seed: int = 0) -> ArrayDataset:
    """Read LEAF's JSON; without a split of its own, 9 of 10 samples of each writer are training."""
    if files := _unsplit_files(folder):
        train, test = split_within_writers(read_json_files(folder, files, "all"), split_seed)
    else:
        train, test = (
            read_json_files(folder, sorted((folder / part).glob("*.json")), part)
            for part in ("train", "test")
        )
    return _with_numbers(train, test)


def read_subset(folder: Path, *, sha256: str = SUBSET_SHA256) -> ArrayDataset:
    """Read the npz subset; writers without training data are left out, as the paper needs none."""
    path = folder / SUBSET
    arrays = read_npz(path, SUBSET_KEYS, "get it again")
    check_sum(str(path), sha256, sha256_of(*arrays), "get it again")
    train_x, train_y, train_writer, test_x, test_y, test_writer, writers = arrays
    is_used = np.isin(test_writer, np.unique(train_writer))
    return image_dataset(
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


def _with_numbers(train: WriterSamples, test: WriterSamples) -> ArrayDataset:
    """Number the writers in the order of their names."""
    names = np.unique(np.concatenate([train.writers, test.writers]))
    return image_dataset(
        train_images=train.images,
        train_labels=train.labels,
        test_images=test.images,
        test_labels=test.labels,
        class_names=DIGITS_AND_LETTERS,
        train_groups=np.searchsorted(names, train.writers).astype(np.int64),
        test_groups=np.searchsorted(names, test.writers).astype(np.int64),
        group_names=tuple(str(name) for name in names),
    )


def read_json_files(root: Path, paths: Sequence[Path], variant: str) -> WriterSamples:
    """Read files below `root`; all of FEMNIST takes minutes, so the result is kept in the cache."""
    kept = decoded_once(
        root, paths, f"{variant}.npz", lambda path: np.savez(path, **_read_files(paths)._asdict())
    )
    remedy = "delete it, it is made again"
    return WriterSamples(*read_npz(kept, WriterSamples._fields, remedy, most=MOST_KEPT))


def split_within_writers(samples: WriterSamples, seed: int) -> tuple[WriterSamples, WriterSamples]:
    """Cut 9 of 10 samples of every writer off for training, at least one, drawn at random."""
    is_train = np.zeros(len(samples.labels), dtype=bool)
    order = np.argsort(samples.writers, kind="stable")
    _, counts = np.unique(samples.writers, return_counts=True)
    random = np.random.default_rng(seed)
    for owned in np.split(order, np.cumsum(counts)[:-1]):
        num_train = max(1, int(TRAIN_SHARE * len(owned)))
        is_train[random.permutation(owned)[:num_train]] = True
    images, labels, writers = samples
    train, test = (
        WriterSamples(images[which], labels[which], writers[which])
        for which in (is_train, ~is_train)
    )
    return train, test


def _read_files(paths: Sequence[Path]) -> WriterSamples:
    """Read files one by one: as JSON, an image takes a hundred times the memory."""
    parts = [part for path in paths for part in _read_file(path)]
    if not parts:
        raise DamagedDataError(f"{paths[0].parent} holds no samples; run LEAF's preprocess.sh.")
    return WriterSamples(
        images=np.concatenate([images for _, images, _ in parts]),
        labels=np.concatenate([labels for _, _, labels in parts]),
        writers=np.concatenate([np.full(len(labels), name) for name, _, labels in parts]),
    )


def _read_file(path: Path) -> list[tuple[str, Images, Labels]]:
    try:
        content = json.loads(path.read_bytes())
        return [
            (str(user), *_read_user(path, user, content["user_data"][user]))
            for user in content["users"]
            if len(content["user_data"][user]["y"])
        ]
    except DamagedDataError:
        raise
    except (LookupError, TypeError, RecursionError, ValueError) as error:
        raise DamagedDataError(
            f"{path} is no output of LEAF ({type(error).__name__}: {short_line(error)}); run "
            "its preprocess.sh again."
        ) from error


def _read_user(path: Path, user: str, owned: dict[str, Any]) -> tuple[Images, Labels]:
    try:
        values = np.array(owned["x"], dtype=np.float64)
        labels = np.array(owned["y"])
    except (ValueError, OverflowError) as error:
        raise _bad_user(path, user, str(error)) from error
    if labels.ndim != 1 or labels.dtype != np.int64:
        raise _bad_user(path, user, "labels that are not whole numbers")
    if values.shape != (len(labels), SIDE * SIDE):
        raise _bad_user(path, user, f"images {list(values.shape)} for {len(labels)} labels")
    if not (values.min() >= 0 and values.max() <= 1):
        raise _bad_user(path, user, f"pixels from {values.min()} to {values.max()}, not 0 to 1")
    return np.rint(255 * values).astype(np.uint8).reshape(-1, SIDE, SIDE, 1), labels


def _bad_user(path: Path, user: str, why: str) -> DamagedDataError:
    return DamagedDataError(
        f"{path}, writer {short_line(user)}: {short_line(why)}; run LEAF's preprocess.sh again."
    )
