"""A kernel that several threads ask for is compiled by one of them."""

from threading import Thread
from types import SimpleNamespace

import pytest

from outvote.kernels import compile_once
from outvote.kernels.compile_once import CompileOnce

KERNEL = SimpleNamespace(name="kernel")


def _asks(once: CompileOnce, key: str) -> Thread:
    thread = Thread(target=once.before, kwargs={"key": key, "fn": KERNEL, "repr": ""}, daemon=True)
    thread.start()
    thread.join(0.1)
    return thread


def test_threads_wait_for_the_one_that_compiles_their_kernel() -> None:
    once = CompileOnce()
    assert not _asks(once, "a").is_alive()
    waiting = [_asks(once, "a"), _asks(once, "a")]
    assert all(thread.is_alive() for thread in waiting)
    assert not _asks(once, "b").is_alive()  # Another kernel.
    once.after(key="b", fn=KERNEL)
    assert all(thread.is_alive() for thread in waiting)
    once.after(key="a", fn=KERNEL)
    for thread in waiting:
        thread.join(10)
        assert not thread.is_alive()
        once.after(key="a", fn=KERNEL)  # They report it too, having read it from the disk.
    assert not _asks(once, "a").is_alive()


def test_nobody_waits_for_ever_for_a_kernel_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_once, "LONGEST_WAIT", 0.01)
    once = CompileOnce()
    assert not _asks(once, "a").is_alive()
    second = _asks(once, "a")
    second.join(10)
    assert not second.is_alive()


def test_hooks_of_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = pytest.importorskip("triton").knobs.runtime
    monkeypatch.setattr(runtime, "jit_cache_hook", None)
    monkeypatch.setattr(runtime, "jit_post_compile_hook", None)
    compile_once.compile_once()
    ours = runtime.jit_cache_hook
    assert isinstance(ours.__self__, CompileOnce)
    compile_once.compile_once()
    assert runtime.jit_cache_hook is ours
    monkeypatch.setattr(runtime, "jit_cache_hook", print)
    compile_once.compile_once()
    assert runtime.jit_cache_hook is print
