"""Kernels compiled by another process: orders, answers, failures, and Triton itself."""

import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

from outvote.kernels import IS_INTERPRETED, compilers
from outvote.kernels.compilers import Compilers, compiled_elsewhere, start_compilers

# Answers 1 to every order that has no "bad" in it, and ends at one that has "end".
SERVER = """
import sys
print("ready", file=sys.stderr)
for number, line in enumerate(sys.stdin):
    if "end" in line:
        break
    assert line.startswith(f"{number} ")
    print(number, int("bad" not in line), flush=True)
"""


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(compilers, "COMMAND", (sys.executable, "-c", SERVER))
    made = Compilers()
    yield made
    made.stop()
    assert made._server.returncode is not None


def test_an_order_is_sent_once_whoever_asks(server):
    with ThreadPoolExecutor(8) as threads:
        orders = [{"name": f"kernel {k % 3}"} for k in range(24)]
        assert all(threads.map(server.compile, orders))
    assert len(server._numbers) == 3


def test_a_kernel_that_fails_is_no_error(server):
    assert server.compile({"name": "bad"}) is False
    assert server.compile({"name": "good"}) is True


def test_whoever_waits_for_a_server_that_ends_goes_on(server):
    assert server.compile({"name": "end"}) is False
    assert server.compile({"name": "later"}) is False


def test_a_server_that_cannot_be_started_is_no_error(monkeypatch):
    monkeypatch.setattr(compilers, "COMMAND", ("/no/such/program",))
    monkeypatch.setattr(compilers, "find_spec", lambda _: True)
    start_compilers()
    assert not compilers._STARTED
    with compiled_elsewhere():
        pass


def test_one_server_is_started_and_ended(monkeypatch):
    monkeypatch.setattr(compilers, "COMMAND", (sys.executable, "-c", SERVER))
    monkeypatch.setattr(compilers, "find_spec", lambda _: True)
    start_compilers()
    start_compilers()
    (made,) = compilers._STARTED
    with compiled_elsewhere():
        assert made._server.poll() is None
    assert made._server.poll() is not None
    assert not compilers._STARTED


@pytest.mark.skipif(
    find_spec("triton") is None or IS_INTERPRETED, reason="needs Triton's compiler, no GPU"
)
def test_a_kernel_is_compiled_into_the_cache_of_triton(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    from outvote.kernels import groups_triton

    target = GPUTarget("cuda", 90, 32)
    stub = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_target=lambda: target,
        get_current_stream=lambda _: 0,
    )
    is_from_cache = []
    monkeypatch.setattr(
        knobs.compilation, "listener", lambda cache_hit, **_: is_from_cache.append(cache_hit)
    )
    before = driver._active
    driver.set_active(stub)
    try:
        start_compilers()
        with compiled_elsewhere():
            for clients in (8, 64):
                groups_triton._average_of_smallest.warmup(
                    torch.float64, torch.float64, 5, 3, CLIENTS=clients, num_warps=1, grid=(1,)
                )
    finally:
        driver.set_active(before)
    assert is_from_cache == [True, True]
    assert knobs.runtime.jit_cache_hook is None
