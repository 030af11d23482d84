"""Short names of rules and attacks for tables: the name without the parameters, and these alone."""

from functools import lru_cache
from typing import Any, NamedTuple

from outvote.text import TOKEN, read_value

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
"""What suites say, and the text of a run leaves out because it is the default."""
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


def parameters(text: str) -> dict[str, Any]:
    """Return the parameters of a rule or attack, those inside too, as far as they are known.

    >>> parameters("gas(multi-krum(num_selected=3))")
    {'num_selected': 3, 'num_groups': 1000}
    """
    return outline(text).all_parameters


def is_same(first: str, second: str) -> bool:
    """Tell whether two texts mean the same rule or attack.

    >>> is_same("rbtm", "trimmed-mean"), is_same("lie(z=1.5)", "lie"), is_same("lie(z=2)", "lie")
    (True, True, False)
    """
    return outline(first).settled == outline(second).settled


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
