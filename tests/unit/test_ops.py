"""Every operation by every backend, for every dtype and family of shapes, is its plain form.

The cases stand in `ops_training` and `ops_rules`. Backends in C run anywhere; those in Triton on a
GPU (OUTVOTE_TEST_DEVICE=cuda), or on a CPU with TRITON_INTERPRET=1.
"""

from functools import partial
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

import ops_rules
import ops_training
from ops_case import Case
from outvote.ops import door
from outvote.ops.door import Backend

CASES: dict[str, Case] = {**ops_training.CASES, **ops_rules.CASES}
ROWS = [
    pytest.param(operation, row, dtype, id=f"{operation}-{row.function}-{str(dtype)[6:]}")
    for operation, rows in door.BACKENDS.items()
    for row in rows
    for dtype in row.dtypes
]


def test_every_operation_has_cases_and_every_case_an_operation():
    assert set(CASES) == set(door.BACKENDS)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, which interprets kernels
@pytest.mark.parametrize(("operation", "row", "dtype"), ROWS)
def test_backends_are_the_plain_form(
    operation: str, row: Backend, dtype: torch.dtype, device: torch.device
) -> None:
    is_native_here = device.type == "cpu" and not door.IS_INTERPRETED
    is_triton_here = device.type == "cuda" or door.IS_INTERPRETED
    if not (is_native_here if row.is_native else is_triton_here) or door.load(row) is None:
        pytest.skip("needs a GPU, or TRITON_INTERPRET=1" if not row.is_native else "no C here")
    case = CASES[operation]
    num_calls = 0
    for family, make in case.families.items():
        given = make(partial(torch.Generator().manual_seed, 0)(), dtype)
        used: list[Backend] = []
        found = by_backend(operation, row, case, to(device, given), used)
        if not used:  # Of another size.
            continue
        num_calls += 1
        wanted = plainly(case, given, dtype)
        compare(f"{operation}, {family}", case, dtype, found, wanted)
    assert num_calls, "no family of shapes reaches this backend"


def by_backend(operation: str, row: Backend, case: Case, given: object, used: list) -> object:
    """Call an operation that has one backend, and note its calls."""

    def load(asked: Backend) -> object:
        if asked is row:
            used.append(asked)
        return real(asked)

    real = door.load
    with (
        mock.patch.dict(door.BACKENDS, {operation: (row,)}),
        mock.patch.object(door, "load", load),
    ):
        return case.call(*given)


def plainly(case: Case, given: object, dtype: torch.dtype) -> object:
    """Call an operation on a CPU without any backend: in float64, unless its digits matter."""
    if case.is_widened and dtype.is_floating_point:
        given = tree_map(widened, given)
    with mock.patch.dict(door.BACKENDS, dict.fromkeys(door.BACKENDS, ())):
        return case.call(*tree_map(copied, given))


def to(device: torch.device, given: object) -> object:
    """Copy tensors to a device, as they lie in memory."""
    return tree_map(lambda value: copied(value, device), given)


def copied(value: object, device: torch.device | str = "cpu") -> object:
    """Copy a tensor with its strides: operations may write into it."""
    if not isinstance(value, Tensor):
        return value
    new = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    # Where values share memory, as those of an expanded tensor do, each is written once.
    shared = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in value.stride())
    new[shared].copy_(value[shared])
    return new


def widened(value: object) -> object:
    is_floating = isinstance(value, Tensor) and value.is_floating_point()
    if not is_floating:
        return value
    new = torch.empty_strided(value.shape, value.stride(), dtype=torch.float64)
    shared = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in value.stride())
    new[shared].copy_(value[shared])
    return new


def compare(name: str, case: Case, dtype: torch.dtype, found: object, wanted: object) -> None:
    """Compare what two ways returned or wrote, tensor by tensor."""
    ours, theirs = tree_flatten(found)[0], tree_flatten(wanted)[0]
    for number, (own, plain) in enumerate(zip(ours, theirs, strict=True)):
        if not isinstance(plain, Tensor):
            assert own == plain, f"{name}: result {number}"
            continue
        one, two = own.detach().cpu(), plain.detach().cpu()
        tolerance, scale = 0.0, 0.0
        if two.is_floating_point():
            tolerance = max(case.tolerance.get(each, 0.0) for each in (dtype, own.dtype))
            one, two = one.double(), two.double()
            scale = float(two.abs().nan_to_num(0.0, 0.0, 0.0).max()) if two.numel() else 0.0
        torch.testing.assert_close(
            one,
            two,
            rtol=tolerance,
            atol=tolerance * scale,
            equal_nan=True,
            msg=lambda text, k=number: f"{name}, result {k}: {text}",
        )
