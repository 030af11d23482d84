"""The precision that work is done in, whatever modes of torch the caller is in."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from threading import Lock, local
from typing import Any

import torch


def work_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the precision that values of `dtype` are worked on in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class plain_torch:  # noqa: N801  (used like a function)
    """Leave the caller's inference mode, gradients, autocast and TF32 behind.

    A class, since every call of a rule enters it before a GPU has anything to do: a generator takes
    longer.
    """

    __slots__ = ("device", "modes")

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.modes: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> None:
        """Leave what is to be left: nothing, where one who entered calls another.

        Kernels start on the current GPU: it becomes the one that has the values.
        """
        if self.device.type == "cuda" and self.device.index != torch.cuda.current_device():
            self._enter(on_gpu(self.device))
        is_inference = torch.is_inference_mode_enabled()
        is_autocast = torch.is_autocast_enabled(self.device.type)
        is_inside = getattr(_HERE, "is_inside", False)
        if is_inside and not (is_inference or is_autocast or torch.is_grad_enabled()):
            return
        if is_inference:
            self._enter(torch.inference_mode(False))
        if is_autocast:
            self._enter(torch.autocast(self.device.type, enabled=False))
        # After the inference mode, which turns gradients on where it is left.
        self._enter(torch.no_grad())
        self._enter(exact_products())

    def _enter(self, mode: AbstractContextManager[Any]) -> None:
        try:
            mode.__enter__()
        except BaseException:
            self.__exit__()
            raise
        self.modes.append(mode)

    def __exit__(self, *raised: object) -> None:
        """Take back what was changed, the last change first."""
        while self.modes:
            self.modes.pop().__exit__(None, None, None)


def on_gpu(device: torch.device) -> AbstractContextManager[Any]:
    """Let a GPU be the current one, which kernels start on; a CPU needs nothing."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class exact_products:  # noqa: N801  (used like a function)
    """Keep float32 products in float32 (no TF32, no bfloat16), and restore the setting.

    The setting is one for the whole process: the first thread in changes it, the last one out
    restores it.
    """

    __slots__ = ("is_first",)

    def __enter__(self) -> None:
        """Change the setting, unless this thread has."""
        self.is_first = not getattr(_HERE, "is_inside", False)
        if self.is_first:
            _PRECISION.enter("exact")
            _HERE.is_inside = True

    def __exit__(self, *raised: object) -> None:
        """Restore the setting, if this changed it."""
        if self.is_first:
            _HERE.is_inside = False
            _PRECISION.leave("exact")


@contextmanager
def fast_products() -> Iterator[None]:
    """Let float32 matrix products be formed in TF32 where the device has it, and restore.

    While anybody needs exact products, they are exact.
    """
    _PRECISION.enter("fast")
    try:
        yield
    finally:
        _PRECISION.leave("fast")


@contextmanager
def products_in(precision: str, device: torch.device) -> Iterator[None]:
    """Form the products of a network in "float32" (or better), "tf32" or "bfloat16"."""
    is_narrow = precision == "bfloat16"
    with (
        exact_products() if precision == "float32" else fast_products(),
        torch.autocast(device.type, torch.bfloat16, enabled=is_narrow, cache_enabled=False),
    ):
        yield


class _Precision:
    """Who needs which products, and what was set before the first came."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.inside = {"exact": 0, "fast": 0}
        self.saved: list[str] = []
        self.now: list[str] = []

    def enter(self, kind: str) -> None:
        """Count one more."""
        with self.lock:
            is_first = not any(self.inside.values())
            if is_first:
                self.saved = self.now = _get_precision()
            self.inside[kind] += 1
            self._set(is_known=is_first)

    def leave(self, kind: str) -> None:
        """Count one less."""
        with self.lock:
            self.inside[kind] -= 1
            self._set(is_known=False)

    def _set(self, *, is_known: bool) -> None:
        names = self.saved
        if self.inside["exact"]:
            names = ["ieee"] * len(self.saved)
        elif self.inside["fast"]:
            # The last one is the CPU's.
            num_fast = max(1, len(self.saved) - 1)
            names = ["tf32"] * num_fast + self.saved[num_fast:]
        # The first one has just looked; later, code inside may have changed a setting.
        if names != self.now or not is_known:
            _set_precision(names, self.now if is_known else None)
            self.now = names


_PRECISION = _Precision()
_HERE = local()
# Older releases of torch have one setting, under other names.
_OLD_NAMES = {
    "ieee": "highest",
    "tf32": "high",
    "highest": "highest",
    "high": "high",
    "medium": "medium",
}


@cache  # To look takes longer than to read all settings.
def _backends() -> list[Any]:
    found = [
        torch.backends.cuda.matmul,
        getattr(torch.backends.cudnn, "conv", None),
        getattr(torch.backends.cudnn, "rnn", None),
        getattr(torch.backends.mkldnn, "matmul", None),
    ]
    return found if all(hasattr(backend, "fp32_precision") for backend in found) else []


def _get_precision() -> list[str]:
    precisions = [backend.fp32_precision for backend in _backends()]
    return precisions or [torch.get_float32_matmul_precision()]


def _set_precision(names: list[str], now: list[str] | None = None) -> None:
    backends = _backends()
    for backend, name, known in zip(backends, names, now or _get_precision(), strict=False):
        if known != name:
            backend.fp32_precision = name
    if not backends:
        torch.set_float32_matmul_precision(_OLD_NAMES[names[0]])
