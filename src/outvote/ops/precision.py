"""The precision that work is done in, whatever modes of torch the caller is in."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from threading import Lock
from typing import Any

import torch


def work_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the precision that values of `dtype` are worked on in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class plain_torch:  # noqa: N801  (used like a function)
    """Leave the caller's inference mode, gradients, autocast and TF32 behind, and come back.

    Kernels start on the current GPU: it becomes the one that has the values.
    """

    __slots__ = ("device", "modes")

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.modes: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> None:
        """Leave what is to be left."""
        device, modes = self.device, self.modes
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            modes.append(on_gpu(device))
        if torch.is_inference_mode_enabled():
            modes.append(torch.inference_mode(False))
        if torch.is_autocast_enabled(device.type):
            modes.append(torch.autocast(device.type, enabled=False))
        # Always, and after the inference mode, which turns gradients on where it is left.
        modes += [torch.no_grad(), exact_products()]
        for mode in modes:
            mode.__enter__()

    def __exit__(self, *raised: object) -> None:
        """Come back, the last change first."""
        while self.modes:
            self.modes.pop().__exit__(None, None, None)


def on_gpu(device: torch.device) -> AbstractContextManager[Any]:
    """Let a GPU be the current one, which kernels start on; a CPU needs nothing."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class exact_products:  # noqa: N801  (used like a function)
    """Keep float32 matrix products in float32 (no TF32, no bfloat16), and restore the setting.

    The setting is one for the whole process: the first to come changes it, the last restores it.
    While anybody needs exact products, they are exact for all.
    """

    __slots__ = ()
    kind = "products"

    def __enter__(self) -> None:
        """Change the setting if nobody has."""
        with _LOCK:
            if not any(_INSIDE.values()):
                _SAVED[:] = _NOW[:] = [backend.fp32_precision for backend in _backends()]
            _INSIDE[self.kind] += 1
            _set()

    def __exit__(self, *raised: object) -> None:
        """Restore the setting, or leave what others need."""
        with _LOCK:
            _INSIDE[self.kind] -= 1
            _set()


class exact_layers(exact_products):  # noqa: N801  (used like a function)
    """Keep convolutions and recurrent layers in float32, too."""

    __slots__ = ()
    kind = "layers"


class fast_products(exact_products):  # noqa: N801  (used like a function)
    """Let float32 matrix products be formed in TF32 where the device has it, and restore."""

    __slots__ = ()
    kind = "fast"


@contextmanager
def products_in(precision: str, device: torch.device) -> Iterator[None]:
    """Form the products of a network in "float32" (or better), "tf32" or "bfloat16"."""
    is_narrow = precision == "bfloat16"
    with (
        exact_layers() if precision == "float32" else fast_products(),
        torch.autocast(device.type, torch.bfloat16, enabled=is_narrow, cache_enabled=False),
    ):
        yield


_LOCK = Lock()
_INSIDE = {"products": 0, "layers": 0, "fast": 0}
# The settings before the first came, and those now.
_SAVED: list[str] = []
_NOW: list[str] = []
_EXACT = ("none", "ieee", "highest")


def _set() -> None:
    """Change the settings to those that all who are inside need."""
    for k, (backend, now) in enumerate(zip(_backends(), _NOW, strict=True)):
        name = _SAVED[k]
        if _INSIDE["layers"] or (_INSIDE["products"] and k < NUM_FOR_PRODUCTS):
            name = name if name in _EXACT else "ieee"
        elif _INSIDE["fast"] and k != 1:
            name = "tf32"
        if name != now:
            backend.fp32_precision = _NOW[k] = name


NUM_FOR_PRODUCTS = 2


@cache  # To look takes longer than to read all settings.
def _backends() -> list[Any]:
    """Return what has a setting: products on a GPU and on a CPU, then layers on a GPU.

    Before torch 2.9 it is one, under other names.
    """
    found = [
        torch.backends.cuda.matmul,
        getattr(torch.backends.mkldnn, "matmul", None),
        getattr(torch.backends.cudnn, "conv", None),
        getattr(torch.backends.cudnn, "rnn", None),
    ]
    is_new = all(hasattr(backend, "fp32_precision") for backend in found)
    return found if is_new else [_OldSetting()]


class _OldSetting:
    """The one setting of older releases, under the names of newer ones."""

    names = ("ieee", "highest"), ("tf32", "high")

    @property
    def fp32_precision(self) -> str:
        now = torch.get_float32_matmul_precision()
        return next((new for new, old in self.names if old == now), now)

    @fp32_precision.setter
    def fp32_precision(self, name: str) -> None:
        torch.set_float32_matmul_precision(dict(self.names).get(name, name))
