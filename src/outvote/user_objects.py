"""A user's own objects as text, and a checksum of what they are made of.

"path.py:name" is an object in a file. "Net#1f2e3d4c5b6a" is an object that a Python program passed
to `simulate`: its name, and the checksum of its source, its parameters and its arrays.
"""

import ast
import builtins
import dis
import functools
import hashlib
import inspect
import re
import sys
import sysconfig
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from threading import Lock
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from outvote.loading import load_object

IN_FILE = re.compile(r"\.py:\w+$")
REGISTERED = re.compile(r"#[0-9a-f]{12}$")
INSTALLED = ("site-packages", "dist-packages")
PLAIN = (str, bytes, int, float, complex, bool, type(None), np.generic)
USED = (*PLAIN[:-2], np.generic, tuple, list, dict, set, frozenset, functools.partial)
"""The values of a module's names that its functions are described with; code is, too."""
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
    for thing in things:
        described.add(thing)
    return described.digest.hexdigest(), tuple(dict.fromkeys(described.gaps))


class _Description:
    """Feeds a checksum with source, parameters and arrays, each object once."""

    def __init__(self) -> None:
        self.digest = hashlib.blake2b(digest_size=6)
        self.gaps: list[str] = []
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []

    def add(self, thing: Any) -> None:
        """Describe one object."""
        if isinstance(thing, PLAIN):
            self._write(f"{type(thing).__name__}:{thing!r}")
            return
        if id(thing) in self._seen:
            self._write(f"seen:{self._seen[id(thing)]}")
            return
        self._seen[id(thing)] = len(self._seen)
        self._kept.append(thing)  # An id is unique only while its object lives.
        self._add_new(thing)

    def _add_new(self, thing: Any) -> None:
        kinds: list[tuple[Any, Callable[[Any], None]]] = [
            (FunctionType, self._add_function),
            (type, self._add_class),
            (MethodType, lambda method: self._add_all(method.__func__, method.__self__)),
            (functools.partial, lambda one: self._add_all(one.func, one.args, one.keywords)),
            (Mapping, lambda pairs: self._add_pairs("mapping", pairs)),
            ((list, tuple), self._add_sequence),
            ((set, frozenset), lambda values: self.add(sorted(values, key=repr))),
            ((ModuleType, BuiltinFunctionType), self._add_name),
        ]
        for kind, add in kinds:
            if isinstance(thing, kind):
                add(thing)
                return
        if hasattr(thing, "state_dict") and hasattr(thing, "named_modules"):
            self._add_network(thing)
        elif hasattr(thing, "__array__") or hasattr(thing, "detach"):
            self._add_array(thing)
        else:
            self._add_object(thing)

    def _add_all(self, *things: Any) -> None:
        for thing in things:
            self.add(thing)

    def _add_sequence(self, values: Sequence[Any]) -> None:
        self._write(f"{type(values).__name__}:{len(values)}")
        self._add_all(*values)

    def _add_name(self, thing: Any) -> None:
        self._write(f"name:{getattr(thing, '__module__', '')}.{thing.__name__}")

    def _write(self, text: str) -> None:
        self.digest.update(text.encode(errors="surrogateescape") + b"\0")

    def _add_pairs(self, kind: str, pairs: Mapping[Any, Any]) -> None:
        self._write(f"{kind}:{len(pairs)}")
        for key, value in pairs.items():
            self.add(key)
            self.add(value)

    def _add_array(self, values: Any) -> None:
        if hasattr(values, "detach"):
            values = values.detach().cpu()
            kind = str(values.dtype)
            values = values.float().numpy() if kind == "torch.bfloat16" else values.numpy()
        array = np.ascontiguousarray(np.asarray(values))
        if array.dtype.kind == "O":
            self.add(array.tolist())
            return
        self._write(f"array:{array.dtype}:{array.shape}")
        self.digest.update(array.view(np.uint8).reshape(-1).data if array.size else b"")

    def _add_function(self, function: FunctionType) -> None:
        self._write(f"function:{function.__module__}.{function.__qualname__}")
        if _is_installed(function):
            return
        is_lambda = function.__name__ == "<lambda>"
        source = _lambda_source(function) if is_lambda else _source(function)
        if source is None:
            self._add_code(function.__code__)
            self.gaps.append(_no_source(function.__qualname__))
        else:
            self._write(source)
        self.add(list(function.__defaults__ or ()))
        self.add(dict(function.__kwdefaults__ or {}))
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:  # Not filled yet.
                self._write("empty")
        self._add_names(function.__code__, function.__globals__)

    def _add_names(self, code: CodeType, known: Mapping[str, Any]) -> None:
        """Describe what a function uses of its own module: code, numbers, lists, arrays."""
        loads = (each for each in dis.get_instructions(code) if each.opname in GLOBAL_LOADS)
        for name in dict.fromkeys(each.argval for each in loads):
            used = known.get(name)
            if isinstance(used, ModuleType) and not _is_installed(used):
                inside = [each for each in code.co_names if hasattr(used, each)]
                for each in inside:
                    self._add_used(f"{name}.{each}", getattr(used, each))
            else:
                self._add_used(name, used)
        for part in code.co_consts:
            if isinstance(part, CodeType):
                self._add_names(part, known)

    def _add_used(self, name: str, used: Any) -> None:
        is_code = isinstance(used, FunctionType | type) and not _is_installed(used)
        is_array = hasattr(used, "__array__") and not isinstance(used, type)
        if is_code or is_array or isinstance(used, USED):
            self._write(f"uses:{name}")
            self.add(used)

    def _add_code(self, code: CodeType) -> None:
        self._write(f"code:{code.co_code.hex()}:{code.co_names}:{code.co_varnames}")
        for part in code.co_consts:
            if isinstance(part, CodeType):
                self._add_code(part)
            else:
                self._write(repr(part))

    def _add_class(self, kind: type) -> None:
        self._write(f"class:{kind.__module__}.{kind.__qualname__}")
        if _is_installed(kind):
            return
        source = _class_source(kind)
        if source is None:
            self.gaps.append(_no_source(f"the class {kind.__qualname__}"))
        else:
            self._write(source)
        for base in kind.__bases__:
            self.add(base)
        for part in vars(kind).values():
            if isinstance(part, FunctionType):
                if source is None:
                    self._add_code(part.__code__)
                self._add_names(part.__code__, part.__globals__)

    def _add_network(self, module: Any) -> None:
        self._write(f"network:{module!r}")
        for part in dict.fromkeys(type(each) for each in module.modules()):
            self.add(part)
        for name, values in module.state_dict().items():
            self._write(name)
            self._add_array(values)
        frozen = [name for name, each in module.named_parameters() if not each.requires_grad]
        self._write(f"frozen:{frozen}")

    def _add_object(self, thing: Any) -> None:
        self.add(type(thing))
        if is_dataclass(thing):
            self._add_pairs("fields", {f.name: getattr(thing, f.name) for f in fields(thing)})
        elif hasattr(thing, "__dict__"):
            self._add_pairs("attributes", vars(thing))
        elif re.search(r" at 0x[0-9a-f]+", repr(thing)):
            self.gaps.append(
                f"the content of {an_object(thing)} is not known; a change of it does not change "
                "the names of runs."
            )
        else:
            self._write(repr(thing))


def an_object(thing: Any) -> str:
    """Return the words for an object of some class."""
    return f"an object of the class {type(thing).__qualname__}"


def _no_source(what: str) -> str:
    return (
        f"the source of {what} is not available; its compiled code stands for it, and another "
        "version of Python gives runs other names."
    )


def _is_installed(thing: Any) -> bool:
    """Return whether code belongs to Python or an installed package: its name stands for it."""
    is_module = isinstance(thing, ModuleType)
    module = thing.__name__ if is_module else getattr(thing, "__module__", None) or ""
    root = module.partition(".")[0]
    if root == "builtins":  # Also the module of what `exec` defines.
        return is_module or getattr(builtins, thing.__name__, None) is thing
    if root in ("outvote", "torch", "numpy", "__main__"):
        return root != "__main__"  # What is run is the user's, wherever its file is.
    path = getattr(sys.modules.get(module), "__file__", None)
    if path is None:
        return root in sys.stdlib_module_names
    is_standard = Path(path).is_relative_to(sysconfig.get_path("stdlib"))
    return is_standard or any(part in path for part in INSTALLED)


def _source(thing: Any) -> str | None:
    try:
        return textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError):
        return None


def _lambda_source(function: FunctionType) -> str | None:
    """Return the text of a lambda alone: its line may hold several, or the rest of a call."""
    code = function.__code__
    spots = [
        ((line, column), (end_line, end_column))
        for line, end_line, column, end_column in code.co_positions()
        if None not in (line, end_line, column, end_column)
        and (line, column) != (end_line, end_column)
    ]
    found = [
        node
        for node in _nodes(function, ast.Lambda)
        if spots
        and all(_start(node.body) <= start and end <= _end(node.body) for start, end in spots)
    ]
    # Of nested ones, the innermost starts last.
    return ast.unparse(max(found, key=_start)) if found else None


def _class_source(kind: type) -> str | None:
    """Return the text of a class; of several with one name, and in notebooks, by its methods."""
    for method in vars(kind).values():
        if isinstance(method, FunctionType):
            line = method.__code__.co_firstlineno
            found = [
                node
                for node in _nodes(method, ast.ClassDef)
                if node.name == kind.__name__ and node.lineno <= line <= (node.end_lineno or 0)
            ]
            if found:
                node = max(found, key=_start)
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                lines = inspect.findsource(method)[0][first - 1 : node.end_lineno]
                return textwrap.dedent("".join(lines))
    return _source(kind)


def _nodes(function: FunctionType, kind: type[Any]) -> list[Any]:
    """Return the nodes of some kind in the file or the cell that a function is defined in."""
    try:
        lines, _ = inspect.findsource(function)
        tree = ast.parse("".join(lines))
    except (OSError, TypeError, SyntaxError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, kind)]


def _start(node: Any) -> tuple[int, int]:
    return (node.lineno, node.col_offset)


def _end(node: Any) -> tuple[int, int]:
    return (node.end_lineno, node.end_col_offset)
