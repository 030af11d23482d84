"""What attacks with a memory promise."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from outvote.attacks.batch import Corrupted, corrupt
from outvote.testing.attack_trial import AttackTrial, batch_defence
from outvote.testing.trial import require_close


def memory_run_by_run(trial: AttackTrial) -> None:
    """Over three rounds, runs attacked at once remember what each would alone; idle ones wait."""
    if not trial.attack.has_memory:
        return
    rounds = [
        torch.from_numpy(np.stack([trial.scenario(7, 3 * t + k, 6, 1.0).honest for k in range(3)]))
        for t in range(3)
    ]
    # One is attacked in all rounds, one not in the first, one not in the second.
    is_attacked = torch.tensor([[True, False, True], [True, True, False], [True, True, True]])
    is_first = torch.arange(7) < 2
    together, alone = None, [None] * 3
    for t, rows in enumerate(rounds):
        mask = is_attacked[t].unsqueeze(-1) & is_first
        found = _attacked(trial, rows, mask, t, together)
        together = found.state
        for k in range(3):
            one = _attacked(trial, rows[k : k + 1], mask[k : k + 1], t + 3 * k, alone[k])
            alone[k] = one.state
            got, wanted = (
                rows.double().cpu().numpy() for rows in (found.gradients[k], one.gradients[0])
            )
            where = f"run {k} of 3 in round {t} (from 0), {rows[k].tolist()}"
            require_close(got, wanted, where, "rows in the batch")


def _attacked(trial: AttackTrial, rows: Tensor, mask: Tensor, first: int, state: Any) -> Corrupted:
    return corrupt(
        trial.attack,
        rows.to(trial.device),
        mask,
        seeds=[trial.seed + first + 3 * k for k in range(len(rows))],
        defence=batch_defence(mask.sum(dim=1).tolist()),
        state=state,
    )
