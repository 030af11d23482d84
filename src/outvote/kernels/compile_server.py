"""The process that compiles kernels for another one: see `compilers`.

It reads orders, one per line, forks for each, and writes "NUMBER 1" when the kernel is in Triton's
cache, "NUMBER 0" where that failed. It needs no GPU, and ends with the process that started it.
"""

import importlib
import json
import os
import sys
from pathlib import Path
from select import select
from types import SimpleNamespace
from typing import Any

# How often it looks for forks that have ended.
POLL_SECONDS = 0.005


def main() -> None:
    """Take orders until there is nobody to give any."""
    modules = _import_kernels()
    running: dict[int, str] = {}
    waiting: list[tuple[str, str]] = []
    is_open, rest = True, b""
    while is_open or running or waiting:
        if is_open and select([0], [], [], POLL_SECONDS if running else None)[0]:
            read = os.read(0, 1 << 16)
            is_open = bool(read)
            *lines, rest = (rest + read).split(b"\n")
            waiting += [_parted(line.decode()) for line in lines]
        while waiting and len(running) < _num_cores():
            number, order = waiting.pop(0)
            running[_forked(order, modules)] = number
        _answer(running)


def _parted(line: str) -> tuple[str, str]:
    number, _, order = line.partition(" ")
    return number, order


def _import_kernels() -> dict[str, Any]:
    """Import all kernels once, before any fork."""
    from outvote import kernels

    files = sorted(Path(kernels.__file__).parent.glob("*_triton.py"))
    names = [f"{kernels.__name__}.{file.stem}" for file in files]
    return {name: importlib.import_module(name) for name in names}


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4


def _forked(order: str, modules: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)  # Answers are the server's; who waits for their end waits for it alone.
    status = 1
    try:
        _compile(json.loads(order), modules)
        status = 0
    finally:
        os._exit(status)  # What the parent left to be done at its end is not the fork's.


def _compile(order: dict[str, Any], modules: dict[str, Any]) -> None:
    """Compile a kernel as Triton would on that GPU; the result goes to its cache."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    target = GPUTarget(**order["target"])
    # All that Triton asks its driver for before a kernel is launched.
    driver.set_active(
        SimpleNamespace(
            get_current_device=lambda: 0,
            get_current_target=lambda: target,
            get_current_stream=lambda _: 0,
        )
    )
    getattr(modules[order["module"]], order["name"]).preload(order["data"])


def _answer(running: dict[int, str]) -> None:
    """Report the forks that have ended."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        sys.stdout.write(f"{running.pop(pid)} {int(status == 0)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
