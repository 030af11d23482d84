"""The calling contract: from what a caller hands over to the rows of the attackers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outvote.attacks.base import Attack
from outvote.attacks.crafted import Crafted, Forged
from outvote.attacks.defence import defence_of
from outvote.attacks.scene import Scene, in_range
from outvote.precision import plain_torch
from outvote.receive import Received, receive
from outvote.seeding import Draws, Seed, seed_from


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
    check_num_byzantine(num_byzantine)
    received, own_rows = _receive(honest, own, num_byzantine)
    if num_byzantine == 0:
        rows = received.rows.new_empty(0, received.rows.shape[1])
        return Crafted(rows=_restore(rows, received), state=state, notes=received.notes)
    if attack.needs_rule() and rule is None:
        raise ValueError(needs_a_rule(attack, "pass rule=, as in rule=ov.GAS(ov.MultiKrum())"))
    drawn = seed_from(seed)
    with plain_torch(received.rows.device):
        scene = Scene(
            gradients=received.rows.unsqueeze(0),
            num_byzantine=(num_byzantine,),
            draws=Draws((drawn,)),
            own=None if own_rows is None else own_rows.unsqueeze(0),
            state=state,
        )
        if attack.needs_rule():
            is_numpy = not any(isinstance(part, Tensor) for part in (honest, *_first(honest)))
            defence = defence_of(rule, received, num_byzantine, is_numpy=is_numpy)
            scene = replace(scene, defence=defence)
        forged = attack.craft(scene)
        rows = finished(attack, forged, scene)[0].expand(num_byzantine, -1)
    return Crafted(
        rows=_restore(rows, received),
        factor=None if forged.factor is None else float(forged.factor[0]),
        state=forged.state,
        seed=drawn,
        notes=received.notes + forged.notes + _left_out(scene),
        num_evaluations=forged.num_evaluations,
    )


def check_num_byzantine(num_byzantine: object) -> None:
    """Raise unless the number of attackers is a whole number of at least 0."""
    if isinstance(num_byzantine, bool) or not isinstance(num_byzantine, int | np.integer):
        raise TypeError(f"num_byzantine must be an integer, got {num_byzantine!r}.")
    if num_byzantine < 0:
        raise ValueError(
            f"num_byzantine must be 0 or larger, got {num_byzantine}; pass 0 if nobody lies."
        )


def needs_a_rule(attack: Attack, remedy: str) -> str:
    """Say what is missing."""
    return f"{attack} searches against the defence and needs a rule, got none; {remedy}."


def finished(attack: Attack, forged: Forged, scene: Scene) -> Tensor:
    """Check the rows, and bring them to the dtype of the gradients, clipped to its range."""
    shapes = [(scene.num_runs, k, scene.dim) for k in (1, scene.num_attackers)]
    if tuple(forged.rows.shape) not in shapes:
        raise ValueError(
            f"{attack} must give rows of the shape {shapes[1]} or {shapes[0]}, got "
            f"{tuple(forged.rows.shape)}; mend the attack."
        )
    if attack.sends_nonfinite:
        return forged.rows.to(scene.gradients.dtype)
    if forged.is_fresh and forged.rows.dtype == scene.gradients.dtype:
        largest = torch.finfo(forged.rows.dtype).max
        return forged.rows.clamp_(min=-largest, max=largest)
    return in_range(forged.rows, scene.gradients.dtype)


def _first(honest: Any) -> list[Any]:
    return list(honest[:1]) if isinstance(honest, Sequence) else []


def _receive(honest: Any, own: Any, num_byzantine: int) -> tuple[Received, Tensor | None]:
    """Read both; without honest clients the attackers go by what they would have sent."""
    if len(honest) == 0:
        if own is None or len(own) == 0:
            raise ValueError(
                "an attack needs the gradients of at least one honest client, got none; pass "
                "own=, what the attackers would have sent honestly, or leave the round out."
            )
        received = receive(own)
        _check_own(received.rows, received.rows.shape[1], num_byzantine)
        return received, received.rows
    received = receive(honest)
    if own is None:
        return received, None
    if isinstance(honest[0], Mapping):
        rows = receive([honest[0], *own]).rows[1:]
    else:
        rows = receive(own).rows if len(own) else received.rows[:0]
    _check_own(rows, received.rows.shape[1], num_byzantine)
    return received, rows.to(received.rows.device, received.rows.dtype)


def _check_own(own: Tensor, dim: int, num_byzantine: int) -> None:
    if tuple(own.shape) != (num_byzantine, dim):
        raise ValueError(
            f"own must be {num_byzantine} rows of {dim} coordinates, one row per attacker, got "
            f"the shape {tuple(own.shape)}."
        )


def _restore(rows: Tensor, received: Received) -> Any:
    if received.layer_sizes is not None:
        return [received.restore(row) for row in rows]
    restored = received.restore(rows)
    if isinstance(restored, np.ndarray) and rows.stride(0) == 0 and len(rows) > 1:
        # All rows are one: a write into one of them would show in all.
        restored.flags.writeable = False
    return restored


def _left_out(scene: Scene) -> tuple[str, ...]:
    if scene.num_left_out == 0:
        return ()
    return (f"{scene.num_left_out} honest clients sent NaN or infinity and were left out",)
