"""Errors that users meet, and the sentence they are told."""

import difflib
from collections.abc import Iterable
from typing import get_args


class TooManyByzantine(ValueError):  # noqa: N818  (the public name is fixed)
    """More Byzantine clients were announced than the rule tolerates."""

    def __init__(self, rule: str, limit: int, num_clients: int, got: int) -> None:
        """Name the rule, its limit and the ways out."""
        super().__init__(
            f"{rule} tolerates at most {limit} Byzantine of {num_clients} clients, got {got}; "
            "sample more clients, lower num_byzantine, or pass when_too_many='lower'."
        )
        self.limit, self.num_clients, self.got = limit, num_clients, got


class OutvoteWarning(UserWarning):
    """Something was done that the caller may not expect (integers promoted to float, ...)."""


def closest(name: str, known: Iterable[str]) -> str:
    """Return a hint naming the closest known word, or all of them when nothing is close."""
    choices = sorted(known)
    found = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    if found:
        return f"did you mean {found[0]!r}?"
    return f"known: {', '.join(choices)}." if choices else "nothing is known here."


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
    """Raise a TypeError unless `value` is of the kind that a type hint such as ``int | None`` says.

    Hints beyond numbers, words, true, false and none are not checked.
    """
    kinds = get_args(hint) or (hint,)
    if any(kind not in KINDS for kind in kinds):
        return
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if type(value) not in kinds and not (is_number and float in kinds):
        allowed = " or ".join(KINDS[kind] for kind in kinds)
        raise TypeError(f"{what} must be {allowed}, got {value!r}.")
