"""The pickled batches of CIFAR, read without letting the file choose what is run.

A pickle names the functions that rebuild its objects. Here four names are known, and all of them
lead to stand-ins in this file, so nothing a file holds can call anything else.
"""

import io
import pickle  # noqa: TID251  (nothing is written with it, and reading is closed up below)
from math import prod
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from outvote.data.faults import DamagedDataError, fetch_again
from outvote.text import short_line


def read_batch(content: bytes, what: str) -> dict[str, Any]:
    """Return the dictionary in a batch: bytes, numbers, lists and arrays of bytes only."""
    try:
        batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except (*MALFORMED, DamagedDataError) as error:
        raise fetch_again(
            f"{what} is no batch of CIFAR and was not read further: {short_line(error)}"
        ) from error
    if not isinstance(batch, dict):
        raise fetch_again(f"{what} is no batch of CIFAR: no dictionary")
    return {
        _text(key): value.values if isinstance(value, _Array) else value
        for key, value in batch.items()
    }


MALFORMED = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
)


@final
class _Type:
    """Stands in for numpy.dtype."""

    def __init__(self, code: object = None, *_more: object) -> None:
        self.code = _text(code)

    def __setstate__(self, state: object) -> None:
        """Byte order and alignment: of no interest for bytes."""


@final
class _Array:
    """Stands in for numpy.ndarray; holds bytes only."""

    values: NDArray[np.uint8] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, is_fortran, content = state
        if not isinstance(kind, _Type) or kind.code not in ("u1", "|u1", "uint8"):
            raise DamagedDataError("it holds an array that is not of bytes")
        if not isinstance(content, bytes) or is_fortran or len(content) != prod(shape):
            raise DamagedDataError("it holds an array that is not whole")
        self.values = np.frombuffer(content, dtype=np.uint8).reshape(shape)


# Classes instead of functions: a pickle may set attributes of whatever has no __setstate__.
class _Sealed:
    def __setstate__(self, state: object) -> None:
        raise DamagedDataError("it changes what it is read with")


@final
class _Reconstruct(_Sealed):
    """Stands in for the function that makes an empty array."""

    def __new__(cls, *_about: object) -> Any:
        return _Array()


@final
class _Encode(_Sealed):
    """Stands in for _codecs.encode, by which Python 3 writes bytes into old pickles."""

    def __new__(cls, text: str, encoding: str = "") -> Any:
        if _text(encoding) != "latin1":
            raise DamagedDataError("it holds text where bytes were expected")
        return text.encode("latin1")


KNOWN = {
    "numpy.core.multiarray._reconstruct": _Reconstruct,
    "numpy._core.multiarray._reconstruct": _Reconstruct,
    "numpy.ndarray": _Array,
    "numpy.dtype": _Type,
    "_codecs.encode": _Encode,
}


@final
class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Look a name up among the stand-ins, and nowhere else."""
        if f"{module}.{name}" not in KNOWN:
            raise DamagedDataError(f"it asks for {module}.{name}, which no batch needs")
        return KNOWN[f"{module}.{name}"]

    def persistent_load(self, pid: object) -> Any:
        """Refuse what is outside the file."""
        raise DamagedDataError(f"it asks for {pid!r}, which is outside the file")


def _text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
