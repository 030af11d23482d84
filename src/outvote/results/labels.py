"""Short names of rules and attacks for tables: the name without the parameters, and these alone."""

from functools import lru_cache
from typing import Any, NamedTuple

from outvote.text import TOKEN, read_value

DEFAULTS: dict[str, dict[str, Any]] = {"gas": {"num_groups": 1000}}
"""What a text does not say and a table wants to know."""
ALIASES = {"rbtm": "trimmed-mean"}


class Outline(NamedTuple):
    """A rule or attack as it is written."""

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
        return result | DEFAULTS.get(self.name, {}) | self.parameters


def label(text: str) -> str:
    """Return the name of a rule or attack and of what it wraps.

    >>> label("gas(dnc(removal_factor=4.0), num_groups=100)")
    'gas(dnc)'
    """
    return outline(text).label


def parameters(text: str) -> dict[str, Any]:
    """Return the parameters that a rule or attack was given, those inside too.

    >>> parameters("gas(dnc(removal_factor=4.0), num_groups=100)")
    {'removal_factor': 4.0, 'num_groups': 100}
    """
    return outline(text).all_parameters


@lru_cache(maxsize=4096)  # A table asks for the same few again and again.
def outline(text: str) -> Outline:
    """Take a text apart; it was checked before, by those who know the rules and attacks."""
    tokens = [found[1] for found in TOKEN.finditer(text)]
    return _read(tokens)


def _read(tokens: list[str]) -> Outline:
    """Read one name and its parts from the front of the tokens, which are used up."""
    name = tokens.pop(0).strip("'\"")
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
