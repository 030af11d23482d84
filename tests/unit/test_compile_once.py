"""A kernel that several threads ask for is compiled by one of them."""

import sys
from queue import Queue
from threading import Event, Thread
from types import ModuleType, SimpleNamespace

import pytest

from outvote.kernels import compile_once
from outvote.kernels.compile_once import CompileOnce

KERNEL = SimpleNamespace(module="here", name="kernel")


class Worker:
    """A thread that asks for kernels, one after another."""

    def __init__(self, once: CompileOnce) -> None:
        self.once, self.keys, self.is_free = once, Queue[str | None](), Event()
        self.thread = Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        while (key := self.keys.get()) is not None:
            self.once.before(key=key, fn=KERNEL, repr="")
            self.is_free.set()

    def asks(self, key: str) -> "Worker":
        self.is_free.clear()
        self.keys.put(key)
        return self

    def ends(self) -> None:
        self.keys.put(None)
        self.thread.join(10)

    def waits(self) -> bool:
        return not self.is_free.wait(0.1)

    def goes_on(self) -> bool:
        return self.is_free.wait(10)


def test_threads_wait_for_the_one_that_compiles_their_kernel() -> None:
    once = CompileOnce()
    first, others = Worker(once), [Worker(once), Worker(once)]
    assert first.asks("a").goes_on()
    assert all(other.asks("a").waits() for other in others)
    assert Worker(once).asks("b").goes_on()  # Another kernel.
    once.after(key="b", fn=KERNEL)
    assert all(other.waits() for other in others)
    once.after(key="a", fn=KERNEL)
    assert all(other.goes_on() for other in others)
    once.after(key="a", fn=KERNEL)  # They report it too, having read it from the disk.
    assert Worker(once).asks("a").goes_on()


@pytest.mark.parametrize("how", ["ends", "asks for another", "asks again"])
def test_nobody_waits_for_a_thread_whose_kernel_failed(how: str) -> None:
    once = CompileOnce()
    first, second = Worker(once), Worker(once)
    assert first.asks("a").goes_on()
    assert second.asks("a").waits()
    if how == "ends":
        first.ends()
    else:
        assert first.asks("b" if how == "asks for another" else "a").goes_on()
    assert second.goes_on()


def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_once, "LONGEST_WAIT", 0.01)
    once = CompileOnce()
    assert Worker(once).asks("a").goes_on()
    assert Worker(once).asks("a").goes_on()


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


@pytest.mark.parametrize("version", ["none", "without hooks"])
def test_without_the_hooks_of_triton_nothing_happens(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None if version == "none" else ModuleType("triton"))
    compile_once.compile_once()
