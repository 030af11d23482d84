"""An attribute that is worked out when it is first asked for."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast, overload

Value = TypeVar("Value")


class lazy(Generic[Value]):  # noqa: N801  (used like a built-in decorator)
    """Like functools.cached_property, without the lock that Python 3.11 puts around all objects."""

    def __init__(self, work: Callable[[Any], Value]) -> None:
        self.work = work
        self.name = work.__name__
        self.__doc__ = work.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> "lazy[Value]": ...
    @overload
    def __get__(self, owner: object, kind: type) -> Value: ...
    def __get__(self, owner: object | None, kind: type) -> "Value | lazy[Value]":
        """Work the value out and put it in the way of this descriptor."""
        if owner is None:
            return self
        value = self.work(owner)
        # Of two threads that ask at once, both get what the first one found.
        return cast("Value", owner.__dict__.setdefault(self.name, value))


class once(lazy[Value]):  # noqa: N801  (used like a built-in decorator)
    """A lazy attribute that is worked out by one thread while others wait: its owner has a `lock`.

    For what takes much time or memory.
    """

    @overload
    def __get__(self, owner: None, kind: type) -> "lazy[Value]": ...
    @overload
    def __get__(self, owner: object, kind: type) -> Value: ...
    def __get__(self, owner: object | None, kind: type) -> "Value | lazy[Value]":
        """Work the value out, unless another thread has done so."""
        if owner is None:
            return self
        with cast("Any", owner).lock:
            if self.name not in owner.__dict__:
                owner.__dict__[self.name] = self.work(owner)
        return cast("Value", owner.__dict__[self.name])
