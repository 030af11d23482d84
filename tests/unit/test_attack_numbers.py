"""Attacks where floating point is at its limits: huge factors, half precision, large means."""

import numpy as np
import pytest
import torch

import outvote as ov
from outvote.attacks.context import AttackContext
from outvote.attacks.run_attack import run_attack
from outvote.ops.moments import PIECE, inner_products
from outvote.ops.process import fresh
from outvote.seeding import RandomStream

H = np.random.default_rng(3).normal(size=(8, 6)) + 1
HALVES = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize(
    ("attack", "size"),
    [
        (ov.MinMax(direction="sign", method="search", gamma_init=1e13), 1e12),
        (ov.MinSum(direction="sign", method="search", gamma_init=1e13), 1e12),
        (ov.MinMax(direction="unit-mean", method="search", gamma_init=1e6, tolerance=1e-12), 1e5),
    ],
)
def test_the_search_for_gamma_ends_where_steps_are_lost_in_rounding(attack, size):
    found = attack.inspect(H * size, num_byzantine=1)
    closed = type(attack)(direction=attack.direction, max_gamma=1e300)
    assert found.factor == pytest.approx(closed.inspect(H * size, num_byzantine=1).factor, rel=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "attack",
    [
        ov.LIE(z=1e39),
        ov.LIE(z=-1e300),
        ov.IPM(epsilon=1e39),
        ov.Fang(stretch=1e39),
        ov.Gaussian(sigma=1e39),
        ov.MinMax(max_gamma=1e300),
        ov.MinSum(max_gamma=1e300, direction="sign"),
        ov.OptimalIPM(max_factor=1e300, evals=200),
        ov.OptimalLIE(max_factor=1e300, evals=200),
    ],
)
def test_huge_parameters_send_no_nan(attack, dtype):
    honest = np.array([[1.0, 0, -1, 2], [-1, 0, 3, 2]], dtype=dtype)
    for rows in (honest, 0 * honest):
        sent = attack(rows, num_byzantine=2, rule=ov.Mean(), seed=0)
        assert np.isfinite(sent).all()


@pytest.mark.parametrize("size", [1e150, 1e200, 1e300, 1.7e308])
@pytest.mark.parametrize("num_honest", [1, 2, 5])
def test_fang_ends_on_clients_whose_squares_are_infinite(num_honest, size):
    honest = H[:num_honest] / np.abs(H).max() * size
    sent = ov.Fang(target="krum").inspect(honest, num_byzantine=1).rows
    assert np.isfinite(sent).all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("attack", [ov.IPM(), ov.IPM(evals=4), ov.OptimalIPM(evals=3)])
def test_searches_do_not_give_up_in_half_precision(attack, dtype):
    honest = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 50)) * 0.1 + 1).to(dtype)
    info = {"num_byzantine": 1, "rule": ov.Mean(), "seed": 0}
    found = attack.inspect(honest, **info)
    wide = attack.inspect(honest.float(), **info)
    assert found.factor == wide.factor > 0
    mask = torch.arange(61).unsqueeze(0) < 1
    rows = torch.cat([honest[:1], honest]).unsqueeze(0)

    def defence(gradients, seeds):
        return ov.Mean()(gradients[0], seed=seeds[0]).unsqueeze(0), None

    sent, output = run_attack(attack, rows, mask, seeds=[0], defence=defence)
    assert sent.dtype == dtype
    assert float(output.factor[0]) == wide.factor


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64])
def test_a_tie_is_a_tie_in_every_precision(dtype):
    honest = torch.from_numpy(np.random.default_rng(0).normal(size=(20, 50)) * 0.1 + 1).to(dtype)
    found = ov.IPM().inspect(honest, num_byzantine=2, rule=ov.MultiKrum(), seed=0)
    assert found.factor == 0


def test_named_gradients_in_half_precision_are_searched_as_well():
    rows = np.random.default_rng(0).normal(size=(60, 50)) * 0.1 + 1
    named = [{"w": torch.from_numpy(row).to(torch.bfloat16)} for row in rows]
    found = ov.IPM().inspect(named, num_byzantine=1, rule=ov.Mean(), seed=0)
    assert found.factor == 1
    assert found.rows[0]["w"].dtype == torch.bfloat16


def sums(rows, honest):
    return ((rows[:, None] - honest[None]) ** 2).sum(axis=(1, 2))


@pytest.mark.parametrize("limit", ["min", "max"])
def test_min_sum_keeps_its_constraint_far_from_the_origin(limit):
    random = np.random.default_rng(0)
    for _ in range(20):
        away = random.normal(size=(40, 24)) * 10 ** random.uniform(-1, 1, size=(40, 1))
        honest = (2e6 * random.normal(size=24) + away).astype(np.float32)
        row = ov.MinSum(limit=limit)(honest, num_byzantine=1).astype(float)
        wide = honest.astype(float)
        allowed = getattr(sums(wide, wide), limit)()
        assert sums(row, wide)[0] <= allowed * (1 + 1e-12)


@pytest.mark.parametrize(("dtype", "share"), [(torch.float16, 0.97), (torch.bfloat16, 0.8)])
def test_half_precision_takes_no_more_than_its_rounding_from_the_reach(dtype, share):
    random = np.random.default_rng(1)
    values = random.normal(size=(10, 2000))
    largest = max(np.linalg.norm(a - b) for a in values for b in values)
    centre = random.normal(size=2000)
    centre *= 32 * largest / np.linalg.norm(centre)
    honest = torch.from_numpy(centre + values).to(dtype)
    sent = ov.MinMax(max_gamma=1e6)(honest, num_byzantine=1)[0].double()
    wide = honest.double()
    reach = torch.cdist(wide, wide).max()
    used = (wide - sent).norm(dim=1).max() / reach
    assert share < used <= 1


@pytest.mark.parametrize("num_rows", [3, 16, 17, 39, 40, 45, 50, 64, 90])
def test_products_of_halves_are_the_products(num_rows):
    values = torch.randn(1, num_rows, 30, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(inner_products(values), values @ values.mT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distances_are_the_same_in_pieces(dtype):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2, 3, 2 * PIECE + 5, generator=generator).to(dtype)
    context = AttackContext(gradients=rows, num_byzantine=(1, 1), stream=RandomStream((0, 1)))
    updates = torch.randn(2, rows.shape[-1], generator=generator).to(dtype)
    wanted = (updates.double() - rows.double().mean(dim=1)).norm(dim=-1)
    torch.testing.assert_close(context.distances(updates), wanted, rtol=1e-6, atol=0)
    # Beyond the range of float32 squares.
    torch.testing.assert_close(
        context.distances(1e30 * updates), 1e30 * updates.double().norm(dim=-1)
    )


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64])
def test_a_new_buffer_has_the_shape_and_dtype_asked_for(dtype):
    buffer = fresh((3, 4), dtype, torch.device("cpu"))
    assert (buffer.shape, buffer.dtype) == ((3, 4), dtype)
    buffer.fill_(2)
    assert float(buffer.sum()) == 24
