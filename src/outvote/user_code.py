"""A checksum of a user's objects: the source of code, and the values that it uses."""

import builtins
import dis
import functools
import hashlib
import inspect
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

PLAIN = (str, bytes, int, float, complex, bool, type(None), np.generic)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
OF_TORCH = frozenset([*vars(nn.Module()), "_compiled_call_impl"])
"""The attributes of every network: they are read apart, or change no result."""
OF_PYTHON = re.compile(r"__.*__|_abc_impl|_autograd_function_id|loaded_from")
"""The attributes that classes have besides what is written in them."""


class NameNeeded(ValueError):  # noqa: N818  (named like TooManyByzantine)
    """An object has no source, or values that cannot be read."""


def text_of(thing: Any, name: str | None = None) -> str:
    """Return the text of an object: its name, and the checksum of what it is made of."""
    maker = thing.func if isinstance(thing, functools.partial) else thing
    word = re.sub(r"\W+", "", getattr(maker, "__name__", type(maker).__name__)) or "object"
    return f"{word}#{checksum_of(thing, name=name)}"


def checksum_of(*things: Any, name: str | None = None) -> str:
    """Return a checksum of objects; `name` stands for what cannot be read, else an error."""
    found = _Checksum(name)
    for thing in things:
        found.add(thing, getattr(thing, "__name__", type(thing).__name__))
    while found.code:
        found.add_code(*found.code.pop())
    return found.digest.hexdigest()


class _Checksum:
    """Adds each object once; `where` names it in messages."""

    def __init__(self, name: str | None) -> None:
        self.name, self.digest = name, hashlib.blake2b(digest_size=6)
        self.code: list[tuple[Any, str]] = []
        """Still to be added: functions use functions, and so on, deeper than a stack."""
        self._seen: dict[int, tuple[int, Any]] = {}  # An id is unique only while its object lives.

    def add(self, thing: Any, where: str) -> None:
        """Add an object, and what it is made of."""
        if isinstance(thing, PLAIN):
            self._write(f"{type(thing).__name__}:{thing!r}")
        elif id(thing) in self._seen:
            self._write(f"seen:{self._seen[id(thing)][0]}")
        else:
            self._seen[id(thing)] = len(self._seen), thing
            try:
                self._add_new(thing, where)
            except NameNeeded:
                raise
            except Exception:  # noqa: BLE001  (a user's object may raise anything)
                self._add_unknown(thing, where)

    def add_code(self, code: Any, where: str) -> None:
        """Add a function or a class, by its name if a package defines it."""
        self._write(f"code:{code.__module__}.{code.__qualname__}.{code.__name__}")
        if isinstance(code, type) and not _is_installed(code):
            self._add_class(code)
        elif not _is_installed(code):
            maker = sys.modules.get(code.__globals__.get("__name__", ""))
            if _is_installed(maker):  # A decorator of a package.
                self.add(getattr(code, "__wrapped__", None), where)
            else:
                self._add_function(code, where)

    def _write(self, text: str) -> None:
        self.digest.update(text.encode(errors="surrogateescape") + b"\0")

    def _add_unknown(self, thing: Any, where: str) -> None:
        if self.name is None:
            what = "source" if isinstance(thing, FunctionType | type) else "values"
            raise NameNeeded(
                "runs are named by the source of your code and the values that it uses, got "
                f"{where} ({type(thing).__name__}), whose {what} cannot be read; pass name='...', "
                "and another one when you change your code."
            )
        self._write(f"name:{self.name}")

    def _add_new(self, thing: Any, where: str) -> None:
        if isinstance(thing, FunctionType | type):
            self._write(f"later:{len(self._seen)}")
            self.code.append((thing, where))
        elif isinstance(thing, nn.Module):
            self._add_network(getattr(thing, "_orig_mod", thing), where)
        elif isinstance(thing, Tensor | np.ndarray):
            self._add_array(thing)
        elif isinstance(thing, ModuleType):
            self._write(thing.__name__)
        elif isinstance(thing, torch.device | RemovableHandle):
            self._write(f"kind:{type(thing).__name__}")
        elif type(thing) in (set, frozenset):  # In an order that another process has, too.
            self._write(f"{sorted(checksum_of(value, name=self.name) for value in thing)}")
        elif type(thing) in (dict, list, tuple):
            self._write(f"{type(thing).__name__}:{len(thing)}")
            for key, value in thing.items() if type(thing) is dict else enumerate(thing):
                self.add(key, where)
                self.add(value, f"{where}.{key}")
        else:
            self._add_parts(thing, where)

    def _add_parts(self, thing: Any, where: str) -> None:
        """Add what pickle would write: the class of an object, and its attributes."""
        wrapped = getattr(thing, "__wrapped__", None)
        parts = thing.__reduce_ex__(4) if wrapped is None else wrapped
        for part in parts if isinstance(parts, tuple) else [parts]:
            self.add(list(part) if isinstance(part, Iterator) else part, where)

    def _add_array(self, values: Any) -> None:
        self._write(f"array:{values.dtype}:{tuple(values.shape)}")
        if isinstance(values, Tensor):
            flat = values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        else:
            flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        self.digest.update(flat.data if flat.size else b"")

    def _add_network(self, network: nn.Module, where: str) -> None:
        for name, part in network.named_modules():
            self._write(f"part:{name}")
            self._seen[id(part)] = len(self._seen), part
            own = {n: each for n, each in vars(part).items() if n not in OF_TORCH}
            if _is_installed(type(part)):
                own = {n: each for n, each in own.items() if not n.startswith("_")}
            hooks = {kind: [*vars(part)[kind].values()] for kind in HOOKS}
            self.add([type(part), own, hooks], f"{where}.{name}")
        for name, value in [*network.named_parameters(), *network.named_buffers()]:
            self._write(f"{name}:{value.requires_grad}")
            self.add(value, f"{where}.{name}")

    def _add_class(self, kind: type) -> None:
        own = fields(kind) if is_dataclass(kind) else ()
        defaults = [[each.name, each.default, each.default_factory] for each in own]
        self.add([type(kind), *kind.__bases__, *defaults], kind.__name__)
        for name, part in list(vars(kind).items()):
            value = getattr(part, "__func__", getattr(part, "func", part))
            if isinstance(part, property):
                value = [part.fget, part.fset, part.fdel]
            if isinstance(value, FunctionType) or not OF_PYTHON.fullmatch(name):
                self._write(name)
                self.add(value, f"{kind.__name__}.{name}")

    def _add_function(self, function: FunctionType, where: str) -> None:
        codes = [*_codes(function.__code__)]
        if function.__name__ == "<lambda>":  # Its line may hold several, or the rest of a call.
            for code in codes:
                self._write(f"{code.co_code.hex()}:{code.co_names}:{code.co_varnames}")
                self.add([each for each in code.co_consts if not isinstance(each, CodeType)], where)
        else:
            try:
                self._write(inspect.getsource(function.__code__))
            except (OSError, TypeError):
                if not OF_PYTHON.fullmatch(function.__name__):  # Written for a dataclass.
                    self._add_unknown(function, where)
        self.add([function.__defaults__, function.__kwdefaults__], where)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            if cell != CellType():  # It is filled.
                self.add(cell.cell_contents, f"{where}.{name}")
        steps = [each for code in codes for each in dis.get_instructions(code)]
        names = {each.argval for each in steps if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        used = {name for code in codes for name in code.co_names}
        self._add_names(function.__globals__, names, used)

    def _add_names(self, known: dict[str, Any], names: set[str], used: set[str]) -> None:
        """Add what code reads by name, and of the user's own modules what it uses of them."""
        for name in sorted(names & known.keys()):
            value = known[name]
            is_new = id(value) not in self._seen
            self._write(name)
            self.add(value, name)
            if is_new and isinstance(value, ModuleType) and not _is_installed(value):
                self._add_names(vars(value), used, used)


def _is_installed(thing: Any) -> bool:
    """Return whether code belongs to Python or an installed package: its name stands for it."""
    module = getattr(thing, "__name__" if isinstance(thing, ModuleType) else "__module__", None)
    root = (module or "").partition(".")[0]
    if root == "builtins":  # Also the module of what `exec` defines.
        return isinstance(thing, ModuleType) or vars(builtins).get(thing.__name__) is thing
    path = getattr(sys.modules.get(root), "__file__", None)
    if path is None or root in ("__main__", "outvote"):
        return root in ("outvote", *sys.stdlib_module_names)
    places = ("site-packages", "dist-packages", sysconfig.get_path("stdlib"))
    return any(place in path for place in places)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Return the code of a function, and of those inside it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)
