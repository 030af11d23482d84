"""Dropout with masks from the client's own random stream.

A mask is a function of the client's seed, the step, the number of the call in the forward pass and
the position of a value: the same for a client that trains alone or side by side with others, in any
thread, on a CPU or a GPU.
"""

import hashlib
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import RLock
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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
        for layer in layers:
            layer.forward = self._forward_of(layer)
        attentions = [part for part in module.modules() if _has_dropout(part)]
        for attention in attentions:
            attention.forward = self._attention_of(attention, attention.forward)
        self.is_needed = bool(layers or attentions)

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

    def _attention_of(self, layer: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(
            query: Tensor,
            key: Tensor,
            value: Tensor,
            key_padding_mask: Tensor | None = None,
            need_weights: bool = True,
            attn_mask: Tensor | None = None,
            average_attn_weights: bool = True,
            is_causal: bool = False,
        ) -> tuple[Tensor, Tensor | None]:
            if not layer.training or query.dim() != 3:
                found: tuple[Tensor, Tensor | None] = original(
                    query,
                    key,
                    value,
                    key_padding_mask,
                    need_weights,
                    attn_mask,
                    average_attn_weights,
                    is_causal,
                )
                return found
            rows: tuple[Tensor, ...] = (query, key, value)
            if not layer.batch_first:
                rows = tuple(each.transpose(0, 1) for each in rows)
            heads = _heads(layer, rows)
            bias = _score_bias(layer, rows, attn_mask, key_padding_mask)
            weights = _attention_weights(heads, bias)
            kept = self._draw(tuple(weights.shape), layer.dropout).to(weights.dtype)
            weights = weights * (kept / (1 - layer.dropout))
            output = layer.out_proj((weights @ heads[2]).transpose(1, 2).flatten(2))
            output = output if layer.batch_first else output.transpose(0, 1)
            if not need_weights:
                return output, None
            return output, weights.mean(dim=1) if average_attn_weights else weights

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


def _has_dropout(part: Any) -> bool:
    """Return whether a module is torch's attention with dropout, in its usual form."""
    if type(part) is not nn.MultiheadAttention or part.dropout == 0:
        return False
    is_usual: bool = part._qkv_same_embed_dim and part.bias_k is None and not part.add_zero_attn
    return is_usual


def _heads(layer: Any, rows: tuple[Tensor, ...]) -> list[Tensor]:
    """Return queries, keys and values, ``[batch, heads, time, values]``."""
    weights = layer.in_proj_weight.chunk(3)
    offsets = (None,) * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
    return [
        F.linear(each, weight, offset).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
        for each, weight, offset in zip(rows, weights, offsets, strict=True)
    ]


def _score_bias(
    layer: Any, rows: tuple[Tensor, ...], mask: Tensor | None, padding: Tensor | None
) -> Tensor | None:
    """Return what is added to the scores: minus infinity where a mask is true."""
    found: Tensor | None = None
    if mask is not None:
        own = _as_bias(mask, rows[0].dtype)
        # One mask for all, or one for each sample and head.
        found = own if mask.dim() == 2 else own.unflatten(0, (-1, layer.num_heads))
    if padding is not None:
        own = _as_bias(padding, rows[0].dtype)[:, None, None, :]
        found = own if found is None else found + own
    return found


def _as_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))


def _attention_weights(heads: list[Tensor], bias: Tensor | None) -> Tensor:
    query, key, _ = heads
    scores = torch.matmul(query * query.shape[-1] ** -0.5, key.mT)
    return torch.softmax(scores if bias is None else scores + bias, dim=-1)


_GENERATORS = RLock()
OUTSIDE_TORCH = ("random", "numpy.random")
"""The generators that are known by their states: another thread may change these too."""


@contextmanager
def kept_generators(device: torch.device) -> Iterator[None]:
    """Restore the states of the global generators of torch, Python and NumPy afterwards.

    All threads share these generators: one thread at a time has them.
    """
    with _GENERATORS:
        python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  (the model's own)
        try:
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


def seed_generators(seed: int) -> None:
    """Seed the global generators of torch, Python and NumPy, from which a model may draw."""
    torch.manual_seed(seed)  # noqa: TID251  (the caller restores it)
    random.seed(seed)
    np.random.seed(seed % (_WORD + 1))  # noqa: NPY002


@final
class RandomCalls(TorchDispatchMode):
    """Notes what draws from the global generators of torch, Python and NumPy."""

    def __init__(self) -> None:
        """Start with none."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []
        self.dtypes: set[torch.dtype] = set()
        """The types of all results."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch would load all of its compiler, which takes more than a second."""
        return False

    def __enter__(self) -> "RandomCalls":
        """Begin to note."""
        if "torch._dynamo" in sys.modules:
            _leave_uncompiled()
        self._before = _global_states()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """End; generators of Python and NumPy are known by their states."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        now = _global_states()
        self.names += [name for name, state in now.items() if state != self._before[name]]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation."""
        named = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and _is_random(func, args, named):
            self.names.append(func.overloadpacket.__name__)
        found = func(*args, **named)
        self.dtypes.update(each.dtype for each in tree_leaves(found) if isinstance(each, Tensor))
        return found


@cache
def _leave_uncompiled() -> None:
    """Keep the compiler of torch, once it is loaded, from compiling the noting too."""
    disable: Any = torch.compiler.disable
    kind: Any = RandomCalls
    kind.__torch_dispatch__ = disable(kind.__torch_dispatch__)


def _global_states() -> dict[str, Any]:
    name, key, *rest = np.random.get_state()  # noqa: NPY002
    return {"random": random.getstate(), "numpy.random": (name, np.asarray(key).tolist(), rest)}


def _is_random(func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Return whether a call draws: attention does so only if its rate of dropout is above 0."""
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | named
    if given.get("generator") is not None:
        return False
    for name in ("dropout_p", "p", "dropout"):
        if name in given and isinstance(given[name], int | float):
            return given[name] > 0 and given.get("train", True) is not False
    return "dropout_p" not in [a.name for a in func._schema.arguments]
