"""Compile the Triton kernels of rules and attacks for a GPU that is not here; start no kernel.

Triton's interpreter runs kernels on a CPU, but takes much that the compiler refuses. This tool has
them compiled for one of NVIDIA: python tools/compile_kernels.py [NAME ...]; without names, for
all of them. It writes a line for each, and ends with 1 if one fails. Kernels of training are not
among them.
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
from torch.overrides import TorchFunctionMode

import outvote as ov
from outvote import receive
from outvote.attacks.attack_spec import ATTACKS
from outvote.attacks.run_attack import run_attack
from outvote.ops import distances, matrix_kernels
from outvote.ops.distances import CancellationCheck
from outvote.rules import aggregate as aggregation
from outvote.rules import row_facts
from outvote.rules.aggregate import aggregate
from outvote.rules.rule import Wrapper
from outvote.rules.rule_spec import RULES

CAPABILITY, WARP = 90, 32  # Hopper
MOST_SHARED = 227 << 10
# Inside GAS they would compute for minutes here, with kernels that other rules use too.
SLOW = {"geometric-median", "mda"}
# Few clients are sorted by a network, more by halving; rows begin at aligned addresses or not.
SIZES = ((7, 9_003), (50, 8_960), (50, 9_003), (150, 3_003))
# Groups are wide, narrow or one coordinate.
NUM_GROUPS = (15, 900, 9_003)
WRAPPED = ("gas(bucketing(krum))", "gas(nnm(rfa))")


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
        self.names: list[str] = []
        self.utils = self
        self._loaded: set[tuple[str, bytes]] = set()

    def launcher_cls(self, *_: Any) -> Any:
        """Return what starts a kernel: nothing."""
        return lambda *_: None

    def get_device_properties(self, _: int) -> dict[str, int]:
        """Return what Triton asks about a GPU."""
        return {"max_shared_mem": MOST_SHARED, "multiprocessor_count": 132, "warpSize": WARP}

    def load_binary(self, name: str, code: bytes, shared: int, _: int) -> tuple[int, ...]:
        """Note a kernel, which two threads may compile; raise if it does not fit the GPU."""
        if shared > MOST_SHARED:
            raise ValueError(f"{name} wants {shared} bytes of shared memory of {MOST_SHARED}.")
        if (name, code) not in self._loaded:
            self._loaded.add((name, code))
            self.names.append(name)
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
    """Have everything compiled that a rule launches, for one run and for two, in all its cases."""
    f = min(2, rule.max_byzantine(num_clients))
    for num_runs, has_copies, is_first in product((1, 2), (False, True), (True, False)):
        rows = _rows(num_runs, num_clients, dim)
        if has_copies:
            rows[:, 1] = rows[:, 0]
        known = row_facts.row_facts(rows)
        # As in a round; and where a GPU looks at a single run itself, while it works on.
        for facts in (known, None) if num_runs == 1 and is_first else (known,):
            row_facts._LAST.were_usual = not has_copies
            with tensors_on_a_gpu(), Zeros():
                aggregate(
                    rule,
                    rows,
                    num_byzantine=[f] * num_runs,
                    seeds=range(num_runs),
                    round=1,
                    facts=facts,
                    references=[rows[0, 0]] * num_runs,
                    is_checked_later=is_first,
                )


def compile_attack(attack: ov.Attack, num_clients: int, dim: int) -> None:
    """Have everything compiled that an attack launches."""
    for num_runs in (1, 2):
        rows = _rows(num_runs, num_clients, dim)
        is_byzantine = torch.arange(num_clients).expand(num_runs, -1) < 2
        with tensors_on_a_gpu(), Zeros():
            run_attack(
                attack,
                rows,
                is_byzantine,
                seeds=range(num_runs),
                defence=lambda rows, _: (rows.mean(dim=1), None),
                round=1,
            )


def _rows(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


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
    """Compile the kernels of some rules and attacks, and print what was compiled for each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="a rule or attack; default: all")
    names = parser.parse_args(words).names or [*all_rules(), *ATTACKS]
    from triton import knobs
    from triton.runtime.driver import driver

    device = Driver()
    driver.set_active(device)
    matrix_kernels.select_one_by_one = select_first(matrix_kernels.select_one_by_one)
    for module in (receive, row_facts, distances):
        module.listed_later = lambda values: values.tolist
    # A CPU has its inexact distances redone at once, and a GPU counts them.
    aggregation.new_check = CancellationCheck
    CancellationCheck.fetch = CancellationCheck.has_failed = lambda _: False
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        knobs.cache.dir = folder
        for text in names:
            before, begun = len(device.names), time.perf_counter()
            try:
                compile_one(text)
            except Exception:  # noqa: BLE001  (all are tried)
                traceback.print_exc()
                failed.append(text)
            seconds, number = time.perf_counter() - begun, len(device.names) - before
            sys.stdout.write(f"{text:50} {number:4} new kernels {seconds:6.1f} s\n")
            sys.stdout.flush()
    sys.stdout.write(f"{', '.join(sorted(set(device.names)))}\n")
    sys.stdout.write(f"{len(device.names)} kernels; failed: {', '.join(failed) or 'none'}\n")
    return 1 if failed or not device.names else 0


def compile_one(text: str) -> None:
    """Have everything compiled that a rule or an attack launches."""
    for num_clients, dim in SIZES:
        if text.partition("(")[0] in ATTACKS:
            compile_attack(ov.make_attack(text), num_clients, dim)
        else:
            compile_rule(ov.make_rule(text), num_clients, dim)


if __name__ == "__main__":
    sys.exit(main())
