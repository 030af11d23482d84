"""Distances added up in the order of the coordinates are those of the groups that are read."""

from threading import current_thread, main_thread

import numpy as np
import pytest
import torch

import outvote as ov
from outvote.ops import distances
from outvote.ops.keyed_order import KeyedOrder
from outvote.rules import group_distances
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.groups import ByClient
from outvote.rules.rule import RoundInfo
from outvote.rules.split import _drawn, balanced_sizes, ceil_sizes, cut, draw_orders, groups_at
from outvote.seeding import RandomStream


@pytest.fixture
def in_small_pieces(monkeypatch):
    """Make pieces so small that several are needed, the last one not full."""
    monkeypatch.setattr(group_distances, "AT_ONCE", 700)
    monkeypatch.setattr(group_distances, "FEWEST_COORDINATES", 700)
    monkeypatch.setattr(group_distances, "FEWEST_GROUPS", 2)


def groups_of(columns_last, num_groups, how="balanced"):
    """Split ``[runs, clients, dim]``, each run by a seed of its own."""
    centre = torch.arange(len(columns_last)) % columns_last.shape[1]
    info = RoundInfo(num_byzantine=1, stream=RandomStream(tuple(range(len(columns_last)))))
    matrix = ClientMatrix.from_rows(columns_last, centre)
    return matrix.split(how, num_groups, info)


def exact_distances(groups):
    """Return the squared distances in all groups from their coordinates."""
    rows, found = groups.matrix.rows.double(), []
    for run, own in enumerate(rows):
        parts = [
            own[:, index.long()] for block in groups.split.blocks for index in block.index[run]
        ]
        found.append(torch.stack([torch.cdist(part, part).square() for part in parts]))
    return torch.stack(found)


@pytest.mark.parametrize("how", ["balanced", "ceil"])
@pytest.mark.parametrize("num_clients", [2, 3, 5, 9])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_distances_in_order_are_those_of_the_groups(how, num_clients, dtype, in_small_pieces):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2, num_clients, 10_007, generator=generator).to(dtype)
    groups = groups_of(rows, 90, how)
    found = group_distances.squared_distances(groups.matrix, groups.split)
    torch.testing.assert_close(found, exact_distances(groups), rtol=1e-11, atol=0)
    assert torch.equal(found, found.mT)
    centre = groups.matrix.centre
    apart = groups.matrix.rows - groups.matrix.rows[torch.arange(2), centre].unsqueeze(1)
    together = torch.stack([own.double() @ own.double().T for own in apart])
    products = distances.products_around(found, centre).sum(dim=1)
    torch.testing.assert_close(products, together, rtol=1e-3, atol=1.0)


@pytest.mark.parametrize("dim", [9, 100, 8_193])
@pytest.mark.parametrize("num_groups", [1, 2, 9])
@pytest.mark.parametrize("sizes_of", [balanced_sizes, ceil_sizes])
def test_a_position_is_in_the_group_that_is_cut_there(sizes_of, num_groups, dim):
    sizes = sizes_of(dim, num_groups)
    positions = torch.arange(dim, dtype=torch.int32)
    blocks = cut(positions.unsqueeze(0), sizes).blocks
    widths = [block.shape[2] for block in blocks for _ in range(block.shape[1])]
    expected = np.repeat(np.arange(len(widths)), widths)
    np.testing.assert_array_equal(groups_at(positions.numpy(), sizes), expected)


def test_gas_reads_no_group_where_distances_are_enough(in_small_pieces, monkeypatch):
    def read(*_):
        raise AssertionError("read")

    monkeypatch.setattr(ByClient, "read", read)
    X = torch.randn(5, 5_000, generator=torch.Generator().manual_seed(0))
    ov.make_rule("gas(multi-krum, num_groups=50)")(X, num_byzantine=1, seed=0)
    with pytest.raises(AssertionError, match="read"):
        ov.make_rule("gas(median, num_groups=50)")(X, num_byzantine=1, seed=0)


@pytest.mark.parametrize("apart", [1.0, 1e-3, 1e-6, 0.0])
@pytest.mark.parametrize("scale", [1e-25, 1e-12, 1.0, 1e20])
def test_scores_are_the_same_however_distances_are_found(
    apart, scale, in_small_pieces, monkeypatch
):
    """Also where two clients are nearly alike, or where squares vanish or overflow."""
    X = torch.randn(5, 5_000, generator=torch.Generator().manual_seed(0))
    X[1] = X[0] + apart * X[1]
    X[:, :200] = 0
    X *= scale
    rule = ov.make_rule("gas(multi-krum, num_groups=50)")
    found = rule.inspect(X, num_byzantine=1, seed=0)
    monkeypatch.setattr(group_distances, "MOST_CLIENTS", 0)
    expected = rule.inspect(X, num_byzantine=1, seed=0)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)
    assert found.kept == expected.kept


def test_an_order_is_listed_once_by_the_thread_that_has_all_cores(monkeypatch):
    """Threads that copy the groups would each list it for themselves."""
    listed = []
    plain = KeyedOrder.index

    def index(order, *device):
        listed.append(current_thread() is main_thread())
        return plain(order, *device)

    monkeypatch.setattr(KeyedOrder, "index", index)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ov.make_rule("gas(median, num_groups=50)")(torch.randn(5, 40_000), num_byzantine=1, seed=1)
    finally:
        torch.set_num_threads(before)
    assert listed == [True]


def test_what_is_drawn_ahead_is_what_gas_asks_for():
    draw_orders(30_011, RandomStream((7,)))
    before = _drawn.cache_info()
    ov.make_rule("gas(median, num_groups=50)")(torch.randn(5, 30_011), num_byzantine=1, seed=7)
    after = _drawn.cache_info()
    assert (after.hits - before.hits, after.misses - before.misses) == (1, 0)
