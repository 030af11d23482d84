"""The precision that work is done in, whatever modes of torch the caller is in."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from threading import Lock
from typing import Any, cast

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
        modes += [torch.no_grad(), exact_products(device)]
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

    __slots__ = ("settings",)
    kind = "products"

    def __init__(self, device: torch.device) -> None:
        self.settings = _settings(device.type)

    def __enter__(self) -> None:
        """Change the setting, unless somebody has."""
        self.settings.add(self.kind, 1)

    def __exit__(self, *raised: object) -> None:
        """Restore the setting, or leave what others need."""
        self.settings.add(self.kind, -1)


class exact_layers(exact_products):  # noqa: N801  (used like a function)
    """Keep convolutions and recurrent layers in float32, too."""

    __slots__ = ()
    kind = "layers"


class fast_products(exact_products):  # noqa: N801  (used like a function)
    """Let float32 products be formed in TF32 where the device has it, and restore."""

    __slots__ = ()
    kind = "fast"


def products_for(precision: str, device: torch.device) -> exact_products:
    """Form float32 products as they are for "float32", else in TF32 where the device has it."""
    return exact_layers(device) if precision == "float32" else fast_products(device)


@contextmanager
def products_in(precision: str, device: torch.device) -> Iterator[None]:
    """Form the products of a network in "float32" (or better), "tf32" or "bfloat16"."""
    is_narrow = precision == "bfloat16"
    with (
        products_for(precision, device),
        torch.autocast(device.type, torch.bfloat16, enabled=is_narrow, cache_enabled=False),
    ):
        yield


class _Settings:
    """The settings of a kind of device, and who needs which."""

    def __init__(self, backends: list[Any]) -> None:
        """Take what has a setting, that of matrix products first."""
        self.backends = backends
        self.lock = Lock()
        self.inside = {"products": 0, "layers": 0, "fast": 0}
        self.saved: list[str] = []
        self.now: list[str] = []

    def add(self, kind: str, number: int) -> None:
        """Count who comes and goes, and change the settings to what all inside need."""
        with self.lock:
            if not any(self.inside.values()):
                self.saved = [backend.fp32_precision for backend in self.backends]
                self.now = list(self.saved)
            self.inside[kind] += number
            if self.inside[kind] != max(0, number):
                return  # Others need the same.
            for k, backend in enumerate(self.backends):
                name = self._needed(k)
                if name != self.now[k]:
                    backend.fp32_precision = self.now[k] = name

    def _needed(self, k: int) -> str:
        if self.inside["layers"] or (self.inside["products"] and k == 0):
            return self.saved[k] if self.saved[k] in EXACT else EXACT[0]
        return "tf32" if self.inside["fast"] and len(self.backends) > 1 else self.saved[k]


EXACT = ("ieee", "none", "highest")


@cache
def _settings(device: str) -> _Settings:
    """Return the settings of a kind of device; before torch 2.9 there is one for all."""
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        return _settings_of_old_releases()
    cudnn, mkldnn = cast("Any", torch.backends.cudnn), cast("Any", torch.backends.mkldnn)
    if device == "cpu":
        return _Settings([mkldnn.matmul])
    return _Settings([torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn])


@cache
def _settings_of_old_releases() -> _Settings:
    return _Settings([_OldSetting()])


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
