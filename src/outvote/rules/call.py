"""The calling contract: from what a caller hands over to the verdict."""

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import replace
from math import ceil, isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outvote.errors import OutvoteWarning, TooManyByzantine, check_choice
from outvote.precision import plain_torch
from outvote.receive import LARGEST, Received, finite_rows, norms_later, receive
from outvote.rules.aggregation import Aggregation
from outvote.rules.base import RoundInfo, Rule
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.linalg import central_client, twin_pairs
from outvote.rules.split import explicit
from outvote.rules.verdict import Verdict
from outvote.seeding import RandomStream, Seed, seed_from


def inspect(rule: Rule, gradients: Any, **info: Any) -> Verdict:
    """Aggregate with `rule`, whatever modes of torch the caller is in."""
    received = receive(gradients)
    with plain_torch(received.rows.device):
        return _inspect(rule, received, **info)


def _inspect(  # noqa: PLR0913  (the info of a round are many, and all are named)
    rule: Rule,
    received: Received,
    *,
    num_byzantine: int | None = None,
    byzantine_fraction: float | None = None,
    when_too_many: str = "raise",
    seed: Seed = None,
    groups: Sequence[Sequence[int]] | None = None,
    clients: Sequence[Hashable] | None = None,
    sample_counts: Sequence[float] | None = None,
    reference: Any = None,
    state: Any = None,
    is_full: bool = True,
) -> Verdict:
    """Aggregate; `is_full` also works out what the update alone does not need."""
    ids = _check_clients(clients, len(received.rows))
    drawn = seed_from(seed)
    told = resolve_num_byzantine(
        rule, len(received.rows), num_byzantine, byzantine_fraction, when_too_many
    )
    info = RoundInfo(
        num_byzantine=told,
        stream=RandomStream((drawn,)),
        num_received=len(received.rows),
        reference=None if reference is None else _check_finite(received.to_vector(reference)),
        state=rule.read_state(state, received.to_vector),
        split=None if groups is None else _explicit_split(rule, groups, received),
        layer_sizes=received.layer_sizes,
        wants_shares=is_full,
    )
    if not is_full and sample_counts is None and not received.notes:
        guess = rule.guess(received.rows)
        if guess is not None and isfinite(float(guess.sum())):
            return _short_verdict(received, guess, ids, told, drawn)
    fetch_norms = norms_later(received.rows)
    whole = ClientMatrix.from_rows(received.rows.unsqueeze(0))
    info = rule.prepare(whole, info)
    norms = fetch_norms()
    is_finite = finite_rows(received.rows, norms)
    num_left = sum(is_finite)
    info = replace(
        info,
        num_byzantine=max(0, told - (len(is_finite) - num_left)),
        clients=tuple(client for client, ok in zip(ids, is_finite, strict=True) if ok),
    )
    counts = _check_counts(sample_counts, is_finite, received.rows.device)
    matrix, answer = _judge(rule, whole, is_finite, norms, info)
    if counts is not None and num_left:
        answer = _weighted(rule, answer, counts)
    update = received.rows.new_zeros(1, received.rows.shape[1])
    if num_left:
        update = check_finite(rule, matrix.vector(answer))
    if is_full and num_left and answer.scores is None:
        answer = replace(answer, scores=matrix.distances_to(Aggregation(vector=update)))
    if received.notes and not is_full:
        warnings.warn(received.notes[0], OutvoteWarning, stacklevel=4)
    return Verdict(
        update=received.restore(update[0]),
        scores=_spread(answer.scores if is_full else None, is_finite, np.inf),
        weights=_spread(answer.weights if is_full else None, is_finite, 0.0),
        clients=ids,
        rejected=[client for client, ok in zip(ids, is_finite, strict=True) if not ok],
        num_byzantine=told,
        base_num_byzantine=rule.base_num_byzantine(info.num_byzantine, max(1, num_left)),
        num_groups=answer.num_groups,
        seed=drawn,
        state=_without_run(answer.state),
        notes=received.notes + answer.notes,
    )


def _short_verdict(
    received: Received, update: Tensor, ids: tuple[Hashable, ...], told: int, seed: int
) -> Verdict:
    """Return a verdict for who wants the update alone."""
    nothing = np.zeros(len(ids))
    return Verdict(
        update=received.restore(update),
        scores=nothing,
        weights=nothing,
        clients=ids,
        rejected=[],
        num_byzantine=told,
        base_num_byzantine=told,
        num_groups=None,
        seed=seed,
        state=None,
        notes=(),
    )


def check_finite(rule: Rule, values: Tensor) -> Tensor:
    """Raise if a rule of somebody else's gave NaN or infinity; ours do not."""
    is_ours = type(rule).__module__.startswith("outvote.")
    if not is_ours and not bool(values.isfinite().all()):
        raise ValueError(f"{rule} gave NaN or infinity for finite gradients; mend the rule.")
    return values


def _judge(
    rule: Rule, whole: ClientMatrix, is_finite: list[bool], norms: list[float], info: RoundInfo
) -> tuple[ClientMatrix, Aggregation]:
    """Let the rule answer on the finite rows."""
    rows, turned = whole.columns[0].mT, whole.turned
    if not all(is_finite):
        turned = None
        rows = rows[torch.tensor(is_finite, device=rows.device)]
        norms = [norm for norm, ok in zip(norms, is_finite, strict=True) if ok]
    if not norms:
        is_vector = isinstance(info.state, Tensor)
        state = info.state.unsqueeze(0) if is_vector else info.state
        return ClientMatrix.from_rows(rows.unsqueeze(0)), Aggregation(state=state)
    centre = torch.full((1,), central_client(norms), device=rows.device)
    twins = twin_pairs(rows, norms)
    matrix = ClientMatrix.from_rows(
        rows.unsqueeze(0), centre, None if twins is None else twins.unsqueeze(0), turned
    )
    return matrix, rule.answer(matrix, info)


def _without_run(state: Any) -> Any:
    return state[0] if isinstance(state, Tensor) else state


def resolve_num_byzantine(
    rule: Rule,
    num_clients: int,
    num_byzantine: int | None,
    fraction: float | None,
    when_too_many: str,
) -> int:
    """Return how many of the received rows the rule shall take for Byzantine."""
    check_choice("when_too_many", when_too_many, ("raise", "lower"))
    if num_byzantine is not None and fraction is not None:
        raise ValueError(
            "num_byzantine and byzantine_fraction must not be given both, got "
            f"{num_byzantine} and {fraction}; leave one out."
        )
    limit = rule.max_byzantine(num_clients)
    if fraction is not None:
        return min(limit, num_from_fraction(fraction, num_clients))
    if num_byzantine is None:
        if rule.must_be_told():
            raise ValueError(
                f"{rule.name} must be told how many clients may lie; pass num_byzantine=, or "
                "byzantine_fraction= if the number is unknown."
            )
        return 0
    if isinstance(num_byzantine, bool) or not isinstance(num_byzantine, int | np.integer):
        raise TypeError(
            f"num_byzantine must be an integer, got {num_byzantine!r}; for a share of the clients "
            "pass byzantine_fraction=."
        )
    if num_byzantine < 0:
        raise ValueError(
            f"num_byzantine must be 0 or larger, got {num_byzantine}; pass 0 if nobody lies."
        )
    if num_byzantine > limit and when_too_many == "raise":
        raise TooManyByzantine(str(rule), limit, num_clients, int(num_byzantine))
    return min(limit, int(num_byzantine))


def num_from_fraction(fraction: float, num_clients: int) -> int:
    """Return ceil(fraction * n), without being misled by floating point (0.07 * 100 is 7)."""
    if isinstance(fraction, bool) or not isinstance(fraction, int | float | np.number):
        raise TypeError(f"byzantine_fraction must be a number, got {fraction!r}.")
    if not (isfinite(fraction) and 0 <= fraction < 0.5):
        raise ValueError(
            f"byzantine_fraction must be at least 0 and below 0.5, got {fraction}; a majority of "
            "liars cannot be outvoted."
        )
    return ceil(float(fraction) * num_clients - 1e-9)


def _weighted(rule: Rule, answer: Aggregation, counts: Tensor) -> Aggregation:
    """Weigh the clients by their numbers of samples, within what the rule gave them together."""
    if answer.vector is not None or answer.weights is None:
        raise ValueError(
            f"{rule} cannot weigh by sample_counts: its update is not an average of clients; "
            "leave sample_counts out."
        )
    weights = answer.weights * counts
    total = weights.sum(dim=-1, keepdim=True)
    if not bool((total > 0).all()):
        raise ValueError("sample_counts must be positive for at least one kept client.")
    return replace(answer, weights=weights / total)


def _check_counts(
    counts: Sequence[float] | None, is_finite: list[bool], device: torch.device
) -> Tensor | None:
    if counts is None:
        return None
    try:
        values = np.asarray(counts, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.empty(0)
    if values.shape != (len(is_finite),) or not (np.isfinite(values) & (values >= 0)).all():
        raise ValueError(
            f"sample_counts must be {len(is_finite)} finite numbers, one per client and none "
            f"negative, got {counts!r}; leave sample_counts out to count every client alike."
        )
    return torch.from_numpy(values[is_finite]).to(device)


def _check_clients(clients: Sequence[Hashable] | None, num_clients: int) -> tuple[Hashable, ...]:
    if clients is None:
        return tuple(range(num_clients))
    ids = tuple(clients)
    if len(ids) != num_clients or len(set(ids)) != num_clients:
        raise ValueError(
            f"clients must be {num_clients} different ids, one per gradient, got {len(ids)} of "
            f"which {len(set(ids))} are different."
        )
    return ids


def _check_finite(vector: Tensor) -> Tensor:
    if not bool((vector.abs() <= LARGEST).all()):
        raise ValueError(
            "reference and state must be finite, got NaN, infinity or a number too large to square "
            "in them; leave them out or compute them again."
        )
    return vector


def _explicit_split(rule: Rule, groups: Sequence[Sequence[int]], received: Received) -> Any:
    if rule.name != "gas":
        raise ValueError(f"groups= is for gas alone, got it for {rule}; leave groups out.")
    return explicit(groups, received.rows.shape[1], received.rows.device)


def _spread(values: Tensor | None, is_finite: list[bool], fill: float) -> np.ndarray:
    """Put the values of the finite rows back to their places."""
    spread = np.full(len(is_finite), fill)
    if values is not None:
        spread[is_finite] = values[0].double().cpu().numpy()
    return spread
