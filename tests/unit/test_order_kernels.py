"""Kernels for order statistics and n x n matrices against plain torch.

They run on a GPU (OUTVOTE_TEST_DEVICE=cuda), or with TRITON_INTERPRET=1 on a CPU.
"""

import os
from importlib import import_module
from math import fsum
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import outvote as ov
from outvote.ops import client_kernels, distances, matrix_kernels, order_kernels, order_statistics
from outvote.rules import bulyan
from outvote.seeding import RandomStream

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # Of numpy, in the interpreter.
# Triton's interpreter takes minutes for every number of Byzantine clients of more clients.
ON_GPU, FEW = os.environ.get("OUTVOTE_TEST_DEVICE", "cpu") != "cpu", 20
KINDS = ("random", "tied", "copied", "huge", "tiny")
TOLERANCE = {"huge": 1e33, "tiny": 3e-45}
MODULES = (
    "bulyan",
    "clients",
    "gram",
    "groups",
    "leading",
    "order",
    "rows",
    "shifts",
)
"""Those whose kernels rules use."""


@pytest.fixture(autouse=True)
def _has_kernels(device: torch.device) -> None:
    if not order_kernels.can_select(torch.zeros(2, 2, device=device)):
        pytest.skip("no kernels: needs a GPU, or TRITON_INTERPRET=1, and triton")


def in_torch(function, *given):
    """Call a function as if there were no kernels."""
    nothing = mock.Mock(return_value=False)
    with (
        mock.patch.object(order_kernels, "can_select", nothing),
        mock.patch.object(order_kernels, "can_count", nothing),
        mock.patch.object(matrix_kernels, "can_work_on", nothing),
        mock.patch.object(client_kernels, "can_average", nothing),
        mock.patch.object(client_kernels, "can_measure", nothing),
    ):
        return function(*given)


def made(kind: str, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(len(kind))
    values = torch.randn(shape, generator=generator)
    if kind == "tied":
        return (values * 2).round()
    if kind == "copied":
        values[:, : shape[1] // 2] = values[:, :1]
    if kind == "huge":
        steps = torch.randint(5, 11, shape, generator=generator) / 10
        return values.sign() * steps * 3.4e38
    return (values * 8).round() * 1e-45 if kind == "tiny" else values


def some_f(num_clients: int) -> list[int]:
    most = (num_clients - 1) // 2
    return sorted({0, min(1, most), num_clients // 5, most})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_clients", [2, 3, 18, 20, 50, 128, 129, 1000])
def test_ranks_and_nearest_values_are_those_of_a_sort(num_clients, kind, device):
    rows = made(kind, 2, num_clients, 11).to(device)
    close = {"rtol": 2e-6, "atol": TOLERANCE.get(kind, 1e-6)}
    f_values = some_f(num_clients) if num_clients < 100 else some_f(num_clients)[2:3]
    for k, f in enumerate(f_values):
        columns = rows.mT if k % 2 == 0 else rows.mT.contiguous()
        even = ("mean", "lower")[k // 2 % 2]
        left = num_clients - f
        for function, given in (
            (order_statistics.mean_of_ranks, (f, left)),
            (order_statistics.values_at_ranks, (f, left)),
            (order_statistics.mean_nearest_median, (left, even)),
            (order_statistics.bounds_nearest_median, (left, even)),
        ):
            found, wanted = function(columns, *given), in_torch(function, columns, *given)
            if isinstance(found, tuple):
                assert torch.equal(found[0], wanted[0])
                assert torch.equal(found[1], wanted[1])
            else:
                torch.testing.assert_close(found, wanted, **close)


@pytest.mark.parametrize("kind", ["random", "tied"])
@pytest.mark.parametrize("num_clients", [9, 40])
def test_nearest_values_of_some_clients_are_read_where_they_lie(kind, num_clients, device):
    values = made(kind, 2, 3, 5, num_clients).to(device)
    num = num_clients - 3
    among = some_clients(num, 2, 3, num_clients).to(device)
    among = order_statistics.Among(among, num)
    for columns in (values, values[:, :, :, :], values.mT.contiguous().mT):
        for function in (
            order_statistics.mean_nearest_median,
            order_statistics.bounds_nearest_median,
        ):
            found = function(columns, num - 2, "mean", among)
            wanted = in_torch(function, columns, num - 2, "mean", among)
            torch.testing.assert_close(found, wanted, rtol=2e-6, atol=1e-6)


def some_clients(num: int, *shape: int) -> Tensor:
    """Mark `num` clients of every matrix."""
    scores = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    return torch.zeros(shape, dtype=torch.bool).scatter_(-1, scores.topk(num).indices, value=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_clients", [2, 5, 18, 20, 21, 200])
def test_shares_are_counted_in_the_same_pass(num_clients, kind, device):
    rows = made(kind, 2, num_clients, 140 if num_clients < 100 else 20).to(device)
    close = {"rtol": 2e-6, "atol": TOLERANCE.get(kind, 1e-6)}
    for f in some_f(num_clients)[1:] or [0]:
        left = num_clients - f
        num = max(1, num_clients - 1)
        among = order_statistics.Among(some_clients(num, 2, num_clients).to(device), num)
        for function, given in (
            (order_statistics.mean_of_ranks_and_shares, (f, left)),
            (order_statistics.mean_nearest_median_and_shares, (left,)),
            (order_statistics.mean_nearest_median_and_shares, (max(1, num - f), "lower", among)),
        ):
            found = function(rows.mT, *given)
            wanted = in_torch(function, rows.mT, *given)
            torch.testing.assert_close(found[0], wanted[0], **close)
            assert torch.equal(found[1], wanted[1])


def points(kind: str, num_matrices: int, num_clients: int) -> Tensor:
    generator = torch.Generator().manual_seed(num_clients)
    found = torch.randn(num_matrices, num_clients, 30, generator=generator, dtype=torch.float64)
    if kind == "tied":
        return found[..., :3].round()
    if kind == "copied":
        found[:, 2 : num_clients // 2 + 1] = found[:, :1]
    if kind == "of many sizes":
        found *= torch.logspace(0, 14, num_clients, dtype=torch.float64).unsqueeze(-1)
    return found * 0 + 1 if kind == "equal" else found


@pytest.mark.parametrize("kind", ["random", "tied", "copied", "of many sizes", "equal"])
@pytest.mark.parametrize("num_clients", [7, 11, 20, 50, 65, 128, 130])
def test_bulyan_selects_whom_exact_sums_in_every_step_select(num_clients, kind, device):
    values = points(kind, 2, num_clients).to(device)
    far = (values.unsqueeze(-2) - values.unsqueeze(-3)).square().sum(dim=-1)
    most = (num_clients - 3) // 4
    for f in range(1 if ON_GPU or num_clients <= FEW else most, most + 1):
        num_selected = num_clients - 2 * f
        found = bulyan.select_one_by_one(far, num_selected, f)
        assert found.tolist() == [selected(own, num_selected, f) for own in far.tolist()]


def selected(far: list[list[float]], num_selected: int, f: int) -> list[bool]:
    """Return whom Krum selects again and again; copies have the same sum, to the last bit."""
    left = list(range(len(far)))
    for _ in range(num_selected):
        num_near = max(1, len(left) - f - 2)
        sums = [fsum(sorted(far[k][j] for j in left if j != k)[:num_near]) for k in left]
        left.pop(sums.index(min(sums)))
    return [k not in left for k in range(len(far))]


@pytest.mark.parametrize("kind", ["random", "tied", "equal", "infinite"])
@pytest.mark.parametrize("num_clients", [2, 5, 50, 64, 65, 128])
def test_the_others_of_a_client_are_in_the_order_of_their_distances(num_clients, kind, device):
    values = points(kind, 3, num_clients).to(device)
    far = (values.unsqueeze(-2) - values.unsqueeze(-3)).square().sum(dim=-1)
    if kind == "infinite":
        far[:, 0, 1:] = far[:, 1:, 0] = torch.inf
    order = torch.empty(far.shape, dtype=torch.uint8, device=device)
    matrix_kernels._bulyan().order(far, order)
    # The last bits of a distance hold the number of a client.
    kept = far.view(torch.int64) & -(1 << (num_clients - 1).bit_length())
    kept.diagonal(dim1=-2, dim2=-1).fill_(torch.iinfo(torch.int64).max)
    assert torch.equal(order.long(), kept.argsort(dim=-1, stable=True))


@pytest.mark.parametrize("kind", ["random", "tied", "copied", "of many sizes", "equal"])
@pytest.mark.parametrize("num_clients", [2, 3, 20, 70])
def test_the_leading_direction_is_that_of_a_decomposition(num_clients, kind, device):
    values = points(kind, 2 if num_clients < 30 else 1, num_clients).to(device)
    values = values - values.mean(dim=-2, keepdim=True)
    matrices = values @ values.mT
    matrices = matrices / matrices.abs().amax(dim=(-2, -1), keepdim=True).clamp(min=1e-300)
    matrices = (matrices + matrices.mT) / 2
    found = distances.leading_projections(matrices, matrices.new_ones(1), RandomStream((0,)))
    eigenvalues, vectors = torch.linalg.eigh(matrices)
    wanted = eigenvalues[..., -1:].clamp(min=0) * vectors[..., -1].square()
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("num_clients", [4, 8, 16])
def test_no_direction_of_small_whole_numbers_is_overlooked(num_clients, device):
    """Numbers that begin alike in every call had no part in some of these directions."""
    generator = torch.Generator().manual_seed(7)
    points = torch.randint(-1, 2, (60, num_clients, 1), generator=generator).double().to(device)
    points = points - points.mean(dim=-2, keepdim=True)
    matrices = (points @ points.mT).unsqueeze(0)
    found = distances.leading_projections(matrices, matrices.new_ones(1), RandomStream((0,)))
    wanted = points.square().squeeze(-1).unsqueeze(0)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_directions_that_are_found_early_stay_as_they_are(device):
    """Two matrices at once: one needs all steps, and one, of rank 1, a single step."""
    generator = torch.Generator().manual_seed(5)
    values = torch.randn(2, 12, 40, generator=generator, dtype=torch.float64)
    values[1] = values[1, :, :1]
    matrices = (values @ values.mT).to(device)
    matrices = matrices / matrices.abs().amax(dim=(-2, -1), keepdim=True)
    with mock.patch.object(matrix_kernels, "STEPS_AT_ONCE", 3):
        start = RandomStream((0, 1)).signed_sizes(12, device)
        found = matrix_kernels.leading_projections(matrices, start)
    eigenvalues, vectors = torch.linalg.eigh(matrices)
    wanted = eigenvalues[..., -1:] * vectors[..., -1].square()
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("num_clients", [5, 70, 130])
def test_distances_to_an_average_for_any_number_of_clients(num_clients, device):
    generator = torch.Generator().manual_seed(6)
    columns = torch.randn(1, 2, 200, num_clients, generator=generator).to(device)
    products = columns.mT @ columns
    weights = torch.rand(1, 2, num_clients, generator=generator, dtype=torch.float64).to(device)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    given = products, weights, lambda: columns, torch.float32
    found = distances.squared_distances_to_average(*given)
    wanted = in_torch(distances.squared_distances_to_average, *given)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    far = distances.squared_distances(products, lambda: columns, torch.float32)
    wanted = in_torch(distances.squared_distances, products, lambda: columns, torch.float32)
    torch.testing.assert_close(far.double(), wanted.double(), rtol=1e-4, atol=1e-4)


def test_copies_of_the_one_client_that_is_the_average_are_exactly_there(device):
    generator = torch.Generator().manual_seed(7)
    columns = torch.randn(2, 3, 200, 6, generator=generator).to(device)
    columns[0, ..., 4] = columns[0, ..., 1]
    originals = torch.tensor([[0, 1, 2, 3, 1, 5], [0, 1, 2, 3, 4, 5]], device=device)
    weights = torch.zeros(2, 3, 6, dtype=torch.float64, device=device)
    weights[..., 1] = 1
    weights[1, 2] = 1 / 6
    given = columns.mT @ columns, weights, lambda: columns, torch.float32, originals
    check = distances.CancellationCheck(device)
    found = distances.squared_distances_to_average(*given, check)
    wanted = in_torch(distances.squared_distances_to_average, *given)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert found[0, :, [1, 4]].eq(0).all()
    if distances.client_kernels.can_average(given[0]):  # Nothing is to be redone.
        assert not check.has_failed()


def test_another_number_of_byzantine_clients_compiles_nothing(device):
    if device.type != "cuda":
        pytest.skip("kernels are compiled for a GPU only")
    rules = [ov.make_rule(name) for name in ("median", "trimmed-mean", "meamed", "krum", "dnc")]
    rules += [ov.MultiKrum(), ov.Bulyan()]
    # Groups of 400 coordinates, and of 10: the clients of narrow ones are compared one by one.
    rules += [ov.GAS(rule, num_groups=number) for number in (10, 400) for rule in rules]
    rows = torch.randn(18, 4000, generator=torch.Generator().manual_seed(7))
    colluding = rows.clone()
    colluding[1:4] = colluding[0]
    after = []
    for f in (1, 2, 3, 16):
        for matrix in (rows.to(device), colluding.to(device)):
            for rule in rules:
                rule.inspect(matrix, num_byzantine=f, seed=0, when_too_many="lower")
        after.append(num_compiled())
    assert after[0] > 0
    assert after[1:] == after[:1] * 3


def test_the_kernels_of_all_modules_of_rules_are_counted():
    modules = {kernel.fn.__module__ for kernel in kernels_of_rules()}
    assert modules == {f"outvote.ops.triton.{name}" for name in MODULES}


def num_compiled() -> int:
    """Return how many variants of the kernels of rules are compiled."""
    caches = [getattr(kernel, "device_caches", {}) for kernel in kernels_of_rules()]
    return sum(len(of_device[0]) for cache in caches for of_device in cache.values())


def kernels_of_rules() -> list[Any]:
    """Return the kernels of all modules, those that only kernels call among them."""
    modules = [import_module(f"outvote.ops.triton.{name}") for name in MODULES]
    found = [value for module in modules for value in vars(module).values()]
    return list({id(kernel): kernel for kernel in found if hasattr(kernel, "fn")}.values())


@pytest.mark.parametrize("num_values", [4, 8, 20])
def test_a_network_in_assembly_sorts(num_values):
    text, operands = order_kernels._kernels().network(num_values)
    assert operands.count("f") == 2 * num_values
    given = torch.randn(num_values, generator=torch.Generator().manual_seed(8)).tolist()
    held = {f"${num_values + k}": value for k, value in enumerate(given)}
    work = {"mov.f32": lambda x: x, "min.f32": min, "max.f32": max}
    for line in text.strip("{ }").split(";"):
        name, *rest = line.replace(",", " ").split() or ["."]
        if name in work:
            held[rest[0]] = work[name](*(held[key] for key in rest[1:]))
    assert [held[f"${k}"] for k in range(num_values)] == sorted(given)
