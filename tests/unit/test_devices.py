"""A CPU and a GPU give the same answers on the same numbers and the same groups."""

import numpy as np
import pytest
import torch

import outvote as ov
from outvote.rules.rule_spec import RULES

WRAPPED = {"gas", "bucketing", "nnm", "clip", "norm-filter"}
BASES = [
    name for name, rule in RULES.items() if name not in WRAPPED and rule().traits.can_be_wrapped
]
WIDTHS = (4, 120)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("is_colluding", [False, True])
@pytest.mark.parametrize("base", BASES)
def test_gas_on_a_gpu_agrees_with_a_cpu(base, is_colluding, width):
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(50, 40 * width, generator=generator)
    if is_colluding:
        X[:10] = X[10:].mean(dim=0) - 1.5 * X[10:].std(dim=0)
    groups = torch.randperm(X.shape[1], generator=generator).view(-1, width).tolist()
    rule = ov.GAS(ov.make_rule(base))
    here = rule.inspect(X, num_byzantine=10, groups=groups, seed=0)
    there = rule.inspect(X.cuda(), num_byzantine=10, groups=groups, seed=0)
    np.testing.assert_allclose(there.scores, here.scores, rtol=1e-4)
    torch.testing.assert_close(there.update.cpu(), here.update, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("base", BASES)
def test_a_rule_on_a_gpu_agrees_with_a_cpu(base):
    X = torch.randn(23, 3000, generator=torch.Generator().manual_seed(2))
    rule = ov.make_rule(base)
    assumed = min(4, rule.max_byzantine(23))
    here = rule(X, num_byzantine=assumed, seed=0)
    there = rule(X.cuda(), num_byzantine=assumed, seed=0)
    torch.testing.assert_close(there.cpu(), here, rtol=1e-4, atol=1e-6)
