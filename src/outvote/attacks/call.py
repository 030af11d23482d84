"""The calling contract: from what a caller hands over to the rows of the attackers."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from outvote.attacks.base import Attack
from outvote.attacks.context import AttackContext, in_range
from outvote.attacks.crafted import Crafted, Forged
from outvote.attacks.defence import defence_of
from outvote.attacks.handed_over import hand_over
from outvote.attacks.notes import notes_on
from outvote.fresh import fresh
from outvote.precision import plain_torch
from outvote.receive import Received
from outvote.seeding import RandomStream, Seed, seed_from


def inspect(
    attack: Attack,
    honest: Any,
    *,
    num_byzantine: int,
    own: Any,
    rule: Any,
    seed: Seed,
    state: Any,
) -> Crafted:
    """Attack, whatever modes of torch the caller is in."""
    given = hand_over(honest, own, num_byzantine)
    received = given.received
    if num_byzantine == 0:
        rows = received.rows.new_empty(0, received.rows.shape[1])
        return Crafted(rows=_restore(rows, received), state=state, notes=received.notes)
    if attack.needs_rule() and rule is None:
        raise ValueError(needs_a_rule(attack, "pass rule=, as in rule=ov.GAS(ov.MultiKrum())"))
    drawn = seed_from(seed)
    with plain_torch(received.rows.device):
        context = AttackContext(
            gradients=received.rows.unsqueeze(0),
            num_byzantine=(int(num_byzantine),),
            stream=RandomStream((drawn,)),
            own=None if given.own is None else given.own.unsqueeze(0),
            is_own=torch.ones_like(received.rows[:, 0], dtype=torch.bool).unsqueeze(0)
            if given.is_alone
            else None,
            state=state,
        )
        if attack.needs_rule():
            defence = defence_of(rule, received, given.num_honest, int(num_byzantine))
            context = replace(context, defence=defence)
        forged = attack.craft(context)
        rows = _copied(finished(attack, forged, context)[0], int(num_byzantine))
    return Crafted(
        rows=_restore(rows, received),
        factor=None if forged.factor is None else float(forged.factor[0]),
        state=forged.state,
        seed=drawn,
        notes=received.notes + forged.notes + notes_on(context),
        num_evaluations=forged.num_evaluations,
    )


def _copied(rows: Tensor, num_byzantine: int) -> Tensor:
    """Return a row for each: a write into one must not show in others."""
    if len(rows) == num_byzantine:
        return rows
    copies = fresh((num_byzantine, rows.shape[1]), rows.dtype, rows.device)
    return copies.copy_(rows)


def needs_a_rule(attack: Attack, remedy: str) -> str:
    """Say what is missing."""
    return f"{attack} searches against the defence and needs a rule, got none; {remedy}."


def finished(attack: Attack, forged: Forged, context: AttackContext) -> Tensor:
    """Check the rows, and bring them to the dtype of the gradients, clipped to its range."""
    shapes = [(context.num_runs, k, context.dim) for k in (1, context.num_attackers)]
    if tuple(forged.rows.shape) not in shapes:
        raise ValueError(
            f"{attack} must give rows of the shape {shapes[1]} or {shapes[0]}, got "
            f"{tuple(forged.rows.shape)}; mend the attack."
        )
    if attack.sends_nonfinite:
        return forged.rows.to(context.gradients.dtype)
    if forged.is_fresh and forged.rows.dtype == context.gradients.dtype:
        largest = torch.finfo(forged.rows.dtype).max
        return forged.rows.clamp_(min=-largest, max=largest)
    return in_range(forged.rows, context.gradients.dtype)


def _restore(rows: Tensor, received: Received) -> Any:
    if received.layer_sizes is not None:
        return [received.restore(row) for row in rows]
    return received.restore(rows)
