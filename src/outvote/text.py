"""Text specs: one small language for rules and attacks, both ways.

spec  = name | name(part, ...)          part  = spec | key=value
name  = a word of the table, a name of a package (see plugins.py), path.py:ClassName, or
        ClassName#checksum (see user_objects.py)
value = number | true | false | none | word | 'quoted'
"""

import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, get_type_hints

from outvote.errors import NAMES_OF_F, an, belongs_to_call, check_kind, closest
from outvote.loading import load_class
from outvote.markup import clean
from outvote.plugins import find_plugin, load_plugin_class, plugin_names
from outvote.user_objects import find_object, is_user_object, text_of_class

WORD = re.compile(r"[^\s(),='\"]+")
TOKEN = re.compile(rf"\s*('[^']*'|\"[^\"]*\"|[(),=]|{WORD.pattern})")
MOST_LETTERS = 5000
"""Of the text of a rule or attack: a path in it has at most 4,096."""
MOST_NESTED = 50
"""So many parentheses inside each other are read."""
TOO_DEEP = f"more than {MOST_NESTED} parentheses inside each other; wrap fewer"
LONGEST_SHOWN = 200
"""So many characters of a text from elsewhere are put into a message."""
LONGEST_MESSAGE = 1000
"""So many characters of a message are shown that repeats settings."""
WORDS = {"true": True, "false": False, "none": None}


def shortened(text: str, most: int = LONGEST_SHOWN) -> str:
    """Return a text for a message: its beginning if it is long.

    >>> len(shortened("x" * 10**6))
    200
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def short_line(value: object) -> str:
    r"""Return a value from elsewhere for a message: its beginning, on one line.

    >>> short_line("two\nlines")
    'two lines'
    """
    return clean(" ".join(shortened(str(value)).split()))


def nesting(text: str) -> int:
    """Return how many parentheses of a text are inside each other.

    >>> nesting("gas(bucketing(rfa, size=2))")
    2
    """
    depth = deepest = 0
    for each in text:
        depth += (each == "(") - (each == ")")
        deepest = max(deepest, depth)
    return deepest


def build(
    text: str, *, kind: str, table: Mapping[str, type], aliases: Mapping[str, str], base: type
) -> Any:
    """Build the object that a text describes."""
    if not isinstance(text, str):
        raise TypeError(f"{an(kind)} is given as text or as an object, got {type(text).__name__}.")
    if len(text) > MOST_LETTERS:
        what = f"{len(text):,} characters; at most {MOST_LETTERS:,} are read"
        what = TOO_DEEP if nesting(text) > MOST_NESTED else what
        raise ValueError(f"{kind} {shortened(text)!r}: {what}.")
    return _Parser(text, kind, table, aliases, base).read()


def to_text(thing: Any, base: type) -> str:
    """Return the text of an object: its name, what it wraps, and what differs from the defaults."""
    parts = []
    for field in _fields(type(thing)):
        value = getattr(thing, field.name)
        if isinstance(value, base):
            parts.append(to_text(value, base))
        elif field.default is MISSING or value != field.default:
            parts.append(f"{field.name}={value_in_text(value)}")
    name = quoted_if_needed(text_of_class(type(thing)))
    return f"{name}({', '.join(parts)})" if parts else name


@lru_cache(maxsize=256)
def _hints(kind: type) -> dict[str, Any]:
    try:
        return get_type_hints(kind)
    except NameError:  # An annotation for type checkers alone.
        return {field.name: Any for field in _fields(kind)}


def _fields(kind: type) -> tuple[Field[Any], ...]:
    return fields(kind) if is_dataclass(kind) else ()


def value_in_text(value: Any) -> str:
    """Return a value as a text has it; `read_value` reads it back."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, str):
        return quoted_if_needed(value) if value and read_value(value) == value else f"'{value}'"
    # Numbers of numpy are written as what they are exactly.
    if isinstance(value, Integral):
        return str(int(value))
    return str(float(value)) if isinstance(value, Real) else str(value)


def quoted_if_needed(text: str) -> str:
    """Return a name with quotes, if it is more than one word."""
    if WORD.fullmatch(text):
        return text
    return f'"{text}"' if "'" in text else f"'{text}'"


def read_value(token: str) -> Any:
    """Return what a token stands for: a number, true, false, none or a word."""
    if token[0] in "'\"":
        return token[1:-1]
    if token.lower() in WORDS:
        return WORDS[token.lower()]
    return read_number(token)


def read_number(token: str) -> int | float | str:
    """Return the number that a token is, or the token."""
    for number in (int, float):
        try:
            return number(token)
        except ValueError:
            continue
    return token


class _Parser:
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
        self.tokens = self._cut()
        self.at = self.depth = 0

    def _cut(self) -> list[str]:
        tokens, at = [], 0
        while self.text[at:].strip():
            found = TOKEN.match(self.text, at)
            if found is None:
                raise self._error("an unfinished quote; close it")
            tokens.append(found[1])
            at = found.end()
        return tokens

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
            self.depth += 1
            if self.depth > MOST_NESTED:
                raise self._error(TOO_DEEP)
            self._parts(inside, named)
            self.depth -= 1
        return self._make(name, found, inside, named)

    def _parts(self, inside: list[Any], named: dict[str, Any]) -> None:
        while self._peek() != ")":
            word = self._next("a part or ')'")
            if self._peek() == "=":
                self._next("=")
                if word in named:
                    raise self._error(f"{word} is given twice")
                named[word] = read_value(self._next("a value"))
            else:
                inside.append(self._spec(word))
            if self._peek() == ",":
                self._next(",")
            elif self._peek() != ")":
                raise self._error(f"expected ',' or ')', got {self._peek() or 'the end'!r}")
        self._next(")")

    def _make(self, name: str, found: type, inside: list[Any], named: dict[str, Any]) -> Any:
        hints = _hints(found)
        known = [field.name for field in _fields(found)]
        classes = {key: hint for key, hint in hints.items() if isinstance(hint, type)}
        wrapped = [key for key in known if issubclass(classes.get(key, object), self.base)]
        for key, value in named.items():
            if key not in known or key in wrapped:
                hint = closest(key, [word for word in known if word not in wrapped])
                if key in NAMES_OF_F:
                    hint = belongs_to_call(f"{self.kind}(X, num_byzantine={value})")
                raise self._error(f"{name} has no parameter {key!r}; {hint}")
        for field in _fields(found):
            is_required = field.default is MISSING and field.default_factory is MISSING
            if is_required and field.name not in [*named, *wrapped]:
                raise self._error(f"{name} needs {field.name}=, got none")
        if len(inside) != len(wrapped):
            wants = f"wraps one {self.kind}, as in {name}({next(iter(self.table))})"
            raise self._error(
                f"{name} {wants if wrapped else 'wraps nothing'}, got {len(inside)} inside"
            )
        for key, value in named.items():
            check_kind(f"{self.kind} {self.text!r}: {key}", value, hints[key])
        return found(*inside, **named)

    def _find(self, name: str) -> type:
        name = name[1:-1] if name[0] in "'\"" else name
        if re.search(r"\.py:\w+$", name):
            return load_class(name, self.kind, self.base)
        if is_user_object(name):
            found: type = find_object(name, self.kind)
            return found
        key = self.aliases.get(name.lower(), name.lower())
        if key in self.table:
            return self.table[key]
        if (plugin := find_plugin(self.kind, key)) is not None:
            return load_plugin_class(plugin, self.base)
        hint = closest(name, [*self.table, *plugin_names(self.kind)], self.aliases)
        raise self._error(f"unknown {self.kind} {name!r}; {hint}")

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _next(self, wanted: str) -> str:
        token = self._peek()
        if not token or (wanted not in ("(", ")", ",", "=") and token in "(),="):
            raise self._error(f"expected {wanted}, got {token or 'the end'!r}")
        self.at += 1
        return token

    def _error(self, what: str) -> ValueError:
        return ValueError(
            f"{self.kind} {shortened(self.text)!r}: {what if what[-1] in '.?' else what + '.'}"
        )
