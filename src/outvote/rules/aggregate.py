"""From gradients to an aggregation: the one path that every call of a rule takes.

`aggregate` computes the rounds of many runs: it rejects rows that are not finite, finds a central
client and copies, puts runs together that are alike, and lets the rule compute. `one_round` is a
batch of one run through it, from what a caller passes to the verdict. The simulator and the Flower
strategy call the same function.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from math import ceil, isfinite
from typing import Any, ParamSpec

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outvote.axes import Rows
from outvote.errors import TooManyByzantine, check_choice
from outvote.flat import to_float
from outvote.ops import is_for_kernels
from outvote.ops.distances import (
    CancellationCheck,
    central_client,
    distances_to_update,
    new_check,
)
from outvote.ops.group_kernels import SAFE_NORM, square_sums_of_pieces
from outvote.ops.memory import is_out_of_memory, kept_on_device, run_index
from outvote.ops.precision import plain_torch, work_dtype
from outvote.receive import Received, as_vector, receive
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.gas import GAS
from outvote.rules.groups import SplitAhead, split_ahead
from outvote.rules.row_facts import (
    SMALLEST_NORM,
    RowFacts,
    UsualRows,
    are_looked_at_later,
    remember,
    row_facts_later,
)
from outvote.rules.rule import (
    Aggregation,
    RoundInfo,
    Rule,
    Traits,
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
from outvote.rules.split import Split, explicit_split
from outvote.rules.verdict import Verdict
from outvote.seeding import RandomStream, Seed, seed_from


def aggregate_later(  # noqa: PLR0913  (all that a round may have, by name)
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
    count_cap: float = COUNT_CAP,
    to_vector: Callable[[Any], Tensor] | None = None,
    facts: "RowFacts | None" = None,
    is_full: bool = True,
    is_checked_later: bool = True,
) -> Callable[[], Aggregation]:
    """Begin to aggregate ``gradients [runs, clients, dim]``, run by run as the rule would alone.

    Call what is returned to get the result. A GPU works on until then; if distances turn out to be
    inexact, the rule computes again.

    All sequences have one entry per run. `is_present` marks the rows that were received,
    `clients` are their ids. A number above the rule's limit is lowered, see `num_byzantine` of the
    result. `sample_counts` weigh the clients, none more than `count_cap` times the median of its
    run. `facts` are the `row_facts` of these gradients, where several rules share them. `is_full`:
    with weights and scores, which the update alone does not need. `is_checked_later`: on a GPU,
    inexact distances are counted; if not, they are redone at once, as when a rule computes again.

    The result has a vector for every run, scores (the rule's own, else the distances to the update;
    infinite for rows that took no part), weights (0 for those; NaN for runs where they are not
    known, None if no run knows them) and a tuple of states.
    """
    num_runs = len(gradients)
    if len(num_byzantine) != num_runs or len(seeds) != num_runs:
        raise ValueError(
            f"num_byzantine and seeds must have one entry for each of the {num_runs} runs, got "
            f"{len(num_byzantine)} and {len(seeds)}."
        )
    with plain_torch(gradients.device):
        values = gradients.detach()
        known_rows, ahead, usual = facts, None, None
        if facts is None and is_present is None and are_looked_at_later(rule, values):
            usual, ahead = _look_later(split, rule, values, seeds)
            known_rows = RowFacts.of_usual(values.shape[1])
        elif facts is None:
            known_rows, ahead = _look(split, rule, values, seeds)
        assert known_rows is not None
        asked = _Asked(
            rule=rule,
            values=values,
            num_byzantine=num_byzantine,
            seeds=seeds,
            is_present=is_present,
            clients=clients,
            references=references,
            states=states,
            round=round,
            models=models,
            layer_sizes=layer_sizes,
            split=split,
            sample_counts=sample_counts,
            count_cap=count_cap,
            to_vector=to_vector or partial(as_vector, device=gradients.device),
            is_full=is_full,
            is_checked_later=is_checked_later,
        )
        return asked.begin(known_rows, ahead, usual)


@dataclass(slots=True, kw_only=True)
class _Asked:
    """What `aggregate_later` is asked for."""

    rule: Rule
    values: Rows
    num_byzantine: Sequence[int]
    seeds: Sequence[int]
    is_present: Tensor | None
    clients: Sequence[Sequence[Hashable]] | None
    references: Sequence[Tensor | None] | None
    states: Sequence[Any] | None
    round: int | None
    models: Sequence[Tensor] | Tensor | None
    layer_sizes: tuple[int, ...] | None
    split: Split | None
    sample_counts: Sequence[Sequence[float] | None] | None
    count_cap: float
    to_vector: Callable[[Any], Tensor]
    is_full: bool
    is_checked_later: bool

    def begin(
        self, facts: RowFacts, ahead: SplitAhead | None, usual: UsualRows | None = None
    ) -> Callable[[], Aggregation]:
        """Let the rule compute with what is known about the rows, or what they are taken for."""
        rule, values = self.rule, self.values
        num_runs = len(values)
        present = None if self.is_present is None else self.is_present.tolist()
        is_rejected = torch.zeros(values.shape[:2], dtype=torch.bool)
        used, runs = _finite_runs(rule, facts, present, self.num_byzantine, is_rejected)
        # What was split ahead may have rows that are not taken.
        ahead = ahead if _are_all(runs, values) else None
        counts_of = _capped(runs, self.sample_counts, self.count_cap)
        groups = _alike(runs, _alone(runs, rule.traits) | counts_of.keys())

        def compute_of(some: list[_Run], check: CancellationCheck | None) -> Aggregation:
            info = self.info_of(some, counts_of.get(some[0].number))
            is_last = some is groups[-1]
            return _compute(rule, values, some, info, check, ahead, usual, is_last=is_last)

        def again() -> Aggregation:
            """Compute with the facts, as the rows are not what they were taken for."""
            assert usual is not None
            return self.begin(RowFacts.from_norms(values, usual.norms), ahead)()

        return _begun(
            lambda check: [(some, compute_of(some, check)) for some in groups],
            lambda found: _merged(
                values,
                found,
                [None] * num_runs if self.states is None else self.states,
                is_rejected=is_rejected,
                num_byzantine=tuple(used),
            ),
            values.device,
            self.new_check(usual),
            None if usual is None else (usual, again),
        )

    def new_check(self, usual: UsualRows | None) -> CancellationCheck | None:
        """Return what counts inexact distances; None: they are redone at once."""
        if not self.is_checked_later:
            return None
        return new_check(self.values.device) if usual is None else usual.new_check()

    def info_of(self, runs: "list[_Run]", counts: NDArray[np.float64] | None) -> RoundInfo:
        """Return what the rule is given: what belongs to one run only where it is alone."""
        first, traits = runs[0], self.rule.traits
        own: dict[str, Any] = {}
        if len(runs) == 1:
            own["clients"] = tuple(first.rows)
            if self.clients is not None:
                ids = self.clients[first.number]
                own["clients"] = tuple([ids[k] for k in first.rows])
            own["reference"] = self.references and self.references[first.number]
            own["state"] = self.states[first.number] if traits.has_state and self.states else None
            if traits.needs_model and self.models is not None:
                own["model"] = self.models[first.number]
            _check_needs(self.rule.name, traits, own)
        return RoundInfo(
            num_byzantine=first.num_byzantine,
            stream=RandomStream(tuple(self.seeds[run.number] for run in runs)),
            num_received=first.num_received,
            round=self.round,
            split=self.split,
            layer_sizes=self.layer_sizes,
            counts=_on(counts, self.values.device),
            wants_weights=self.is_full,
            to_vector=self.to_vector,
            **own,
        )


Parameters = ParamSpec("Parameters")


def _now(
    later: Callable[Parameters, Callable[[], Aggregation]],
) -> Callable[Parameters, Aggregation]:
    @wraps(later)
    def now(*words: Parameters.args, **named: Parameters.kwargs) -> Aggregation:
        return later(*words, **named)()

    return now


aggregate = _now(aggregate_later)
"""Aggregate, see `aggregate_later`."""


def _begun(
    compute: Callable[[CancellationCheck | None], "Found"],
    merge: Callable[["Found"], Aggregation],
    device: torch.device,
    check: CancellationCheck | None,
    usual: tuple[UsualRows, Callable[[], Aggregation]] | None = None,
) -> Callable[[], Aggregation]:
    """Compute with a check of the distances; what is returned looks at it, and computes again.

    `usual`: what the rows are taken for, and what to return if they are not.
    """
    error: Exception | None = None
    found: Found = []
    try:
        found = compute(check)
    except Exception as caught:
        if is_out_of_memory(caught) or (check is None and usual is None):
            raise
        error = caught  # It may come from distances that are inexact, or from unusual rows.

    def finish() -> Aggregation:
        with plain_torch(device):
            # Before a GPU is waited for, which is still at work.
            merged = merge(found) if error is None else None
            if usual is not None and not usual[0].are_usual():
                return usual[1]()
            if check is not None and check.has_failed():
                return merge(compute(None))
            if merged is None:
                assert error is not None
                raise error
            return merged

    return finish


def _check_needs(name: str, traits: Traits, own: dict[str, Any]) -> None:
    """Raise if a rule is not given what its traits ask for."""
    if traits.needs_reference and own["reference"] is None:
        raise ValueError(
            f"{name} needs reference=, the gradient that the server computed on its own clean "
            "data, got None."
        )
    if traits.needs_model and own.get("model") is None:
        raise ValueError(f"{name} needs model=, the current model as a vector, got None.")


def _look(
    split: Split | None, rule: Rule, gradients: Rows, seeds: Sequence[int]
) -> tuple[RowFacts, SplitAhead | None]:
    """Return the facts of the rows; gas splits the coordinates while a GPU measures them."""
    measured = row_facts_later(gradients)
    ahead = _split_ahead(split, rule, gradients, seeds, with_squares=False)
    facts = measured()
    remember(facts)
    return facts, ahead


def _look_later(
    split: Split | None, rule: Rule, gradients: Rows, seeds: Sequence[int]
) -> tuple[UsualRows, SplitAhead | None]:
    """Start to measure the rows, and wait for nothing; gas does so while it splits them."""
    ahead = _split_ahead(split, rule, gradients, seeds, with_squares=True)
    if ahead is None or ahead.squares is None:
        return UsualRows(square_sums_of_pieces(gradients)[0]), ahead
    return UsualRows(ahead.squares), ahead


def _split_ahead(
    split: Split | None, rule: Rule, gradients: Rows, seeds: Sequence[int], *, with_squares: bool
) -> SplitAhead | None:
    if split is not None or not isinstance(rule, GAS) or not is_for_kernels(gradients):
        return None
    stream = RandomStream(tuple(seeds))
    return split_ahead(gradients, rule.split, rule.num_groups, stream, with_squares=with_squares)


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a batch: its number, the rows that are finite, and the Byzantine ones left."""

    number: int
    rows: list[int]
    norms: list[float]
    originals: list[int]
    """The first of these rows that is equal to each."""
    num_byzantine: int
    num_received: int
    centre: int
    """The row of median norm."""

    @property
    def is_tiny(self) -> bool:
        """Whether squares vanish in float32, so that all is computed in float64."""
        return self.norms[self.centre] < SMALLEST_NORM


Found = list[tuple[list[_Run], Aggregation]]


def _finite_runs(
    rule: Rule,
    facts: RowFacts,
    present: list[list[bool]] | None,
    num_byzantine: Sequence[int],
    is_rejected: Tensor,
) -> tuple[list[int], list[_Run]]:
    """Mark the rows that are rejected, and find the runs of the others.

    Returns the Byzantine clients that each run assumes, and the runs with those that are left.
    """
    used, runs = [], []
    num_clients = is_rejected.shape[1]
    for number, ok in enumerate(facts.is_finite):
        here = [True] * num_clients if present is None else present[number]
        is_whole = present is None and all(ok)
        rows = [k for k, is_here in enumerate(here) if is_here and ok[k]]
        num_received = sum(here)
        f = min(int(num_byzantine[number]), rule.max_byzantine(num_received))
        left = max(0, f - (num_received - len(rows)))
        used.append(f)
        if len(rows) < num_received:
            is_rejected[number] = torch.tensor(
                [is_here and not ok[k] for k, is_here in enumerate(here)]
            )
        if rows:
            norms, originals = facts.norms[number], facts.originals[number]
            if not is_whole:
                norms = [norms[k] for k in rows]
                originals = _among([originals[k] for k in rows])
            centre = central_client(norms)
            runs.append(_Run(number, rows, norms, originals, left, num_received, centre))
    return used, runs


def _among(labels: list[int]) -> list[int]:
    """Return, for each of some rows, the first with its label."""
    first: dict[int, int] = {}
    return [first.setdefault(label, k) for k, label in enumerate(labels)]


def _capped(
    runs: list[_Run], counts: Sequence[Sequence[float] | None] | None, cap: float
) -> dict[int, NDArray[np.float64]]:
    """Return the capped counts of the runs whose clients do not count alike, by run number."""
    found = {}
    for run in runs:
        if counts is not None and (own := counts[run.number]) is not None:
            found[run.number] = capped_counts([own[k] for k in run.rows], run.num_byzantine, cap)
    return {number: own for number, own in found.items() if own is not None}


def _on(counts: NDArray[np.float64] | None, device: torch.device) -> Tensor | None:
    return None if counts is None else torch.from_numpy(counts).to(device, non_blocking=True)


def _alone(runs: list[_Run], traits: Traits) -> set[int]:
    """Return the numbers of the runs that a rule does not aggregate together with others."""
    needs_own = traits.has_state or traits.needs_reference or traits.needs_model
    return {run.number for run in runs if needs_own or not traits.is_batched}


def _alike(runs: list[_Run], alone: set[int]) -> list[list[_Run]]:
    """Put runs with as many rows and as many Byzantine ones together, but for those alone.

    Distances of huge and of tiny rows are taken in a higher precision: other runs keep theirs.
    """
    groups: dict[tuple[int, ...], list[_Run]] = {}
    for run in runs:
        is_safe = max(run.norms) < SAFE_NORM
        kind = (len(run.rows), run.num_byzantine, run.num_received, is_safe, run.is_tiny)
        is_alone = run.number in alone
        groups.setdefault((*kind, run.number) if is_alone else kind, []).append(run)
    return list(groups.values())


def _compute(
    rule: Rule,
    gradients: Rows,
    runs: list[_Run],
    info: RoundInfo,
    check: CancellationCheck | None,
    ahead: SplitAhead | None,
    usual: UsualRows | None,
    *,
    is_last: bool,
) -> Aggregation:
    """Let the rule compute; the result has a vector, and scores if they are wanted.

    With the last runs, what was counted in all of them is fetched.
    """
    rows = gradients
    if not _are_all(runs, gradients):
        rows = _rows_of(runs, gradients)
    longest = max(max(run.norms) for run in runs)
    if usual is None:
        if runs[0].is_tiny:
            rows, ahead = rows.double(), None
        centre = kept_on_device([run.centre for run in runs], rows.device)
    else:
        centre = usual.centre
    originals = _originals(runs, rows.device)
    # What overflows is redone at once: a rule must not see infinite distances.
    check = check if longest < SAFE_NORM else None
    matrix = ClientMatrix.from_rows(
        rows,
        centre,
        originals,
        largest_norm=longest if usual is None else usual.largest_norm,
        check=check,
        ahead=ahead,
    )
    found = compute_weighted(rule, matrix, info)
    # Before the average, which counts nothing: a GPU forms it while the host reads what it fetched.
    for later in (usual, check) if is_last else ():
        if later is not None:
            later.fetch()
    vector = to_float(matrix.vector(found), work_dtype(gradients.dtype))
    largest = torch.finfo(vector.dtype).max
    if longest > largest / 8:
        # Weights sum to 1 but for rounding: an average of the largest numbers may overflow.
        vector = vector.clamp(min=-largest, max=largest)
    if not info.wants_weights or found.scores is not None:
        return replace(found, vector=vector)
    if rule.traits.has_state:  # As since 0.1, to the last bit.
        return replace(found, vector=vector, scores=matrix.distances_to(Aggregation(vector=vector)))
    return replace(found, vector=vector, scores=distances_to_update(rows, vector))


def _merged(
    gradients: Rows,
    found: list[tuple[list[_Run], Aggregation]],
    states: Sequence[Any],
    **of_all: Any,
) -> Aggregation:
    """Put the results of all runs together; a run without finite rows has the update 0."""
    if len(found) == 1 and _are_all(found[0][0], gradients):
        runs, one = found[0]
        scores = one.scores
        if scores is None:
            scores = torch.full(gradients.shape[:2], torch.inf, device=gradients.device)
        return replace(
            one,
            scores=scores.double(),
            weights=None if one.weights is None else one.weights.double(),
            state=None,
            states=(one.state,) if len(runs) == 1 else tuple(states),
            **of_all,
        )
    shape, device, dim = gradients.shape[:2], gradients.device, gradients.shape[2]
    is_one = len(found) == 1 and len(found[0][0]) == len(gradients)
    work = work_dtype(gradients.dtype)
    vectors = (
        known(found[0][1].vector) if is_one else gradients.new_zeros(shape[0], dim, dtype=work)
    )
    scores = torch.full(shape, torch.inf, dtype=torch.float64, device=device)
    weights = torch.zeros(shape, dtype=torch.float64, device=device)
    states = list(states)
    for runs, one in found:
        where, at = _where(runs, gradients)
        if not is_one:
            vectors[where] = known(one.vector)
        if one.scores is not None:
            scores[at] = one.scores.double()
        if one.weights is not None:
            weights[at] = one.weights.double()
        else:
            weights[where] = torch.nan
        for run in runs:
            states[run.number] = one.state
    is_known = not found or any(one.weights is not None for _, one in found)
    return Aggregation(
        vector=vectors,
        scores=scores,
        weights=weights if is_known else None,
        num_groups=next((one.num_groups for _, one in found), None),
        notes=tuple(dict.fromkeys(note for _, one in found for note in one.notes)),
        states=tuple(states),
        **of_all,
    )


def _are_all(runs: list[_Run], gradients: Rows) -> bool:
    """Return whether these are all runs, and all their rows are finite."""
    num_runs, num_clients = gradients.shape[:2]
    return len(runs) == num_runs and all(len(run.rows) == num_clients for run in runs)


def _rows_of(runs: list[_Run], gradients: Rows) -> Rows:
    """Return the finite rows of some runs: a view, where all are finite and the runs neighbours."""
    where, at = _where(runs, gradients)
    if at is not where or isinstance(where, slice):
        return gradients[at]
    return gradients.index_select(0, where)


def _where(runs: list[_Run], gradients: Rows) -> tuple[slice | Tensor, Any]:
    """Return the index of some runs, and that of their finite rows: the same, if all are."""
    where = run_index([run.number for run in runs], gradients.device)
    if all(len(run.rows) == gradients.shape[1] for run in runs):
        return where, where
    numbers = kept_on_device([[run.number] for run in runs], gradients.device)
    return where, (numbers, kept_on_device([run.rows for run in runs], gradients.device))


def _originals(runs: list[_Run], device: torch.device) -> Tensor | None:
    """Return the first client equal to each of every run, if there are any copies."""
    if all(run.originals == list(range(len(run.rows))) for run in runs):
        return None
    return kept_on_device([run.originals for run in runs], device)


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

    def verdict(self) -> Verdict:
        """Return the update with scores, weights, and who was kept, dropped or rejected."""
        found = self.found
        is_rejected = known(found.is_rejected)[0].tolist()
        num_left = len(self.clients) - sum(is_rejected)
        f = found.num_byzantine[0]
        left = max(0, f - sum(is_rejected))
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
    drawn = seed_from(seed)
    f = resolve_num_byzantine(rule, num_clients, num_byzantine, byzantine_fraction, when_too_many)
    if state is not None and not rule.traits.has_state:
        raise ValueError(f"{rule.name} has no state, state must be None.")
    if layer_sizes is None:
        layer_sizes = received.layer_sizes
    check_cap(count_cap)
    counts = None if sample_counts is None else [check_counts(sample_counts, num_clients)]
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
            count_cap=count_cap,
            to_vector=received.to_vector,
            is_full=is_full,
        )
        update = received.restore(known(found.vector)[0])
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


def _explicit(rule: Rule, groups: Sequence[Sequence[int]], received: Received) -> Split:
    if rule.name != "gas":
        raise ValueError(f"groups= is for gas alone, got it for {rule}; leave groups out.")
    return explicit_split(groups, received.rows.shape[1], received.rows.device)
