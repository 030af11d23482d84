"""Short names of rules and attacks for tables: only the parameters that differ."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from outvote.aliases import ATTACK_ALIASES, RULE_ALIASES
from outvote.results.later import LATER
from outvote.text import TOKEN, quoted_if_needed, read_value, value_in_text

_SEARCH = {"direction": "std", "method": "closed-form", "gamma_init": 10.0, "tolerance": 1e-5}
DEFAULTS: dict[str, dict[str, Any]] = {
    "bucketing": {"size": 2},
    "dnc": {"removal_factor": 1.0, "num_iterations": 1, "num_coordinates": 10_000},
    "gas": {"num_groups": 1000},
    "ipm": {"evals": 2},
    "lie": {"z": 1.5},
    "min-max": _SEARCH,
    "min-sum": _SEARCH,
    "rfa": {"num_iterations": 3},
}
"""Defaults that suites write out, and the text of a run leaves out."""
ALIASES = {**RULE_ALIASES, **ATTACK_ALIASES}
# Each looks at a letter a few times at most: texts may come from elsewhere, and be long.
_PARTS = re.compile(r"[(),='\"]")
_ENDS = re.compile(r"\.py(?=:\w)")
_REGISTERED = re.compile(r"(?<!\w)(\w+)#([0-9a-f]{12})")
"""A user's object that a Python program passed: its name and checksum."""


class Outline(NamedTuple):
    """A rule or attack as text: name, what it wraps, parameters."""

    name: str
    inside: "tuple[Outline, ...]"
    parameters: dict[str, Any]

    @property
    def label(self) -> str:
        """Its name and those inside."""
        inside = ", ".join(each.label for each in self.inside)
        return f"{self.name}({inside})" if inside else self.name

    @property
    def all_parameters(self) -> dict[str, Any]:
        """Its parameters and those inside; the outer ones win."""
        result: dict[str, Any] = {}
        for each in self.inside:
            result |= each.all_parameters
        return result | self.settled.parameters

    @property
    def settled(self) -> "Outline":
        """The same, with the defaults that it leaves out."""
        own = DEFAULTS.get(self.name, {}) | self.parameters
        return Outline(self.name, tuple(each.settled for each in self.inside), own)


def label(text: str) -> str:
    """Return the name of a rule or attack and of what it wraps.

    >>> label("gas(dnc(removal_factor=4.0), num_groups=100)")
    'gas(dnc)'
    """
    return outline(text).label


def label_names(text: str) -> list[str]:
    """Return the name of a rule or attack, and those of what it wraps.

    >>> label_names("gas(bucketing(rfa), num_groups=10)")
    ['gas', 'bucketing', 'rfa']
    """
    found, names = [outline(text)], []
    for each in found:
        found.extend(each.inside)
        names.append(each.name)
    return names


def parameters(text: str) -> dict[str, Any]:
    """Return the parameters of a rule or attack, those inside too, as far as they are known.

    >>> parameters("gas(multi-krum(num_selected=3))")
    {'num_selected': 3, 'num_groups': 1000}
    """
    return outline(text).all_parameters


def user_files(text: str) -> list[str]:
    """Return the user's files in the text of a rule or attack.

    >>> user_files("gas(rules/mine.py:MyRule(size=2))")
    ['rules/mine.py']
    """
    found = []
    for part in map(str.lstrip, _PARTS.split(text)):
        end = 0
        for each in _ENDS.finditer(part, 1):
            end = each.end()
        if end:
            found.append(part[:end])
    return found


def user_objects(text: str) -> dict[str, str]:
    """Return the checksums of a user's objects in a text, by their names.

    >>> user_objects("gas(MyRule#0123456789ab)")
    {'MyRule': '0123456789ab'}
    """
    return dict(_REGISTERED.findall(text))


def value_of(table: Mapping[str, Any], key: str) -> Any:
    """Return a setting such as "data.beta" or "rule.num_groups"; None if there is none.

    "rule" and "attack" are the names without parameters. A setting that came later, and was left
    out at its default, has that.
    """
    first, _, rest = key.partition(".")
    if first in ("rule", "attack") and first in table:
        return parameters(table[first]).get(rest) if rest else label(table[first])
    found: Any = table
    for word in key.split("."):
        found = found.get(word) if isinstance(found, Mapping) else None
    found = LATER.get(key) if found is None else found
    return None if isinstance(found, Mapping) else found


def is_same(first: str, second: str) -> bool:
    """Return whether two texts mean the same rule or attack.

    >>> is_same("rbtm", "trimmed-mean"), is_same("lie(z=1.5)", "lie"), is_same("lie(z=2)", "lie")
    (True, True, False)
    """
    return outline(first).settled == outline(second).settled


@lru_cache(maxsize=4096)  # A table asks for the same few again and again.
def outline(text: str) -> Outline:
    """Parse a text that was checked before."""
    tokens = [found[1] for found in TOKEN.finditer(text)]
    return _read(tokens or [text])


def _read(tokens: list[str]) -> Outline:
    """Parse one name and its parts from the front of the tokens, and remove them."""
    name = _REGISTERED.sub(r"\1", tokens.pop(0).strip("'\""))
    inside, own = [], {}
    if tokens and tokens[0] == "(":
        tokens.pop(0)
        while tokens and tokens[0] != ")":
            if len(tokens) > 2 and tokens[1] == "=":
                own[tokens[0]] = read_value(tokens[2])
                del tokens[:3]
            else:
                inside.append(_read(tokens))
            if tokens and tokens[0] == ",":
                tokens.pop(0)
        del tokens[:1]
    return Outline(ALIASES.get(name.lower(), name), tuple(inside), own)


def names_of(texts: Iterable[str], ignored: Sequence[str] = ()) -> dict[str, str]:
    """Return a short name of each rule or attack; equal names mean equal but for `ignored`.

    A name is itself the text of a rule or attack: each parameter stands where it belongs.

    >>> names_of(["gas(krum, num_groups=10)", "gas(krum, num_groups=20)", "dnc(num_iterations=2)"])
    {'gas(krum, num_groups=10)': 'gas(krum, num_groups=10)', \
'gas(krum, num_groups=20)': 'gas(krum, num_groups=20)', 'dnc(num_iterations=2)': 'dnc'}
    """
    alike: dict[str, list[str]] = {}
    for text in dict.fromkeys(texts):
        alike.setdefault(label(text), []).append(text)
    result = {}
    for group in alike.values():
        settled = {text: outline(text).settled for text in group}
        names = dict(zip(group, _written(list(settled.values()), ignored), strict=True))
        are_distinct = len(set(names.values())) == len(group) or bool(ignored)
        # The same rule in two spellings: only the whole text is unique.
        result.update(names if are_distinct else {text: text for text in group})
    return result


def _written(alike: Sequence[Outline], ignored: Sequence[str]) -> list[str]:
    """Write rules or attacks of the same names, each with the parameters that they differ in."""
    inside = [
        _written(each, ignored) for each in zip(*(each.inside for each in alike), strict=True)
    ]
    keys = dict.fromkeys(key for each in alike for key in each.parameters if key not in ignored)
    differing = [key for key in keys if len({repr(each.parameters.get(key)) for each in alike}) > 1]
    found = []
    for number, each in enumerate(alike):
        own = {key: each.parameters[key] for key in differing if key in each.parameters}
        parts = [written[number] for written in inside]
        for key, value in own.items():
            text = value_in_text(value) if isinstance(value, str) else plain(value)
            parts.append(f"{key}={text}")
        name = quoted_if_needed(each.name)
        found.append(f"{name}({', '.join(parts)})" if parts else name)
    return found


def plain(value: Any) -> str:
    """Return a value as a text or a file of settings has it; no digit is lost."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, float):
        return str(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)
