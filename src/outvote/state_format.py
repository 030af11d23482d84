"""The state of rules, attacks and clients as arrays and JSON, for run stores and Flower servers.

A state may be None, a bool, number or text; a tensor, an array or a NumPy scalar; a list, tuple or
dictionary of these (keys: texts or whole numbers); or a dataclass or named tuple of these that is
defined in the module of the rule or attack. Anything else is a TypeError that names the part.
Nothing is pickled: reading a file runs no code.
"""

import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Arrays = Mapping[str, NDArray[Any]]
Node = Any
"""A value that json can write."""


def pack_state(state: Any, name: str, arrays: dict[str, NDArray[Any]]) -> Node:
    """Add the arrays of a state to `arrays`, under names that begin with `name`; return the rest.

    >>> arrays = {}
    >>> node = pack_state({"mean": torch.ones(2), "count": 3}, "rule_state", arrays)
    >>> list(arrays), unpack_state(node, arrays)
    (['rule_state.mean'], {'mean': tensor([1., 1.]), 'count': 3})
    """
    if isinstance(state, Tensor | np.ndarray | np.generic):
        return _pack_array(state, name, arrays)
    if state is None or isinstance(state, bool | int | float | str):
        return {"value": state}
    if is_dataclass(state) and not isinstance(state, type):
        by_name = {field.name: getattr(state, field.name) for field in fields(state)}
        return {"class": type(state).__name__, "parts": pack_state(by_name, name, arrays)}
    if isinstance(state, tuple) and hasattr(state, "_asdict"):
        parts = pack_state(state._asdict(), name, arrays)
        return {"class": type(state).__name__, "parts": parts}
    if isinstance(state, list | tuple):
        parts = [pack_state(each, f"{name}.{k}", arrays) for k, each in enumerate(state)]
        return {"list": parts, "is_tuple": isinstance(state, tuple)}
    if isinstance(state, Mapping):
        for key in state:
            if isinstance(key, bool) or not isinstance(key, str | int):
                raise _cannot_save(name, f"has the key {key!r} of type {type(key).__name__}")
        return {"pairs": [[k, pack_state(v, f"{name}.{k}", arrays)] for k, v in state.items()]}
    raise _cannot_save(name, f"is of type {type(state).__name__}")


def unpack_state(
    node: Node, arrays: Arrays, owner: object = None, device: torch.device | str = "cpu"
) -> Any:
    """Return the state that `pack_state` packed; classes are looked up in the module of `owner`."""
    if "value" in node:
        return node["value"]
    if "array" in node:
        return _unpack_array(node, arrays, device)
    if "list" in node:
        parts = [unpack_state(each, arrays, owner, device) for each in node["list"]]
        return tuple(parts) if node["is_tuple"] else parts
    if "pairs" in node:
        return {key: unpack_state(each, arrays, owner, device) for key, each in node["pairs"]}
    kind = getattr(sys.modules[type(owner).__module__], node["class"], None)
    if not (isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, tuple))):
        raise ValueError(
            f"the state of {owner} is a {node['class']}, which its module does not define."
        )
    return kind(**unpack_state(node["parts"], arrays, owner, device))


def _pack_array(
    state: Tensor | NDArray[Any] | np.generic, name: str, arrays: dict[str, NDArray[Any]]
) -> Node:
    if name in arrays:  # Keys such as 1 and "1", or "a.b" and "a" with "b" inside.
        name = f"{name}#{len(arrays)}"
    node = {"array": name, "is_tensor": isinstance(state, Tensor), "shape": list(state.shape)}
    if isinstance(state, Tensor):
        state = state.detach().cpu()
        if state.dtype == torch.bfloat16:  # NumPy has none.
            node["bits_of"], state = "bfloat16", state.view(torch.int16)
        arrays[name] = state.numpy()
        return node
    array = np.asarray(state)
    if array.dtype.kind not in "biuf":
        raise _cannot_save(name, f"is an array of {array.dtype}")
    arrays[name] = array
    return node | {"is_scalar": True} if isinstance(state, np.generic) else node


def _unpack_array(node: Node, arrays: Arrays, device: torch.device | str) -> Any:
    array = arrays[node["array"]].reshape(node["shape"])
    if not node["is_tensor"]:
        return array[()] if node.get("is_scalar") else array
    tensor = torch.from_numpy(np.array(array))
    return (tensor.view(torch.bfloat16) if "bits_of" in node else tensor).to(device)


def _cannot_save(name: str, what: str) -> TypeError:
    return TypeError(
        f"the state cannot be saved: {name} {what}; use tensors, arrays, numbers, texts, lists, "
        "dictionaries or dataclasses of them."
    )
