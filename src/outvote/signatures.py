"""Calls whose keywords editors and notebooks complete, and whose mistakes get a hint."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

from outvote.errors import no_argument

Given = ParamSpec("Given")
Returned = TypeVar("Returned")


def with_hints(method: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """Let a method of a rule or attack name the closest keyword if it gets one it does not have."""
    known = keywords_of(method)

    @wraps(method)
    def checked(*given: Given.args, **named: Given.kwargs) -> Returned:
        for name in named.keys() - known:
            raise no_argument(getattr(given[0], "name", ""), name, known)
        return method(*given, **named)

    return checked


def takes_what(
    source: Callable[Given, Any],
) -> Callable[[Callable[..., Returned]], Callable[Given, Returned]]:
    """Give a method the parameters of another one, to which it passes them on."""

    def decorate(method: Callable[..., Returned]) -> Callable[Given, Returned]:
        found = signature(source).replace(return_annotation=signature(method).return_annotation)
        method.__signature__ = found  # type: ignore[attr-defined]
        return method

    return decorate


def keywords_of(method: Callable[..., Any]) -> list[str]:
    """Return the keywords that a method takes."""
    parameters = signature(method).parameters.values()
    return [each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY][1:]
