"""GAS over Multi-Krum as one would write it first: a loop over the groups. The yardstick."""

import torch
from torch import Tensor


def multi_krum(rows: Tensor, num_byzantine: int) -> Tensor:
    """Average the n - f rows with the smallest Krum scores."""
    num_clients = len(rows)
    far = torch.cdist(rows, rows).square()
    scores = far.sort(dim=1).values[:, 1 : num_clients - num_byzantine - 1].sum(dim=1)
    return rows[scores.argsort()[: num_clients - num_byzantine]].mean(dim=0)


def add_scores(X: Tensor, groups: list[Tensor], num_byzantine: int) -> Tensor:
    """Return every client's distance to the rule's answers, summed over the groups."""
    scores = torch.zeros(len(X), device=X.device)
    for group in groups:
        rows = X[:, group]
        scores += (rows - multi_krum(rows, num_byzantine)).norm(dim=1)
    return scores


def gas_multi_krum(X: Tensor, num_groups: int, num_byzantine: int) -> Tensor:
    """Split at random, score group by group, average the best n - f clients."""
    groups = list(torch.randperm(X.shape[1], device=X.device).chunk(num_groups))
    scores = add_scores(X, groups, num_byzantine)
    return X[scores.argsort()[: len(X) - num_byzantine]].mean(dim=0)
