"""Compile the Triton kernels of rules for an NVIDIA GPU where there is none; start no kernel.

Triton's interpreter runs kernels on a CPU, but takes much that the compiler refuses. This tool has
them compiled: python tools/compile_kernels.py [RULE ...]; without names, for all rules. It writes a
line for each rule, and ends with 1 if one fails.
"""

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from typing import Any

import torch

import outvote as ov
from outvote.kernels import launch, matrix_kernels
from outvote.kernels.compile_once import Zeros
from outvote.rules import aggregate as aggregation
from outvote.rules.aggregate import aggregate
from outvote.rules.distances import CancellationCheck
from outvote.rules.row_facts import row_facts
from outvote.rules.rule import Wrapper
from outvote.rules.rule_spec import RULES

CAPABILITY, WARP = 90, 32  # Hopper
MOST_SHARED = 227 << 10
# Inside GAS they would compute for minutes here, with kernels that other rules use too.
SLOW = {"geometric-median", "mda"}
# Few clients are sorted by a network, more by halving; groups are wide, narrow or one coordinate.
SIZES = ((7, 9_003), (50, 9_003), (150, 3_003))
NUM_GROUPS = (15, 900, 9_003)
WRAPPED = ("gas(bucketing(krum))", "gas(nnm(rfa))")


class Driver:
    """Stands for the driver of a GPU: what it is given to load is counted, and never started."""

    def __init__(self) -> None:
        self.num_kernels = 0
        self.utils = self

    def launcher_cls(self, *_: Any) -> Any:
        """Return what starts a kernel: nothing."""
        return lambda *_: None

    def get_device_properties(self, _: int) -> dict[str, int]:
        """Return what Triton asks about a GPU."""
        return {"max_shared_mem": MOST_SHARED, "multiprocessor_count": 132, "warpSize": WARP}

    def load_binary(self, name: str, _: bytes, shared: int, __: int) -> tuple[int, ...]:
        """Count a kernel; raise if it does not fit the GPU."""
        if shared > MOST_SHARED:
            raise ValueError(f"{name} wants {shared} bytes of shared memory of {MOST_SHARED}.")
        self.num_kernels += 1
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


def select_first(select: Any) -> Any:
    """Return Bulyan's selection for results that no kernel has written: the first clients."""

    def changed(distances: Any, num_selected: int, num_byzantine: int) -> Any:
        found = torch.zeros_like(select(distances, num_selected, num_byzantine))
        found[..., :num_selected] = True
        return found

    return changed


def compile_rule(rule: ov.Rule, num_clients: int, dim: int) -> None:
    """Have everything compiled that a rule launches for one run and for two, also a second time."""
    f = min(2, rule.max_byzantine(num_clients))
    for num_runs, is_first in product((1, 2), (True, False)):
        rows = torch.randn(num_runs, num_clients, dim)
        rows[:, 1] = rows[:, 0]  # Copies have kernels of their own.
        facts = row_facts(rows)
        with tensors_on_a_gpu(), Zeros():
            numbers = range(num_runs)
            aggregate(
                rule,
                rows,
                num_byzantine=[f for _ in numbers],
                seeds=numbers,
                round=1,
                facts=facts,
                references=[rows[0, 0] for _ in numbers],
                is_checked_later=is_first,
            )


def all_rules() -> list[str]:
    """Return each rule, each inside GAS with several numbers of groups, and each wrapper."""
    wrappers = [name for name, rule in RULES.items() if issubclass(rule, Wrapper)]
    alone = [name for name in RULES if name not in wrappers]
    around = [f"{name}(rfa)" for name in wrappers if name != "gas"]
    inside = []
    for name in (name for name in alone if name not in SLOW):
        with suppress(TypeError):  # Rules with memory or data of their own cannot be wrapped.
            inside += [str(ov.GAS(ov.make_rule(name), num_groups=p)) for p in NUM_GROUPS]
    return [*alone, *around, *inside, *WRAPPED]


def main(words: list[str] | None = None) -> int:
    """Compile the kernels of some rules, and print what was compiled for each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("rules", nargs="*", metavar="RULE", help="default: all")
    rules = parser.parse_args(words).rules or all_rules()
    from triton import knobs
    from triton.runtime.driver import driver

    device = Driver()
    driver.set_active(device)
    launch._current_device = lambda: device.get_current_device
    matrix_kernels.select_one_by_one = select_first(matrix_kernels.select_one_by_one)
    # A CPU has its inexact distances redone at once, and a GPU counts them.
    aggregation.new_check = CancellationCheck
    CancellationCheck.fetch = CancellationCheck.has_failed = lambda _: False
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        knobs.cache.dir = folder
        for text in rules:
            before, begun = device.num_kernels, time.perf_counter()
            try:
                for num_clients, dim in SIZES:
                    compile_rule(ov.make_rule(text), num_clients, dim)
            except Exception:  # noqa: BLE001  (all rules are tried)
                traceback.print_exc()
                failed.append(text)
            seconds, number = time.perf_counter() - begun, device.num_kernels - before
            sys.stdout.write(f"{text:50} {number:4} new kernels {seconds:6.1f} s\n")
            sys.stdout.flush()
    sys.stdout.write(f"{device.num_kernels} kernels; failed: {', '.join(failed) or 'none'}\n")
    return 1 if failed or not device.num_kernels else 0


if __name__ == "__main__":
    sys.exit(main())
