"""Inner products of long rows, cut into pieces as a GPU wants them."""

import pytest
import torch
from torch import Tensor

from outvote.ops.long_products import SHORTEST, in_pieces, long_products
from outvote.ops.memory import run_index
from outvote.ops.precision import exact_products


def _rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("num_pieces", [1, 2, 7, 40])
@pytest.mark.parametrize("shape", [(5, 1000), (3, 18, 1003), (2, 2, 1, 640), (4, 40)])
def test_pieces_add_up_to_the_whole(shape: tuple[int, ...], num_pieces: int) -> None:
    rows = _rows(*shape)
    other = _rows(*shape[:-2], 3, shape[-1], seed=1)
    exact = rows.double() @ other.double().mT
    torch.testing.assert_close(
        in_pieces(rows, other, num_pieces).double(), exact, rtol=1e-5, atol=1e-4
    )


def test_rows_may_lie_as_columns_or_be_shared_by_all_runs() -> None:
    columns, vector = _rows(3, 800, 6), _rows(1, 800, seed=1)
    for rows in (columns.mT, columns.mT.contiguous()):
        exact = rows.double() @ vector.double().mT
        torch.testing.assert_close(in_pieces(rows, vector, 9).double(), exact, rtol=1e-5, atol=1e-4)


def test_sums_of_pieces_keep_digits_that_float32_would_lose() -> None:
    rows = torch.ones(1, 1 << 25)
    assert float(in_pieces(rows, rows, 1 << 10)) == 1 << 25
    rows[0, :: 1 << 15] = 2.0**11
    exact = 2.0**32 + (1 << 25) - (1 << 10)
    assert float(in_pieces(rows, rows, 1 << 10)) == pytest.approx(exact, rel=1e-7)


@pytest.mark.parametrize("num_rows", [5, 18, 70])
def test_on_any_device_they_are_what_float64_gives(num_rows: int, device: torch.device) -> None:
    rows = _rows(2, num_rows, SHORTEST * 40 + 5).to(device)
    exact = rows.double() @ rows.double().mT
    with exact_products():
        found = long_products(rows, rows)
    assert found.dtype == rows.dtype
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=0.5)


@pytest.mark.parametrize("shape", [(0, 5, 9000), (3, 0, 9000), (3, 5, 0), (0, 2, 5, 9000)])
def test_where_nothing_is_the_products_are_empty_or_zero(shape: tuple[int, ...]) -> None:
    # A device that is no CPU, and has no values: pieces would be formed there.
    rows = torch.empty(shape, device="meta")
    assert long_products(rows, rows).shape == (*shape[:-1], shape[-2])


def test_neighbours_are_a_slice_and_others_an_index() -> None:
    cpu = torch.device("cpu")
    assert run_index([3, 4, 5], cpu) == slice(3, 6)
    assert run_index([2], cpu) == slice(2, 3)
    found = run_index([1, 3], cpu)
    assert isinstance(found, Tensor)
    assert found.tolist() == [1, 3]
