"""The model that was sent: what replies are compared with, and the way back to a record."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor

from outvote.flat import to_float
from outvote.flower.npy import Expected, short

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""How the names of arrays end that a network counts or averages by itself, without gradients."""

Values = NDArray[Any]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SentModel:
    """A model as two vectors.

    The weights are what the rule judges. Statistics (whole numbers, and the running averages of
    batch normalisation) have other units, so that one of them could outweigh all weights; they are
    not judged but merged by the median.
    """

    record: ArrayRecord
    weights: tuple[Expected, ...]
    statistics: tuple[Expected, ...]
    vector: Values
    """The weights, in the precision that is worked in."""

    @classmethod
    def read(cls, record: ArrayRecord) -> "SentModel":
        """Read the server's own model; it must be sound."""
        arrays = {name: _check(name, array.numpy()) for name, array in record.items()}
        names = [name for name, array in arrays.items() if not _is_statistic(name, array)]
        if not any(arrays[name].size for name in names):
            raise ValueError(
                "the model must have at least one array of floating-point numbers that is no "
                f"running statistic, got {', '.join(map(short, arrays)) or 'no array'}."
            )
        is_wide = any(arrays[name].dtype == np.float64 for name in names)
        dtype = np.float64 if is_wide else np.float32
        return cls(
            record=record,
            weights=tuple(Expected.like(name, arrays[name]) for name in names),
            statistics=tuple(
                Expected.like(name, array) for name, array in arrays.items() if name not in names
            ),
            vector=np.concatenate([arrays[name].ravel().astype(dtype) for name in names]),
        )

    @property
    def expected(self) -> dict[str, Expected]:
        """What each array must look like."""
        return {each.name: each for each in (*self.weights, *self.statistics)}

    def moved(self, step: Tensor, statistics: Sequence[Values]) -> ArrayRecord | None:
        """Return the model after a step, in its own dtypes; None if it would not be finite."""
        vector = torch.from_numpy(self.vector) + step
        if not bool(vector.isfinite().all()):
            return None
        arrays = _cut(vector, self.weights)
        for each, values in zip(self.statistics, statistics, strict=True):
            arrays[each.name] = values.reshape(each.shape)
        return ArrayRecord({name: Array(arrays[name]) for name in self.record})

    def to_vector(self, arrays: Mapping[str, Values]) -> Values:
        """Turn weights that the server itself worked out into a vector; others are ignored."""
        for each in self.weights:
            if each.name not in arrays or arrays[each.name].shape != each.shape:
                raise ValueError(
                    f"the reference must have the array {short(each.name)} of the shape "
                    f"{each.shape}, as the model has; train the model that the hook was given."
                )
        return np.concatenate([np.ravel(arrays[each.name]) for each in self.weights]).astype(
            self.vector.dtype
        )


def check_same(kept: ArrayRecord, given: ArrayRecord) -> None:
    """Raise unless two records are of the same network."""
    looks = [
        {name: (array.dtype, tuple(array.shape)) for name, array in record.items()}
        for record in (kept, given)
    ]
    if looks[0] != looks[1]:
        raise ValueError(
            "the checkpoint is of another model than initial_arrays: names, shapes or dtypes "
            "differ; build the model as before, or start anew in another audit_dir."
        )


def _check(name: str, array: Values) -> Values:
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8 or not array.dtype.isnative:
        raise ValueError(f"array {short(name)} of the model must hold numbers, got {array.dtype}.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(
            f"array {short(name)} of the model holds NaN or infinity; start from a sound model."
        )
    return array


def _is_statistic(name: str, array: Values) -> bool:
    return array.dtype.kind != "f" or name.endswith(STATISTICS)


def _cut(vector: Tensor, parts: tuple[Expected, ...]) -> dict[str, Values]:
    pieces = vector.split([each.size for each in parts])
    return {
        each.name: to_float(piece, torch.from_numpy(np.empty(0, each.dtype)).dtype)
        .view(each.shape)
        .numpy()
        for each, piece in zip(parts, pieces, strict=True)
    }
