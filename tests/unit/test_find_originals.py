"""The first of equal rows of every run: colluding clients send copies, which must tie exactly."""

import torch

from outvote.rules.values import row_facts


def test_copies_of_every_run(device):
    rows = torch.randn(3, 6, 500, device=device)
    rows[0, 3] = rows[0, 1]
    rows[0, 5] = rows[0, 1]
    rows[0, 4] = rows[0, 2]
    rows[2] = rows[2, 0]
    assert row_facts(rows).originals == [[0, 1, 2, 1, 2, 1], [0, 1, 2, 3, 4, 5], [0] * 6]


def test_rows_of_equal_norm_that_agree_in_the_sample_alone_are_no_copies(device):
    rows = torch.ones(2, 5, 1000, device=device)
    for row, sign in enumerate([1, -1, 1, -1, 1]):
        rows[1, row, 7] = sign
    assert row_facts(rows).originals == [[0] * 5, [0, 1, 0, 1, 0]]
