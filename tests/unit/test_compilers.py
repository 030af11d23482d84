"""Processes that compile kernels: they work, end, and may be killed."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import wait
from contextlib import suppress
from pathlib import Path

import pytest

from outvote.forked import IS_POSSIBLE
from outvote.ops import compilers
from outvote.ops.compilers import Compilers, Order

needs_fork = pytest.mark.skipif(not IS_POSSIBLE, reason="needs Linux")


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(compilers, "num_cores", lambda: 2)


def _order(found, name, *, is_urgent=True):
    return found.order(Order("module", name, "", {}, {}), is_urgent=is_urgent)


def _write_to(folder):
    def compile_one(order):
        if order.name == "fails":
            raise ValueError
        (folder / order.name).write_text(str(os.getpid()))

    return compile_one


def _written(folder):
    return {path.name: int(path.read_text()) for path in folder.iterdir()}


@needs_fork
def test_orders_are_compiled_in_other_processes_that_end(tmp_path):
    found = Compilers(_write_to(tmp_path))
    orders = [_order(found, name) for name in ("a", "fails", "b", "c", "d")]
    found.close()
    assert all(order.done() and order.exception() is None for order in orders)
    assert sorted(_written(tmp_path)) == ["a", "b", "c", "d"]
    processes = set(_written(tmp_path).values())
    assert os.getpid() not in processes
    assert not any(Path(f"/proc/{process}").exists() for process in processes)


def test_what_is_waited_for_is_compiled_before_what_was_ordered_earlier(tmp_path, monkeypatch):
    monkeypatch.setattr(compilers, "num_cores", lambda: 4)
    go_on, write = tmp_path / "go on", _write_to(tmp_path)

    def compile_one(order):
        while order.name.startswith("slow") and not go_on.exists():
            time.sleep(0.01)
        write(order)

    found = Compilers(compile_one)
    slow = [_order(found, f"slow {k}", is_urgent=False) for k in range(8)]
    _order(found, "urgent").result(10)
    assert not any(each.done() for each in slow)
    go_on.write_text("0")
    found.close()
    assert all(each.done() for each in slow)


def test_without_fork_threads_compile(tmp_path, monkeypatch):
    monkeypatch.setattr(compilers, "IS_POSSIBLE", False)
    found = Compilers(_write_to(tmp_path))
    orders = [_order(found, name) for name in ("a", "fails", "b")]
    found.close()
    assert all(order.done() for order in orders)
    assert _written(tmp_path) == {"a": os.getpid(), "b": os.getpid()}


@needs_fork
def test_threads_take_the_place_of_processes_that_were_killed(tmp_path):
    parent, write = os.getpid(), _write_to(tmp_path)

    def compile_one(order):
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        write(order)

    found = Compilers(compile_one)
    wait([_order(found, name) for name in ("a", "b")], 10)
    _order(found, "c")
    found.close()
    assert _written(tmp_path)["c"] == parent


@needs_fork
def test_a_process_that_is_stuck_is_killed_and_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(compilers, "LONGEST_WAIT", 0.1)
    monkeypatch.setattr(compilers, "LONGEST_END", 0.1)
    parent = os.getpid()

    def compile_one(_):
        if os.getpid() != parent:
            (tmp_path / "stuck").write_text(str(os.getpid()))
            time.sleep(100)

    found = Compilers(compile_one)
    start = time.monotonic()
    _order(found, "a")
    found.close()
    assert time.monotonic() - start < 10
    _wait_until_gone(_written(tmp_path)["stuck"])


def _wait_until_gone(number):
    process, until = Path(f"/proc/{number}"), time.monotonic() + 10
    with suppress(FileNotFoundError):
        while "zombie" not in (process / "status").read_text():
            assert time.monotonic() < until
            time.sleep(0.05)


@needs_fork
@pytest.mark.parametrize("is_busy", [False, True])
def test_processes_end_when_their_parent_is_killed(is_busy):
    code = (
        "import os, time; from outvote.ops.compilers import Compilers, Order\n"
        f"work = lambda: time.sleep(100 * {is_busy})\n"
        "found = Compilers(lambda order: [print(os.getpid(), flush=True), work()])\n"
        "done = found.order(Order('', '', '', {}, {}), is_urgent=True)\n"
        f"time.sleep(1) if {is_busy} else done.result()\n"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    number = int(done.stdout.readline())
    assert done.wait(20) == -signal.SIGKILL
    done.stdout.close()
    _wait_until_gone(number)


@needs_fork
def test_a_program_that_ends_does_not_wait_for_what_nobody_waits_for():
    code = (
        "import time; from outvote.ops.compilers import Compilers, Order\n"
        "found = Compilers(lambda order: time.sleep(100))\n"
        "[found.order(Order('', str(k), '', {}, {}), is_urgent=False) for k in range(8)]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_an_order_names_a_kernel_of_a_module(monkeypatch):
    done = []

    class Kernel:
        """Stands for a kernel behind what launches it faster."""

        def preload(self, data):
            done.append(data)

    launched = type("Launched", (), {"kernel": Kernel()})()
    monkeypatch.setattr(compilers, "test_kernel", launched, raising=False)
    monkeypatch.setattr(compilers.HERE, "is_compiler", True, raising=False)
    compile_one = compilers.for_target(
        None, 0, lambda source, _: done.append((source.fn, source.signature, source.constants))
    )
    order = Order(compilers.__name__, "test_kernel", "data", {"a": "i32"}, {(1,): 2})
    compile_one(order)
    assert (launched.kernel, order.signature, order.constants) in done
    assert "data" in done
