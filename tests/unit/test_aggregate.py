"""Runs aggregated together get what each gets alone."""

import numpy as np
import pytest
import torch

import outvote as ov
from outvote.rules.aggregate import aggregate

SPECS = [
    "mean",
    "median",
    "trimmed-mean",
    "meamed",
    "multi-krum",
    "bulyan",
    "rfa",
    "geometric-median",
    "dnc(num_coordinates=7)",
    "mda",
    "centered-clipping",
    "norm-clipping",
    "foolsgold",
    "signguard",
    "nnm(krum)",
    "bucketing(median)",
    "clip(median, max_norm=adaptive)",
    "gas(multi-krum, num_groups=5)",
    "gas(median, num_groups=3)",
    "gas(bucketing(rfa), num_groups=4)",
    "bucketing(gas(bulyan, num_groups=4), size=2)",
    "gas(dnc, num_groups=2, split=ceil)",
]


def gradients(device):
    """Six runs of seven clients; some rows are missing, not finite, huge or copies."""
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(6, 7, 23, generator=generator, dtype=torch.float64)
    rows[1, 2, 5] = torch.nan
    rows[2, 0] *= 1e8
    rows[3, 4] = rows[3, 5]
    rows[4, 1, 0] = torch.inf
    rows[4, 6, 0] = -torch.inf
    is_present = torch.ones(6, 7, dtype=torch.bool)
    is_present[0, 3] = is_present[5, :6] = False
    return rows.to(device), is_present


@pytest.mark.parametrize("spec", SPECS)
def test_a_run_in_a_batch_gets_what_it_gets_alone(spec, device):
    rule = ov.make_rule(spec)
    rows, is_present = gradients(device)
    assumed, seeds = [1, 2, 1, 0, 3, 1], [11, 12, 13, 14, 15, 16]
    found = aggregate(rule, rows, num_byzantine=assumed, seeds=seeds, is_present=is_present)
    for run in range(len(rows)):
        here = is_present[run].to(device)
        alone = rule.inspect(
            rows[run][here], num_byzantine=assumed[run], seed=seeds[run], when_too_many="lower"
        )
        np.testing.assert_allclose(
            found.vector[run].cpu(), alone.update.cpu(), rtol=1e-9, atol=1e-12
        )
        weights = found.weights[run][here].cpu()
        np.testing.assert_allclose(weights, alone.weights, rtol=1e-9, atol=1e-12)
        assert found.num_byzantine[run] == alone.num_byzantine
        assert found.is_rejected[run][here].nonzero().flatten().tolist() == alone.rejected


@pytest.mark.parametrize("spec", SPECS)
def test_a_whole_batch_gets_what_runs_get_alone_and_stays_as_it_was(spec, device):
    rule = ov.make_rule(spec)
    generator = torch.Generator().manual_seed(4)
    # Every second run of a larger batch: rows are read where they are, without a copy.
    larger = torch.randn(6, 7, 23, generator=generator, dtype=torch.float64).to(device)
    rows, before = larger[::2], larger.clone()
    found = aggregate(rule, rows, num_byzantine=[2] * 3, seeds=[1, 2, 3])
    assert torch.equal(larger, before)
    for run in range(3):
        alone = rule.inspect(rows[run], num_byzantine=2, seed=run + 1, when_too_many="lower")
        np.testing.assert_allclose(
            found.vector[run].cpu(), alone.update.cpu(), rtol=1e-9, atol=1e-12
        )


def test_a_run_with_no_row_left_gives_the_update_zero(device):
    rows = torch.full((1, 3, 4), torch.nan, device=device)
    found = aggregate(ov.Median(), rows, num_byzantine=[1], seeds=[0])
    assert found.vector.eq(0).all()
    assert found.is_rejected.all()


def test_a_batch_needs_one_number_and_one_seed_per_run(device):
    with pytest.raises(ValueError, match="one entry for each of the 2 runs"):
        aggregate(ov.Median(), torch.zeros(2, 3, 4, device=device), num_byzantine=[1], seeds=[0, 1])
