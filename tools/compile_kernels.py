"""Compile the Triton kernels of all operations for a GPU that is not here; start no kernel.

Triton's interpreter runs kernels on a CPU, but takes much that the compiler refuses. This tool has
every backend in Triton called on the cases of tests/unit/test_ops.py, and its kernels compiled for
one of NVIDIA: python tools/compile_kernels.py [OPERATION ...]. It writes a line for each, and ends
with 1 if one fails.
"""

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from outvote.ops import door

sys.path.append(str(Path(__file__).parents[1] / "tests"))
import ops_rules
import ops_training

CASES = {**ops_training.CASES, **ops_rules.CASES}
CAPABILITY, WARP = 90, 32  # Hopper
MOST_SHARED = 227 << 10
EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")


class Zeros(TorchFunctionMode):
    """Fills new tensors with zeros: what no kernel has written may be an index."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch."""
        found = func(*args, **(kwargs or {}))
        return found.zero_() if getattr(func, "__name__", "") in EMPTY else found


class Driver:
    """Stands for the driver of a GPU: what it is given to load is counted, and never started."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.num_loaded = 0
        self.utils = self

    def launcher_cls(self, *_: Any) -> Any:
        """Return what starts a kernel: nothing."""
        return lambda *_: None

    def get_device_properties(self, _: int) -> dict[str, int]:
        """Return what Triton asks about a GPU."""
        return {"max_shared_mem": MOST_SHARED, "multiprocessor_count": 132, "warpSize": WARP}

    def load_binary(self, name: str, _code: bytes, shared: int, _: int) -> tuple[int, ...]:
        """Note a kernel; raise if it does not fit the GPU."""
        if shared > MOST_SHARED:
            raise ValueError(f"{name} wants {shared} bytes of shared memory of {MOST_SHARED}.")
        self.names.add(name)
        self.num_loaded += 1
        return 1, 1, 0, 0, 1024  # module, function, registers, spills, threads

    def unload_module(self, *_: Any) -> None:
        """Do nothing: nothing was loaded."""

    def get_current_target(self) -> Any:
        """Return for what to compile."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", CAPABILITY, WARP)

    def get_current_device(self) -> int:
        """Return the only one."""
        return 0

    def get_current_stream(self, _: int = 0) -> int:
        """Return the only one."""
        return 0


@contextmanager
def tensors_on_a_gpu() -> Iterator[None]:
    """Let all tensors say that they are on a GPU: what they hold is not read."""
    torch.Tensor.is_cuda = property(lambda self: not self.is_meta)
    try:
        yield
    finally:
        del torch.Tensor.is_cuda


def compile_operation(operation: str) -> None:
    """Have everything compiled that the backends of an operation launch in its cases."""
    case, rows = CASES[operation], [row for row in door.BACKENDS[operation] if not row.is_native]
    for row in rows:
        with mock.patch.dict(door.BACKENDS, {operation: (row,)}):
            for dtype in row.dtypes:
                for make in case.families.values():
                    given = make(torch.Generator().manual_seed(0), dtype)
                    with tensors_on_a_gpu(), Zeros():
                        case.call(*given)


def main(words: list[str] | None = None) -> int:
    """Compile the kernels of some operations, and print how many each has."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("names", nargs="*", metavar="OPERATION", help="default: all")
    names = parser.parse_args(words).names or sorted(CASES)
    from triton import knobs
    from triton.runtime.driver import driver

    device = Driver()
    driver.set_active(device)
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        knobs.cache.dir = folder
        for name in names:
            before, begun = device.num_loaded, time.perf_counter()
            try:
                compile_operation(name)
            except Exception:  # noqa: BLE001  (all are tried)
                traceback.print_exc()
                failed.append(name)
            seconds, number = time.perf_counter() - begun, device.num_loaded - before
            sys.stdout.write(f"{name:25} {number:4} kernels {seconds:6.1f} s\n")
            sys.stdout.flush()
    sys.stdout.write(f"{', '.join(sorted(device.names))}\nfailed: {', '.join(failed) or 'none'}\n")
    return 1 if failed or not device.names else 0


if __name__ == "__main__":
    sys.exit(main())
