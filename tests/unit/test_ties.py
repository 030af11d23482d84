"""Exact ties are decided by the index of a client, not by how a backend rounds."""

from collections.abc import Iterator
from unittest import mock

import pytest
import torch

import outvote as ov
from outvote.ops import door, native, order

WAYS = ["torch", *(name for name in ("0", "3", "4") if name <= (native.level() or ""))]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Work by plain torch alone, or by C for one level of processors."""
    if request.param == "torch":
        with mock.patch.dict(door.BACKENDS, dict.fromkeys(door.BACKENDS, ())):
            yield request.param
        return
    monkeypatch.setattr(native, "level", lambda: request.param)
    native.function.cache_clear()
    yield request.param
    native.function.cache_clear()


def kept(rule: str, rows: torch.Tensor, num_byzantine: int) -> list[int]:
    return ov.make_rule(rule).inspect(rows, num_byzantine=num_byzantine, seed=0).kept


SIGNS = [
    torch.randint(0, 2, (12, dim), generator=torch.Generator().manual_seed(seed)) * 2.0 - 1
    for seed, dim in enumerate([30, 40, 60, 90, 200] * 6)
]


@pytest.mark.parametrize("rule", ["gas(dnc, num_groups=8)", "dnc", "gas(bulyan, num_groups=8)"])
def test_rows_of_plus_and_minus_one_keep_the_same_clients_in_every_way(rule, way):
    expected = [kept(rule, rows, 2) for rows in SIGNS]
    with mock.patch.dict(door.BACKENDS, dict.fromkeys(door.BACKENDS, ())):
        assert [kept(rule, rows, 2) for rows in SIGNS] == expected
    assert [kept(rule, 3 * rows, 2) for rows in SIGNS] == expected


@pytest.mark.parametrize("rule", ["multi-krum", "dnc", "gas(multi-krum, num_groups=3)"])
def test_one_huge_row_makes_no_ties_of_others(rule, way):
    rows = torch.randn(9, 40, generator=torch.Generator().manual_seed(0))
    rows[5] *= 1e38 / rows[5].abs().max()
    rows[0] = rows[5] * -1e-8
    verdict = ov.make_rule(rule).inspect(rows, num_byzantine=2, seed=0)
    assert sorted(verdict.dropped) == [0, 5]


@pytest.mark.parametrize("device_scores", [torch.float32, torch.float64])
def test_equal_scores_go_to_the_lower_index(device_scores, device):
    scores = torch.tensor([[3.0, 1.0, 2.0, 1.0, 2.0]], dtype=device_scores, device=device)
    assert order.smallest(scores, 3).tolist() == [[False, True, True, True, False]]
    assert order.average_of_smallest(scores, 4).tolist() == [[0, 0.25, 0.25, 0.25, 0.25]]
    assert order.clients_by_score(scores).tolist() == [[1, 3, 2, 4, 0]]


def test_scores_that_differ_by_rounding_are_equal_and_others_are_not(device):
    third = 1 / 3
    scores = torch.tensor(
        [[third * (1 + 2e-15), third, 1e60, 1e76, third * (1 + 1e-11)]], dtype=torch.float64
    )
    first = order.smallest(scores.to(device), 1)
    assert first.tolist() == [[True, False, False, False, False]]
    assert order.clients_by_score(scores.to(device)).tolist() == [[0, 1, 4, 2, 3]]


def test_rounding_keeps_signs_zeros_and_infinities():
    values = torch.tensor([0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf, 5e-324, 1e300])
    rounded = order.rounded_score(values)
    assert rounded[:6].equal(values[:6].double())
    assert torch.signbit(rounded[1])
    numbers = torch.linspace(1, 2, 1001, dtype=torch.float64)
    far = (order.rounded_score(numbers) - numbers).abs()
    assert 0 < float(far.max()) <= 2.0**-40
