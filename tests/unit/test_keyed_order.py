"""Random orders from small tables: permutations, the same everywhere, and as random as needed.

Every draw has a fixed seed, so that a test passes always or never. z counts standard deviations;
the fewer rounds that must fail show that the tests see what they look for.
"""

import itertools
from collections import Counter
from math import isqrt
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import outvote as ov
from outvote.ops import door
from outvote.ops.groups import (
    LARGEST_AT_ONCE,
    LARGEST_SIZE,
    LARGEST_SORTED,
    KeyedOrder,
    TableOrder,
    draw_order,
    in_order,
    pair_sums,
)
from outvote.rules.groups import draw_split
from outvote.seeding import LARGEST_WITH_SHORT_DRAWS, RandomStream

CPU = torch.device("cpu")
# A matrix of 101 x 102; 52 cells are beyond the last thing.
SIZE = 10_250
NUM_ROWS, NUM_COLUMNS = 101, 102
NUM_SEEDS = 400
NUM_GROUPS = 100
PINNED_SORTED = [3, 5, 2, 9, 7, 0, 8, 6, 1, 4]
PINNED_KEYED = [7177, 3493, 9528, 8972, 585, 3512, 8480, 1420]
PINNED_LARGE = [934686, 1087528, 2318923, 1102484]
SIZES = [*range(1, 40), 99, 100, 101, 121, 997, 8_192, 8_193, 10_250, 65_537, 200_003]


def oracle(order, position):
    """Move one position by the rounds, in plain Python, until it is a thing."""
    num_rows, num_columns = isqrt(order.size), -(-order.size // isqrt(order.size))
    shifts = order.table.tolist()
    while True:
        row, column = divmod(position, num_columns)
        for number, shift in enumerate(shifts):
            if number % 2 == 0:
                column = (column + shift[row]) % num_columns
            else:
                row = (row + shift[column]) % num_rows
        position = row * num_columns + column
        if position < order.size:
            return position


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("draw", [KeyedOrder, draw_order])
def test_everything_has_one_position(draw, size):
    order = draw(size, 3)
    index, positions = order.index(), order.positions()
    assert index.dtype == positions.dtype == torch.int32
    assert index.sort().values.tolist() == list(range(size))
    assert positions[index.long()].tolist() == list(range(size))


@pytest.mark.parametrize("size", [1, 2, 7, 30, 8_200, 150_001])
def test_orders_are_those_of_plain_python(size):
    order = KeyedOrder(size, 11)
    index = order.index()
    some = range(0, size, max(1, size // 500))
    assert [int(index[k]) for k in some] == [oracle(order, k) for k in some]


def test_orders_are_pinned():
    """They are part of the protocol: another version of numpy must not draw others."""
    assert draw_order(10, 1).index().tolist() == PINNED_SORTED
    assert draw_order(10_000, 1).index()[:8].tolist() == PINNED_KEYED
    assert draw_order(2_472_266, 2**63 - 1).index()[-4:].tolist() == PINNED_LARGE


def test_the_limit_between_the_two_kinds_of_order():
    assert isinstance(draw_order(LARGEST_SORTED, 0), TableOrder)
    assert isinstance(draw_order(LARGEST_SORTED + 1, 0), KeyedOrder)
    with pytest.raises(ValueError, match=f"from 1 to {LARGEST_SIZE}, got {LARGEST_SIZE + 1}"):
        KeyedOrder(LARGEST_SIZE + 1, 0)


def test_a_huge_order_is_had_in_parts_alone(device):
    size = 5 * LARGEST_AT_ONCE
    order = draw_order(size, 0)
    some = order.positions_between(size - 1_000, size)
    assert some.dtype == np.int64
    assert some.max() > 2**32
    rows = torch.zeros(1, 4, 1, device=device).expand(1, 4, size)
    for ask in (order.index, order.positions, lambda: in_order(rows, [order])):
        with pytest.raises(ValueError, match=f"order of {size} coordinates is too large"):
            ask()


def test_sums_of_a_part_of_a_huge_order_are_right(device):
    size, width = 5 * LARGEST_AT_ONCE, 1_000
    order = draw_order(size, 0)
    rows = torch.zeros(1, 2, width, device=device)
    rows[:, 1] = 1
    found = pair_sums(rows, [order], (0, size, 5, LARGEST_AT_ONCE), size - width)
    groups = order.positions_between(size - width, size) // LARGEST_AT_ONCE
    assert found[0, :, 0, 1].tolist() == np.bincount(groups, minlength=5).tolist()


def test_all_orders_of_few_things_are_equally_likely():
    num_draws = 4_800
    counts = Counter(tuple(draw_order(4, seed).index().tolist()) for seed in range(num_draws))
    assert set(counts) == set(itertools.permutations(range(4)))
    expected = num_draws / 24
    # 23 degrees of freedom: more than 60 comes once in 30,000 times.
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 60


def z_of(count, number, rate):
    return (count - number * rate) / np.sqrt(number * rate * (1 - rate))


def membership(num_rounds):
    """The group of each thing [seeds, things], and its row and column among the positions."""
    orders = (KeyedOrder(SIZE, seed, num_rounds) for seed in range(NUM_SEEDS))
    positions = np.stack([order.positions().numpy() for order in orders])
    return positions * NUM_GROUPS // SIZE, *np.divmod(positions, NUM_COLUMNS)


@pytest.fixture(scope="module")
def drawn():
    return membership(6)


def pair_scores(groups):
    """How often things at some distances share a group, in standard deviations."""
    sizes = np.bincount(np.arange(SIZE) * NUM_GROUPS // SIZE)
    rate = (sizes * (sizes - 1)).sum() / (SIZE * (SIZE - 1))
    found = {}
    for distance in (1, 2, 50, NUM_ROWS, NUM_COLUMNS, NUM_COLUMNS + 1, 2 * NUM_COLUMNS, SIZE // 2):
        is_same = groups[:, distance:] == groups[:, :-distance]
        found[distance] = z_of(is_same.sum(), is_same.size, rate)
    return found


def kept_differences(row, column):
    """How often neighbours in a row or a column are as far apart among the positions."""
    is_row = (column[:, 1:] - column[:, :-1]) % NUM_COLUMNS == 1
    is_column = (row[:, NUM_COLUMNS:] - row[:, :-NUM_COLUMNS]) % NUM_ROWS == 1
    return (
        z_of(is_row.sum(), is_row.size, 1 / NUM_COLUMNS),
        z_of(is_column.sum(), is_column.size, 1 / NUM_ROWS),
    )


def test_each_thing_is_in_each_group_equally_often(drawn):
    groups = drawn[0] // 10
    counts = np.stack([(groups == k).sum(axis=0) for k in range(10)])
    squares = ((counts - NUM_SEEDS / 10) ** 2 / (NUM_SEEDS / 10)).sum(axis=0)
    # Of 10,250 chi-squares of 9 degrees of freedom; their mean has a standard error of 0.04.
    assert abs(squares.mean() - 9) < 0.2
    assert squares.max() < 50
    quarter = np.quantile(squares, [0.25, 0.5, 0.75])
    np.testing.assert_allclose(quarter, [5.90, 8.34, 11.39], atol=0.25)


def test_pairs_share_a_group_at_the_expected_rate(drawn):
    assert max(map(abs, pair_scores(drawn[0]).values())) < 4


def test_no_difference_survives(drawn):
    assert max(map(abs, kept_differences(*drawn[1:]))) < 4


@pytest.mark.parametrize("num_rounds", [2, 3, 4])
def test_fewer_rounds_fail_both_tests(num_rounds):
    groups, row, column = membership(num_rounds)
    assert max(map(abs, pair_scores(groups).values())) > 10
    assert max(map(abs, kept_differences(row, column))) > 100


def test_other_seeds_are_independent(drawn):
    is_same = drawn[0][1:] == drawn[0][:-1]
    assert abs(z_of(is_same.sum(), is_same.size, 1 / NUM_GROUPS)) < 4


@pytest.mark.parametrize(("dim", "num_groups"), [(23, 5), (20, 5), (7, 7), (9_001, 8), (20_000, 3)])
@pytest.mark.parametrize("how", ["balanced", "ceil"])
def test_groups_are_exactly_balanced(how, dim, num_groups):
    info = SimpleNamespace(stream=RandomStream((5, 6)))
    split = draw_split(dim, how, num_groups, info)
    for order in split.orders:
        assert sorted(order.index().tolist()) == list(range(dim))
    sizes = np.diff(split.starts).tolist()
    assert sum(sizes) == dim
    if how == "balanced":
        assert len(sizes) == num_groups
        assert max(sizes) - min(sizes) <= 1
    else:
        assert set(sizes[:-1]) <= {-(-dim // num_groups)}
    assert not torch.equal(split.orders[0].index(), split.orders[1].index())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("spec", ["gas(multi-krum)", "gas(median, split=ceil)", "dnc", "gas(dnc)"])
@pytest.mark.parametrize("dim", [3_000, 300_000])
def test_a_seed_is_one_split_on_every_device(spec, dim):
    X = torch.randn(20, dim, generator=torch.Generator().manual_seed(0))
    rule = ov.make_rule(spec)
    here = rule.inspect(X, num_byzantine=4, seed=3)
    there = rule.inspect(X.cuda(), num_byzantine=4, seed=3)
    # A projection near 0 is a difference of large numbers.
    rounding = 1e-5 * float(np.max(here.scores))
    np.testing.assert_allclose(there.scores, here.scores, rtol=1e-4, atol=rounding)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("size", [100, 10_250, 300_001])
def test_orders_are_the_same_on_a_gpu(size):
    order = draw_order(size, 4)
    assert torch.equal(order.index(torch.device("cuda")).cpu(), order.index())
    assert torch.equal(order.positions(torch.device("cuda")).cpu(), order.positions())


@pytest.mark.parametrize(
    ("size", "num_drawn"),
    [(4, 1), (40, 10), (41, 20), (400, 100), (4_000, 1_000), (65_537, 3), (2_472_266, 10_000)],
)
def test_a_sample_is_the_start_of_a_permutation(size, num_drawn):
    for seeds in [(0,), (1, 2**62 + 12_345), tuple(range(20))][: 2 if size > 10**5 else 3]:
        stream = RandomStream(seeds).fold_in("dnc-0")
        whole = stream.permutations(size, CPU)
        found = stream.samples(size, num_drawn, CPU)
        assert found.dtype == whole.dtype
        assert torch.equal(found, whole[:, :num_drawn])


def test_samples_of_more_than_torch_draws_with_32_bits_take_whole_permutations(monkeypatch):
    asked = []

    def permutations(_, size, device):
        asked.append((size, device))
        return torch.zeros(1, 7)

    monkeypatch.setattr(RandomStream, "permutations", permutations)
    found = RandomStream((0,)).samples(LARGEST_WITH_SHORT_DRAWS, 5, CPU)
    assert asked == [(LARGEST_WITH_SHORT_DRAWS, CPU)]
    assert found.shape == (1, 5)


def test_permutations_are_those_of_torch():
    stream = RandomStream((3, 4)).fold_in("bucketing-shuffle")
    for seed, order in zip(stream.derived(), stream.permutations(50, CPU), strict=True):
        generator = torch.Generator().manual_seed(seed)
        assert order.tolist() == torch.randperm(50, generator=generator).tolist()


@pytest.mark.parametrize("start", [0, 142, 20_000])
def test_nothing_is_between_a_position_and_itself(start):
    assert len(draw_order(20_000, 1).positions_between(start, start)) == 0


@pytest.mark.parametrize("seed", [0, 1, 16, 2**31 - 1, 2**31, 2**62 + 5, 2**63 - 1, 2**64 - 1])
@pytest.mark.parametrize("size", [8_193, 90_000, 2_472_266])
def test_a_gpu_draws_the_same_table(size, seed, device):
    if not (device.type == "cuda" or door.IS_INTERPRETED):
        pytest.skip("needs a GPU, or TRITON_INTERPRET=1")
    from outvote.ops.triton.scatter import shifts

    order = KeyedOrder(size, seed)
    assert torch.equal(shifts(order, device).cpu(), order.table)
