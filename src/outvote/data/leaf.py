"""LEAF's JSON: users, and for each of them the pictures and labels."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from outvote.data.dataset import Images, Labels
from outvote.data.decoded import decoded_once
from outvote.data.faults import DamagedDataError
from outvote.data.npz import read_npz

SIDE = 28
TRAIN_SHARE = 0.9


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Samples with label and writer."""

    images: Images
    labels: Labels
    writers: NDArray[np.str_]

    def take(self, which: NDArray[np.bool_]) -> "Samples":
        """Return some of the samples."""
        return Samples(
            images=self.images[which], labels=self.labels[which], writers=self.writers[which]
        )


def read_json_files(root: Path, paths: Sequence[Path], variant: str) -> Samples:
    """Read files below `root`; all of FEMNIST takes minutes, so the result is kept in the cache."""

    def make(target: Path) -> None:
        read = _read_files(paths)
        np.savez(target, images=read.images, labels=read.labels, writers=read.writers)

    keys = ("images", "labels", "writers")
    kept = decoded_once(root, paths, f"{variant}.npz", make)
    images, labels, writers = read_npz(kept, keys, "delete it, it is made again")
    return Samples(images=images, labels=labels, writers=writers)


def split_within_writers(samples: Samples, seed: int) -> tuple[Samples, Samples]:
    """Cut 9 of 10 samples of every writer off for training, at least one, drawn at random."""
    is_train = np.zeros(len(samples.labels), dtype=bool)
    order = np.argsort(samples.writers, kind="stable")
    _, counts = np.unique(samples.writers, return_counts=True)
    random = np.random.default_rng(seed)
    for owned in np.split(order, np.cumsum(counts)[:-1]):
        num_train = max(1, int(TRAIN_SHARE * len(owned)))
        is_train[random.permutation(owned)[:num_train]] = True
    return samples.take(is_train), samples.take(~is_train)


def _read_files(paths: Sequence[Path]) -> Samples:
    """Read files one by one: as JSON, a picture takes a hundred times the memory."""
    parts = [part for path in paths for part in _read_file(path)]
    if not parts:
        raise DamagedDataError(f"{paths[0].parent} holds no samples; run LEAF's preprocess.sh.")
    return Samples(
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
    except (KeyError, TypeError, RecursionError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DamagedDataError(
            f"{path} is no output of LEAF ({type(error).__name__}: {error}); run its "
            "preprocess.sh again."
        ) from error


def _read_user(path: Path, user: str, owned: dict[str, Any]) -> tuple[Images, Labels]:
    try:
        values = np.array(owned["x"], dtype=np.float64)
        labels = np.array(owned["y"])
    except ValueError as error:
        raise _bad_user(path, user, str(error)) from error
    if labels.ndim != 1 or labels.dtype != np.int64:
        raise _bad_user(path, user, "labels that are not whole numbers")
    if values.shape != (len(labels), SIDE * SIDE):
        raise _bad_user(path, user, f"pictures {list(values.shape)} for {len(labels)} labels")
    if not (values.min() >= 0 and values.max() <= 1):
        raise _bad_user(path, user, f"pixels from {values.min()} to {values.max()}, not 0 to 1")
    return np.rint(255 * values).astype(np.uint8).reshape(-1, SIDE, SIDE, 1), labels


def _bad_user(path: Path, user: str, why: str) -> DamagedDataError:
    return DamagedDataError(f"{path}, writer {user}: {why}; run LEAF's preprocess.sh again.")
