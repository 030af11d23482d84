"""Clients that are equal in some coordinates only: units that are off send zeros."""

import numpy as np
import pytest
import torch

import outvote as ov
from every_rule import WRAPPABLE_NAMES
from outvote.rules.client_matrix import ClientMatrix, equal_rows
from outvote.testing.trial import as_array

NUM_CLIENTS, DIM, NUM_GROUPS = 10, 2000, 100


def gradients(seed):
    """Three clients send zeros where a unit is off, and two agree in the first tenth."""
    random = np.random.default_rng(seed)
    rows = 0.01 * random.normal(size=(NUM_CLIENTS, DIM))
    rows[:3, random.random(DIM) < 0.2] = 0
    rows[3:5, : DIM // 10] = rows[3, : DIM // 10]
    return rows.astype(np.float16).astype(np.float64)  # The same numbers in every dtype.


@pytest.mark.parametrize("split", ["balanced", "contiguous"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("name", WRAPPABLE_NAMES)
def test_gas_scores_clients_that_are_equal_in_some_groups(name, dtype, split, device):
    rule = ov.GAS(ov.make_rule(name), num_groups=NUM_GROUPS, split=split)
    for seed in range(3):
        exact = torch.from_numpy(gradients(seed)).to(device)
        wanted = rule.inspect(exact, num_byzantine=1, seed=seed)
        found = rule.inspect(exact.to(dtype), num_byzantine=1, seed=seed)
        assert found.kept == wanted.kept
        np.testing.assert_allclose(found.scores, wanted.scores, rtol=1e-4)
        np.testing.assert_allclose(
            as_array(found.update),
            as_array(wanted.update),
            atol=2e-5 if dtype.itemsize == 2 else 1e-8,
        )


@pytest.mark.parametrize("num_equal", [1, 2, 3])
def test_single_distances_that_cannot_be_trusted_are_redone_in_any_precision(num_equal, device):
    columns = torch.from_numpy(gradients(0).T.reshape(NUM_GROUPS, -1, NUM_CLIENTS)).to(device)
    columns[:num_equal, :, 5] = columns[:num_equal, :, 7] * (1 + 1e-6)
    columns = columns.float()
    found = ClientMatrix.from_rows(columns.mT).squared_distances
    exact = columns.double()
    wanted = (exact.unsqueeze(-1) - exact.unsqueeze(-2)).square().sum(dim=1)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=1e-12)
    assert float(found[0, 5, 7]) == pytest.approx(float(wanted[0, 5, 7]), rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_copies_of_a_client_tie_to_the_last_bit(dtype):
    for seed in range(40):
        random = np.random.default_rng(seed)
        a, b = random.normal(size=(2, 17)).astype(dtype)
        kept = ov.MDA().inspect(np.stack([a, a, b, b, b]), num_byzantine=1).kept
        assert kept == [0, 1, 2, 3], "of equally tight sets the first"
        rows = random.normal(size=(6, 40)).astype(dtype)[[0, 1, 1, 2, 0, 3, 4, 5, 1]]
        scores = ov.MultiKrum().inspect(rows, num_byzantine=2).scores
        assert scores[1] == scores[2] == scores[8]
        assert scores[0] == scores[4]


@pytest.mark.parametrize(
    "rule", sorted({*ov.rules.rule_spec.RULES} - {"fltrust", "foolsgold", "centered-clipping"})
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rows_give_that_row_exactly(rule, dtype):
    inside = "(median)" if rule in ("gas", "nnm", "bucketing", "clip", "norm-filter") else ""
    made = ov.make_rule(f"{rule}{inside}".replace("clip(median)", "clip(median, max_norm=1e30)"))
    made = ov.make_rule("norm-clipping(max_norm=1e30)") if rule == "norm-clipping" else made
    row = torch.randn(301, generator=torch.Generator().manual_seed(3), dtype=dtype)
    for num_clients in (3, 7, 11, 13):
        rows = row.expand(num_clients, -1).clone()
        update = made.inspect(rows, num_byzantine=0, seed=0).update
        assert torch.equal(update, row), (rule, num_clients)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_call_and_a_verdict_give_the_same_mean(dtype):
    for seed in range(20):
        rows = np.random.default_rng(seed).normal(size=(3 + seed, 40)).astype(dtype)
        np.testing.assert_array_equal(ov.Mean()(rows), ov.Mean().inspect(rows).update)


@pytest.mark.parametrize("rule", ["mean", "multi-krum(num_selected=3)", "trimmed-mean", "bulyan"])
def test_means_of_small_integers_are_exact(rule):
    rows = np.arange(1.0, 10).reshape(3, 3)
    np.testing.assert_array_equal(ov.make_rule(rule)(rows, num_byzantine=0), [4, 5, 6])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_copies_tie_also_beside_another_row_of_their_norm(dtype):
    for seed in range(60):
        a, c = np.random.default_rng(seed).normal(size=(2, 17)).astype(dtype)
        kept = ov.Krum().inspect(np.stack([a, -a, -a, -a, c, c]), num_byzantine=1).kept
        assert kept[0] not in (2, 3, 5), "of copies the first"


@pytest.mark.parametrize("rule", ["krum", "multi-krum", "bulyan", "dnc", "mda"])
@pytest.mark.parametrize("offset", [1.0, 1e-3, 1e-9])
def test_tiny_differences_beside_a_common_offset_are_not_lost(rule, offset):
    rows = np.random.default_rng(0).normal(size=(11, 3000)) * 1e-24
    rows[:2] *= 5
    rows[:, 0] = offset
    found = ov.make_rule(rule).inspect(rows.astype(np.float32), num_byzantine=2)
    exact = ov.make_rule(rule).inspect(rows.astype(np.float32).astype(float), num_byzantine=2)
    assert found.kept == exact.kept


@pytest.mark.parametrize("inside", ["multi-krum", "median", "rfa", "bulyan", "dnc"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_copies_of_a_client_have_its_score_in_gas(inside, dtype, device):
    rule = ov.make_rule(f"gas({inside}, num_groups=7)")
    for seed in range(10):
        rows = np.random.default_rng(seed).normal(size=(13, 301)).astype(dtype)
        rows[[2, 5, 9]] = rows[0]
        X = torch.from_numpy(rows).to(device)
        scores = rule.inspect(X, num_byzantine=3, seed=seed).scores
        assert len(set(scores[[0, 2, 5, 9]])) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_of_the_largest_numbers_beside_zeros_are_finite(dtype, device):
    X = torch.tensor([[0.0], [0.0], [1e38], [-3e38]], dtype=dtype, device=device)
    verdict = ov.SignGuard().inspect(X, num_byzantine=0, seed=1)
    assert verdict.update.item() > 4e37, "its distance to the last client is above 3.4e38"
    assert np.isfinite(verdict.scores).all()


@pytest.mark.parametrize("shape", [(2, 6, 9, 7), (1, 1, 30, 40), (3, 5, 4)])
def test_equal_rows_of_groups_are_those_that_loops_find(shape, device):
    """Rows with numbers in the same columns are compared in full."""
    random = np.random.default_rng(sum(shape))
    rows = (random.random(shape) < 0.5) / 4
    rows[..., 2, :] = rows[..., 0, :]
    rows[0, ..., 3, :] = 2 * rows[0, ..., 0, :]
    found = equal_rows(torch.tensor(rows, device=device))
    flat = rows.reshape(-1, *shape[-2:])
    wanted = [
        [next(i for i in range(shape[-2]) if (own[i] == row).all()) for row in own] for own in flat
    ]
    assert found.reshape(len(flat), -1).tolist() == wanted
    assert equal_rows(torch.eye(5, device=device).expand(3, 5, 5)) is None
