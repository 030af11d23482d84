"""A user's own objects by their texts.

"path.py:name" is an object in a file. "Net#1f2e3d4c5b6a" is an object that a Python program passed
to `simulate`: its name, and the checksum of what it is made of, see `user_code`.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from outvote.loading import load_object
from outvote.plugins import find_plugin, load_plugin

IN_FILE = re.compile(r"\.py:\w+$")
REGISTERED = re.compile(r"#[0-9a-f]{12}$")
_objects: ContextVar[Mapping[str, Any]] = ContextVar("objects", default=MappingProxyType({}))


def is_user_object(text: str) -> bool:
    """Return whether a text names a user's object: in a file, or registered."""
    return bool(IN_FILE.search(text) or REGISTERED.search(text))


def find_object(text: str, kind: str) -> Any:
    """Return the object that a text names; `kind` is the word for it in messages."""
    if IN_FILE.search(text):
        return load_object(text, kind)
    if text not in _objects.get():
        raise ValueError(
            f"{kind} {text!r} was passed by a Python program, and is not known here; run that "
            "program again, or put the object into a file and name it path.py:name."
        )
    return _objects.get()[text]


def is_own(kind: str, name: str, built_in: Collection[str]) -> bool:
    """Return whether a model or dataset is a user's or another package's."""
    return name not in built_in and (is_user_object(name) or find_plugin(kind, name) is not None)


def find_own(kind: str, name: str) -> Any:
    """Return a user's or another package's model or dataset, or what makes one."""
    plugin = None if is_user_object(name) else find_plugin(kind, name)
    return find_object(name, kind) if plugin is None else load_plugin(plugin)


def text_of_class(kind: Any) -> str:
    """Return the text of the class of a rule or an attack: where it is from, or its name."""
    found = [text for text, each in _objects.get().items() if each is kind]
    return found[0] if found else getattr(kind, "loaded_from", kind.name)


@contextmanager
def registered(objects: Mapping[str, Any]) -> Iterator[None]:
    """Let texts stand for objects for a while, in this thread."""
    before = _objects.set({**_objects.get(), **objects})
    try:
        yield
    finally:
        _objects.reset(before)
