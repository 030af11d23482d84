"""The C kernels do what plain torch does, on every level that this processor has."""

import ctypes
import importlib.util
import os
import pkgutil
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from math import fsum
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

import outvote as ov
from outvote.ops import native, order_statistics
from outvote.ops.keyed_order import NUM_ROUNDS, KeyedOrder, SortedOrder, draw_order
from outvote.rules import bulyan, group_distances
from outvote.rules.aggregate import aggregate
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.groups import Groups
from outvote.rules.rule import RoundInfo
from outvote.rules.split import balanced_sizes, ceil_sizes, groups_at
from outvote.seeding import RandomStream

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
LEVELS = [name for name in ("0", "3", "4") if int(name) <= int(native.level() or -1)]
needs_kernels = pytest.mark.skipif(not LEVELS, reason="outvote was installed without a C compiler")


@pytest.fixture(params=LEVELS)
def level(request, monkeypatch):
    """Each level in turn."""
    monkeypatch.setattr(native, "level", lambda: request.param)


@pytest.fixture
def without(monkeypatch):
    """A way to call without kernels."""

    def call(work):
        with monkeypatch.context() as patch:
            patch.setattr(native, "level", lambda: None)
            return work()

    return call


def rows_of(runs, num_clients, dim, seed=0):
    return torch.randn(runs, num_clients, dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.skipif(
    os.environ.get("OUTVOTE_TEST_DEVICE", "cpu") != "cpu", reason="run from a copy of the source"
)
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.skipif(os.environ.get("OUTVOTE_NATIVE") == "0", reason="they are switched off")
def test_where_there_is_a_compiler_the_kernels_are_built():
    assert native.level() is not None, "install outvote again: touch hatch_build.py; make venv"


def test_libraries_are_not_taken_for_modules():
    assert {m.name for m in pkgutil.iter_modules([str(native.FOLDER)]) if not m.ispkg} == {
        path.stem for path in native.FOLDER.glob("*.py") if path.stem != "__init__"
    }


@needs_kernels
@pytest.mark.parametrize("num_clients", [1, 8, 16, 17, 50])
@pytest.mark.parametrize("dim", [8_193, 10_007, 33_000])
def test_values_are_copied_in_the_order_of_the_groups(num_clients, dim, level):
    rows = rows_of(2, num_clients, dim)
    orders = [draw_order(dim, 5), draw_order(dim, 6)]
    found = native.scattered(rows, orders)
    for run, order in enumerate(orders):
        assert torch.equal(found[run], rows[run][:, order.index().long()].T)


@needs_kernels
def test_rows_with_gaps_between_them_are_read(level):
    memory = rows_of(1, 9, 20_001)
    rows, order = memory[:, ::2, 3:-5], draw_order(19_993, 0)
    assert rows.stride(-2) == 2 * 20_001
    found = native.scattered(rows, [order])
    assert torch.equal(found[0], rows[0][:, order.index().long()].T)
    sizes = balanced_sizes(19_993, 40)
    same = native.pair_sums(rows[0].contiguous(), order, sizes)
    assert torch.equal(native.pair_sums(rows[0], order, sizes), same)


@needs_kernels
@pytest.mark.parametrize("num_clients", [8, 15, 16, 31, 50, 65, 130])
@pytest.mark.parametrize("width", [3, 64, 200])
def test_products_are_those_around_a_client(num_clients, width, level):
    num_groups = -(-8_193 // width)
    rows = rows_of(2, num_clients, num_groups * width)
    orders = [draw_order(rows.shape[-1], 0)] * 2
    values = native.scattered(rows, orders).unflatten(1, (num_groups, width))[:, 2:42]
    centre = torch.tensor([1, num_clients - 1])
    found = native.products(values, centre)
    assert torch.equal(found, found.mT)
    for run, client in enumerate(centre.tolist()):
        apart = values[run].double() - values[run][..., client : client + 1].double()
        exact = apart.mT @ apart
        torch.testing.assert_close(found[run].double(), exact, rtol=0, atol=3e-5 * width)
        assert not found[run, :, client].any()


@needs_kernels
@pytest.mark.parametrize("width", [511, 512, 513, 1 << 19])
def test_products_of_wide_groups_are_not_rounded_in_float32(width, level):
    """Half a million numbers, added one by one in float32, are wrong in the fourth digit."""
    num_groups = max(2, 8_193 // width + 1)
    rows = rows_of(1, 8, num_groups * width)
    values = native.scattered(rows, [draw_order(rows.shape[-1], 0)])
    values = values.unflatten(1, (num_groups, width))
    found = native.products(values, torch.tensor([2]))[0].double()
    apart = (values[0] - values[0][..., 2:3]).double()
    exact = apart.mT @ apart
    far = exact.diagonal(dim1=-2, dim2=-1).amax(dim=-1).view(-1, 1, 1)
    assert float(((found - exact) / far).abs().amax()) < 2e-6


@needs_kernels
@pytest.mark.parametrize("num_clients", [2, 3, 5, 9])
@pytest.mark.parametrize("num_groups", [1, 16, 90, 8_193])
@pytest.mark.parametrize("sizes_of", [balanced_sizes, ceil_sizes])
def test_squared_differences_are_added_up_by_group(num_clients, num_groups, sizes_of, level):
    dim = 10_250
    rows, order = rows_of(1, num_clients, dim)[0], draw_order(dim, 3)
    sizes = sizes_of(dim, num_groups)
    found = native.pair_sums(rows, order, sizes)
    groups = groups_at(order.positions_between(0, dim).copy(), sizes)
    assert found.dtype == torch.float64
    for pair, (i, j) in enumerate(zip(*np.tril_indices(num_clients, -1), strict=True)):
        squared = (rows[i].double() - rows[j].double()).square().numpy()
        exact = np.bincount(groups, squared, sizes[0] + sizes[2])
        np.testing.assert_allclose(found[:, pair].numpy(), exact, rtol=1e-12)


@needs_kernels
def test_long_sums_are_not_rounded_in_float32(level):
    """A million equal numbers, added one by one in float32, are wrong in the fourth digit."""
    rows = torch.full((2, 1 << 20), 1.1)
    rows[1] = 0.0
    found = native.pair_sums(rows, draw_order(1 << 20, 0), balanced_sizes(1 << 20, 1))
    exact = float(np.float64(np.float32(1.1)) ** 2) * (1 << 20)
    assert float(found[0, 0]) == pytest.approx(exact, rel=1e-10)


@needs_kernels
@pytest.mark.parametrize("num_groups", [2_500, 3_001])
def test_groups_of_positions_beyond_16_million_are_found(num_groups, level):
    """There float32 has gaps, and the quotient of a position and a width is rounded."""
    size, num = 2**31 - 2**16, 3_000
    start = size // 2
    order = KeyedOrder.draw(size, 3, largest=size)
    sizes = balanced_sizes(size, num_groups)
    rows = rows_of(1, 2, num)[0]
    total = np.zeros((num_groups, native.FOUR))
    buffer = np.empty((native.FOUR + 2) * (native.SQUARED + native.GAP))
    given = native._Given.of(order)
    # As if the rows began so far before that these values are where the middle ones would be.
    native._library().outvote_pair_sums(
        *given.arguments,
        *(start, start + num, rows.data_ptr() - 4 * start, num, 2, *sizes[:2], sizes[3]),
        *(buffer.ctypes.data, total.ctypes.data),
    )
    groups = groups_at(order.positions_between(start, start + num).copy(), sizes)
    squared = (rows[1].double() - rows[0].double()).square().numpy()
    exact = np.bincount(groups, squared, num_groups)
    np.testing.assert_allclose(total[:, 0], exact, rtol=1e-12)


LAYOUTS = {
    "clients in rows": lambda values: values.T,
    "clients side by side": lambda values: values.T.contiguous(),
    "with gaps": lambda values: torch.nn.functional.pad(values.T, (0, 3))[:, : len(values)],
    "groups": lambda values: values[:, :180].T.contiguous().unflatten(0, (20, 9)),
}


@needs_kernels
@pytest.mark.parametrize("num_clients", [2, 3, 8, 9, 16, 33, 50, 64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_clients_are_sorted(num_clients, layout, level):
    values = rows_of(1, num_clients, 203)[0]
    values[:, 7], values[0, 9], values[1, 9] = 0.5, 3e38, -3e38
    values[1] = values[0]
    source = LAYOUTS[layout](values).numpy()
    before = source.copy()
    assert native.can_sort(source)
    found = np.full(source.shape, np.nan, np.float32)
    native.sort(source, found)
    np.testing.assert_array_equal(found, np.sort(before, axis=-1))
    np.testing.assert_array_equal(source, before)


def slices_of(values, num):
    """Some of the clients of each run and group, as many in each."""
    drawn = torch.rand(values.shape[:-2] + values.shape[-1:], generator=SEEDED())
    index = drawn.argsort(dim=-1)[..., :num]
    return order_statistics.Among(torch.zeros_like(drawn).scatter_(-1, index, 1).bool(), num)


def SEEDED():  # noqa: N802  (a constant but for its state)
    return torch.Generator().manual_seed(1)


FEATURES = {
    "any": lambda values: values,
    "ties": torch.round,
    "near the largest float": lambda values: (values * 1e38).clamp(-3e38, 3e38),
    "the smallest floats": lambda values: values * 1e-44,
    "the smallest floats beside the largest": lambda values: (values * 1e-44).index_fill(
        -2, torch.tensor([5]), 3e38
    ),
    "copies": lambda values: values.index_fill(-1, torch.tensor([0]), 0.25),
    "zeros": lambda values: torch.where(values.abs() < 0.7, 0.0, values),
}
COLUMN_LAYOUTS = {
    "clients in rows": lambda values: values.mT.contiguous().mT,
    "clients side by side": lambda values: values.contiguous(),
    "with gaps": lambda values: torch.nn.functional.pad(values, (0, 5))[..., : values.shape[-1]],
    "one matrix": lambda values: values[1, 1],
}


@needs_kernels
@pytest.mark.parametrize("num_clients", [2, 5, 9, 17, 33, 64])
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("layout", COLUMN_LAYOUTS)
def test_the_values_nearest_to_the_median_are_found(num_clients, feature, layout, level, without):
    values = rows_of(2 * 3, num_clients, 77).mT.unflatten(0, (2, 3))
    values = COLUMN_LAYOUTS[layout](FEATURES[feature](values))
    assert native.can_find_nearest(values)
    some = slices_of(values, num_clients // 2 + 1)
    for among, num in ((None, num_clients), (some, some.num)):
        for even in ("mean", "lower"):
            for num_nearest in {1, num // 2 + 1, num}:
                given = values, num_nearest, even, among
                found = order_statistics.mean_nearest_median(*given)
                bounds = order_statistics.bounds_nearest_median(*given)

                plain = without(lambda given=given: order_statistics.mean_nearest_median(*given))
                limits = without(lambda given=given: order_statistics.bounds_nearest_median(*given))
                assert all(map(torch.equal, bounds, limits))
                scale = torch.maximum(*(limit.abs() for limit in limits)).double()
                far = (found.double() - plain.double()).abs()
                # In float32 a sum is rounded once for each value; the smallest floats are 1e-45.
                assert bool((far <= 3e-6 * scale + 2e-45 * num).all())


@needs_kernels
def test_what_the_kernel_finds_the_nearest_values_of():
    values = torch.zeros(2, 3, 100, 64)
    assert native.can_find_nearest(values)
    others = {
        "float64": values.double(),
        "more clients": torch.zeros(100, 65),
        "one client": values[..., :1],
        "every second client": values[..., ::2],
        "none": values[:0],
        "one axis": values[0, 0, 0],
    }
    assert [name for name, each in others.items() if native.can_find_nearest(each)] == []


def selected(far, num_selected, num_byzantine):
    """Krum's choice among those left, again and again, with exact sums."""
    left = list(range(len(far)))
    for _ in range(num_selected):
        num_neighbours = max(1, len(left) - num_byzantine - 2)
        scores = [fsum(sorted(far[i][j] for j in left if j != i)[:num_neighbours]) for i in left]
        left.pop(scores.index(min(scores)))
    return sorted(set(range(len(far))) - set(left))


COLLUSIONS = {
    "nobody": lambda points, f: points,
    "copies": lambda points, f: points.index_copy(0, torch.arange(f), points[:1].repeat(f, 1)),
    "long": lambda points, f: torch.cat([1e12 * points[:f], points[f:]]),
    "longer and longer": lambda points, f: points * torch.logspace(0, 12, len(points))[:, None],
    "all equal": lambda points, f: torch.zeros_like(points),
}


@needs_kernels
@pytest.mark.parametrize("collusion", COLLUSIONS)
@pytest.mark.parametrize("num_clients", [3, 4, 7, 8, 16, 23, 64, 65])
def test_bulyan_selects_as_with_exact_sums(num_clients, collusion, level):
    for num_byzantine in {1, max(1, (num_clients - 3) // 4), (num_clients - 1) // 2}:
        points = rows_of(3, num_clients, 6).double()
        points = torch.stack([COLLUSIONS[collusion](each, num_byzantine) for each in points])
        far = (points.unsqueeze(-2) - points.unsqueeze(-3)).square().sum(dim=-1)
        if collusion != "nobody":
            far = (
                far.float()
            )  # Distances of copies are equal, or differ by more than the last bits.
        num = num_clients - 2 * num_byzantine
        found = native.select_one_by_one(far, num, num_byzantine)
        wanted = [selected(each, num, num_byzantine) for each in far.double().tolist()]
        assert [each.nonzero().flatten().tolist() for each in found] == wanted


@needs_kernels
@pytest.mark.parametrize("num_clients", [7, 50, 130])
def test_bulyan_selects_the_same_clients_without_kernels(num_clients, without):
    far = torch.cdist(rows := rows_of(2 * 4, num_clients, 9).double(), rows).square()
    far = far.unflatten(0, (2, 4))
    f = (num_clients - 3) // 4
    given = far, num_clients - 2 * f, f
    assert native.can_work_on(far)
    found = bulyan.select_one_by_one(*given)
    assert found.shape == far.shape[:-1]
    assert torch.equal(found, without(lambda: bulyan.select_one_by_one(*given)))


SPECTRA = {
    "random": lambda points: points,
    "one stands out": lambda points: torch.cat([100 * points[:, :1], points[:, 1:]], dim=1),
    "copies": lambda points: torch.cat([points[:, :1].expand(-1, 3, -1), points[:, 3:]], dim=1),
    "few directions": lambda points: points[..., :2],
    "ever shorter": lambda points: points * torch.logspace(0, -12, points.shape[1])[:, None],
    "one direction": lambda points: points * torch.eye(points.shape[1])[:, :1],
    "nothing": torch.zeros_like,
}


@needs_kernels
@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("num_rows", [3, 4, 8, 9, 17, 33, 50, 130])
def test_the_leading_direction_is_that_of_a_decomposition(num_rows, spectrum, level):
    points = SPECTRA[spectrum](rows_of(4, num_rows, 3 * num_rows).double())
    matrices = points @ points.mT
    matrices /= matrices.abs().amax(dim=(-2, -1), keepdim=True).clamp(min=1e-300)
    start = RandomStream((0, 1, 2, 3)).signed_sizes(num_rows, CPU)
    found = native.leading_projections(matrices.view(2, 2, num_rows, num_rows), start)
    values, vectors = torch.linalg.eigh(matrices)
    top = values[:, -1:].clamp(min=0)
    wanted = top * vectors[..., -1].square()
    assert found.shape == (2, 2, num_rows)
    # The directions of two close values mix: 1e-12 of the residual, divided by their distance.
    gap = (top - values[:, -2:-1]).clamp(min=1e-300)
    allowed = 1e-13 * top + (4e-12 * top * (top / gap)).clamp(max=1e-6)
    assert bool(((found.view_as(wanted) - wanted).abs() <= allowed).all())


@needs_kernels
@pytest.mark.parametrize("num_rows", [100, 200, 400])
def test_a_top_value_just_above_many_others_is_found(num_rows, level):
    """The steps from above are short there: of 400 rows, 60 of them did not reach it."""
    generator = torch.Generator().manual_seed(num_rows)
    axes = torch.linalg.qr(rows_of(1, num_rows, num_rows)[0].double())[0]
    for power in (1.0, 2.16, 3.5):
        near = torch.rand(3 * num_rows // 5, generator=generator, dtype=torch.float64) ** power
        far = 0.44 * torch.rand(num_rows - 1 - len(near), generator=generator, dtype=torch.float64)
        values = torch.cat([torch.ones(1).double(), 1 - 4.4e-5 - 6.8e-4 * near, far])
        matrix = axes * values @ axes.T
        start = RandomStream((num_rows,)).signed_sizes(num_rows, CPU)
        found = native.leading_projections((matrix + matrix.T)[None] / 2, start)[0]
        torch.testing.assert_close(found, axes[:, 0].square(), rtol=0, atol=1e-9)


@needs_kernels
def test_of_equal_values_one_direction_is_taken(level):
    """Any of them is right: the projections are those of a unit vector in their space."""
    axes = torch.linalg.qr(rows_of(1, 20, 20)[0].double())[0]
    values = torch.tensor([1.0] * 3 + [0.4] * 17).double()
    start = RandomStream((0,)).signed_sizes(20, CPU)
    found = native.leading_projections((axes * values @ axes.T)[None], start)[0]
    assert float(found.sum()) == pytest.approx(1, abs=1e-12)
    alone = native.leading_projections(torch.eye(6).double()[None], start[:, :6])[0]
    assert float(alone.sum()) == pytest.approx(1, abs=1e-12)


@needs_kernels
@pytest.mark.parametrize("num_clients", [4, 5, 8, 16])
def test_no_direction_of_small_whole_numbers_is_overlooked(num_clients, level):
    """Numbers that begin alike in every call had no part in some of these directions."""
    points = torch.randint(-1, 2, (2_000, num_clients, 1), generator=torch.Generator()).double()
    points -= points.mean(dim=-2, keepdim=True)
    start = RandomStream(tuple(range(2_000))).signed_sizes(num_clients, CPU)
    found = native.leading_projections(points @ points.mT, start)
    torch.testing.assert_close(found, points.square().squeeze(-1), rtol=1e-10, atol=1e-12)


@needs_kernels
def test_a_direction_can_be_hidden_from_one_start_only(level):
    """Who knows the numbers that are begun with can hide from them; each seed has others."""
    starts = RandomStream((0, 1)).signed_sizes(20, CPU)
    direction = (
        torch.randn(20, generator=torch.Generator().manual_seed(0)).double().sign() / 20**0.5
    )
    # Its diagonal is constant, so that all rows begin with the same weight.
    matrix = 0.5 * torch.outer(direction, direction) + 0.5 * torch.eye(20)
    known = starts[0] - direction * (starts[0] @ direction)
    overlooked, found = native.leading_projections(
        torch.stack([matrix, matrix]), torch.stack([known, starts[1]])
    )
    assert not torch.allclose(overlooked, direction.square())
    torch.testing.assert_close(found, direction.square())


def test_dnc_drops_the_farthest_of_whole_numbers():
    rows = [[0.0], [1.0], [1.0], [1.0], [-2.0], [1.0], [-1.0], [-1.0]]
    for repeats in (1, 1_000):
        verdict = ov.DnC().inspect([row * repeats for row in rows], num_byzantine=1, seed=0)
        assert verdict.dropped == [4]
        wanted = [repeats * row[0] ** 2 for row in rows]
        np.testing.assert_allclose(verdict.scores, wanted, rtol=1e-9, atol=1e-9)


def test_iterations_of_dnc_on_all_coordinates_round_alike():
    """Copies but for rounding: which of them is kept must not differ between iterations."""
    once, twice = ov.DnC(removal_factor=1.5), ov.DnC(removal_factor=1.5, num_iterations=2)
    for seed in range(40):
        rows = np.random.default_rng(seed).normal(size=(5, 4))
        rows[[0, 2]] = rows[4] + 1e-14
        first, both = (rule.inspect(rows, num_byzantine=2, seed=seed) for rule in (once, twice))
        assert both.kept == first.kept
        np.testing.assert_array_equal(both.scores, 2 * first.scores)


@needs_kernels
@pytest.mark.parametrize("spec", ["dnc", "gas(dnc, num_groups=30)", "gas(dnc(removal_factor=2))"])
def test_dnc_keeps_the_same_clients_without_kernels(spec, without):
    rows = rows_of(1, 21, 5_003)[0]
    rows[:4] = rows[4:].mean(dim=0) - 1.5 * rows[4:].std(dim=0)
    rule = ov.make_rule(spec)

    def call():
        return rule.inspect(rows, num_byzantine=4, seed=3)

    found, plain = call(), without(call)
    assert found.kept == plain.kept
    np.testing.assert_allclose(found.scores, plain.scores, rtol=1e-6)


@needs_kernels
def test_matrices_go_through_the_kernels(monkeypatch):
    """Else the tests above compare plain torch with itself."""
    calls = []
    for name in ("leading_projections", "select_one_by_one", "nearest"):
        work = getattr(native, name)
        monkeypatch.setattr(
            native, name, lambda *given, name=name, work=work: calls.append(name) or work(*given)
        )
    rows = rows_of(1, 21, 5_003)[0]
    for spec in ("gas(dnc, num_groups=3)", "gas(bulyan, num_groups=3)", "meamed"):
        ov.make_rule(spec)(rows, num_byzantine=4)
    assert list(dict.fromkeys(calls)) == ["leading_projections", "select_one_by_one", "nearest"]


@needs_kernels
def test_what_the_kernel_sorts():
    values = np.zeros((100, 64), np.float32)
    assert native.can_sort(values)
    others = {
        "float64": values.astype(np.float64),
        "more clients": np.zeros((100, 65), np.float32),
        "one client": values[:, :1],
        "few coordinates": values[:63],
        "every second client": values[:, ::2],
        "uneven groups": np.zeros((4, 70, 5), np.float32)[:, :66],
        "one row": values[0],
    }
    assert [name for name, source in others.items() if native.can_sort(source)] == []


@needs_kernels
def test_each_run_of_a_stack_is_sorted_by_the_kernel(monkeypatch):
    calls = []
    sort = native.sort
    monkeypatch.setattr(native, "sort", lambda *given: calls.append(1) or sort(*given))
    columns = rows_of(3, 11, 5_003).mT
    found = order_statistics.sort_clients(columns)
    assert torch.equal(found, columns.sort(dim=-1).values)
    assert len(calls) >= 3
    calls.clear()
    order_statistics.sort_clients(columns[:1])
    assert calls


@needs_kernels
@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "meamed", "bulyan", "gas(median)"])
def test_coordinate_wise_rules_have_the_same_values_without_kernels(rule, without):
    rows = rows_of(1, 21, 5_003)[0]
    rows[:3] = rows[3]
    built = ov.make_rule(rule)

    def call():
        return built.inspect(rows, num_byzantine=4, seed=0)

    found, plain = call(), without(call)
    torch.testing.assert_close(found.update, plain.update, rtol=1e-6, atol=1e-6)
    if rule not in ("meamed", "bulyan"):  # Their means are added up in float64 by the kernel.
        assert torch.equal(found.update, plain.update)
    np.testing.assert_array_equal(found.weights, plain.weights)


RULES = ["multi-krum", "krum", "bulyan", "median", "rfa(num_iterations=3)", "dnc", "rbtm"]


@needs_kernels
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("num_clients", [5, 9, 10, 23])
@pytest.mark.parametrize("split", ["balanced", "ceil"])
def test_gas_keeps_the_same_clients_without_kernels(rule, num_clients, split, without):
    rows = rows_of(1, num_clients, 12_007)[0]
    gas = ov.make_rule(f"gas({rule}, num_groups=70, split={split})")

    def call():
        return gas.inspect(rows, num_byzantine=1, seed=4)

    found, plain = call(), without(call)
    assert found.kept == plain.kept
    np.testing.assert_allclose(found.scores, plain.scores, rtol=1e-5)
    assert torch.equal(found.update, plain.update)


@needs_kernels
@pytest.mark.parametrize("rule", ["rfa", "mean", "nnm(rfa)", "geometric-median", "multi-krum"])
def test_a_long_client_takes_no_digits_from_the_others(rule, without):
    """Distances of float32 to a client a hundred million times as long hide those of the others."""
    gas = ov.make_rule(f"gas({rule}, num_groups=40)")
    for seed in range(3):
        rows = 0.01 * rows_of(1, 9, 20_000, seed)[0]
        rows[-2] *= 1.03
        rows[-1] *= 1e8

        def call(given, seed=seed):
            return gas.inspect(given, num_byzantine=2, seed=seed)

        found, exact = call(rows), call(rows.double())
        assert found.kept == exact.kept == without(lambda rows=rows: call(rows)).kept
        np.testing.assert_allclose(found.scores, exact.scores, rtol=3e-6)


@needs_kernels
def test_threads_that_want_values_wait_for_one_copy(monkeypatch):
    calls = []
    work = native.scattered
    monkeypatch.setattr(native, "scattered", lambda *given: calls.append(1) or work(*given))
    rows = rows_of(1, 9, 60_000).expand(8, -1, -1).clone()
    rows[:, 1] = rows[:, 0] + 1e-3 * rows[:, 1]
    rows[:, :2] *= 0.9
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        rule = ov.make_rule("gas(krum, num_groups=1000)")
        aggregate(rule, rows, num_byzantine=[2] * 8, seeds=range(8))
    finally:
        torch.set_num_threads(threads)
    assert calls == [1]


@needs_kernels
@pytest.mark.parametrize("scale", [1e38, 1e19, 1e-19, 1e-38, 0.0])
@pytest.mark.parametrize("num_clients", [4, 12])
def test_huge_and_tiny_values_give_what_plain_torch_gives(scale, num_clients, without):
    rows = rows_of(1, num_clients, 12_007)[0].clamp(-3, 3) / 3 * scale
    gas = ov.make_rule("gas(multi-krum, num_groups=70)")

    def call():
        return gas.inspect(rows, num_byzantine=1, seed=4)

    found, plain = call(), without(call)
    assert found.kept == plain.kept
    np.testing.assert_allclose(found.scores, plain.scores, rtol=1e-5)
    assert bool(found.update.isfinite().all())


@needs_kernels
def test_colluding_and_rejected_clients_are_treated_as_without_kernels(without):
    rows = rows_of(1, 14, 12_007)[0]
    rows[:3] = rows[3:].mean(0) * (1 + 1e-6 * torch.arange(3).unsqueeze(1))
    rows[5, 100] = torch.nan
    gas = ov.make_rule("gas(multi-krum, num_groups=70)")

    def call():
        return gas.inspect(rows, num_byzantine=3, seed=4)

    found, plain = call(), without(call)
    assert found.rejected == plain.rejected == [5]
    assert found.kept == plain.kept
    np.testing.assert_allclose(found.scores, plain.scores, rtol=1e-5)


@needs_kernels
def test_gas_reads_through_the_kernels(monkeypatch):
    """Else the tests above compare plain torch with itself."""
    calls = []

    def counted(name):
        work = getattr(native, name)
        monkeypatch.setattr(native, name, lambda *given: calls.append(name) or work(*given))

    for name in ("scattered", "products", "pair_sums"):
        counted(name)
    gas = ov.make_rule("gas(multi-krum, num_groups=70)")
    gas(rows_of(1, 5, 12_007)[0], num_byzantine=1)
    assert calls == ["pair_sums"]
    calls.clear()
    gas(rows_of(1, 12, 12_007)[0], num_byzantine=1)
    assert calls[0] == "scattered"
    assert set(calls[1:]) == {"products"}


@needs_kernels
@pytest.mark.parametrize(
    "rows",
    [
        rows_of(1, 9, 9_000).double(),
        rows_of(1, 9, 9_000).bfloat16(),
        rows_of(1, 9_000, 9).mT,
        rows_of(1, 9, 9_000)[0],
    ],
    ids=["float64", "bfloat16", "clients last", "one matrix"],
)
def test_other_rows_are_left_to_torch(rows):
    assert not native.can_read(rows, [draw_order(9_000, 0)])


@needs_kernels
def test_what_kernels_take():
    rows = rows_of(1, 9, 9_000)
    assert native.can_read(rows, [KeyedOrder.draw(9_000, 0)])
    assert not native.can_read(rows, [SortedOrder.draw(9_000, 0)])
    assert not native.can_read(rows, [])
    sizes = {
        n: native.can_scatter(rows_of(1, n, 9_000), [draw_order(9_000, 0)]) for n in range(1, 40)
    }
    assert [n for n, may in sizes.items() if not may] == list(range(1, 8))


@needs_kernels
@pytest.mark.parametrize("num_clients", [5, 12])
def test_threads_may_draw_one_order_at_once(num_clients):
    rows, gas = rows_of(1, num_clients, 300_007)[0], ov.make_rule("gas(krum, num_groups=70)")
    seeds = [seed for seed in range(10) for _ in range(4)]

    def call(seed):
        return gas.inspect(rows, num_byzantine=1, seed=seed).scores

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(call, seeds))
    for seed, scores in zip(seeds, together, strict=True):
        np.testing.assert_array_equal(scores, together[4 * seed])


@needs_kernels
def test_a_table_lasts_as_long_as_what_reads_it():
    order = KeyedOrder.draw(9_000, 0)
    given = native._Given.of(order)
    before = given.table.clone()
    del order.__dict__["table"]
    rubbish = [torch.full_like(before, -1) for _ in range(50)]  # Kept: it would take its place.
    assert given.arguments[-1] == given.table.data_ptr()
    assert torch.equal(given.table, before)
    del rubbish


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_the_default_dtype_of_the_caller_does_not_matter(dtype):
    rows, gas = rows_of(1, 12, 12_007)[0], ov.make_rule("gas(multi-krum, num_groups=70)")
    plain = gas.inspect(rows, num_byzantine=2, seed=0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        found = gas.inspect(rows, num_byzantine=2, seed=0)
    finally:
        torch.set_default_dtype(before)
    np.testing.assert_array_equal(found.scores, plain.scores)
    assert torch.equal(found.update, plain.update)


def test_few_groups_and_short_ones_are_not_added_up_by_the_kernel():
    matrix = ClientMatrix.from_rows(rows_of(1, 5, 9_000))
    info = RoundInfo(num_byzantine=1, stream=RandomStream((0,)))
    found = {
        p: group_distances.squared_distances(matrix, Groups.of(matrix, "balanced", p, info).split)
        for p in (15, 16, 281, 282)
    }
    known = [p for p, each in found.items() if each is not None]
    assert known == ([16, 281] if LEVELS else [])


class TestLoading:
    """A library is used only if it is whole, of this machine and of this version."""

    @pytest.fixture(autouse=True)
    def _fresh(self):
        native.level.cache_clear()
        native._open.cache_clear()
        yield
        native.level.cache_clear()
        native._open.cache_clear()

    @needs_kernels
    def test_a_library_of_another_source_is_not_used(self, tmp_path, monkeypatch):
        for path in native.FOLDER.glob("native.*.so"):
            shutil.copy(path, tmp_path)
        text = (native.FOLDER / "native.c").read_text()
        monkeypatch.setattr(native, "FOLDER", tmp_path)
        (tmp_path / "native.c").write_text(text)
        assert native.level() == LEVELS[-1]
        native.level.cache_clear()
        native._open.cache_clear()
        (tmp_path / "native.c").write_text(text + "\n")
        assert native.level() is None

    def test_without_libraries_torch_does_it(self, tmp_path, monkeypatch):
        monkeypatch.setattr(native, "FOLDER", tmp_path)
        assert native.level() is None
        (tmp_path / "native.c").write_text("")
        (tmp_path / "native.0.so").write_bytes(b"no library")
        native._open.cache_clear()
        native.level.cache_clear()
        assert native.level() is None

    def test_a_variable_switches_them_off(self, monkeypatch):
        monkeypatch.setenv("OUTVOTE_NATIVE", "0")
        assert native.level() is None


def compiler_of(content, folder):
    """Return a program that is called as a compiler, and always makes the same file."""
    result, found = folder / "result", folder / "cc"
    result.write_bytes(content)
    found.write_text(f'#!/bin/sh\nfor last; do :; done\ncat "{result}" > "$last"\n')
    found.chmod(0o700)
    return found


class TestBuilding:
    """hatch_build.py, with what it is built on replaced."""

    @pytest.fixture
    def hook(self, monkeypatch):
        tags = ModuleType("packaging.tags")
        tags.platform_tags = lambda: ["manylinux_2_36_x86_64", "linux_x86_64"]
        monkeypatch.setitem(sys.modules, "packaging.tags", tags)
        names = ["hatchling", "builders", "hooks", "plugin", "interface"]
        for k in range(len(names)):
            module = ModuleType(".".join(names[: k + 1]))
            module.BuildHookInterface = object
            monkeypatch.setitem(sys.modules, module.__name__, module)
        spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setattr(module, "LEVELS", {"0": ()})
        monkeypatch.delenv("CC", raising=False)
        return module

    @pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
    def test_a_library_is_built_and_old_ones_go(self, hook, tmp_path):
        (tmp_path / "native.9.so").touch()
        warnings = []
        (built,) = hook.build(native.FOLDER / "native.c", tmp_path, warnings.append)
        assert [path.name for path in tmp_path.iterdir()] == [built.name] == ["native.0.so"]
        assert warnings == []
        assert ctypes.CDLL(str(built)).outvote_level() >= 0

    def test_without_a_compiler_it_warns(self, hook, tmp_path, monkeypatch):
        monkeypatch.setattr(hook.shutil, "which", lambda _: None)
        (tmp_path / "native.0.so").touch()
        warnings = []
        assert hook.build(native.FOLDER / "native.c", tmp_path, warnings.append) == []
        assert "no C compiler" in warnings[0]
        # Another installation of the same folder may use it.
        assert [path.name for path in tmp_path.iterdir()] == ["native.0.so"]

    @pytest.mark.parametrize("status", [0, 1])
    def test_output_of_a_compiler_may_be_of_any_encoding(self, hook, tmp_path, monkeypatch, status):
        compiler = tmp_path / "with a space" / "cc"
        compiler.parent.mkdir()
        compiler.write_text(f"#!/bin/sh\nprintf 'error: \\253' >&2\nexit {status}\n")
        compiler.chmod(0o700)
        monkeypatch.setattr(hook.shutil, "which", lambda _: str(compiler))
        monkeypatch.delenv("CC", raising=False)
        warnings = []
        assert hook.build(native.FOLDER / "native.c", tmp_path, warnings.append) == []
        assert ("error: \ufffd" if status else "No such file") in warnings[0]

    def test_what_cannot_be_written_is_no_error(self, hook, tmp_path, monkeypatch):
        def refuse(*_, **__):
            raise OSError(30, "Read-only file system")

        (tmp_path / "native.9.so").touch()
        monkeypatch.setattr(hook.Path, "unlink", refuse)
        monkeypatch.setattr(hook.Path, "replace", refuse)
        warnings = []
        assert hook.build(native.FOLDER / "native.c", tmp_path, warnings.append) == []
        if shutil.which("cc"):
            assert "Read-only file system" in warnings[0]

    def test_without_the_source_it_warns(self, hook, tmp_path):
        warnings = []
        assert hook.build(tmp_path / "native.c", tmp_path, warnings.append) == []
        if shutil.which("cc"):
            assert "No such file" in warnings[0]

    def test_a_library_for_another_processor_is_not_taken(self, hook, tmp_path, monkeypatch):
        folder = tmp_path / "kernels"
        folder.mkdir()
        working = [folder / f"native.{level}.so" for level in ("0", "3")]
        for path in working:
            path.write_text("of an installation that works")
        monkeypatch.setenv("CC", str(compiler_of(b"other", tmp_path)))
        warnings = []
        assert hook.build(native.FOLDER / "native.c", folder, warnings.append) == []
        assert "level 0" in warnings[0]
        assert sorted(folder.iterdir()) == working
        assert all(path.read_text() == "of an installation that works" for path in working)

    @pytest.mark.skipif(not hasattr(os, "ST_NOEXEC"), reason="of Linux")
    def test_where_nothing_is_executed_a_library_is_taken_as_it_is(
        self, hook, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(hook, "LEVELS", {"0": ()})
        monkeypatch.setenv("CC", str(compiler_of(b"other", tmp_path)))
        flags = SimpleNamespace(f_flag=os.ST_NOEXEC)
        monkeypatch.setattr(hook.os, "statvfs", lambda _: flags)
        (library,) = hook.build(native.FOLDER / "native.c", tmp_path, pytest.fail)
        assert library.read_bytes() == b"other"

    @pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
    def test_the_warning_is_the_error_of_the_compiler(self, hook, tmp_path):
        (tmp_path / "native.c").write_text("void f(void) {\n    g();\n    return 1 +;\n}\n")
        warnings = []
        assert hook.build(tmp_path / "native.c", tmp_path, warnings.append) == []
        assert "error: expected expression" in warnings[0]

    def test_a_variable_that_is_no_command_is_no_error(self, hook, tmp_path, monkeypatch):
        monkeypatch.setenv("CC", "gcc '")
        warnings = []
        assert hook.build(native.FOLDER / "native.c", tmp_path, warnings.append) == []
        assert 'CC is not a command, got "gcc \'"' in warnings[0]

    @pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
    def test_without_the_lowest_level_no_other_is_built(self, hook, tmp_path, monkeypatch):
        monkeypatch.setattr(hook, "LEVELS", {"3": (), "0": ("-no-such-flag",)})
        monkeypatch.setattr(hook.platform, "machine", lambda: "x86_64")
        warnings = []
        assert hook.build(native.FOLDER / "native.c", tmp_path, warnings.append) == []
        assert "level 0" in warnings[0]
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("compiler", ["false", "/no/such/program"])
    def test_a_compiler_that_fails_is_no_error(self, hook, compiler, tmp_path, monkeypatch):
        monkeypatch.setenv("CC", compiler)
        warnings = []
        assert hook.build(native.FOLDER / "native.c", tmp_path, warnings.append) == []
        assert "level 0" in warnings[0]
        assert list(tmp_path.iterdir()) == []


def test_the_numbers_of_the_two_languages_are_the_same():
    """What Python allocates is what C writes to."""
    text = (native.FOLDER / "native.c").read_text()
    for name in ("LINE", "HALF", "FOUR", "MOST_COPIED", "SQUARED", "GAP", "CENTRED", "SORTED"):
        assert f"    {name} = {getattr(native, name)},\n" in text, name
    assert "    NUM_ROUNDS = 6,\n" in text
    assert NUM_ROUNDS == 6
