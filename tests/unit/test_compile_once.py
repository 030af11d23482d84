"""A kernel that several threads ask for is compiled once; dry calls do not wait for it."""

import sys
from concurrent.futures import Future
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest
import torch

from outvote.ops import compile_once, compilers
from outvote.ops.compile_once import CompileOnce, dry_calls, is_dry

KERNEL = SimpleNamespace(module="here", name="kernel", jit_function=None)
GIVEN = {"device": 0, "specialization_data": "{}", "signature": {}, "constants": {}}


class Compilers:
    """Stands for the processes, and compiles nothing by itself."""

    made: ClassVar[list["Compilers"]] = []

    def __init__(self, _):
        self.orders, self.urgent, self.is_closed = [], [], False
        self.made.append(self)

    def order(self, order, *, is_urgent):
        self.orders.append((order, Future()))
        self.urgent.append(is_urgent)
        return self.orders[-1][1]

    def finish(self):
        for _, future in self.orders:
            future.set_result(None)

    def close(self):
        self.is_closed = True


@pytest.fixture
def once(monkeypatch):
    monkeypatch.setattr(compile_once, "Compilers", Compilers)
    monkeypatch.setattr(compile_once, "_for_gpu", lambda *_: None)
    monkeypatch.setattr(compile_once, "_is_on_disk", lambda *_: False)
    loading = SimpleNamespace(join=lambda: None)
    monkeypatch.setattr(compile_once, "begin_loading", lambda: loading)
    Compilers.made = []
    return CompileOnce()


def _ask(once, key="a"):
    return once.before(key=key, fn=KERNEL, compile=GIVEN, repr="")


def _ask_in_thread(once):
    done = Future()
    Thread(target=lambda: done.set_result(_ask(once)), daemon=True).start()
    return done


def test_threads_wait_for_a_kernel_that_is_compiled_once(once):
    once.open()
    asked = [_ask_in_thread(once) for _ in range(3)]
    with pytest.raises(TimeoutError):
        asked[0].result(0.1)
    (compilers,) = Compilers.made
    assert [order.name for order, _ in compilers.orders] == ["kernel"]
    assert compilers.urgent == [True]
    compilers.finish()
    assert [each.result(10) for each in asked] == [False] * 3
    assert _ask(once) is False


def test_a_dry_call_goes_on_without_its_kernels(once):
    once.open()
    with dry_calls():
        assert is_dry()
        assert [_ask(once, key) for key in ("a", "b", "a")] == [True] * 3
        other = _ask_in_thread(once)
    assert not is_dry()
    assert len(Compilers.made[0].orders) == 2
    assert Compilers.made[0].urgent == [False, False]
    assert not other.done()  # Another thread is not dry, and waits.
    Compilers.made[0].finish()
    assert other.result(10) is False


def test_what_no_kernel_writes_in_a_dry_call_is_zero():
    with dry_calls():
        found = [
            torch.empty(1000),
            torch.ones(1000).new_empty(1000),
            torch.empty_like(torch.ones(3)),
        ]
        assert not any(values.any() for values in found)
        assert torch.ones(2).sum() == 2


def test_before_it_is_opened_and_after_it_is_closed_nothing_is_ordered(once):
    assert _ask(once) is False
    once.open()
    once.open()
    with dry_calls():
        _ask(once)
    once.close()
    assert not Compilers.made[0].is_closed
    once.close()
    assert Compilers.made[0].is_closed
    assert _ask(once, "b") is False
    assert len(Compilers.made) == 1


def test_no_process_is_forked_if_all_kernels_are_on_the_disk(once, monkeypatch):
    monkeypatch.setattr(compile_once, "_is_on_disk", lambda *_: True)
    once.open()
    assert _ask(once) is False
    once.close()
    assert not Compilers.made


def test_a_triton_that_is_other_than_expected_compiles_itself(once, monkeypatch):
    monkeypatch.setattr(compile_once, "_is_on_disk", lambda kernel, _: kernel.unknown)
    once.open()
    assert _ask(once) is False


def test_a_thread_that_compiles_an_order_does_not_order_it_again(once, monkeypatch):
    monkeypatch.setattr(compilers.HERE, "is_compiler", True, raising=False)
    once.open()
    assert _ask(once) is False
    assert not Compilers.made


@pytest.fixture
def forget():
    compile_once.compile_once.cache_clear()
    yield
    compile_once.compile_once.cache_clear()


@pytest.mark.usefixtures("forget")
def test_hooks_of_others_stay(monkeypatch):
    runtime = SimpleNamespace(jit_cache_hook=print)
    triton = ModuleType("triton")
    triton.knobs = SimpleNamespace(runtime=runtime)
    monkeypatch.setitem(sys.modules, "triton", triton)
    assert compile_once.compile_once() is None
    assert runtime.jit_cache_hook is print
    runtime.jit_cache_hook = None
    compile_once.compile_once.cache_clear()
    ours = compile_once.compile_once()
    assert runtime.jit_cache_hook == ours.before
    assert compile_once.compile_once() is ours


@pytest.mark.usefixtures("forget")
@pytest.mark.parametrize("version", ["none", "without hooks"])
def test_without_the_hooks_of_triton_nothing_happens(version, monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None if version == "none" else ModuleType("triton"))
    monkeypatch.delitem(sys.modules, "triton.knobs", raising=False)  # Of the Triton of other tests.
    assert compile_once.compile_once() is None
