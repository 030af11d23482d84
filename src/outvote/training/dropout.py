"""Dropout with masks from the client's own random stream.

A mask is a function of the client's seed, the step, the number of the call in the forward pass and
the position of a value: the same for a client that trains alone or side by side with others, in any
thread, on a CPU or a GPU.
"""

import hashlib
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

_WORD = 0xFFFFFFFF
# Of alpha dropout: minus the value that SELU takes at minus infinity.
_ALPHA = 1.7580993408473766
_BY_CHANNEL = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
_ALPHA_KINDS = (nn.AlphaDropout, nn.FeatureAlphaDropout)
KINDS = (nn.Dropout, *_BY_CHANNEL, nn.AlphaDropout)


def step_key(seed: int, step: int) -> tuple[int, int]:
    """Return the key of the masks of one client in one step: two numbers of 32 bits."""
    digest = hashlib.blake2b(f"{seed}/dropout/{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4]), int.from_bytes(digest[4:])


@final
class Masks:
    """Draws the masks of all dropout layers of one network."""

    def __init__(self, module: nn.Module) -> None:
        """Take over the dropout layers of a network, which is changed."""
        self.key: Tensor | None = None
        self.num_calls = 0
        layers = [part for part in module.modules() if type(part) in KINDS]
        self.is_needed = bool(layers)
        for layer in layers:
            layer.forward = self._forward_of(layer)

    def begin(self, key: Tensor) -> None:
        """Begin a forward pass with the key ``[2]`` of a step; under vmap, one key per model."""
        self.key = key
        self.num_calls = 0

    def _forward_of(self, layer: Any) -> Callable[[Tensor], Tensor]:
        def forward(values: Tensor) -> Tensor:
            if not layer.training or layer.p == 0:
                return values
            if layer.p == 1:
                return values * 0
            is_kept = self._draw(_mask_shape(layer, values), layer.p)
            return _dropped(layer, values, is_kept.to(values.dtype))

        return forward

    @torch.no_grad()
    def _draw(self, shape: tuple[int, ...], rate: float) -> Tensor:
        if self.key is None:
            raise RuntimeError("masks of dropout need the key of a step; call begin() first.")
        self.num_calls += 1
        first, second = self.key.unbind()
        first = _mixed((first + self.num_calls) & _WORD)
        second = _mixed(second ^ first)
        at = torch.arange(torch.Size(shape).numel(), device=self.key.device)
        bits = _mixed(_mixed(at ^ first) ^ second)
        return (bits >= int(rate * (_WORD + 1))).view(shape)


def _mixed(words: Tensor) -> Tensor:
    """Mix numbers of 32 bits, one to one.

    The products of int64 do not overflow: both constants are below 2^31.
    """
    words = (words ^ (words >> 16)) * 0x21F0AAAD & _WORD
    words = (words ^ (words >> 15)) * 0x735A2D97 & _WORD
    return words ^ (words >> 15)


def _mask_shape(layer: nn.Module, values: Tensor) -> tuple[int, ...]:
    if not isinstance(layer, _BY_CHANNEL):
        return tuple(values.shape)
    # These two also take a sample without a batch.
    dims = {nn.Dropout1d: 2, nn.Dropout3d: 4}
    leading = 1 if dims.get(type(layer)) == values.dim() else 2
    return (*values.shape[:leading], *[1] * (values.dim() - leading))


def _dropped(layer: Any, values: Tensor, is_kept: Tensor) -> Tensor:
    if isinstance(layer, _ALPHA_KINDS):
        factor = ((_ALPHA**2 * layer.p + 1) * (1 - layer.p)) ** -0.5
        shift = (is_kept - 1 + layer.p) * (_ALPHA * factor)
        is_kept = is_kept * factor
    else:
        shift, is_kept = None, is_kept / (1 - layer.p)
    if not layer.inplace:
        return values * is_kept if shift is None else values * is_kept + shift
    values = values.mul_(is_kept)
    return values if shift is None else values.add_(shift)


@final
class RandomCalls(TorchDispatchMode):
    """Notes which operations draw from torch's global generators."""

    def __init__(self) -> None:
        """Start with none."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation."""
        named = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and _is_random(func, args, named):
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **named)


def _is_random(func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Return whether a call draws: attention does so only if its rate of dropout is above 0."""
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | named
    if given.get("generator") is not None:
        return False
    for name in ("dropout_p", "p", "dropout"):
        if name in given and isinstance(given[name], int | float):
            return given[name] > 0 and given.get("train", True) is not False
    return "dropout_p" not in [a.name for a in func._schema.arguments]
