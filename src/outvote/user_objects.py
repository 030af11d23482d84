"""A user's own objects as text, and a checksum of what they are made of.

"path.py:name" is an object in a file. "Net#1f2e3d4c5b6a" is an object that a Python program passed
to `simulate`: its name, and the checksum of its source, its parameters and its arrays.
"""

import dis
import functools
import hashlib
import inspect
import io
import math
import os
import random
import re
import sys
import textwrap
import weakref
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from threading import Lock
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import numpy as np

from outvote.loading import load_object
from outvote.user_source import (
    changed_names,
    class_source,
    functions_of,
    is_installed,
    lambda_source,
    source_of,
)

IN_FILE = re.compile(r"\.py:\w+$")
REGISTERED = re.compile(r"#[0-9a-f]{12}$")
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
PLAIN = (str, bytes, int, float, complex, bool, type(None), np.generic)
CHANGING_KINDS = (io.IOBase, random.Random, type(os.environ))
CHANGING_CLASSES = frozenset({"matplotlib.artist.Artist", "outvote.report.runs.Runs"})
"""Objects that change on their own; a checksum of them would be another one in every call."""
BY_CLASS = frozenset({"logging.Logger", "torch.device", "torch.utils.hooks.RemovableHandle"})
"""Objects that do not change a result, by their class alone."""
COMPILED = "torch._dynamo.eval_frame.OptimizedModule"
"""What `torch.compile` makes of a network; its other attributes differ between processes."""
HISTORY = re.compile(r"In|Out|_+|_i{1,3}|_[iod]h|_i?\d+|get_ipython")
"""The names that a notebook gives to what was typed and shown."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
MODULE_STATE = frozenset(
    [
        *("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"),
        *(f"{kind}{end}" for kind in HOOKS for end in ("", "_with_kwargs", "_always_called")),
        *("_state_dict_hooks", "_state_dict_pre_hooks"),
        *("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
    ]
)
"""The attributes of a torch module that are described apart, or change no result."""
BOOKKEEPING = frozenset(
    [
        "_abc_impl",
        "loaded_from",
        "_autograd_function_id",
        "_backward_cls",
        "_compiled_autograd_backward_state",
    ]
)
"""Attributes of classes that Python, torch or this module keep."""
NAMEDTUPLE = frozenset({"_make", "_replace", "_asdict", "_fields"})
WITHOUT_NUMPY = frozenset({"torch.bfloat16", "torch.float8_e4m3fn", "torch.float8_e5m2"})
MAX_DEPTH = 60
MAX_VALUES = 1_000_000
"""Of one global; a longer one would delay every call."""
GLOBAL_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
"""Not the names of attributes: `self.width` does not use a `width` of the module."""
_objects: dict[str, Any] = {}
_num_users: Counter[Any] = Counter()
"""How many calls at once need a text or a class."""
_lock = Lock()


def is_user_object(text: str) -> bool:
    """Return whether a text names a user's object: in a file, or registered."""
    return bool(IN_FILE.search(text) or REGISTERED.search(text))


def find_object(text: str, kind: str) -> Any:
    """Return the object that a text names; `kind` is the word for it in messages."""
    if IN_FILE.search(text):
        return load_object(text, kind)
    if text not in _objects:
        raise ValueError(
            f"{kind} {text!r} was passed by a Python program, and is not known here; run that "
            "program again, or put the object into a file and name it path.py:name."
        )
    return _objects[text]


@contextmanager
def registered(objects: Mapping[str, Any]) -> Iterator[None]:
    """Make objects known by their texts for a while."""
    with _lock:
        _objects.update(objects)
        _num_users.update(objects.keys())
    try:
        yield
    finally:
        with _lock:
            for text in _no_longer_used(objects):
                del _objects[text]


@contextmanager
def named(classes: Mapping[type, str]) -> Iterator[None]:
    """Let the texts of objects of some classes name them as files are named, for a while."""
    with _lock:
        _num_users.update(classes.keys())
        for kind, text in classes.items():
            kind.loaded_from = text  # type: ignore[attr-defined]
    try:
        yield
    finally:
        with _lock:
            for kind in _no_longer_used(classes):
                del kind.loaded_from


def _no_longer_used(things: Mapping[Any, Any]) -> list[Any]:
    """Count one user less of each; return what has none."""
    _num_users.subtract(things.keys())
    gone = [thing for thing in things if not _num_users[thing]]
    for thing in gone:
        del _num_users[thing]
    return gone


def text_of(thing: Any) -> tuple[str, tuple[str, ...]]:
    """Return the text of an object, and what its checksum does not cover."""
    maker = thing.func if isinstance(thing, functools.partial) else thing
    name = getattr(maker, "__name__", type(maker).__name__)
    word = re.sub(r"\W+", "", name) or "object"
    digest, gaps = checksum_of(thing)
    return f"{word}#{digest}", gaps


def checksum_of(*things: Any) -> tuple[str, tuple[str, ...]]:
    """Return a checksum of what objects are made of, and sentences on what it does not cover."""
    described = _Description()
    described.add_all(*things)
    return described.digest.hexdigest(), tuple(dict.fromkeys(described.gaps))


class _Description:
    """Feeds a checksum with source, parameters and arrays, each object once."""

    def __init__(self) -> None:
        self.digest = hashlib.blake2b(digest_size=6)
        self.gaps: list[str] = []
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []
        self._where: tuple[str, ...] = ()
        self._depth = 0
        self._num_left = math.inf
        self._later: list[Any] = []

    def add_all(self, *things: Any) -> None:
        """Describe objects, and the code that they use."""
        self._add_all(*things)
        while self._later:
            waiting, self._later = self._later, []
            for code in waiting:
                self._add_code_later(code)

    def _add_code_later(self, code: Any) -> None:
        self._depth = 1
        try:
            self._add_new(code)
        except Exception as error:  # noqa: BLE001 (a user's object may raise anything)
            self._add_failure(code.__qualname__, error)
        self._depth = 0

    def add(self, thing: Any) -> None:
        """Describe one object."""
        self._num_left -= 1
        if self._num_left < 0:
            if self._num_left == -1:
                self._add_gap(f"{self._name()} has more than {MAX_VALUES:,} values; the rest")
        elif isinstance(thing, PLAIN):
            self._write(f"{type(thing).__name__}:{thing!r}")
        elif id(thing) in self._seen:
            self._write(f"seen:{self._seen[id(thing)]}")
        elif self._depth and isinstance(thing, FunctionType | type):
            # Functions use functions use functions: their depth must not be that of a stack.
            self._see(thing)
            self._write(f"later:{self._seen[id(thing)]}")
            self._later.append(thing)
        elif self._depth == MAX_DEPTH:
            self._add_gap(f"{self._name()} is nested more than {MAX_DEPTH} deep; the rest")
        else:
            self._see(thing)
            self._depth += 1
            try:
                self._add_new(thing)
            finally:
                self._depth -= 1

    def _see(self, thing: Any) -> None:
        self._seen.setdefault(id(thing), len(self._seen))
        self._kept.append(thing)  # An id is unique only while its object lives.

    def _add_new(self, thing: Any) -> None:
        kinds: list[tuple[Any, Callable[[Any], None]]] = [
            (FunctionType, self._add_function),
            (type, self._add_class),
            (MethodType, lambda method: self._add_all(method.__func__, method.__self__)),
            (functools.partial, lambda one: self._add_all(one.func, one.args, one.keywords)),
            (re.Pattern, lambda one: self._add_all(one.pattern, one.flags)),
            (weakref.ref, lambda one: self.add(one())),
            (CHANGING_KINDS, self._add_unknown),
            (Mapping, self._add_mapping),
            ((list, tuple), self._add_sequence),
            ((set, frozenset), self._add_set),
            ((ModuleType, BuiltinFunctionType), self._add_name),
        ]
        for kind, add in kinds:
            if isinstance(thing, kind):
                add(thing)
                return
        names = {f"{each.__module__}.{each.__qualname__}" for each in type(thing).__mro__}
        if names & BY_CLASS:
            self.add(type(thing))
        elif COMPILED in names:
            self._add_all(type(thing), thing._orig_mod)
        elif names & CHANGING_CLASSES or hasattr(thing, "__next__"):
            self._add_unknown(thing)
        elif hasattr(thing, "state_dict") and hasattr(thing, "named_modules"):
            self._add_network(thing)
        elif hasattr(thing, "__array__") or hasattr(thing, "detach"):
            self._add_array(thing)
        else:
            self._add_object(thing)

    def _add_all(self, *things: Any) -> None:
        for thing in things:
            self.add(thing)

    def _add_value(self, name: str, value: Any) -> None:
        """Describe the value of a name; one that cannot be described is a gap, not a failure."""
        before, self._where = self._where, (*self._where, name)
        self._write(f"value:{name}")
        state = self._state()
        try:
            self.add(value)
        except Exception as error:  # noqa: BLE001 (a user's object may raise anything)
            self._restore(state)
            self._add_failure(self._name(), error)
        finally:
            self._where = before

    def _state(self) -> tuple[Any, int, int, int]:
        return self.digest.copy(), len(self._seen), len(self.gaps), len(self._later)

    def _restore(self, state: tuple[Any, int, int, int]) -> None:
        """Forget everything since a state."""
        digest, num_seen, num_gaps, num_later = state
        self.digest = digest.copy()
        while len(self._seen) > num_seen:
            self._seen.popitem()
        del self.gaps[num_gaps:]
        del self._later[num_later:]

    def _name(self) -> str:
        return ".".join(self._where) or "an object"

    def _add_gap(self, what: str) -> None:
        self._write("gap")
        self.gaps.append(f"{what} is not part of the names of runs.")

    def _add_failure(self, what: str, error: Exception) -> None:
        reason = textwrap.shorten(str(error), 80)
        self._add_gap(f"{what} cannot be read ({type(error).__name__}: {reason}); it")

    def _add_unknown(self, thing: Any) -> None:
        self.add(type(thing))
        of = f"{'.'.join(self._where)}, {an_object(thing)}," if self._where else an_object(thing)
        self._add_gap(f"the content of {of}")

    def _add_sequence(self, values: Sequence[Any]) -> None:
        self._write(f"{type(values).__name__}:{len(values)}")
        self._add_all(*values)
        self._add_subclass(values)

    def _add_mapping(self, pairs: Mapping[Any, Any]) -> None:
        self._write(f"mapping:{len(pairs)}")
        for key, value in pairs.items():
            self.add(key)
            if isinstance(key, str):
                self._add_value(key, value)
            else:
                self.add(value)
        self._add_subclass(pairs)

    def _add_set(self, values: Any) -> None:
        """Describe a set in an order that another process has, too."""
        keys = [ADDRESS.sub("", repr(value)) for value in values]
        if len(set(keys)) < len(keys):
            self._add_unknown(values)
            return
        pairs = sorted(zip(keys, values, strict=True), key=lambda pair: pair[0])
        self.add([value for _, value in pairs])
        self._add_subclass(values)

    def _add_subclass(self, values: Any) -> None:
        """Describe the class of a list, set or mapping if it is the user's, and its attributes."""
        if not is_installed(type(values)):
            self.add(type(values))
            self._add_attributes(_attributes(values))

    def _add_name(self, thing: Any) -> None:
        self._write(f"name:{getattr(thing, '__module__', '')}.{thing.__name__}")
        owner = getattr(thing, "__self__", None)
        if not isinstance(owner, ModuleType):
            self.add(owner)

    def _write(self, text: str) -> None:
        self.digest.update(text.encode(errors="surrogateescape") + b"\0")

    def _add_array(self, values: Any) -> None:
        if hasattr(values, "detach"):
            values = values.detach().cpu()
            self._write(str(values.dtype))
            values = values.to_dense() if str(values.layout) != "torch.strided" else values
            values = values.float() if str(values.dtype) in WITHOUT_NUMPY else values
            values = values.resolve_conj().resolve_neg().numpy()
        array = np.ascontiguousarray(np.asarray(values))
        if array.dtype.hasobject:
            self.add(array.tolist())
            return
        self._write(f"array:{array.dtype}:{array.shape}")
        self.digest.update(array.view(np.uint8).reshape(-1).data if array.size else b"")

    def _add_function(self, function: FunctionType) -> None:
        self._write(f"function:{function.__module__}.{function.__qualname__}")
        if is_installed(function):
            return
        if is_installed(sys.modules.get(function.__globals__.get("__name__", ""))):
            self.add(getattr(function, "__wrapped__", None))  # A decorator of a package.
            return
        is_lambda = function.__name__ == "<lambda>"
        source = lambda_source(function) if is_lambda else source_of(function.__code__)
        if source is None:
            self._add_code(function.__code__)
            self.gaps.append(_no_source(function.__qualname__))
        else:
            self._write(source)
        self._add_surroundings(function, changed_names(source))

    def _add_surroundings(self, function: FunctionType, changed: Mapping[str, bool]) -> None:
        """Describe defaults, closure, attributes, and what a function uses by name."""
        code = function.__code__
        defaults = function.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount][code.co_argcount - len(defaults) :]
        pairs = dict(zip(names, defaults, strict=True)) | (function.__kwdefaults__ or {})
        for name, value in pairs.items():
            # `found=None` may become a list that grows.
            self._add_used(name, value, {} if isinstance(value, PLAIN) else changed)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # Not filled yet.
                self._write("empty")
            else:
                self._add_used(name, value, changed)
        for name, value in sorted(vars(function).items()):
            if not name.startswith("__"):
                self._add_used(f"{function.__name__}.{name}", value, changed)
        self._add_names(code, function.__globals__, changed)

    def _add_names(
        self, code: CodeType, known: Mapping[str, Any], changed: Mapping[str, bool]
    ) -> None:
        """Describe what a function uses of its own module."""
        loads = (each for each in dis.get_instructions(code) if each.opname in GLOBAL_LOADS)
        is_notebook = "get_ipython" in known
        for name in dict.fromkeys(each.argval for each in loads):
            if is_notebook and HISTORY.fullmatch(name):
                self._add_gap(f"{name}, the history of the notebook,")
            elif name in known:
                self._add_global(name, known[name], code, changed, ())
        for part in code.co_consts:
            if isinstance(part, CodeType):
                self._add_names(part, known, changed)

    def _add_global(
        self,
        name: str,
        used: Any,
        code: CodeType,
        changed: Mapping[str, bool],
        inside: tuple[ModuleType, ...],
    ) -> None:
        """Describe a global; of the user's own modules, what a function may use of them."""
        if not isinstance(used, ModuleType) or is_installed(used):
            before = self._where, self._num_left
            self._where, self._num_left = (), MAX_VALUES
            self._add_used(name, used, changed)
            self._where, self._num_left = before
        elif used not in inside:
            for each in code.co_names:
                if each in vars(used):
                    found = vars(used)[each]
                    self._add_global(f"{name}.{each}", found, code, changed, (*inside, used))

    def _add_used(self, name: str, used: Any, changed: Mapping[str, bool]) -> None:
        is_code = isinstance(used, FunctionType | type | ModuleType)
        if not is_code and _is_changed(name, changed):
            if changed.get(name, True):
                self._add_gap(f"{name} is changed by the code that uses it; its value")
        else:
            self._add_value(name, used)

    def _add_code(self, code: CodeType) -> None:
        self._write(f"code:{code.co_code.hex()}:{code.co_names}:{code.co_varnames}")
        for part in code.co_consts:
            if isinstance(part, CodeType):
                self._add_code(part)
            elif isinstance(part, frozenset):
                self._add_set(part)
            else:
                self._write(repr(part))

    def _add_class(self, kind: type) -> None:
        self._write(f"class:{kind.__module__}.{kind.__qualname__}")
        if is_installed(kind):
            return
        source = class_source(kind)
        if source is not None:
            self._write(source)
        elif not hasattr(kind, "_field_defaults"):  # All of a namedtuple is in its fields.
            self.gaps.append(_no_source(f"the class {kind.__qualname__}"))
        self._add_all(type(kind), *kind.__bases__)
        for field in fields(kind) if is_dataclass(kind) else ():
            for default in (field.default, field.default_factory):
                if default is not MISSING:
                    self._add_value(f"{kind.__name__}.{field.name}", default)
        changed = changed_names(source)
        for name, part in list(vars(kind).items()):
            self._add_part(kind, name, part, source, changed)

    def _add_part(
        self, kind: type, name: str, part: Any, source: str | None, changed: Mapping[str, bool]
    ) -> None:
        """Describe one attribute of a class: its functions, or its value."""
        functions = functions_of(part)
        for function in functions:
            self._add_method(kind, function, source, changed)
        is_namedtuple = hasattr(kind, "_field_defaults")
        is_generated = is_namedtuple and (name in kind._fields or name in NAMEDTUPLE)  # type: ignore[attr-defined]
        if functions or is_generated or not _is_value(name, part):
            return
        owners = (kind.__name__, "cls", "self.__class__")
        if any(_is_changed(f"{owner}.{name}", changed) for owner in owners):
            self._add_gap(f"{kind.__name__}.{name} is changed by its class; its value")
        else:
            self._add_value(f"{kind.__name__}.{name}", part)

    def _add_method(
        self, kind: type, function: FunctionType, source: str | None, changed: Mapping[str, bool]
    ) -> None:
        code = function.__code__
        if source is None:
            self._add_code(code)
        elif not code.co_qualname.startswith(f"{kind.__qualname__}."):
            is_generated = is_dataclass(kind) or hasattr(kind, "_field_defaults")
            if source_of(inspect.unwrap(function)) is not None or not is_generated:
                self.add(function)
            return
        self._add_surroundings(function, changed)

    def _add_network(self, module: Any) -> None:
        self._write(f"network:{ADDRESS.sub('', repr(module))}")
        parts = list(module.named_modules())
        for _, part in parts:
            self._see(part)
        for part in dict.fromkeys(type(part) for _, part in parts):
            self.add(part)
        for name, values in module.state_dict().items():
            self._add_value(name, values)
        frozen = [name for name, each in module.named_parameters() if not each.requires_grad]
        self._write(f"frozen:{frozen}")
        for name, part in parts:
            self._write(f"part:{name}")
            self._add_module_state(part)

    def _add_module_state(self, module: Any) -> None:
        """Describe what the state of a layer leaves out: attributes, hooks, some buffers."""
        state = vars(module)
        kept = {name: value for name, value in state.items() if name not in MODULE_STATE}
        self._add_attributes(kept)
        hidden = state.get("_non_persistent_buffers_set", ())
        for name in sorted(hidden):
            self._add_value(name, state["_buffers"][name])
        for kind in HOOKS:
            hooks = state.get(kind) or {}
            for key, hook in hooks.items():
                for flag in ("with_kwargs", "always_called"):
                    self._write(f"{kind}:{flag}:{key in state.get(f'{kind}_{flag}', ())}")
                self._add_value(kind, hook)

    def _add_object(self, thing: Any) -> None:
        state = self._state()
        num_gaps = len(self.gaps)
        self.add(type(thing))
        attributes = _attributes(thing)
        text = "" if attributes else repr(thing)
        if ADDRESS.search(text):
            self._restore(state)
            self._add_unknown(thing)
            return
        self._write(text)
        self._add_attributes(attributes)
        is_open = isinstance(thing, Namespace | SimpleNamespace) or not is_installed(type(thing))
        if len(self.gaps) > num_gaps and not is_open:
            # What a package keeps beside a lock, a file or a thread may change on its own.
            self._restore(state)
            self._add_unknown(thing)

    def _add_attributes(self, attributes: Mapping[str, Any]) -> None:
        self._write(f"attributes:{len(attributes)}")
        for name, value in sorted(attributes.items()):
            self._add_value(name, value)


def _attributes(thing: Any) -> dict[str, Any]:
    """Return the attributes of an object by name, without those that it has computed."""
    found = dict(getattr(thing, "__dict__", {}))
    names = [field.name for field in fields(thing)] if is_dataclass(thing) else []
    for kind in type(thing).__mro__:
        for name, part in vars(kind).items():
            if isinstance(part, functools.cached_property):
                found.pop(name, None)
            elif isinstance(part, MemberDescriptorType) and not is_installed(kind):
                names.append(name)
    return found | {name: getattr(thing, name) for name in names if hasattr(thing, name)}


def _is_value(name: str, part: Any) -> bool:
    """Return whether an attribute of a class is a value, not what Python keeps of classes."""
    is_kept = name in BOOKKEEPING or (name.startswith("__") and name.endswith("__"))
    is_slot = isinstance(part, MemberDescriptorType | GetSetDescriptorType)
    return name == "__slots__" or not (is_kept or is_slot)


def _is_changed(name: str, changed: Mapping[str, bool]) -> bool:
    return any(each == name or each.startswith(f"{name}.") for each in changed)


def an_object(thing: Any) -> str:
    """Return the words for an object of some class."""
    return f"an object of the class {type(thing).__qualname__}"


def _no_source(what: str) -> str:
    return (
        f"the source of {what} is not available; its compiled code stands for it, and another "
        "version of Python gives runs other names."
    )
