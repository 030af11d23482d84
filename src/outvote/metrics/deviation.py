"""How far an update is from the mean of the honest gradients."""

import torch
from torch import Tensor


def deviations(updates: Tensor, gradients: Tensor, is_byzantine: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far ``updates [runs, dim]`` are from the honest means, and the means' norms.

    Both are ``[runs]``, float64. Of ``gradients [runs, clients, dim]`` the honest rows count.
    """
    means = honest_means(gradients, is_byzantine)
    return norms(updates - means), norms(means)


def honest_means(gradients: Tensor, is_byzantine: Tensor) -> Tensor:
    """Return the mean of the honest rows of ``gradients [runs, clients, dim]``, before any attack.

    Clients that diverged do not count. Where no honest client was sampled, it is the mean of what
    the Byzantine clients would have sent honestly.
    """
    is_honest = ~is_byzantine | is_byzantine.all(dim=-1, keepdim=True)
    means = _mean_of(gradients, is_honest)
    # NaN and infinity stay in a sum: if there is none in the means, the rows need not be searched.
    if bool(means.sum(dtype=torch.float64).isfinite()):
        return means
    is_finite = gradients.abs().amax(dim=-1).isfinite()
    return _mean_of(gradients.nan_to_num(0.0, 0.0, 0.0), is_honest & is_finite)


def _mean_of(gradients: Tensor, is_counted: Tensor) -> Tensor:
    share = is_counted.to(gradients.dtype)
    share = share / share.sum(dim=-1, keepdim=True).clamp(min=1)
    return torch.matmul(share.unsqueeze(1), gradients).squeeze(1)


def honest_losses(losses: Tensor, is_byzantine: Tensor, has_trained: Tensor) -> list[float | None]:
    """Return the mean loss ``[runs, clients]`` of the honest clients of each run.

    Clients that diverged do not count, unless all did: then it is NaN. None: nobody trained.
    """
    is_honest = (~is_byzantine | is_byzantine.all(dim=-1, keepdim=True)) & has_trained
    is_counted = is_honest & losses.isfinite()
    means = torch.where(is_counted, losses, 0.0).sum(dim=-1) / is_counted.sum(dim=-1)
    trained = is_honest.any(dim=-1).tolist()
    return [loss if any_ else None for loss, any_ in zip(means.tolist(), trained, strict=True)]


def weight_shares(weights: Tensor, is_byzantine: Tensor) -> list[float | None]:
    """Return the Byzantine share of ``weights [runs, clients]``; None: all are 0, or NaN."""
    exact, is_byzantine = weights.double().cpu(), is_byzantine.cpu()
    totals = exact.sum(dim=-1).tolist()
    parts = torch.where(is_byzantine, exact, 0.0).sum(dim=-1).tolist()
    return [part / whole if whole > 0 else None for part, whole in zip(parts, totals, strict=True)]


def norms(vectors: Tensor) -> Tensor:
    """Return the Euclidean norms of ``vectors [runs, dim]``, float64."""
    found: Tensor = torch.linalg.vector_norm(vectors, dim=-1, dtype=torch.float64)
    return found
