"""Mean, spread and distances of the clients that count, against float64 by hand."""

import pytest
import torch

from outvote.ops import moments
from outvote.ops.moments import Request, measure

EVERYTHING = Request(
    spread=True, norms=True, products=True, toward=lambda mean, spread: spread, is_exact=True
)
REQUESTS = {
    "mean": Request(),
    "moments": Request(spread=True),
    "norms": Request(spread=True, norms=True, is_exact=True),
    "everything": EVERYTHING,
}


def by_hand(rows, is_used):
    """Return the mean, the spread and the differences of one run in float64."""
    some = rows.double()[is_used]
    away = torch.where(is_used.unsqueeze(-1), rows.double() - some.mean(dim=0), 0.0)
    return some.mean(dim=0), some.std(dim=0, correction=0), away


@pytest.mark.parametrize("asked", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("shape", [(1, 1, 7), (3, 5, 1000), (2, 18, 333), (2, 130, 40)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_moments_are_those_of_the_rows_in_use(device, monkeypatch, asked, shape, dtype):
    # In several tiles, cut in both directions.
    monkeypatch.setattr(moments, "TILE", {"cpu": 600, "cuda": 600})
    generator = torch.Generator().manual_seed(1)
    rows = (torch.randn(shape, generator=generator) + 3).to(dtype)
    is_used = torch.rand(shape[:2], generator=generator) < 0.7
    is_used[:, -1] = True
    # What is left out does not count, whatever it is.
    rows[~is_used] = torch.nan
    found = measure(rows.to(device), is_used.to(device), torch.float32, asked)
    assert found.counts.tolist() == is_used.sum(dim=-1).tolist()
    for run in range(shape[0]):
        mean, spread, away = by_hand(rows[run].nan_to_num(0.0), is_used[run])
        close = {"rtol": 2e-5, "atol": 2e-5, "check_dtype": False}
        torch.testing.assert_close(found.mean[run].cpu(), mean, **close)
        if asked.spread:
            torch.testing.assert_close(found.spread[run].cpu(), spread, **close)
        if asked.norms:
            squares = away.square().sum(dim=-1)
            torch.testing.assert_close(found.squared_norms[run].cpu(), squares, **close)
        if asked.products:
            wide = {"rtol": 1e-4, "atol": 1e-3}
            torch.testing.assert_close(found.products[run].cpu(), away @ away.mT, **wide)
            torch.testing.assert_close(found.along[run].cpu(), away @ spread, **wide)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, which interprets kernels
@pytest.mark.parametrize("asked", REQUESTS.values(), ids=REQUESTS)
def test_numbers_that_are_not_finite_are_noticed_in_every_row_that_counts(device, asked):
    rows = torch.randn(2, 4, 50, generator=torch.Generator().manual_seed(2))
    is_used = torch.tensor([[True, True, False, True]] * 2)
    assert measure(rows.to(device), is_used.to(device), torch.float32, asked).is_safe()
    for client, value in ((1, torch.nan), (3, torch.inf)):
        bad = rows.clone()
        bad[1, client, 49] = value
        assert not measure(bad.to(device), is_used.to(device), torch.float32, asked).is_safe()
    if asked.spread:
        for factor in (1e18, 1e-20):
            huge = (rows * factor).to(device)
            assert not measure(huge, is_used.to(device), torch.float32, asked).is_safe()


def test_an_exact_mean_of_large_equal_rows_is_that_row(device):
    row = torch.tensor([1e6 + 0.0625, -3.3e5, 0.1], device=device)
    rows = row.expand(1, 7, 3).contiguous()
    found = measure(rows, None, torch.float32, REQUESTS["norms"])
    assert torch.equal(found.mean[0], row)
    assert not bool(found.spread.any())


def test_extremes_are_those_of_the_rows_in_use_and_0_where_nobody_is(device):
    rows = torch.randn(2, 5, 90, generator=torch.Generator().manual_seed(3))
    is_used = torch.tensor([[True, False, True, True, False], [False] * 5])
    rows[~is_used] = torch.nan
    found = measure(rows.to(device), is_used.to(device), torch.float32, Request(extremes=True))
    some = rows[0, is_used[0]]
    assert torch.equal(found.low.cpu(), torch.stack([some.amin(dim=0), torch.zeros(90)]))
    assert torch.equal(found.high.cpu(), torch.stack([some.amax(dim=0), torch.zeros(90)]))


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_norms_of_tiny_and_huge_numbers_keep_their_digits(size, device):
    vectors = torch.full((2, 4), size, device=device)
    wanted = torch.full((2,), 2 * size, dtype=torch.float64)
    torch.testing.assert_close(moments.norm(vectors).cpu(), wanted, rtol=1e-6, atol=0)
