"""How an attack asks a rule: the attackers' rows come after the honest ones, in one matrix."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from outvote.attacks.scene import Defence, Opinion, in_range
from outvote.axes import Rows
from outvote.flat import as_tensor
from outvote.receive import Received


def defence_of(rule: Any, received: Received, num_byzantine: int, *, is_numpy: bool) -> Defence:
    """Return what answers for a single run by calling `rule`, without changing any memory of it.

    The matrix is made once; every question overwrites the attackers' rows in it.
    """
    num_honest, dim = received.rows.shape
    matrix = torch.empty(
        num_honest + num_byzantine, dim, dtype=received.rows.dtype, device=received.rows.device
    )
    matrix[:num_honest] = received.rows
    # GAS by layers wants the layers: named gradients are handed on as such.
    is_named = received.layer_sizes is not None

    judge, inspect = _asking(rule, num_byzantine)

    def answer(rows: Rows, seeds: tuple[int, ...], wants_kept: bool) -> Opinion:
        matrix[num_honest:] = in_range(rows[0], matrix.dtype)
        given: Any = [received.restore(row) for row in matrix] if is_named else matrix
        given = given.numpy() if is_numpy and not is_named else given
        if not wants_kept:
            return Opinion(_vector(judge(given, seed=seeds[0]), received))
        verdict = inspect(given, seed=seeds[0])
        kept = set(verdict.kept)
        is_kept = all(client in kept for client in verdict.clients[num_honest:])
        kept_here = torch.tensor([is_kept], device=matrix.device)
        return Opinion(_vector(verdict.update, received), kept_here)

    return answer


def _asking(rule: Any, num_byzantine: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return how to ask for the update, and for the verdict; some arguments may be given already.

    A server that is told of more attackers than its rule tolerates goes on with the limit.
    """
    facts: dict[str, Any] = {"num_byzantine": num_byzantine}
    inner = rule
    while isinstance(inner, partial):
        facts, inner = {**inner.keywords, **facts}, inner.func
    if hasattr(inner, "max_byzantine"):
        facts.setdefault("when_too_many", "lower")
    if not callable(inner):
        raise TypeError(f"rule must be a rule or a function, got {type(rule).__name__}.")

    def refuse(*_: Any, **__: Any) -> Any:
        raise ValueError(
            "this attack must see whom the rule keeps, got a rule without `inspect`; pass an "
            "outvote rule, or a functools.partial of one."
        )

    return partial(rule, **facts), partial(getattr(inner, "inspect", refuse), **facts)


def _vector(update: Any, received: Received) -> Tensor:
    if isinstance(update, dict):
        return received.to_vector(update).unsqueeze(0)
    vector = as_tensor(update, "the rule's update").to(received.rows.device)
    if vector.shape != received.rows.shape[1:]:
        raise ValueError(
            f"the rule must answer with {received.rows.shape[1]} coordinates, got the shape "
            f"{tuple(vector.shape)}; check the rule."
        )
    return vector.unsqueeze(0)
