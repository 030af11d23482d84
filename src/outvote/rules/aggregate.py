"""From gradients to an aggregation: the one path that every call of a rule takes.

`aggregate` computes the rounds of many runs: it rejects rows that are not finite, finds a central
client and duplicates, puts runs together that are alike, and lets the rule compute. `inspect` is a
batch of one run through it, from what a caller passes to the verdict. The simulator and the Flower
strategy call the same function.
"""

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outvote.axes import Rows
from outvote.errors import OutvoteWarning, TooManyByzantine, check_choice
from outvote.precision import plain_torch, work_dtype
from outvote.receive import Received, as_vector, finite_rows, norms_later, receive
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.distances import central_client, distances_to_update, duplicate_pairs
from outvote.rules.rule import Aggregation, RoundInfo, Rule, base_num_byzantine, check_finite
from outvote.rules.split import Split, explicit_split
from outvote.rules.verdict import Verdict
from outvote.seeding import RandomStream, Seed, seed_from


def aggregate(  # noqa: PLR0913  (a round has many facts, and all are named)
    rule: Rule,
    gradients: Rows,
    *,
    num_byzantine: Sequence[int],
    seeds: Sequence[int],
    is_present: Tensor | None = None,
    clients: Sequence[Sequence[Hashable]] | None = None,
    references: Sequence[Tensor | None] | None = None,
    states: Sequence[Any] | None = None,
    round: int | None = None,  # noqa: A002
    models: Sequence[Tensor] | Tensor | None = None,
    layer_sizes: tuple[int, ...] | None = None,
    split: Split | None = None,
    sample_counts: Sequence[Sequence[float] | None] | None = None,
    to_vector: Callable[[Any], Tensor] | None = None,
    is_full: bool = True,
) -> Aggregation:
    """Aggregate ``gradients [runs, clients, dim]`` run by run, as the rule would each alone.

    All sequences have one entry per run. `is_present` marks the rows that were received,
    `clients` are their ids. A number above the rule's limit is lowered, see `num_byzantine` of the
    result. `is_full`: with weights and scores, which the update alone does not need.

    The result has a vector for every run, scores (the rule's own, else the distances to the update;
    infinite for rows that took no part), weights (0 for those; NaN for runs where they are not
    known, None if no run knows them) and a tuple of states.
    """
    _check_runs(gradients, num_byzantine, seeds)
    with plain_torch(gradients.device):
        batch = _Batch(
            rule=rule,
            gradients=gradients.detach(),
            seeds=seeds,
            clients=clients,
            references=references,
            states=states,
            models=models,
            sample_counts=sample_counts,
            info={
                "round": round,
                "layer_sizes": layer_sizes,
                "split": split,
                "wants_weights": is_full,
                "to_vector": to_vector or partial(as_vector, device=gradients.device),
            },
            is_full=is_full,
        )
        return batch.aggregate(num_byzantine, is_present)


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a batch: its number, the rows that are finite, and the Byzantine ones left."""

    number: int
    rows: list[int]
    norms: list[float]
    num_byzantine: int
    num_received: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """The rounds of some runs that share a rule."""

    rule: Rule
    gradients: Rows
    seeds: Sequence[int]
    clients: Sequence[Sequence[Hashable]] | None
    references: Sequence[Tensor | None] | None
    states: Sequence[Any] | None
    models: Sequence[Tensor] | Tensor | None
    sample_counts: Sequence[Sequence[float] | None] | None
    info: dict[str, Any]
    is_full: bool

    def aggregate(self, num_byzantine: Sequence[int], is_present: Tensor | None) -> Aggregation:
        """Put runs that are alike together, and let the rule compute."""
        num_runs, num_clients, _ = self.gradients.shape
        shape, device = (num_runs, num_clients), self.gradients.device
        present = torch.ones(shape, dtype=torch.bool) if is_present is None else is_present.cpu()
        is_finite, used, runs = self._finite_runs(present.tolist(), num_byzantine)
        found = [(alike, self._compute(alike)) for alike in self._alike(runs)]
        scores = torch.full(shape, torch.inf, dtype=torch.float64, device=device)
        weights = torch.zeros(shape, dtype=torch.float64, device=device)
        states = list((None,) * num_runs if self.states is None else self.states)
        for alike, one in found:
            where = torch.tensor([run.number for run in alike], device=device)
            at = (where.unsqueeze(-1), torch.tensor([run.rows for run in alike], device=device))
            if one.scores is not None:
                scores[at] = one.scores.double()
            weights[at if one.weights is not None else where] = (
                torch.nan if one.weights is None else one.weights.double()
            )
            for run in alike:
                states[run.number] = one.state
        is_known = not found or any(one.weights is not None for _, one in found)
        return Aggregation(
            vector=self._vectors(found),
            scores=scores,
            weights=weights if is_known else None,
            num_groups=next((one.num_groups for _, one in found), None),
            notes=tuple(dict.fromkeys(note for _, one in found for note in one.notes)),
            is_rejected=(present & ~torch.tensor(is_finite)).to(device),
            num_byzantine=tuple(used),
            states=tuple(states),
        )

    def _vectors(self, found: list[tuple[list[_Run], Aggregation]]) -> Tensor:
        """Return the updates of all runs; that of a run without finite rows is 0."""
        num_runs, _, dim = self.gradients.shape
        if len(found) == 1 and len(found[0][0]) == num_runs and found[0][1].vector is not None:
            return found[0][1].vector
        vectors = self.gradients.new_zeros(num_runs, dim, dtype=work_dtype(self.gradients.dtype))
        for alike, one in found:
            vectors[[run.number for run in alike]] = one.vector
        return vectors

    def _finite_runs(
        self, present: list[list[bool]], num_byzantine: Sequence[int]
    ) -> tuple[list[list[bool]], list[int], list[_Run]]:
        """Find the rows that are finite, and the number of Byzantine clients left among them."""
        num_clients = self.gradients.shape[1]
        flat = self.gradients.flatten(0, 1)
        norms = norms_later(flat)()
        is_finite = finite_rows(flat, norms)
        finite, used, runs = [], [], []
        for number, here in enumerate(present):
            first = number * num_clients
            ok = is_finite[first : first + num_clients]
            rows = [k for k in range(num_clients) if here[k] and ok[k]]
            num_received = sum(here)
            f = min(int(num_byzantine[number]), self.rule.max_byzantine(num_received))
            left = max(0, f - (num_received - len(rows)))
            finite.append(ok)
            used.append(f)
            if rows:
                own = [norms[first + k] for k in rows]
                runs.append(_Run(number, rows, own, left, num_received))
        return finite, used, runs

    def _alike(self, runs: list[_Run]) -> list[list[_Run]]:
        """Put runs with as many rows and as many Byzantine ones together; some stay alone."""
        traits = self.rule.traits
        is_alone = (
            traits.has_state
            or traits.needs_reference
            or traits.needs_model
            or not traits.is_batched
            or self.sample_counts is not None
        )
        groups: dict[tuple[int, ...], list[_Run]] = {}
        for run in runs:
            kind = (len(run.rows), run.num_byzantine, run.num_received)
            groups.setdefault((*kind, run.number) if is_alone else kind, []).append(run)
        return list(groups.values())

    def _compute(self, runs: list[_Run]) -> Aggregation:
        """Let the rule compute; the result has a vector, and scores if they are wanted."""
        rows = self._rows(runs)
        centre = torch.tensor([central_client(run.norms) for run in runs], device=rows.device)
        matrix = ClientMatrix.from_rows(rows, centre, _duplicates(rows, runs))
        found = check_finite(self.rule, self.rule.compute(matrix, self._round_info(runs)))
        counts = None if self.sample_counts is None else self.sample_counts[runs[0].number]
        if counts is not None:
            found = _weighted(self.rule, found, counts, runs[0].rows)
        vector = matrix.vector(found)
        if self.is_full and found.scores is None:
            # A rule with state has had its distances from the matrix since 0.1.
            by_matrix = self.rule.traits.has_state
            scores = (
                matrix.distances_to(Aggregation(vector=vector))
                if by_matrix
                else distances_to_update(rows, vector)
            )
            found = replace(found, scores=scores)
        return replace(found, vector=vector)

    def _rows(self, runs: list[_Run]) -> Rows:
        """Return the finite rows of some runs, without a copy if these are all."""
        rows = torch.tensor([run.rows for run in runs], device=self.gradients.device)
        if rows.numel() == self.gradients.shape[:2].numel():
            return self.gradients
        where = torch.tensor([run.number for run in runs], device=self.gradients.device)
        return self.gradients[where.unsqueeze(-1), rows]

    def _round_info(self, runs: list[_Run]) -> RoundInfo:
        """Return what the rule is given: what belongs to one run only where it is alone."""
        first, traits = runs[0], self.rule.traits
        own: dict[str, Any] = {}
        if len(runs) == 1:
            ids = None if self.clients is None else self.clients[first.number]
            own["clients"] = tuple(k if ids is None else ids[k] for k in first.rows)
            own["reference"] = self.references and self.references[first.number]
            if traits.has_state and self.states is not None:
                own["state"] = self.states[first.number]
            if traits.needs_model and self.models is not None:
                own["model"] = self.models[first.number]
        return RoundInfo(
            num_byzantine=first.num_byzantine,
            stream=RandomStream(tuple(self.seeds[run.number] for run in runs)),
            num_received=first.num_received,
            **own,
            **self.info,
        )


def _check_runs(gradients: Rows, num_byzantine: Sequence[int], seeds: Sequence[int]) -> None:
    num_runs = len(gradients)
    if len(num_byzantine) != num_runs or len(seeds) != num_runs:
        raise ValueError(
            f"num_byzantine and seeds must have one entry for each of the {num_runs} runs, got "
            f"{len(num_byzantine)} and {len(seeds)}."
        )


def _duplicates(rows: Rows, runs: list[_Run]) -> Tensor | None:
    """Mark the pairs of equal rows of every run, if there are any."""
    pairs = [duplicate_pairs(matrix, run.norms) for matrix, run in zip(rows, runs, strict=True)]
    if all(pair is None for pair in pairs):
        return None
    none = torch.eye(rows.shape[1], dtype=torch.bool, device=rows.device)
    return torch.stack([none if pair is None else pair for pair in pairs])


def _weighted(
    rule: Rule, found: Aggregation, counts: Sequence[float], rows: list[int]
) -> Aggregation:
    """Weigh the clients by their numbers of samples, within what the rule gave them together."""
    if found.vector is not None or found.weights is None:
        raise ValueError(
            f"{rule} cannot weigh by sample_counts: its update is not an average of clients; "
            "leave sample_counts out."
        )
    of_rows = torch.tensor([counts[k] for k in rows], dtype=torch.float64)
    weights = found.weights * of_rows.to(found.weights.device)
    total = weights.sum(dim=-1, keepdim=True)
    if not bool((total > 0).all()):
        raise ValueError("sample_counts must be positive for at least one kept client.")
    return replace(found, weights=weights / total)


def inspect(  # noqa: PLR0913  (a round has many facts, and all are named)
    rule: Rule,
    gradients: Any,
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
    round: int | None = None,  # noqa: A002
    model: Any = None,
    layer_sizes: Sequence[int] | None = None,
    is_full: bool = True,
) -> Verdict:
    """Aggregate one round; `is_full` also computes what the update alone does not need."""
    received = receive(gradients)
    num_clients = len(received.rows)
    ids = _check_clients(clients, num_clients)
    drawn = seed_from(seed)
    f = resolve_num_byzantine(rule, num_clients, num_byzantine, byzantine_fraction, when_too_many)
    if state is not None and not rule.traits.has_state:
        raise ValueError(f"{rule.name} has no state, state must be None.")
    if layer_sizes is None:
        layer_sizes = received.layer_sizes
    counts = None if sample_counts is None else [_check_counts(sample_counts, num_clients)]
    with plain_torch(received.rows.device):
        found = aggregate(
            rule,
            received.rows.unsqueeze(0),
            num_byzantine=[f],
            seeds=[drawn],
            clients=[ids],
            references=None if reference is None else [received.to_vector(reference)],
            states=[state],
            round=round,
            models=None if model is None else [received.to_vector(model)],
            layer_sizes=None if layer_sizes is None else tuple(layer_sizes),
            split=None if groups is None else _explicit(rule, groups, received),
            sample_counts=counts,
            to_vector=received.to_vector,
            is_full=is_full,
        )
        if received.notes and not is_full:
            warnings.warn(received.notes[0], OutvoteWarning, stacklevel=3)
        return _verdict(rule, received, found, ids, drawn)


def _verdict(
    rule: Rule, received: Received, found: Aggregation, ids: tuple[Hashable, ...], seed: int
) -> Verdict:
    if found.vector is None or found.scores is None or found.is_rejected is None:
        raise TypeError("aggregate() returns a vector, scores and what was rejected.")
    is_rejected = found.is_rejected[0].tolist()
    num_left = len(ids) - sum(is_rejected)
    f = found.num_byzantine[0]
    left = max(0, f - sum(is_rejected))
    return Verdict(
        update=received.restore(found.vector[0]),
        scores=found.scores[0].cpu().numpy(),
        weights=None if found.weights is None else found.weights[0].cpu().numpy(),
        clients=ids,
        rejected=[client for client, out in zip(ids, is_rejected, strict=True) if out],
        num_byzantine=f,
        base_num_byzantine=base_num_byzantine(rule, left, max(1, num_left)),
        num_groups=found.num_groups,
        seed=seed,
        state=found.states[0],
        notes=received.notes + found.notes,
    )


def resolve_num_byzantine(
    rule: Rule,
    num_clients: int,
    num_byzantine: int | None,
    fraction: float | None,
    when_too_many: str,
) -> int:
    """Return how many of the received rows the rule assumes to be Byzantine."""
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
        if rule.traits.uses_num_byzantine:
            raise ValueError(
                f"{rule.name} needs the number of Byzantine clients; pass num_byzantine=, or "
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
            f"num_byzantine must be 0 or larger, got {num_byzantine}; pass 0 if no client is "
            "Byzantine."
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
            f"byzantine_fraction must be at least 0 and below 0.5, got {fraction}; a Byzantine "
            "majority cannot be outvoted."
        )
    return ceil(float(fraction) * num_clients - 1e-9)


def _check_counts(counts: Sequence[float], num_clients: int) -> list[float]:
    try:
        values = np.asarray(counts, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.empty(0)
    if values.shape != (num_clients,) or not (np.isfinite(values) & (values >= 0)).all():
        raise ValueError(
            f"sample_counts must be {num_clients} finite numbers, one per client and none "
            f"negative, got {counts!r}; leave sample_counts out to count every client alike."
        )
    return list(values.tolist())


def _check_clients(clients: Sequence[Hashable] | None, num_clients: int) -> tuple[Hashable, ...]:
    if clients is None:
        return tuple(range(num_clients))
    ids = tuple(clients)
    if len(ids) != num_clients or len(set(ids)) != num_clients:
        raise ValueError(
            f"clients must be {num_clients} different ids, one per gradient, got {len(ids)} ids, "
            f"{len(set(ids))} different."
        )
    return ids


def _explicit(rule: Rule, groups: Sequence[Sequence[int]], received: Received) -> Split:
    if rule.name != "gas":
        raise ValueError(f"groups= is for gas alone, got it for {rule}; leave groups out.")
    return explicit_split(groups, received.rows.shape[1], received.rows.device)
