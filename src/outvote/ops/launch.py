"""Starting a kernel of Triton in less time than Triton takes for it.

Each time a kernel is called, Triton looks at all arguments, writes down what it would compile for
them, and looks that up; then it asks the driver about every address. Many small kernels are not
long enough to hide that. Here a shorter description finds what Triton compiled before, which is
given addresses as numbers, and only what is new goes through Triton.
"""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from outvote.ops import IS_AMD, IS_INTERPRETED
from outvote.ops.compile_once import is_dry

# Before this version, what was compiled is started without its constants.
FIRST_VERSION = (3, 3)
# From this version on, what was compiled takes addresses, and hooks are known by these names.
FIRST_WITH_ADDRESSES = (3, 4)
# Integers from here on are 64 bits wide.
LARGE = 1 << 31
# Addresses and sizes that are multiples of this are compiled for on their own.
UNIT = 16
MOST_KINDS = 4096


class Launched:
    """A kernel of Triton that is started as Triton does it, ``kernel[grid](...)``, but faster.

    Arguments are given by position, and the constants behind them by name.
    """

    def __init__(self, kernel: Any, device: Callable[[], int] | None = None) -> None:
        """Take a function decorated by `triton.jit` whose constants are its last parameters."""
        self.kernel = kernel
        self.constants = constants_of(kernel.fn)
        self.num_parameters = len(inspect.signature(kernel.fn).parameters)
        self.device = device or _current_device()
        self._known: dict[tuple[Any, ...], tuple[Any, Any, tuple[Any, ...]]] = {}
        self._ordered: set[tuple[Any, ...]] = set()

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        """Return what starts the kernel on a grid of programs."""

        def start(*values: Any, **constants: Any) -> None:
            device = self.device()
            kinds, given = described(values)
            kind = (device, *constants, *constants.values(), *kinds)
            known = self._known.get(kind)
            if is_dry() and (known is not None or kind in self._ordered):
                return
            if known is None:
                self._start_new(kind, grid, values, constants)
                return
            compiled, start_again, rest = known
            if start_again is None or is_hooked():
                compiled[(*grid, 1, 1)[:3]](*values, *rest)
            else:
                start_again(device, (*grid, 1, 1), given, rest)

        return start

    def _start_new(
        self,
        kind: tuple[Any, ...],
        grid: tuple[int, ...],
        values: tuple[Any, ...],
        constants: dict[str, Any],
    ) -> None:
        if len(values) + len(self.constants) != self.num_parameters:
            raise TypeError(
                f"{self.kernel.fn.__name__} must be given what is no constant by position, got "
                f"{len(values)} values; it has {self.num_parameters - len(self.constants)}."
            )
        compiled = self.kernel[grid](*values, **constants)
        if len(self._known) >= MOST_KINDS:
            self._known.clear()
        if compiled is None:  # A hook of Triton keeps it from compiling, as in a dry call.
            self._ordered.add(kind)
        else:
            rest = tuple(constants[name] for name in self.constants)
            self._known[kind] = compiled, starter_of(compiled), rest


def starter_of(compiled: Any) -> Callable[..., None] | None:
    """Return what starts a kernel again without asking Triton; None where Triton differs.

    It takes the device, a grid of three numbers or more, numbers and addresses, and the constants.
    """
    names = ("run", "function", "packed_metadata")
    if not all(hasattr(compiled, name) for name in names) or version() < FIRST_WITH_ADDRESSES:
        return None
    run, function, metadata = (getattr(compiled, name) for name in names)
    stream_of = _driver().get_current_stream

    def start_again(
        device: int, grid: tuple[int, ...], given: list[Any], rest: tuple[Any, ...]
    ) -> None:
        # None: what hooks are given, and the two hooks.
        at = (grid[0], grid[1], grid[2], stream_of(device))
        run(*at, function, metadata, None, None, None, *given, *rest)

    return start_again


def is_hooked() -> bool:
    """Return whether a program wants to be called when kernels are started, as profilers do."""
    runtime = _runtime()
    first, last = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool(getattr(first, "calls", first) or getattr(last, "calls", last))


def _driver() -> Any:
    from triton.runtime import driver

    return driver.active


@cache
def _runtime() -> Any:
    from triton import knobs

    return knobs.runtime


def launched(kernel: Any) -> Any:
    """Return a kernel that is started faster; itself for AMD, an old Triton or its interpreter."""
    if IS_AMD or IS_INTERPRETED:  # For AMD, Triton looks at the sizes of tensors too.
        return kernel
    return Launched(kernel) if _is_new_enough() else kernel


def described(values: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    """Return what a kernel is compiled for, at least as much as Triton distinguishes, and numbers.

    Of tensors the dtype, the address modulo 16 bytes and the device count, and the number is the
    address; of integers whether they are 1, multiples of 16, or wider than 32 bits.
    """
    kinds: list[Any] = []
    given: list[Any] = []
    for value in values:
        kind = type(value)  # To ask whether it is a tensor would take as long as all of this.
        if kind is int:
            is_aligned = value % UNIT == 0
            kinds.append(is_aligned if 1 < value < LARGE else (is_aligned, *_rare(value)))
            given.append(value)
        elif kind is float or kind is bool:
            kinds.append(kind)
            given.append(value)
        else:
            address = value.data_ptr()
            kinds += (value.dtype, address % UNIT, value.get_device())
            given.append(address)
    return kinds, given


def _rare(value: int) -> tuple[Any, ...]:
    """Describe an integer that is 0, 1, negative, or wider than 32 bits."""
    return value == 1, value < 0, value < -LARGE, value.bit_length()


def constants_of(function: Callable[..., Any]) -> list[str]:
    """Return the names of a kernel's constants; raise unless they are its last parameters."""
    names = list(inspect.signature(function).parameters)
    known = inspect.get_annotations(function)
    constants = [name for name in names if "constexpr" in str(known.get(name))]
    if constants != names[len(names) - len(constants) :]:
        raise TypeError(
            f"the constants of {function.__name__} must be its last parameters, got {names}; put "
            "the others before them."
        )
    return constants


def _is_new_enough() -> bool:
    return version() >= FIRST_VERSION


@cache
def version() -> tuple[int, ...]:
    """Return the first two numbers of Triton's version."""
    import triton

    return tuple(int(part) for part in triton.__version__.split(".")[:2])


def _current_device() -> Callable[[], int]:
    """Return what finds the current device; torch's own function looks at its settings first."""
    found: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
    return found
