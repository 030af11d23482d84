"""Errors that users meet, and their wording."""

import difflib
import warnings
from collections.abc import Iterable
from numbers import Integral, Real
from typing import get_args

# How other libraries and papers call the number of Byzantine clients.
NAMES_OF_F = {"f", "num_byzantine", "nb_byz", "num_malicious_nodes"}

NEAR = 0.65
"""How alike a word and its suggestion are, at least: "lye" is like "lie", "fedavg" not "fang"."""


class TooManyByzantine(ValueError):  # noqa: N818  (the public name is fixed)
    """More Byzantine clients are assumed than the rule tolerates."""

    def __init__(self, rule: str, limit: int, num_clients: int, got: int) -> None:
        super().__init__(
            f"{rule} tolerates at most {limit} Byzantine of {plural(num_clients, 'client')}, got "
            f"{got}; sample more clients, lower num_byzantine, or pass when_too_many='lower'."
        )
        self.limit, self.num_clients, self.got = limit, num_clients, got


class OutvoteWarning(UserWarning):
    """Something was done that the caller may not expect (integers promoted to float, ...)."""


def warn_notes(notes: Iterable[str], stacklevel: int = 3) -> None:
    """Warn once with all notes on a result that a plain call does not return."""
    if text := "; ".join(notes):
        warnings.warn(text, OutvoteWarning, stacklevel=stacklevel)


def closest(name: str, known: Iterable[str], aliases: Iterable[str] = ()) -> str:
    """Return a hint naming the closest known word, or all of them but aliases if none is close.

    >>> closest("meidan", ["mean", "median"]), closest("fedavg", ["fang", "mean"])
    ("did you mean 'median'?", 'known: fang, mean.')
    """
    choices = sorted(known)
    found = difflib.get_close_matches(name, [*choices, *aliases], n=1, cutoff=NEAR)
    if found:
        return f"did you mean {found[0]!r}?"
    return f"known: {', '.join(choices)}." if choices else "nothing is known here."


def belongs_to_call(call: str) -> str:
    """Return the advice where a rule or an attack is built with a number of Byzantine clients."""
    return f"the number of Byzantine clients belongs to a call, {call}."


def no_argument(what: str, name: str, known: Iterable[str]) -> TypeError:
    """Return the error of a call with an argument that does not exist."""
    hint = "did you mean 'num_byzantine'?" if name in NAMES_OF_F else closest(name, known)
    return TypeError(f"{what} got an unexpected keyword argument {name!r}; {hint}")


def an(noun: str) -> str:
    """Return "a rule", "an attack"."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


def plural(count: int, noun: str) -> str:
    """Return "1 client", "2 clients"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def duration(seconds: float) -> str:
    """Return a time in words.

    >>> duration(8.6), duration(125), duration(4 * 3600 + 120)
    ('9 s', '2 min 5 s', '4 h 2 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60:,} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def was(count: int) -> str:
    """Return the verb that goes with so many."""
    return "was" if count == 1 else "were"


def check_choice(what: str, value: object, allowed: Iterable[object]) -> None:
    """Raise a ValueError unless `value` is one of `allowed`."""
    choices = list(allowed)
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{what} must be one of {listed}, got {value!r}.")


KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a word",
    type(None): "none",
}


def check_kind(what: str, value: object, hint: object) -> None:
    """Raise a TypeError unless `value` is of a kind that a hint such as ``int | None`` allows.

    numpy's numbers are numbers, truth values are not. Hints beyond numbers, words, true, false and
    none are not checked.
    """
    kinds = get_args(hint) or (hint,)
    if not KINDS.keys() >= set(kinds):
        return
    is_number = not isinstance(value, bool)
    for kind in kinds:
        if kind is int or kind is float:
            if is_number and isinstance(value, Integral if kind is int else Real):
                return
        elif type(value) is kind:
            return
    allowed = " or ".join(KINDS[kind] for kind in kinds)
    raise TypeError(f"{what} must be {allowed}, got {value!r}.")
