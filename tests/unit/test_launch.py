"""Kernels that are started by a short description of their arguments."""

import pytest
import torch

from outvote.ops import launch
from outvote.ops.compile_once import dry_calls
from outvote.ops.launch import LARGE, Launched, constants_of, described

CONSTEXPR = "tl.constexpr"


def _function(source, size, SECOND: CONSTEXPR, FIRST: CONSTEXPR):
    """Stand for the function of a kernel."""


class Kernel:
    """Stands for a function decorated by `triton.jit`, and notes how it is started."""

    def __init__(self):
        self.fn = _function
        self.compiled, self.started = [], []

    def __getitem__(self, grid):
        def compile_and_start(*values, **constants):
            self.compiled.append((grid, values, constants))
            return Compiled(self)

        return compile_and_start


class Compiled:
    """Stands for what Triton compiled."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return lambda *values: self.kernel.started.append((grid, values))


@pytest.fixture
def kernel():
    return Kernel()


@pytest.fixture
def launched(kernel):
    return Launched(kernel, device=lambda: 0)


VALUES = torch.zeros(64)


def test_what_was_compiled_is_started_with_its_constants_in_their_order(kernel, launched):
    launched[(7,)](VALUES, 3, FIRST=1, SECOND=2, num_warps=4)
    launched[(8, 9)](VALUES, 5, FIRST=1, SECOND=2, num_warps=4)
    assert [given[0] for given in kernel.compiled] == [(7,)]
    (grid, values), *others = kernel.started
    assert not others
    assert grid == (8, 9, 1)
    assert values[0] is VALUES
    assert values[1:] == (5, 2, 1)


class Loaded(Compiled):
    """Stands for what Triton compiled and loaded, as versions from 3.4 on start it."""

    function, packed_metadata = 77, (4, 1, 0)

    def run(self, *given):
        self.kernel.started.append(("run", given))


class Driver:
    """Stands for Triton's driver."""

    @staticmethod
    def get_current_stream(device):
        return 1000 + device


@pytest.fixture
def loading(kernel, monkeypatch):
    """Let Triton be of a version whose kernels take addresses."""

    def compile_and_start(grid):
        return lambda *values, **constants: kernel.compiled.append(grid) or Loaded(kernel)

    monkeypatch.setattr(Kernel, "__getitem__", lambda _, grid: compile_and_start(grid))
    monkeypatch.setattr(launch, "version", lambda: (3, 6))
    monkeypatch.setattr(launch, "_driver", Driver)
    monkeypatch.setattr(launch, "is_hooked", lambda: False)


@pytest.mark.usefixtures("loading")
def test_what_was_loaded_is_given_addresses_on_the_current_stream(kernel):
    launched = Launched(kernel, device=lambda: 2)
    for size in (3, 5):
        launched[(8, 9)](VALUES, size, FIRST=1, SECOND=2)
    assert kernel.compiled == [(8, 9)]
    given = (8, 9, 1, 1002, 77, (4, 1, 0), None, None, None, VALUES.data_ptr(), 5, 2, 1)
    assert kernel.started == [("run", given)]


@pytest.mark.usefixtures("loading")
def test_a_program_that_is_called_at_every_start_is_called(kernel, launched, monkeypatch):
    monkeypatch.setattr(launch, "is_hooked", lambda: True)
    for _ in range(2):
        launched[(7,)](VALUES, 3, FIRST=1, SECOND=2)
    ((grid, values),) = kernel.started
    assert grid == (7, 1, 1)
    assert values[0] is VALUES


@pytest.mark.usefixtures("loading")
def test_an_older_triton_starts_its_kernels_itself(kernel, launched, monkeypatch):
    monkeypatch.setattr(launch, "version", lambda: (3, 3))
    for _ in range(2):
        launched[(7,)](VALUES, 3, FIRST=1, SECOND=2)
    assert [grid for grid, _ in kernel.started] == [(7, 1, 1)]


class Chain(list):
    """Stands for a chain of hooks."""

    @property
    def calls(self):
        return list(self)


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (None, None, False),
        (Chain(), Chain(), False),
        (Chain([print]), Chain(), True),
        (Chain(), Chain([print]), True),
        (print, None, True),
    ],
)
def test_hooks_are_seen_as_functions_and_as_chains(first, last, expected, monkeypatch):
    class Runtime:
        launch_enter_hook, launch_exit_hook = first, last

    monkeypatch.setattr(launch, "_runtime", Runtime)
    assert launch.is_hooked() == expected


def test_a_kernel_that_a_hook_keeps_from_compiling_is_asked_for_again(
    kernel, launched, monkeypatch
):
    monkeypatch.setattr(Kernel, "__getitem__", lambda _, grid: lambda *values, **constants: None)
    launched[(7,)](VALUES, 3, FIRST=1, SECOND=2)
    monkeypatch.undo()
    launched[(7,)](VALUES, 3, FIRST=1, SECOND=2)
    assert len(kernel.compiled) == 1


def test_a_dry_call_asks_for_a_kernel_once_and_a_call_that_is_not_dry_compiles_it(
    kernel, launched, monkeypatch
):
    asked = []

    def order(grid):
        return lambda *values, **constants: asked.append(grid)

    monkeypatch.setattr(Kernel, "__getitem__", lambda _, grid: order(grid))
    with dry_calls():
        for _ in range(3):
            launched[(7,)](VALUES, 3, FIRST=1, SECOND=2)
    assert asked == [(7,)]
    monkeypatch.undo()
    launched[(7,)](VALUES, 3, FIRST=1, SECOND=2)
    assert len(kernel.compiled) == 1


def test_a_dry_call_does_not_start_what_was_compiled(kernel, launched):
    launched[(7,)](VALUES, 3, FIRST=1, SECOND=2)
    with dry_calls():
        launched[(7,)](VALUES, 3, FIRST=1, SECOND=2)
    assert not kernel.started
    launched[(7,)](VALUES, 3, FIRST=1, SECOND=2)
    assert len(kernel.started) == 1


@pytest.mark.parametrize(
    ("value", "size", "constants"),
    [
        (VALUES[1:], 3, {"FIRST": 1, "SECOND": 2}),  # Not aligned.
        (VALUES.double(), 3, {"FIRST": 1, "SECOND": 2}),
        (VALUES, 1, {"FIRST": 1, "SECOND": 2}),
        (VALUES, 32, {"FIRST": 1, "SECOND": 2}),
        (VALUES, LARGE, {"FIRST": 1, "SECOND": 2}),
        (VALUES, 3, {"FIRST": 2, "SECOND": 2}),
        (VALUES, 3, {"FIRST": 2, "SECOND": 1}),
        (VALUES, 3, {"SECOND": 1, "FIRST": 2}),
    ],
)
def test_other_kinds_of_arguments_are_compiled_for(kernel, launched, value, size, constants):
    launched[(1,)](VALUES, 3, FIRST=1, SECOND=2)
    launched[(1,)](value, size, **constants)
    assert len(kernel.compiled) == 2
    launched[(1,)](value, size, **constants)
    assert len(kernel.compiled) == 2
    assert kernel.started[0][1][2:] == (constants["SECOND"], constants["FIRST"])


def test_another_device_has_kernels_of_its_own(kernel):
    devices = iter([0, 1, 1])
    launched = Launched(kernel, device=lambda: next(devices))
    for _ in range(3):
        launched[(1,)](VALUES, 3, FIRST=1, SECOND=2)
    assert (len(kernel.compiled), len(kernel.started)) == (2, 1)


def test_an_argument_by_name_is_an_error(launched):
    with pytest.raises(TypeError, match="must be given what is no constant by position"):
        launched[(1,)](VALUES, size=3, FIRST=1, SECOND=2)


def test_constants_must_be_last():
    def mixed(source, SIZE: CONSTEXPR, number):
        """Have a constant in the middle."""

    with pytest.raises(TypeError, match="must be its last parameters"):
        constants_of(mixed)


def test_seeds_of_64_bits_are_of_few_kinds():
    seeds = [pow(3, k, 2**63) | 1 << 62 for k in range(1000)]
    assert len({str(described((seed,))[0]) for seed in seeds}) <= 2


def test_triton_distinguishes_no_more_kinds():
    library = pytest.importorskip("triton._C.libtriton")
    specialize = getattr(library, "native_specialize_impl", None)
    if specialize is None:
        pytest.skip("this version of Triton describes arguments elsewhere")
    backend = pytest.importorskip("triton.backends").backends["nvidia"].compiler
    numbers = [0, 1, 2, 15, 16, 17, 1 << 30, LARGE - 1, LARGE, LARGE + 1, (1 << 63) - 1, 1 << 63]
    numbers += [-1, -16, -LARGE, -LARGE - 1, -(1 << 40)]
    floats = [VALUES[k:] for k in range(9)] + [VALUES.half()[k:] for k in range(9)]
    kinds: dict[str, set[str]] = {}
    for value in [*numbers, *floats, 0.5, 1.0, True]:
        by_triton = str(specialize(backend, value, False, True, True))
        kinds.setdefault(str(described((value,))[0]), set()).add(by_triton)
    assert all(len(by_triton) == 1 for by_triton in kinds.values()), kinds
