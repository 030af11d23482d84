"""The honest share of an update, against plain loops over clients and coordinates."""

import numpy as np
import pytest
import torch

import outvote as ov
from made_results import made_results, without_weights
from outvote.engine.record import weight_shares

DIM = 60


def entered(rule, rows, f):
    """How many coordinates of the result come from each client: sorted values, nothing else."""
    counts = np.zeros(len(rows))
    chosen = bulyan_selection(rows, f) if rule == "bulyan" else list(range(len(rows)))
    for column in rows.T:
        order = sorted(chosen, key=lambda client: column[client])
        n = len(order)
        if rule == "median":
            used = {order[(n - 1) // 2], order[n // 2]}
        elif rule == "trimmed-mean":
            used = set(order[f : n - f])
        else:
            middle = np.median(column[chosen])
            width = n - f if rule == "meamed" else len(rows) - 4 * f
            used = set(sorted(chosen, key=lambda c: abs(column[c] - middle))[:width])
        counts[list(used)] += 1
    return counts / rows.shape[1]


def bulyan_selection(rows, f):
    """Krum's winner, again and again, until n - 2f clients are selected."""
    left, selected = list(range(len(rows))), []
    while len(selected) < len(rows) - 2 * f:
        num_near = max(1, len(left) - f - 2)
        scores = [
            sum(sorted(((rows[a] - rows[b]) ** 2).sum() for b in left if b != a)[:num_near])
            for a in left
        ]
        selected.append(left.pop(int(np.argmin(scores))))
    return sorted(selected)


@pytest.mark.parametrize("num_clients", [11, 12])
@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "meamed", "bulyan"])
def test_of_coordinatewise_rules_it_counts_the_coordinates_a_client_entered(rule, num_clients):
    rows = np.random.default_rng(num_clients).normal(size=(num_clients, DIM))
    is_byzantine = np.arange(num_clients) < 2
    rows[is_byzantine] += 0.8
    wanted = entered(rule, rows, 2)
    weights = ov.make_rule(rule).inspect(rows, num_byzantine=2).weights
    np.testing.assert_allclose(weights, wanted, atol=1e-12)
    (share,) = weight_shares(torch.tensor(weights[None]), torch.tensor(is_byzantine[None]))
    assert 1 - share == pytest.approx(wanted[~is_byzantine].sum() / wanted.sum())
    assert 0 < share < 2 / num_clients  # Values that lie apart enter less often.


@pytest.mark.parametrize("rule", ["multi-krum", "rfa", "dnc", "gas(median, num_groups=6)", "krum"])
def test_of_weighted_means_it_is_the_weight_of_the_honest_clients(rule):
    rows = np.random.default_rng(3).normal(size=(9, DIM))
    is_byzantine = np.arange(9) < 2
    verdict = ov.make_rule(rule).inspect(rows, num_byzantine=2, seed=0)
    # The update itself is the check: it is that mean of the rows.
    np.testing.assert_allclose(verdict.weights @ rows, verdict.update, atol=1e-9)
    (share,) = weight_shares(torch.tensor(verdict.weights[None]), torch.tensor(is_byzantine[None]))
    assert 1 - share == pytest.approx(verdict.weights[~is_byzantine].sum())


def test_of_a_run_it_is_what_byzantine_clients_leave():
    (result,) = made_results({"rule": "mean", "attack": "lie"}, seeds=1, rounds=3)
    assert result.honest_share == pytest.approx(1 - result.byzantine_weight)
    assert np.isnan(without_weights(result).honest_share)
