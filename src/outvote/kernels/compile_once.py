"""Kernels that several threads ask for at the same time, compiled by the first of them."""

import importlib.util
from collections.abc import Callable
from threading import Event, Lock
from typing import Any

# Of one kernel, in seconds: if that fails, each thread finds it out for itself.
LONGEST_WAIT = 60.0


class CompileOnce:
    """Lets threads wait for a kernel that another one compiles; then it is read from the disk."""

    def __init__(self) -> None:
        """Begin with no kernel."""
        self._lock = Lock()
        self._compiling: dict[tuple[str, str], Event] = {}

    def before(self, *, key: str, fn: Any, **_: object) -> None:
        """Wait if a thread compiles this kernel, or become that thread."""
        with self._lock:
            found = self._compiling.get((fn.name, key))
            if found is None:
                self._compiling[fn.name, key] = Event()
        if found is not None:
            found.wait(LONGEST_WAIT)

    def after(self, *, key: str, fn: Any, **_: object) -> None:
        """Wake the threads that wait for this kernel."""
        with self._lock:
            found = self._compiling.pop((fn.name, key), None)
        if found is not None:
            found.set()


def compile_once() -> None:
    """Let Triton compile a kernel once, whatever threads ask for it, unless it has other hooks."""
    if importlib.util.find_spec("triton") is None:
        return
    from triton import knobs

    hooks: list[Callable[..., object] | None] = [
        knobs.runtime.jit_cache_hook,
        knobs.runtime.jit_post_compile_hook,
    ]
    if hooks == [None, None]:
        shared = CompileOnce()
        knobs.runtime.jit_cache_hook = shared.before
        knobs.runtime.jit_post_compile_hook = shared.after
