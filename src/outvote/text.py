"""Text specs: one small language for rules and attacks, both ways.

    spec  = name | name(part, ...)          part  = spec | key=value
    name  = a word of the table, or path.py:ClassName
    value = number | true | false | none | word | 'quoted'
"""

import importlib.util
import re
import sys
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from outvote.errors import closest

TOKEN = re.compile(r"\s*('[^']*'|\"[^\"]*\"|[(),=]|[^\s(),='\"]+)")
WORDS = {"true": True, "false": False, "none": None}


def build(
    text: str, *, kind: str, table: Mapping[str, type], aliases: Mapping[str, str], base: type
) -> Any:
    """Build the object that a text describes."""
    if not isinstance(text, str):
        raise TypeError(f"a {kind} is given as text or as an object, got {type(text).__name__}.")
    return _Reader(text, kind, table, aliases, base).read()


def to_text(thing: Any, base: type) -> str:
    """Return the text of an object: its name, what it wraps, and what differs from the defaults."""
    parts = []
    for field in _fields(type(thing)):
        value = getattr(thing, field.name)
        if isinstance(value, base):
            parts.append(to_text(value, base))
        elif field.default is MISSING or value != field.default:
            parts.append(f"{field.name}={_value_text(value)}")
    name = getattr(thing, "loaded_from", thing.name)
    return f"{name}({', '.join(parts)})" if parts else name


def _fields(kind: type) -> tuple[Field[Any], ...]:
    return fields(kind) if is_dataclass(kind) else ()


def _value_text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, str) and (not value or _read_value(value) != value or "," in value):
        return f"'{value}'"
    return str(value)


def _read_value(token: str) -> Any:
    if token[0] in "'\"":
        return token[1:-1]
    if token.lower() in WORDS:
        return WORDS[token.lower()]
    for number in (int, float):
        try:
            return number(token)
        except ValueError:
            continue
    return token


class _Reader:
    """Reads one text from left to right."""

    def __init__(
        self,
        text: str,
        kind: str,
        table: Mapping[str, type],
        aliases: Mapping[str, str],
        base: type,
    ) -> None:
        self.text, self.kind, self.table, self.aliases, self.base = text, kind, table, aliases, base
        self.tokens = TOKEN.findall(text)
        if "".join(self.tokens) != re.sub(r"\s+(?=(?:[^']*'[^']*')*[^']*$)", "", text):
            raise ValueError(f"{kind} {text!r}: an unfinished quote; close it.")
        self.at = 0

    def read(self) -> Any:
        """Read the whole text."""
        thing = self._spec(self._next("a name"))
        if self.at < len(self.tokens):
            raise self._error(f"unexpected {self.tokens[self.at]!r} after the end")
        return thing

    def _spec(self, name: str) -> Any:
        found = self._find(name)
        inside: list[Any] = []
        named: dict[str, Any] = {}
        if self._peek() == "(":
            self._next("(")
            self._parts(inside, named)
        return self._make(name, found, inside, named)

    def _parts(self, inside: list[Any], named: dict[str, Any]) -> None:
        while self._peek() != ")":
            word = self._next("a part or ')'")
            if self._peek() == "=":
                self._next("=")
                if word in named:
                    raise self._error(f"{word} is given twice")
                named[word] = _read_value(self._next("a value"))
            else:
                inside.append(self._spec(word))
            if self._peek() == ",":
                self._next(",")
            elif self._peek() != ")":
                raise self._error(f"expected ',' or ')', got {self._peek() or 'the end'!r}")
        self._next(")")

    def _make(self, name: str, found: type, inside: list[Any], named: dict[str, Any]) -> Any:
        known = [field.name for field in _fields(found)]
        wrapped = [field.name for field in _fields(found) if field.default is MISSING][:1]
        for key in named:
            if key not in known or key in wrapped:
                hint = closest(key, [word for word in known if word not in wrapped])
                raise self._error(f"{name} has no parameter {key!r}; {hint}")
        if len(inside) != len(wrapped):
            wants = f"wraps one {self.kind}, as in {name}({next(iter(self.table))})"
            raise self._error(
                f"{name} {wants if wrapped else 'wraps nothing'}, got {len(inside)} inside"
            )
        return found(*inside, **named)

    def _find(self, name: str) -> type:
        if re.search(r"\.py:\w+$", name):
            return load_class(name, self.kind, self.base)
        key = self.aliases.get(name.lower(), name.lower())
        if key not in self.table:
            raise self._error(
                f"unknown {self.kind} {name!r}; {closest(name, [*self.table, *self.aliases])}"
            )
        return self.table[key]

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _next(self, wanted: str) -> str:
        token = self._peek()
        if not token or (wanted not in ("(", ")", ",", "=") and token in "(),="):
            raise self._error(f"expected {wanted}, got {token or 'the end'!r}")
        self.at += 1
        return token

    def _error(self, what: str) -> ValueError:
        return ValueError(f"{self.kind} {self.text!r}: {what if what[-1] in '.?' else what + '.'}")


def load_class(place: str, kind: str, base: type) -> Any:
    """Load a class from "path.py:ClassName"."""
    path_text, _, name = place.rpartition(":")
    path = Path(path_text)
    if not path.is_file():
        raise ValueError(f"{kind} {place!r}: there is no file {path_text}; check the path.")
    found = getattr(_load_module(path.resolve(), path.stat().st_mtime_ns), name, None)
    if not isinstance(found, type) or not issubclass(found, base):
        raise ValueError(
            f"{kind} {place!r}: {path_text} has no class {name} that is a {base.__name__}; "
            f"write `class {name}(outvote.{base.__name__})` or fix the name."
        )
    found.loaded_from = place  # type: ignore[attr-defined]
    if not getattr(found, "name", ""):
        found.name = name  # type: ignore[attr-defined]
    return found


@lru_cache(maxsize=64)
def _load_module(path: Path, changed: int) -> Any:
    del changed
    name = f"outvote_user_{path.stem}_{abs(hash(path)):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} cannot be loaded as a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        sys.modules.pop(name, None)
        raise ValueError(f"{path} failed to load: {type(error).__name__}: {error}") from error
    return module
