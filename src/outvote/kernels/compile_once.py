"""Kernels that several threads ask for at the same time, compiled by the first of them."""

from threading import Event, Lock, Thread, current_thread
from typing import Any

# In seconds: how long a thread waits for another one, and how often it looks whether that is there.
LONGEST_WAIT, SHORT_WAIT = 60.0, 0.25


class CompileOnce:
    """Lets threads wait for a kernel that another one compiles; then it is read from the disk.

    Triton reports the beginning and the end, but no failure. A thread that begins another kernel,
    or is over, is not waited for.
    """

    def __init__(self) -> None:
        """Begin with no kernel."""
        self._lock = Lock()
        self._compiling: dict[tuple[str, str, str], tuple[Thread, Event]] = {}

    def before(self, *, key: str, fn: Any, **_: object) -> None:
        """Wait if a thread compiles this kernel, or become that thread."""
        kernel, own = (fn.module, fn.name, key), current_thread()
        with self._lock:
            failed = [each for each, (thread, _) in self._compiling.items() if thread is own]
            for each in failed:
                self._compiling.pop(each)[1].set()
            thread, is_done = self._compiling.setdefault(kernel, (own, Event()))
        waited = 0.0
        while thread is not own and waited < LONGEST_WAIT and thread.is_alive():
            if is_done.wait(SHORT_WAIT):
                break
            waited += SHORT_WAIT

    def after(self, *, key: str, fn: Any, **_: object) -> None:
        """Wake the threads that wait for this kernel."""
        with self._lock:
            found = self._compiling.pop((fn.module, fn.name, key), None)
        if found is not None:
            found[1].set()


def compile_once() -> None:
    """Let Triton compile a kernel once, whatever threads ask for it, unless it has other hooks."""
    try:
        from triton import knobs
    except ImportError:  # There is no Triton, or it is older than 3.4 and has no such hooks.
        return
    runtime = knobs.runtime
    if runtime.jit_cache_hook is None and runtime.jit_post_compile_hook is None:
        shared = CompileOnce()
        runtime.jit_cache_hook = shared.before
        runtime.jit_post_compile_hook = shared.after
