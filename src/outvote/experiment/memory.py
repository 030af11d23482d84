"""What attacks and rules remember, as arrays and JSON: no pickle, so a file can do no harm.

A memory may be None, a number, a word, a tensor or an array; a list, tuple or dictionary of these;
or a dataclass of these whose class is known to the module of the attack or rule.
"""

import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Node = Any
"""What json can write."""


def pack(memory: Any, name: str, arrays: dict[str, NDArray[Any]]) -> Node:
    """Put the arrays of a memory into `arrays` under names that begin with `name`."""
    if memory is None or isinstance(memory, bool | int | float | str):
        return {"value": memory}
    if isinstance(memory, Tensor | np.ndarray):
        is_tensor = isinstance(memory, Tensor)
        arrays[name] = memory.detach().cpu().numpy() if isinstance(memory, Tensor) else memory
        return {"array": name, "is_tensor": is_tensor}
    if isinstance(memory, list | tuple):
        parts = [pack(each, f"{name}.{k}", arrays) for k, each in enumerate(memory)]
        return {"list": parts, "is_tuple": isinstance(memory, tuple)}
    if isinstance(memory, Mapping):
        pairs = [[key, pack(each, f"{name}.{key}", arrays)] for key, each in memory.items()]
        return {"pairs": pairs}
    if is_dataclass(memory) and not isinstance(memory, type):
        by_name = {field.name: getattr(memory, field.name) for field in fields(memory)}
        return {"class": type(memory).__name__, "parts": pack(by_name, name, arrays)}
    raise TypeError(
        f"what {name} remembers cannot be saved: {type(memory).__name__}; use tensors, numbers, "
        "lists, dictionaries or dataclasses of them."
    )


def unpack(
    node: Node, arrays: Mapping[str, NDArray[Any]], owner: object, device: torch.device
) -> Any:
    """Return the memory that `pack` took apart; its classes are those of the owner's module."""
    if "value" in node:
        return node["value"]
    if "array" in node:
        array = arrays[node["array"]]
        return torch.from_numpy(array.copy()).to(device) if node["is_tensor"] else array
    if "list" in node:
        parts = [unpack(each, arrays, owner, device) for each in node["list"]]
        return tuple(parts) if node["is_tuple"] else parts
    if "pairs" in node:
        return {key: unpack(each, arrays, owner, device) for key, each in node["pairs"]}
    kind = getattr(sys.modules[type(owner).__module__], node["class"], None)
    if not (isinstance(kind, type) and is_dataclass(kind)):
        raise ValueError(f"the memory of {owner} is a {node['class']}, which its module has not.")
    return kind(**unpack(node["parts"], arrays, owner, device))
