"""From gradients to an aggregation: the one path that every call of a rule takes.

`aggregate` computes the rounds of many runs: it measures the rows, rejects those that are not
finite, puts runs together that are alike, and lets the rule compute. `one_round` is a batch of one
run through it, from what a caller passes to the verdict. The simulator, the Flower strategy and the
files call the same functions.
"""

import secrets
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outvote.axes import Rows
from outvote.errors import TooManyByzantine, check_choice
from outvote.flat import as_vector, receive, to_float
from outvote.ops.process import on_device, plain_torch, work_dtype
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.groups import Split, explicit_split
from outvote.rules.rule import (
    Aggregation,
    RoundInfo,
    Rule,
    base_num_byzantine,
    compute_weighted,
    known,
    lowered_inside,
)
from outvote.rules.sample_counts import (
    COUNT_CAP,
    capped_counts,
    capped_note,
    check_cap,
    check_counts,
)
from outvote.rules.values import (
    InMemory,
    RowFacts,
    Stream,
    StreamedVector,
    central_client,
    row_facts,
)
from outvote.rules.verdict import Verdict
from outvote.seeding import RandomStream, Seed, seed_from


@dataclass(slots=True, kw_only=True)
class Batch:
    """The gradients of many runs, and what belongs to each: one entry per run everywhere."""

    gradients: Rows | Stream
    """``[runs, clients, dim]``, or a stream of one run."""
    num_byzantine: Sequence[int]
    """How many clients are assumed to be Byzantine; above the rule's limit it is lowered."""
    seeds: Sequence[int]
    is_present: Tensor | None = None
    """Which rows were received; None: all."""
    clients: Sequence[Sequence[Hashable]] | None = None
    """Their ids."""
    references: Sequence[Tensor | None] | None = None
    states: Sequence[Any] | None = None
    models: Sequence[Tensor] | Tensor | None = None
    sample_counts: Sequence[Sequence[float] | None] | None = None
    """Weigh the clients, none more than `count_cap` times the median of its run."""
    count_cap: float = COUNT_CAP
    round: int | None = None
    layer_sizes: tuple[int, ...] | None = None
    split: Split | None = None
    facts: RowFacts | None = None
    """The `row_facts` of the gradients, where several rules share them."""
    is_full: bool = True
    """With weights and scores, which the update alone does not need."""
    to_vector: Callable[[Any], Tensor] | None = None

    @property
    def num_clients(self) -> int:
        """How many clients each run has, received or not."""
        return self.gradients.shape[-1 if isinstance(self.gradients, Stream) else 1]

    def runs(self, rule: Rule) -> "list[Run]":
        """Look at the rows, and return what is left of every run."""
        num_runs = self.gradients.shape[0]
        if len(self.num_byzantine) != num_runs or len(self.seeds) != num_runs:
            raise ValueError(
                f"num_byzantine and seeds must have one entry for each of the {num_runs} runs, "
                f"got {len(self.num_byzantine)} and {len(self.seeds)}."
            )
        facts = row_facts(self.gradients) if self.facts is None else self.facts
        present = None if self.is_present is None else self.is_present.tolist()
        everyone = list(range(self.num_clients))
        runs = []
        for number, is_finite in enumerate(facts.is_finite):
            here = everyone if present is None else [k for k in everyone if present[number][k]]
            rows = here if all(is_finite) else [k for k in here if is_finite[k]]
            norms, originals = facts.norms[number], facts.originals[number]
            if rows is not everyone:
                norms, originals = [norms[k] for k in rows], _among(originals, rows)
            used = min(int(self.num_byzantine[number]), rule.max_byzantine(len(here)))
            left = max(0, used - (len(here) - len(rows)))
            run = Run(
                number=number,
                rows=rows,
                norms=norms,
                originals=originals,
                num_byzantine=left,
                used=used,
                received=here,
            )
            if rows and self.sample_counts is not None:
                run.counts = self._capped(self.sample_counts[number], rows, left)
            runs.append(run)
        return runs

    def _capped(
        self, claimed: Sequence[float] | None, rows: list[int], num_byzantine: int
    ) -> Tensor | None:
        """Return how much each of some clients counts; None: all alike."""
        if claimed is None:
            return None
        counts = capped_counts([claimed[k] for k in rows], num_byzantine, self.count_cap)
        return None if counts is None else torch.from_numpy(counts).to(self.gradients.device)

    def info(self, rule: Rule, runs: "list[Run]") -> RoundInfo:
        """Return what the rule is given: what belongs to one run only where it is alone."""
        first, device = runs[0], self.gradients.device
        own = self._own(rule, first) if len(runs) == 1 else {}
        seeds = self.seeds
        if len(runs) < len(seeds):
            seeds = [seeds[run.number] for run in runs]
        return RoundInfo(
            num_byzantine=first.num_byzantine,
            stream=RandomStream(tuple(seeds)),
            num_received=len(first.received),
            round=self.round,
            split=self.split,
            layer_sizes=self.layer_sizes,
            counts=first.counts,
            wants_weights=self.is_full,
            to_vector=self.to_vector or (lambda value: as_vector(value, device)),
            **own,
        )

    def _own(self, rule: Rule, run: "Run") -> dict[str, Any]:
        """Return what the rule is given of one run; raise if its traits ask for more."""
        traits, number = rule.traits, run.number
        ids: Sequence[Hashable] = run.rows
        if self.clients is not None:
            ids = self.clients[number]
            if len(run.rows) < len(ids):
                ids = [ids[k] for k in run.rows]
        own: dict[str, Any] = {"clients": tuple(ids)}
        if self.references is not None:
            own["reference"] = self.references[number]
        if traits.has_state and self.states is not None:
            own["state"] = self.states[number]
        if traits.needs_model and self.models is not None:
            own["model"] = self.models[number]
        if traits.needs_reference and own.get("reference") is None:
            raise ValueError(
                f"{rule.name} needs reference=, the gradient that the server computed on its own "
                "clean data, got None."
            )
        if traits.needs_model and own.get("model") is None:
            raise ValueError(f"{rule.name} needs model=, the current model as a vector, got None.")
        return own


@dataclass(slots=True, kw_only=True)
class Run:
    """What is left of one run of a batch."""

    number: int
    rows: list[int]
    """Those that are finite."""
    norms: list[float]
    originals: list[int]
    """The first of these rows that is equal to each."""
    num_byzantine: int
    """How many Byzantine clients are left among them."""
    used: int
    """How many were assumed in all."""
    received: list[int]
    counts: Tensor | None = None
    """How much each client counts; None: all alike."""
    centre: int = 0
    """The row of median norm."""
    is_wide: bool = False
    """Whether squares overflow in float32, or vanish: distances then take float64."""


def aggregate(rule: Rule, batch: Batch) -> Aggregation:
    """Aggregate a batch, run by run as the rule would alone.

    The result has a vector for every run, scores (the rule's own, else the distances to the update;
    infinite for rows that took no part), weights (0 for those; NaN for runs where they are not
    known, None if no run knows them) and a tuple of states.
    """
    with plain_torch(batch.gradients.device):
        runs = batch.runs(rule)
        alike = _alike(rule, runs)
        found = []
        for some in alike:
            found.append(_compute(rule, batch, some))
        is_whole = len(alike) == 1 and len(alike[0]) == len(runs)
        if is_whole and len(runs[0].rows) == batch.num_clients:
            parts = found[0]
        else:
            parts = _merged(batch, alike, found)
    used, is_rejected = [], torch.zeros(len(runs), batch.num_clients, dtype=torch.bool)
    for run in runs:
        used.append(run.used)
        if len(run.rows) < len(run.received):
            is_rejected[run.number, sorted(set(run.received) - set(run.rows))] = True
    return Aggregation(**parts, is_rejected=is_rejected, num_byzantine=tuple(used))


def _among(originals: list[int], rows: list[int]) -> list[int]:
    """Return, for each of some rows, the first of them that is equal to it."""
    first: dict[int, int] = {}
    return [first.setdefault(originals[row], k) for k, row in enumerate(rows)]


def _alike(rule: Rule, runs: list[Run]) -> list[list[Run]]:
    """Put runs together that can be computed together; distances of some take a higher precision.

    A run without finite rows is in none of them.
    """
    traits = rule.traits
    is_alone = (
        traits.has_state or traits.needs_reference or traits.needs_model or not traits.is_batched
    )
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        if run.rows:
            run.centre, run.is_wide = central_client(run.norms)
            own = run.number if is_alone or run.counts is not None else None
            kind = (len(run.rows), run.num_byzantine, len(run.received), run.is_wide, own)
            groups.setdefault(kind, []).append(run)
    return list(groups.values())


def _compute(rule: Rule, batch: Batch, runs: list[Run]) -> dict[str, Any]:
    """Let the rule compute; the parts of the result have a vector, and scores if wanted."""
    gradients = batch.gradients
    longest, everyone = 0.0, list(range(len(runs[0].rows)))
    norms, centres, originals, has_copies = [], [], [], False
    for run in runs:
        longest = max(longest, *run.norms)
        norms.append(run.norms)
        centres.append(run.centre)
        originals.append(run.originals)
        has_copies = has_copies or run.originals != everyone
    matrix = ClientMatrix(
        _values(batch, runs),
        centre=centres,
        norms=norms,
        originals=on_device(originals, gradients.device) if has_copies else None,
        is_wide=runs[0].is_wide,
        largest_norm=longest,
    )
    found = compute_weighted(rule, matrix, batch.info(rule, runs))
    vector = found.vector
    if vector is None:
        vector = matrix.vector(found)
    largest = torch.finfo(matrix.work_dtype).max
    if vector.dtype != matrix.work_dtype or longest > largest / 8:
        # An average of the largest numbers may overflow by rounding.
        vector = _limited(vector, matrix.work_dtype)
    scores, weights = found.scores, found.weights
    if batch.is_full:
        if scores is None:
            scores = matrix.distances_to(Aggregation(vector=vector))
        scores, weights = scores.double(), None if weights is None else weights.double()
    return {
        "vector": vector,
        "scores": scores,
        "weights": weights,
        "num_groups": found.num_groups,
        "notes": found.notes,
        "states": (found.state,) * len(runs),
    }


def _values(batch: Batch, runs: list[Run]) -> Any:
    """Return the finite rows of some runs: a view, where all are finite and the runs neighbours."""
    gradients, rows, num_runs = batch.gradients, runs[0].rows, len(runs)
    is_whole = len(rows) == batch.num_clients
    if isinstance(gradients, Stream):
        return gradients if is_whole else gradients.of_clients(0, torch.tensor(rows))
    first, last = runs[0].number, runs[-1].number
    if is_whole and last - first == num_runs - 1:
        return InMemory(gradients[first : last + 1].mT)
    numbers = [run.number for run in runs]
    if is_whole:
        return InMemory(gradients[on_device(numbers, gradients.device)].mT)
    return InMemory(gradients[[[k] for k in numbers], [run.rows for run in runs]].mT)


def _limited(vector: Any, dtype: torch.dtype) -> Any:
    """Return a vector in a dtype and its range."""
    if isinstance(vector, StreamedVector):
        return vector.changed(lambda piece: _limited(piece, dtype))
    largest = torch.finfo(dtype).max
    return to_float(vector, dtype).clamp(min=-largest, max=largest)


def _merged(batch: Batch, alike: list[list[Run]], found: list[dict[str, Any]]) -> dict[str, Any]:
    """Put the results of all runs together; a run without finite rows has the update 0."""
    num_runs, device = len(batch.seeds), batch.gradients.device
    scores = torch.full((num_runs, batch.num_clients), torch.inf, dtype=torch.float64)
    scores = scores.to(device)
    weights = torch.zeros_like(scores)
    states = list(batch.states or [None] * num_runs)
    if len(found) == 1 and len(alike[0]) == num_runs:
        vector: Any = found[0]["vector"]
    else:
        dim = batch.gradients.shape[1 if isinstance(batch.gradients, Stream) else 2]
        vector = scores.new_zeros(num_runs, dim, dtype=work_dtype(batch.gradients.dtype))
    for runs, one in zip(alike, found, strict=True):
        numbers = [run.number for run in runs]
        at = [[number] for number in numbers], [run.rows for run in runs]
        if vector is not one["vector"]:
            vector[numbers] = one["vector"]
        if one["scores"] is not None:
            scores[at] = one["scores"].double()
        weights[at] = torch.nan if one["weights"] is None else one["weights"].double()
        for number, state in zip(numbers, one["states"], strict=True):
            states[number] = state
    is_known = not found or any(one["weights"] is not None for one in found)
    return {
        "vector": vector,
        "scores": scores,
        "weights": weights if is_known else None,
        "num_groups": next((one["num_groups"] for one in found), None),
        "notes": tuple(dict.fromkeys(note for one in found for note in one["notes"])),
        "states": tuple(states),
    }


@dataclass(frozen=True, slots=True)
class OneRound:
    """What came of one round of one run."""

    rule: Rule
    update: Any
    found: Aggregation
    clients: tuple[Hashable, ...]
    seed: int
    notes: tuple[str, ...]
    counts: list[float] | None = None
    """The numbers of samples that the clients claim."""
    count_cap: float = COUNT_CAP
    rejected_are_byzantine: bool = True
    """Whether those rejected count among the Byzantine clients."""

    def verdict(self) -> Verdict:
        """Return the update with scores, weights, and who was kept, dropped or rejected."""
        found = self.found
        is_rejected = known(found.is_rejected)[0].tolist()
        num_left = len(self.clients) - sum(is_rejected)
        f = found.num_byzantine[0]
        left = max(0, f - sum(is_rejected)) if self.rejected_are_byzantine else f
        return Verdict(
            update=self.update,
            scores=known(found.scores)[0].cpu().numpy(),
            weights=None if found.weights is None else found.weights[0].cpu().numpy(),
            clients=self.clients,
            rejected=[who for who, out in zip(self.clients, is_rejected, strict=True) if out],
            num_byzantine=f,
            base_num_byzantine=base_num_byzantine(self.rule, left, max(1, num_left)),
            num_groups=found.num_groups,
            seed=self.seed,
            state=found.states[0],
            notes=self.notes
            + lowered_inside(self.rule, left, max(1, num_left))
            + self._capped_note(is_rejected, left),
        )

    def _capped_note(self, is_rejected: list[bool], num_byzantine: int) -> tuple[str, ...]:
        if self.counts is None or all(is_rejected):
            return ()
        rows = [k for k, is_out in enumerate(is_rejected) if not is_out]
        clients, counts = [self.clients[k] for k in rows], [self.counts[k] for k in rows]
        return capped_note(clients, counts, num_byzantine, self.count_cap)


def one_round(  # noqa: PLR0913  (all that a round may have, by name)
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
    count_cap: float = COUNT_CAP,
    reference: Any = None,
    state: Any = None,
    round: int | None = None,  # noqa: A002
    model: Any = None,
    layer_sizes: Sequence[int] | None = None,
    is_full: bool = True,
) -> OneRound:
    """Aggregate one round of one run: a batch of one through `aggregate`."""
    received = receive(gradients)
    num_clients = len(received.rows)
    ids = check_clients(clients, num_clients)
    drawn = secrets.randbits(63) if seed is None else seed_from(seed)
    f = resolve_num_byzantine(rule, num_clients, num_byzantine, byzantine_fraction, when_too_many)
    if state is not None and not rule.traits.has_state:
        raise ValueError(f"{rule.name} has no state, state must be None.")
    if layer_sizes is None:
        layer_sizes = received.layer_sizes
    if count_cap != COUNT_CAP:
        check_cap(count_cap)
    counts = None if sample_counts is None else [check_counts(sample_counts, num_clients)]
    batch = Batch(
        gradients=received.rows.unsqueeze(0),
        num_byzantine=[f],
        seeds=[drawn],
        clients=[ids],
        references=None if reference is None else [received.to_vector(reference)],
        states=[state],
        round=round,
        models=None if model is None else [received.to_vector(model)],
        layer_sizes=None if layer_sizes is None else tuple(layer_sizes),
        split=None if groups is None else split_of_caller(rule, groups, received.rows.shape[1]),
        sample_counts=counts,
        count_cap=count_cap,
        to_vector=received.to_vector,
        is_full=is_full,
    )
    found = aggregate(rule, batch)
    assert found.vector is not None
    update = received.restore(found.vector.squeeze(0))
    notes = received.notes + found.notes
    claimed = None if counts is None else counts[0]
    return OneRound(rule, update, found, ids, drawn, notes, claimed, count_cap)


def resolve_num_byzantine(
    rule: Rule,
    num_clients: int,
    num_byzantine: int | None,
    fraction: float | None,
    when_too_many: str,
) -> int:
    """Return how many of the received rows the rule assumes to be Byzantine."""
    if when_too_many not in ("raise", "lower"):
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
    """Return ceil(fraction * n), at most a minority; rounding does not count (0.07 * 100 is 7)."""
    if isinstance(fraction, bool) or not isinstance(fraction, int | float | np.number):
        raise TypeError(f"byzantine_fraction must be a number, got {fraction!r}.")
    if not (isfinite(fraction) and 0 <= fraction < 0.5):
        raise ValueError(
            f"byzantine_fraction must be at least 0 and below 0.5, got {fraction}; a Byzantine "
            "majority cannot be outvoted."
        )
    # By its text: numpy's float32(0.2) is a little more than 0.2.
    return min(ceil(float(str(fraction)) * num_clients - 1e-9), max(0, num_clients - 1) // 2)


def check_clients(clients: Sequence[Hashable] | None, num_clients: int) -> tuple[Hashable, ...]:
    """Return the ids of clients, by default their numbers; they must be different."""
    if clients is None:
        return tuple(range(num_clients))
    ids = tuple(clients)
    if len(ids) != num_clients or len(set(ids)) != num_clients:
        raise ValueError(
            f"clients must be {num_clients} different ids, one per gradient, got {len(ids)} ids, "
            f"{len(set(ids))} different."
        )
    return ids


def split_of_caller(rule: Rule, groups: Sequence[Sequence[int]], dim: int) -> Split:
    """Return the partition that a caller gives; raise unless it is one, and the rule is gas."""
    if rule.name != "gas":
        raise ValueError(f"groups= is for gas alone, got it for {rule}; leave groups out.")
    return explicit_split(groups, dim)
