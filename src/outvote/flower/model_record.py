"""The model that was sent: what each array of a reply must look like, and the way back to a record.

Arrays arrive as the bytes of an npy file. Its header is text that numpy would evaluate. Here the
only right text is known beforehand, so everything else is refused without parsing it.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, final

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor

from outvote.flat import to_float
from outvote.server.replies import Malformed, names_of_weights, quote

MAGIC = b"\x93NUMPY"
# By the first byte of the version: how many bytes hold the length of the header.
LENGTH_BYTES = {1: 2, 2: 4}

Values = NDArray[Any]


@final
@dataclass(frozen=True, slots=True)
class ExpectedArray:
    """An array of the model: dtype, shape and npy header that a reply must match."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: bytes
    """How the file begins, if numpy wrote it in the usual order."""
    text: bytes
    """The header without spaces."""
    text_fortran: bytes
    """The same for the other order of the values."""

    @classmethod
    def like(cls, name: str, array: Values) -> "ExpectedArray":
        """Take an array of the model as the example."""
        start, fortran = (_header(array, is_fortran=flag) for flag in (False, True))
        texts = _compact(start[10:]), _compact(fortran[10:])
        return cls(name, array.dtype, array.shape, start, *texts)

    @property
    def size(self) -> int:
        """The number of values."""
        return prod(self.shape)

    def read(self, data: bytes) -> Values:
        """Return the values in the usual order, without a copy if possible; or raise Malformed."""
        if data.startswith(self.start):
            begin, is_fortran = len(self.start), False
        else:
            begin, is_fortran = self._find_values(data)
        wanted = self.size * self.dtype.itemsize
        if len(data) - begin != wanted:
            raise Malformed(
                f"array {quote(self.name)} holds {len(data) - begin:,} bytes, its shape needs "
                f"{wanted:,}"
            )
        values: Values = np.frombuffer(data, self.dtype, self.size, begin)
        return values.reshape(self.shape, order="F").ravel() if is_fortran else values

    def _find_values(self, data: bytes) -> tuple[int, bool]:
        num_bytes = LENGTH_BYTES.get(data[6]) if data[:6] == MAGIC and len(data) > 12 else None
        if num_bytes is None:
            raise Malformed(f"array {quote(self.name)} is not in numpy's format")
        begin = 8 + num_bytes
        end = begin + int.from_bytes(data[8:begin], "little")
        # Padding is of any length, but no writer needs more than this.
        text = _compact(data[begin:end]) if end - begin <= len(self.start) + 256 else b""
        if text not in (self.text, self.text_fortran):
            raise Malformed(
                f"array {quote(self.name)} does not hold what its label claims; {self.dtype} of "
                f"the shape {self.shape} are needed"
            )
        return end, text == self.text_fortran


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SentModel:
    """A model as weights and statistics.

    The rule aggregates the weights. Statistics (whole numbers, and the running averages of batch
    normalisation) have other units, and one of them could outweigh all weights; they are merged by
    the median instead.
    """

    record: ArrayRecord
    weights: tuple[ExpectedArray, ...]
    statistics: tuple[ExpectedArray, ...]
    vector: Values
    """The weights, in float32 or float64."""

    @classmethod
    def read(cls, record: ArrayRecord) -> "SentModel":
        """Read the server's own model; it must be sound."""
        arrays = {name: _check(name, array.numpy()) for name, array in record.items()}
        names = names_of_weights(
            {name: array.size for name, array in arrays.items()},
            {name: array.dtype.kind == "f" for name, array in arrays.items()},
        )
        is_wide = any(arrays[name].dtype == np.float64 for name in names)
        dtype = np.float64 if is_wide else np.float32
        others = [name for name in arrays if name not in names]
        return cls(
            record=record,
            weights=tuple(ExpectedArray.like(name, arrays[name]) for name in names),
            statistics=tuple(ExpectedArray.like(name, arrays[name]) for name in others),
            vector=np.concatenate([arrays[name].ravel().astype(dtype) for name in names]),
        )

    @property
    def expected(self) -> dict[str, ExpectedArray]:
        """What each array must look like."""
        return {each.name: each for each in (*self.weights, *self.statistics)}

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """The number of weights in each array, in the order of the vector."""
        return tuple(each.size for each in self.weights)

    def moved(self, step: Tensor, statistics: Sequence[Values]) -> ArrayRecord | None:
        """Return the model after a step, in its own dtypes; None if it would not be finite."""
        vector = torch.from_numpy(self.vector) + step
        if not bool(vector.isfinite().all()):
            return None
        arrays: dict[str, Values] = {}
        for each, part in zip(self.weights, vector.split(self.layer_sizes), strict=True):
            dtype = torch.from_numpy(np.empty(0, each.dtype)).dtype
            arrays[each.name] = to_float(part, dtype).view(each.shape).numpy()
        for each, values in zip(self.statistics, statistics, strict=True):
            arrays[each.name] = values.reshape(each.shape)
        return ArrayRecord({name: Array(arrays[name]) for name in self.record})

    def update_to(self, record: ArrayRecord) -> Tensor:
        """Return the update that leads to a model the server itself trained."""
        arrays = {name: array.numpy() for name, array in record.items()}
        for each in self.weights:
            if each.name not in arrays or arrays[each.name].shape != each.shape:
                raise ValueError(
                    f"the reference must have the array {quote(each.name)} of the shape "
                    f"{each.shape}, as the model has; train the model that the hook was given."
                )
        trained = np.concatenate([np.ravel(arrays[each.name]) for each in self.weights])
        return torch.from_numpy(trained.astype(self.vector.dtype) - self.vector)


def check_same_network(kept: ArrayRecord, given: ArrayRecord) -> None:
    """Raise unless two records are of the same network."""
    first, second = (
        {name: (array.dtype, tuple(array.shape)) for name, array in record.items()}
        for record in (kept, given)
    )
    if first != second:
        raise ValueError(
            "the checkpoint is of another model than initial_arrays: names, shapes or dtypes "
            "differ; build the model as before, or start anew in another audit_dir."
        )


def _check(name: str, array: Values) -> Values:
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8 or not array.dtype.isnative:
        raise ValueError(f"array {quote(name)} of the model must hold numbers, got {array.dtype}.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(
            f"array {quote(name)} of the model holds NaN or infinity; start from a sound model."
        )
    return array


def _header(array: Values, *, is_fortran: bool) -> bytes:
    file = io.BytesIO()
    header = {
        "descr": np.lib.format.dtype_to_descr(array.dtype),
        "fortran_order": is_fortran,
        "shape": array.shape,
    }
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


def _compact(text: bytes) -> bytes:
    return text.replace(b" ", b"").strip()
