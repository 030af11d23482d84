"""Mimic: all attackers copy one honest client, so that the others are under-represented."""

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from outvote.attacks.base import Attack
from outvote.attacks.context import AttackContext
from outvote.attacks.crafted import Forged
from outvote.attacks.mimic_direction import MimicState, learn
from outvote.attacks.parameters import check_count
from outvote.errors import check_kind


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Mimic(Attack):
    r"""A copy of one honest client: a given one, or the one furthest along the main spread.

    $$ b = g_k, \qquad k = \arg\max_i \langle g_i, z \rangle, \quad
       z \leftarrow \text{unit}\Big(\tfrac{t}{t+1} z + \tfrac{1}{t+1} \text{unit}
       \sum_i \langle g_i - \mu, z \rangle (g_i - \mu)\Big) $$

    Needs: the honest gradients; with client=none also the state of the last round. Differs from
    the paper: if the client is not there, another one is copied. A client is known by its row
    among the honest ones. Reference: Karimireddy et al., ICLR 2022.

    >>> Mimic(client=1)([[1.0, 2.0], [3.0, 2.0]], num_byzantine=2)
    array([[3., 2.],
           [3., 2.]])
    """

    name: ClassVar[str] = "mimic"
    sees_own: ClassVar[bool] = False
    depends_on_order: ClassVar[bool] = True

    client: int | None = 0
    """The honest client to copy; None: learn it."""
    warmup: int = 100
    """After so many rounds the learnt client stays the same."""

    def __post_init__(self) -> None:
        """Check the parameters."""
        check_kind("mimic: client", self.client, int | None)
        if self.client is not None:
            check_count("mimic: client", self.client, low=0)
        check_count("mimic: warmup", self.warmup)

    @property
    def is_random(self) -> bool:  # type: ignore[override]
        """Learning begins with a random direction."""
        return self.client is None

    @property
    def has_memory(self) -> bool:  # type: ignore[override]
        """A given client needs no memory."""
        return self.client is None

    def craft(self, context: AttackContext) -> Forged:
        """Copy somebody."""
        seen = context.trusted
        is_used = seen.used_rows
        clients = numbered(context, seen.gradients.shape[1])
        if self.client is not None:
            target = torch.full((seen.num_runs,), int(self.client), device=seen.device)
            count = is_used.sum(dim=-1).clamp(min=1)
            instead = (
                (is_used.cumsum(-1) - 1 == (target % count).unsqueeze(-1)) & is_used
            ).double()
            row = present(target, clients, is_used, instead)
            return Forged(rows=rows_at(seen, row), state=context.state)
        before = read_state(context)
        scores, state = learn(seen, is_used, before)
        is_learning = state.num_rounds <= self.warmup
        wanted = torch.where(is_learning, -1, state.target)
        row = present(wanted, clients, is_used, scores)
        target = clients.gather(-1, row.unsqueeze(-1)).squeeze(-1)
        target = torch.where(is_learning, target, state.target)
        state = replace(state, target=target).where(context.byzantine_counts > 0, before)
        return Forged(rows=rows_at(seen, row), state=state)


def read_state(context: AttackContext) -> MimicState:
    """Check the memory that is handed over; without one every run is at its beginning."""
    state = context.state
    if state is None:
        return MimicState.fresh(context.num_runs, context.dim, context.device)
    if not isinstance(state, MimicState):
        kind = type(state).__name__
        raise ValueError(f"mimic: state must be what the last round gave back, got {kind}.")  # noqa: TRY004
    found, wanted = tuple(state.direction.shape), (context.num_runs, context.dim)
    if found != wanted:
        raise ValueError(
            f"mimic: state must be of {wanted[0]} runs with {wanted[1]} coordinates, as the "
            f"gradients are, got {found[0]} with {found[1]}; begin without a state."
        )
    return state


def numbered(context: AttackContext, num_rows: int) -> Tensor:
    """Tell who sent each row; without ids, honest clients are counted, diverged ones too."""
    ids = context.clients
    if ids is None:
        ids = context.used_rows.cumsum(dim=-1) - 1
    # What attackers would have sent may have been added: nobody knows these by an id.
    more = torch.arange(num_rows - ids.shape[1], device=context.device)
    more = more if context.clients is None else torch.full_like(more, -2)
    return torch.cat([ids.to(context.device), more.expand(len(ids), -1)], dim=1)


def present(target: Tensor, clients: Tensor, is_used: Tensor, instead: Tensor) -> Tensor:
    """Return the row of the target per run, or of the best score if it is not there."""
    is_target = (clients == target.unsqueeze(-1)) & is_used
    scores = torch.where(is_used, instead, -torch.inf)
    return torch.where(is_target.any(-1), is_target.double().argmax(-1), scores.argmax(-1))


def rows_at(context: AttackContext, row: Tensor) -> Tensor:
    """Copy one row of each run; zeros if nobody is there to copy."""
    runs = torch.arange(context.num_runs, device=context.device)
    rows = context.gradients[runs, row].unsqueeze(1)
    return rows.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
