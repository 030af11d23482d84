"""Many rounds at once: the attackers of runs that share an attack."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from outvote.attacks.base import Attack
from outvote.attacks.call import finished, needs_a_rule
from outvote.attacks.context import AttackContext, Defence, Opinion, in_range
from outvote.attacks.notes import notes_on
from outvote.axes import Rows
from outvote.precision import plain_torch, work_dtype
from outvote.seeding import RandomStream

# Updates [runs, dim] for gradients [runs, clients, dim] and one seed per run; possibly with the
# rows that it keeps, [runs, clients].
BatchDefence = Callable[[Rows, Sequence[int]], "Tensor | tuple[Tensor, Tensor | None]"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Corrupted:
    """Gradients with the attackers' rows in place, the chosen factors, the attack's memory."""

    gradients: Rows
    factors: Tensor | None = None
    state: Any = None
    notes: tuple[str, ...] = ()
    num_evaluations: int = 0


def corrupt(
    attack: Attack,
    gradients: Rows,
    is_byzantine: Tensor,
    *,
    seeds: Sequence[int],
    defence: BatchDefence | None = None,
    state: Any = None,
    clients: Tensor | None = None,
) -> Corrupted:
    """Replace the rows of ``gradients [runs, clients, dim]`` that `is_byzantine` marks.

    What they held is taken for what the attackers would have sent honestly. Runs without an
    attacker stay as they are. `clients [runs, clients]` tells who sent each row, for attacks that
    follow somebody.
    """
    _check(gradients, is_byzantine, seeds)
    if not bool(is_byzantine.any()):
        return Corrupted(gradients=gradients.detach().clone(), state=state)
    if attack.needs_rule() and defence is None:
        raise ValueError(needs_a_rule(attack, "pass defence="))
    with plain_torch(gradients.device):
        where = _Places(is_byzantine.to(gradients.device), gradients.detach())
        context = AttackContext(
            gradients=gradients.detach(),
            num_byzantine=where.counts,
            stream=RandomStream(tuple(seeds)),
            is_honest=where.is_honest,
            is_own=where.is_byzantine,
            own=where.own(gradients.detach()),
            clients=clients,
            state=state,
        )
        if defence is not None:
            context = replace(context, defence=where.asking(defence))
        forged = attack.craft(context)
        where.put(finished(attack, forged, context))
    return Corrupted(
        gradients=where.gradients,
        factors=forged.factor,
        state=_kept_where_idle(state, forged.state, where.is_active),
        notes=forged.notes + notes_on(context),
        num_evaluations=forged.num_evaluations,
    )


class _Places:
    """Where the attackers' rows are, and a copy of the gradients to put them into."""

    def __init__(self, is_byzantine: Tensor, gradients: Rows) -> None:
        self.is_byzantine = is_byzantine
        self.gradients = gradients.clone()
        self.counts = tuple(is_byzantine.sum(dim=-1).tolist())
        self.is_active = is_byzantine.any(dim=-1)
        # Where nobody honest was sampled, the attackers go by what they would have sent.
        self.is_honest = ~is_byzantine | is_byzantine.all(dim=-1, keepdim=True)
        self.run, self.client = is_byzantine.nonzero(as_tuple=True)
        self.attacker = (is_byzantine.cumsum(dim=-1) - 1)[self.run, self.client]

    def own(self, gradients: Rows) -> Rows:
        """Return what the attackers would have sent, [runs, attackers, dim]; zeros fill it up."""
        own = gradients.new_zeros(len(self.counts), max(self.counts), gradients.shape[-1])
        own[self.run, self.attacker] = gradients[self.run, self.client]
        return own

    def put(self, rows: Rows) -> None:
        """Put rows [runs, attackers or 1, dim] into their places."""
        if len(self.counts) == 1:
            self.gradients[0, self.client] = rows[0]
            return
        attacker = self.attacker if rows.shape[1] > 1 else torch.zeros_like(self.attacker)
        self.gradients[self.run, self.client] = rows[self.run, attacker]

    def asking(self, defence: BatchDefence) -> Defence:
        """Return what attacks ask: the defence, on the gradients with the rows in place."""

        def answer(rows: Rows, seeds: tuple[int, ...], wants_kept: bool) -> Opinion:
            self.put(in_range(rows, self.gradients.dtype))
            # In half precision one update could not be told from the next.
            found = defence(self.gradients.to(work_dtype(self.gradients.dtype)), seeds)
            updates, kept = found if isinstance(found, tuple) else (found, None)
            if wants_kept and kept is None:
                raise ValueError(
                    "this attack must see whom the defence keeps; let it return (updates, kept)."
                )
            is_kept = None if kept is None else (kept | ~self.is_byzantine).all(dim=-1)
            return Opinion(updates, is_kept)

        return answer


def _check(gradients: Rows, is_byzantine: Tensor, seeds: Sequence[int]) -> None:
    if gradients.dim() != 3 or not gradients.is_floating_point():
        raise ValueError(
            "gradients must be floats [runs, clients, dim], got "
            f"{gradients.dtype} of the shape {tuple(gradients.shape)}."
        )
    if is_byzantine.shape != gradients.shape[:2] or is_byzantine.dtype != torch.bool:
        raise ValueError(
            f"is_byzantine must be true or false for each of the {tuple(gradients.shape[:2])} "
            f"rows, got {is_byzantine.dtype} of the shape {tuple(is_byzantine.shape)}."
        )
    if len(seeds) != len(gradients):
        raise ValueError(f"seeds must be one per run, {len(gradients)}, got {len(seeds)}.")


def _kept_where_idle(before: Any, after: Any, is_active: Tensor) -> Any:
    """Leave the memory of runs without an attacker as it was."""
    if before is None or after is None or not is_dataclass(after) or bool(is_active.all()):
        return after

    def chosen(name: str) -> Any:
        old, new = getattr(before, name), getattr(after, name)
        is_on = is_active.view(-1, *[1] * (new.dim() - 1))
        return torch.where(is_on, new, old.to(new.device, new.dtype))

    parts = {field.name: chosen(field.name) for field in fields(after)}
    return replace(after, **parts)  # type: ignore[type-var]
