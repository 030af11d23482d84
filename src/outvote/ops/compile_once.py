"""Kernels that are compiled once, whoever asks for them: threads, processes, or a call made dry.

Triton compiles a kernel when it is first launched, in the thread that launches it. While a
`CompileOnce` is open, that thread has it compiled by `Compilers` instead, waits, and reads it from
the disk. In a dry call, it does not wait and launches nothing: it finds out in milliseconds which
kernels are needed, and all of them are compiled at the same time.
"""

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Lock, Thread, local
from typing import Any

from torch.overrides import TorchFunctionMode

from outvote.ops.compilers import LONGEST_WAIT, Compilers, Order, for_target, is_compiler

_EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
_THREAD = local()


class CompileOnce:
    """Has kernels compiled that nobody has compiled before, while it is open."""

    def __init__(self) -> None:
        """Begin with no kernel."""
        self._lock = Lock()
        self._num_open = 0
        self._compilers: Compilers | None = None
        self._ordered: dict[tuple[str, str, str], Future[None]] = {}

    @property
    def num_ordered(self) -> int:
        """How many kernels were missed until now."""
        return len(self._ordered)

    def open(self) -> None:
        """From now on, let others compile; processes are forked when the first kernel is missed."""
        begin_loading().join()
        with self._lock:
            self._num_open += 1

    def close(self) -> None:
        """Wait for all orders; from now on, who launches a kernel compiles it."""
        with self._lock:
            self._num_open -= 1
            if self._num_open:
                return
            compilers, self._compilers = self._compilers, None
        if compilers is not None:
            compilers.close()

    def before(self, *, key: str, fn: Any, compile: dict[str, Any], **_: object) -> bool:  # noqa: A002
        """Before Triton compiles a kernel: have it compiled. True: Triton shall go on without."""
        if is_compiler():
            return False
        with suppress(Exception):  # Of a Triton that is other than expected: it compiles itself.
            found = self._order((fn.module, fn.name, key), fn.jit_function, compile)
            if found is not None and not is_dry():
                wait([found], LONGEST_WAIT)
        return is_dry()

    def _order(
        self, name: tuple[str, str, str], kernel: Any, given: dict[str, Any]
    ) -> Future[None] | None:
        with self._lock:
            if name in self._ordered or not self._num_open:
                return self._ordered.get(name)
            if _is_on_disk(kernel, given):
                return None
            if self._compilers is None:
                self._compilers = Compilers(_for_gpu(kernel, given["device"]))
            data, signature = given["specialization_data"], given["signature"]
            order = Order(*name[:2], data, signature, given["constants"])
            self._ordered[name] = self._compilers.order(order, is_urgent=not is_dry())
            return self._ordered[name]


def is_dry() -> bool:
    """Return whether this thread makes dry calls."""
    return getattr(_THREAD, "is_dry", False)


@contextmanager
def dry_calls() -> Iterator[None]:
    """Launch no kernel, and have those compiled that were not compiled before.

    What no kernel has written is 0: it may be an index. Backward passes must not be left to threads
    of their own.
    """
    _THREAD.is_dry = True
    try:
        with Zeros():
            yield
    finally:
        _THREAD.is_dry = False


class Zeros(TorchFunctionMode):
    """Fills new tensors with zeros, but for those of a backward pass: no index is made there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found.zero_() if getattr(func, "__name__", "") in _EMPTY else found


@cache
def compile_once() -> CompileOnce | None:
    """Return what lets Triton compile a kernel once; None: it has other hooks, or none at all."""
    try:
        from triton import knobs
    except ImportError:  # There is no Triton, or it is older than 3.4 and has no such hooks.
        return None
    if knobs.runtime.jit_cache_hook is not None:
        return None
    shared = CompileOnce()
    knobs.runtime.jit_cache_hook = shared.before
    return shared


@cache
def begin_loading() -> Thread:
    """Start what Triton does before its first kernel, in a thread.

    It reads all of its 400 MB, for the names in its cache, and compiles its driver. The kernels are
    imported too: a forked process must not wait for an import of another thread.
    """
    thread = Thread(target=_load, daemon=True)
    thread.start()
    return thread


def _load() -> None:
    with suppress(Exception):  # It is loaded with the first kernel then.
        from triton.runtime.cache import triton_key
        from triton.runtime.driver import driver

        for path in Path(__file__).parent.joinpath("triton").glob("[a-z]*.py"):
            import_module(f"{__package__}.triton.{path.stem}")
        triton_key()
        driver.active.get_current_target()


def _for_gpu(kernel: Any, device: int) -> Any:
    from triton.runtime.driver import driver

    target = kernel.device_caches[device][2]
    return for_target(target, device, driver.active.launcher_cls)


def _is_on_disk(kernel: Any, given: dict[str, Any]) -> bool:
    """Return whether Triton would find a kernel in its cache; also where that cannot be known."""
    try:
        from triton._C.libtriton import get_cache_invalidating_env_vars
        from triton.compiler import ASTSource
        from triton.runtime.cache import get_cache_key, get_cache_manager
    except ImportError:  # Triton has them elsewhere.
        return True
    backend = kernel.device_caches[given["device"]][3]
    options = json.loads(given["specialization_data"])["options"]
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    source = ASTSource(kernel, given["signature"], given["constants"], given["configs"][0])
    variables = get_cache_invalidating_env_vars()
    key = get_cache_key(source, backend, backend.parse_options(options), env_vars=variables)
    folder = get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
    name = f"{kernel.__name__[:150]}.json"
    return name in (folder.get_group(name) or {})
