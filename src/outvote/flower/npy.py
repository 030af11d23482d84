"""Arrays from strangers: the bytes of an npy file, compared with what they must be, never parsed.

A header is text that numpy would evaluate. Here the one text that is right is known beforehand, so
everything else is refused without looking into it.
"""

import io
from dataclasses import dataclass
from math import prod
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

MAGIC = b"\x93NUMPY"
# By the first byte of the version: how many bytes say how long the header is.
LENGTH_BYTES = {1: 2, 2: 4}
LONGEST_NAME = 80


class Malformed(Exception):  # noqa: N818  (a fact about a reply, not a fault of ours)
    """A reply cannot be used; the text says why."""


@final
@dataclass(frozen=True, slots=True)
class Expected:
    """What an array of the model looks like: a reply must match it."""

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
    def like(cls, name: str, array: NDArray[Any]) -> "Expected":
        """Take an array of the model as the example."""
        empty = np.broadcast_to(np.zeros((), array.dtype), array.shape)
        start = _header(empty, is_fortran=False)
        texts = [_compact(_header(empty, is_fortran=flag)[10:]) for flag in (False, True)]
        return cls(name, array.dtype, array.shape, start, texts[0], texts[1])

    @property
    def size(self) -> int:
        """How many values there are."""
        return prod(self.shape)

    def read(self, data: bytes) -> NDArray[Any]:
        """Return the values in the usual order, without a copy if possible; or raise Malformed."""
        if data.startswith(self.start):
            begin, is_fortran = len(self.start), False
        else:
            begin, is_fortran = self._find_values(data)
        wanted = self.size * self.dtype.itemsize
        if len(data) - begin != wanted:
            raise Malformed(
                f"array {short(self.name)} holds {len(data) - begin:,} bytes, its shape needs "
                f"{wanted:,}"
            )
        values: NDArray[Any] = np.frombuffer(data, self.dtype, self.size, begin)
        return values.reshape(self.shape, order="F").ravel() if is_fortran else values

    def _find_values(self, data: bytes) -> tuple[int, bool]:
        num_bytes = LENGTH_BYTES.get(data[6]) if data[:6] == MAGIC and len(data) > 12 else None
        if num_bytes is None:
            raise Malformed(f"array {short(self.name)} is not in numpy's format")
        begin = 8 + num_bytes
        end = begin + int.from_bytes(data[8:begin], "little")
        # Padding is of any length, but nobody needs more than this.
        text = _compact(data[begin:end]) if end - begin <= len(self.start) + 256 else b""
        if text not in (self.text, self.text_fortran):
            raise Malformed(
                f"array {short(self.name)} holds something else than its label says, or numbers of "
                f"another kind; {self.dtype} of the shape {self.shape} are needed"
            )
        return end, text == self.text_fortran


def short(text: object) -> str:
    """Quote words of a stranger: on one line, and not too long."""
    word = repr(str(text)[: LONGEST_NAME + 1])
    return word if len(word) <= LONGEST_NAME else f"{word[: LONGEST_NAME - 3]}..."


def _header(array: NDArray[Any], *, is_fortran: bool) -> bytes:
    file = io.BytesIO()
    about = {
        "descr": np.lib.format.dtype_to_descr(array.dtype),
        "fortran_order": is_fortran,
        "shape": array.shape,
    }
    np.lib.format.write_array_header_1_0(file, about)
    return file.getvalue()


def _compact(text: bytes) -> bytes:
    return text.replace(b" ", b"").strip()
