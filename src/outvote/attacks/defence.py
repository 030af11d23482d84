"""How an attack asks a rule: the attackers' rows come after the honest ones, in one matrix."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outvote.attacks.context import Defence, Opinion, in_range
from outvote.axes import Rows
from outvote.flat import as_tensor
from outvote.fresh import fresh
from outvote.precision import work_dtype
from outvote.receive import Received


def defence_of(rule: Any, received: Received, num_honest: int, num_byzantine: int) -> Defence:
    """Return what answers for a single run by calling `rule`, without changing any memory of it.

    The matrix is made once; every question overwrites the attackers' rows in it. It has the
    precision of the work, since in half precision one update could not be told from the next.
    """
    sent_as, dim = received.rows.dtype, received.rows.shape[1]
    shape = (num_honest + num_byzantine, dim)
    matrix = fresh(shape, work_dtype(sent_as), received.rows.device)
    matrix[:num_honest] = received.rows[:num_honest]
    given = _as_given(matrix, num_honest, received)
    judge, inspect = _asking(rule, num_byzantine)
    largest = torch.finfo(sent_as).max

    def answer(rows: Rows, seeds: tuple[int, ...], wants_kept: bool) -> Opinion:
        last = num_honest + rows.shape[1]
        if rows.dtype == sent_as == matrix.dtype:
            torch.clamp(rows[0], min=-largest, max=largest, out=matrix[num_honest:last])
        else:
            matrix[num_honest:last] = in_range(rows[0], sent_as)
        # The row that all send is copied out of the cache.
        matrix[last:] = matrix[num_honest]
        if not wants_kept:
            return Opinion(_vector(judge(given(), seed=seeds[0]), received))
        verdict = inspect(given(), seed=seeds[0])
        kept = set(verdict.kept or ())
        is_kept = all(client in kept for client in verdict.clients[num_honest:])
        kept_here = torch.tensor([is_kept], device=matrix.device)
        return Opinion(_vector(verdict.update, received), kept_here)

    return answer


def _as_given(matrix: Tensor, num_honest: int, received: Received) -> Callable[[], Any]:
    """Return what hands the matrix on as the caller gave the gradients: dicts, numpy or torch."""
    example = received.restore(received.rows[0])
    if isinstance(example, np.ndarray):
        return matrix.numpy
    if not isinstance(example, dict):
        return lambda: matrix

    # GAS by layers wants the layers.
    def named(rows: Tensor) -> list[dict[str, Any]]:
        return [
            {name: _widened(part) for name, part in received.restore(row).items()} for row in rows
        ]

    honest = named(matrix[:num_honest])
    return lambda: [*honest, *named(matrix[num_honest:])]


def _widened(part: Any) -> Any:
    if isinstance(part, Tensor):
        return part.to(work_dtype(part.dtype))
    return part.astype(np.float32) if part.dtype == np.float16 else part


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
    if isinstance(inner, type):
        raise TypeError(f"rule must be an object, got the class {inner.__name__}; call it first.")
    if not callable(inner):
        raise TypeError(
            f"rule must be a rule or a function, got {type(rule).__name__}; make_rule builds rules "
            "from text."
        )

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
