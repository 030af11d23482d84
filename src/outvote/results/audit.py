"""Who was judged how, client by round, as arrays: audit.npz."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outvote.results.schema import Round


def audit_arrays(
    rounds: Sequence[Round], *, is_byzantine: Sequence[bool], label_counts: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    """Return scores (NaN: not sampled, inf: rejected) and who took part and was kept.

    All are ``[rounds, clients]``, but `is_byzantine [clients]` and `label_counts [clients,
    classes]`: how many pictures of each class a client owns.
    """
    shape = (len(rounds), len(is_byzantine))
    scores = np.full(shape, np.nan)
    is_sampled, is_kept = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    for row, each in enumerate(rounds):
        clients = list(each.clients)
        is_sampled[row, clients] = True
        is_kept[row, list(each.kept or ())] = True
        scores[row, clients] = [np.inf if s is None else s for s in each.scores]
    return {
        "round": np.array([each.round for each in rounds], dtype=np.int64),
        "scores": scores,
        "is_sampled": is_sampled,
        "is_kept": is_kept,
        "is_byzantine": np.array(is_byzantine, dtype=bool),
        "label_counts": label_counts,
    }


def to_npz(arrays: dict[str, NDArray[Any]]) -> bytes:
    """Return the arrays as an npz file."""
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()
