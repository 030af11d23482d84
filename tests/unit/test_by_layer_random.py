"""split="by-layer-random": random groups that never cross a layer."""

import numpy as np
import pytest

import outvote as ov
from outvote.rules.groups import draw_split, groups_of_layers
from outvote.rules.rule import RoundInfo
from outvote.seeding import RandomStream

ALEXNET = (23232, 64, 307200, 192, 663552, 384, 884736, 256, 589824, 256, 2560, 10)
SIZES = [(1,), (5, 1), (7, 7, 7), (100, 1, 30, 3), (0, 4, 0, 9), (1, 1, 1), ALEXNET]


def spread(sizes, num_groups):
    """Groups one by one, each to the layer whose groups are widest: the plain way."""
    found = [1] * len(sizes)
    while sum(found) < num_groups:
        found[max(range(len(sizes)), key=lambda k: (sizes[k] / found[k], -k))] += 1
    return found


def draw(sizes, num_groups, seeds=(0,)):
    info = RoundInfo(num_byzantine=1, stream=RandomStream(seeds), layer_sizes=sizes)
    return draw_split(sum(sizes), "by-layer-random", num_groups, info)


def groups_of(split, run=0):
    """The groups of a run, as sets of coordinates."""
    dim = int(split.starts[-1])
    order = np.empty(dim, np.int64)
    order[split.orders[run].positions_between(0, dim)] = np.arange(dim)
    return [set(group.tolist()) for group in np.split(order, split.starts[1:-1])]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("num_groups", [1, 2, 4, 8, 13, 1000])
def test_groups_are_shared_as_if_given_one_by_one_to_the_widest(sizes, num_groups):
    wide = tuple(size for size in sizes if size)
    asked = min(num_groups, sum(wide))
    found = groups_of_layers(wide, asked)
    assert sum(found) == max(asked, len(wide))
    assert all(1 <= own <= size for own, size in zip(found, wide, strict=True))
    widest = max(size / own for own, size in zip(found, wide, strict=True))
    best = max(size / own for own, size in zip(spread(wide, asked), wide, strict=True))
    assert widest == pytest.approx(best)


@pytest.mark.parametrize("sizes", SIZES[:-1])
@pytest.mark.parametrize("num_groups", [1, 5, 8, 1000])
def test_a_split_is_a_partition_that_crosses_no_layer_and_is_balanced_within(sizes, num_groups):
    found = groups_of(draw(sizes, num_groups))
    assert sorted(c for group in found for c in group) == list(range(sum(sizes)))
    layer = np.repeat(np.arange(len(sizes)), sizes)
    owners = [{int(layer[c]) for c in group} for group in found]
    assert all(len(each) == 1 for each in owners)
    for number in range(len(sizes)):
        own = [len(g) for g, owner in zip(found, owners, strict=True) if owner == {number}]
        assert not own or max(own) - min(own) <= 1


def test_runs_and_rounds_have_groups_of_their_own():
    split = draw((50, 20), 6, seeds=(1, 2))
    assert groups_of(split, 0) != groups_of(split, 1)
    assert groups_of(split, 1) == groups_of(draw((50, 20), 6, seeds=(2,)))
    assert groups_of(draw((50, 20), 6)) != groups_of(draw((50, 20), 6, seeds=(3,)))


def test_every_coordinate_of_a_layer_is_as_often_in_the_first_group():
    firsts = [sorted(groups_of(draw((12,), 4, seeds=(seed,)))[0]) for seed in range(400)]
    counts = np.bincount(np.concatenate(firsts), minlength=12)
    assert (abs(counts - 100) < 45).all()  # 5 standard deviations.


def test_a_seed_gives_the_same_groups_again():
    rows = np.random.default_rng(0).normal(size=(7, 40))
    rule = ov.GAS(ov.MultiKrum(), num_groups=9, split="by-layer-random")
    verdict = rule.inspect(rows, num_byzantine=2, seed=4, layer_sizes=[30, 10])
    assert verdict.num_groups == 9
    same = rule.inspect(rows, num_byzantine=2, seed=4, layer_sizes=[30, 10])
    other = rule.inspect(rows, num_byzantine=2, seed=5, layer_sizes=[30, 10])
    np.testing.assert_array_equal(verdict.scores, same.scores)
    assert not np.array_equal(verdict.scores, other.scores)


def test_with_fewer_groups_than_layers_each_layer_is_a_group_and_a_note_states_it():
    rows = np.random.default_rng(0).normal(size=(7, 40))
    sizes = [30, 6, 4]
    rule = ov.GAS(ov.Median(), num_groups=2, split="by-layer-random")
    verdict = rule.inspect(rows, num_byzantine=2, layer_sizes=sizes)
    wanted = ov.GAS(ov.Median(), split="by-layer").inspect(rows, num_byzantine=2, layer_sizes=sizes)
    assert verdict.notes == ("gas: num_groups=2 is fewer than the 3 layers; used 3",)
    assert verdict.num_groups == 3
    np.testing.assert_allclose(verdict.scores, wanted.scores)
