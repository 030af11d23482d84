"""The calling path of every attack: from gradients to the rows that the attackers send.

`craft_rows` is that path, for a batch of runs; the simulator calls it. `run_attack` also puts the
rows in place. `Attack.inspect` is a batch of one run, in the caller's kind of arrays.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outvote.attacks.attack import Attack, AttackOutput
from outvote.attacks.context import AttackContext, Defence, Positions, in_range
from outvote.axes import PerCoordinate, Rows
from outvote.errors import OutvoteWarning, plural
from outvote.flat import Layout, Received, as_tensor, receive
from outvote.ops.process import fresh, plain_torch, work_dtype
from outvote.seeding import RandomStream, Seed, seed_from

LARGEST_COUNT = 2**31 - 1
PER_RUN = ("seeds", "states", "clients")


def run_attack(
    attack: Attack,
    gradients: Rows,
    is_byzantine: Tensor,
    *,
    seeds: Sequence[int],
    defence: Defence | None = None,
    states: Sequence[Any] | None = None,
    clients: Tensor | None = None,
    round: int | None = None,  # noqa: A002  (the word of rules and simulator)
) -> tuple[Rows, AttackOutput]:
    """Replace the rows of ``gradients [runs, clients, dim]`` that `is_byzantine` marks.

    These rows hold what the attackers would have sent honestly. `states` has one state per run,
    `clients [runs, clients]` the id of each row's sender. Returns new gradients and the output,
    with a tuple of states. Runs without an attacker stay as they are.
    """
    info: dict[str, Any] = {"seeds": seeds, "states": states, "clients": clients}
    info |= {"defence": defence, "round": round}
    if attack.has_state and len(gradients) > 1:
        _check_batch(gradients, is_byzantine, seeds, states)
        return _run_by_run(attack, gradients, is_byzantine, info)
    output = craft_rows(attack, gradients, is_byzantine, **info)
    sent = gradients.detach().clone()
    if output.rows is not None:
        Positions(is_byzantine).put(output.rows, sent)
    return sent, output


def craft_rows(  # noqa: PLR0913  (what attackers know about a round is much, and all is named)
    attack: Attack,
    gradients: Rows,
    is_byzantine: Tensor,
    *,
    seeds: Sequence[int],
    own: Rows | None = None,
    defence: Defence | None = None,
    states: Sequence[Any] | None = None,
    clients: Tensor | None = None,
    round: int | None = None,  # noqa: A002  (the word of rules and simulator)
) -> AttackOutput:
    """Return the rows ``[runs, attackers or 1, dim]`` that the attackers of some runs send.

    The rows are None if there is no attacker in any run; nothing is drawn then. `is_byzantine` may
    mark more clients than `gradients` has rows: those are attackers whose own gradients are in
    ``own [runs, attackers, dim]``, or unknown.
    """
    _check_batch(gradients, is_byzantine, seeds, states)
    before = (None,) * len(gradients) if states is None else tuple(states)
    positions = Positions(is_byzantine)
    if not any(positions.counts):
        return AttackOutput(rows=None, state=before)
    if attack.needs_rule() and defence is None:
        raise ValueError(_needs_a_rule(attack, "pass defence="))
    if attack.has_state and len(gradients) > 1:
        raise ValueError(f"{attack} has a state and sees one run at a time; call run_attack.")
    with plain_torch(gradients.device):
        is_byzantine = is_byzantine.to(gradients.device)
        rows = gradients.detach()
        has_all_rows = rows.shape[1] == is_byzantine.shape[1]
        if has_all_rows:
            own = positions.take(rows) if attack.needs_own() else None
        context = AttackContext(
            gradients=rows,
            num_byzantine=positions.counts,
            stream=RandomStream(tuple(seeds)),
            # Where nobody honest was sampled, what the attackers would have sent counts.
            is_counted=~is_byzantine | is_byzantine.all(dim=-1, keepdim=True)
            if has_all_rows
            else None,
            is_own=is_byzantine if has_all_rows else None,
            own=own,
            clients=clients,
            defence=None if defence is None else _asking(defence, rows, is_byzantine, positions),
            state=before[0] if attack.has_state else None,
            round=round,
        )
        output = attack.craft(context)
        if output.state is not None and not attack.has_state:
            raise ValueError(f"{attack} returned a state; declare has_state = True.")
        return replace(
            output,
            rows=_finished(attack, output.rows, context),
            state=(output.state,) if attack.has_state else before,
            notes=output.notes + context.notes(),
        )


def _run_by_run(
    attack: Attack, gradients: Rows, is_byzantine: Tensor, info: dict[str, Any]
) -> tuple[Rows, AttackOutput]:
    """Let an attack with a state see one run at a time."""
    parts = []
    for run in range(len(gradients)):
        one = slice(run, run + 1)
        mine: dict[str, Any] = {
            key: None if info[key] is None else info[key][one] for key in PER_RUN
        }
        if info["defence"] is not None:
            mine["defence"] = partial(_ask_for_run, info["defence"], gradients, run)
        parts.append(
            run_attack(attack, gradients[one], is_byzantine[one], round=info["round"], **mine)
        )
    sent, outputs = torch.cat([part[0] for part in parts]), [part[1] for part in parts]
    unknown = torch.full((1,), torch.nan, dtype=torch.float64, device=gradients.device)
    factors = [unknown if output.factor is None else output.factor for output in outputs]
    has_factor = any(output.factor is not None for output in outputs)
    return sent, AttackOutput(
        rows=Positions(is_byzantine).take(sent),
        factor=torch.cat(factors) if has_factor else None,
        state=tuple(output.state[0] for output in outputs),
        notes=tuple(dict.fromkeys(note for output in outputs for note in output.notes)),
        num_evaluations=sum(output.num_evaluations for output in outputs),
    )


def _ask_for_run(
    defence: Defence, gradients: Rows, run: int, mine: Rows, seeds: Sequence[int]
) -> tuple[PerCoordinate, Tensor | None]:
    """Ask a defence of several runs about one of them; the other runs are not attacked."""
    matrix = gradients.detach().to(mine.dtype, copy=True)
    matrix[run] = mine[0]
    updates, is_kept = defence(matrix, tuple(seeds) * len(gradients))
    return updates[run : run + 1], None if is_kept is None else is_kept[run : run + 1]


def _asking(
    defence: Defence, gradients: Rows, is_byzantine: Tensor, positions: Positions
) -> Defence:
    """Return what `AttackContext.ask` calls: the defence, on all rows, the attackers' in place.

    The matrix is made at the first question; every question overwrites the attackers' rows. It has
    the precision of the computation: in half precision close updates could not be distinguished.
    """
    buffer: list[Rows] = []

    def ask(rows: Rows, seeds: Sequence[int]) -> tuple[PerCoordinate, Tensor | None]:
        if not buffer:
            shape = (*is_byzantine.shape, gradients.shape[-1])
            buffer.append(fresh(shape, work_dtype(gradients.dtype), gradients.device))
            buffer[0][:, : gradients.shape[1]] = gradients
        matrix = buffer[0]
        positions.put(in_range(rows, gradients.dtype), matrix)
        found = defence(matrix, seeds)
        if isinstance(found, Tensor):
            raise TypeError("a defence must return (updates, is_kept); is_kept may be None.")
        updates, is_kept = found
        if is_kept is not None:
            is_kept = (is_kept | ~is_byzantine).all(dim=-1)
        return updates, is_kept

    return ask


def _finished(attack: Attack, rows: Rows, context: AttackContext) -> Rows:
    """Check the rows, and convert them to the dtype of the gradients, clipped to its range."""
    num_runs, _, dim = context.gradients.shape
    shape = (num_runs, max(context.num_byzantine), dim)
    if tuple(getattr(rows, "shape", ())) not in (shape, (num_runs, 1, dim)):
        raise ValueError(
            f"{attack} must return rows of the shape {shape} or {(num_runs, 1, dim)}, got "
            f"{tuple(getattr(rows, 'shape', ()))}; correct the attack."
        )
    if attack.sends_nonfinite:
        # A copy, as below: the rows may be a view of gradients that are written over.
        return rows.to(context.gradients.dtype, copy=True)
    return in_range(rows, context.gradients.dtype)


def _check_batch(
    gradients: Rows, is_byzantine: Tensor, seeds: Sequence[int], states: Sequence[Any] | None
) -> None:
    if gradients.dim() != 3 or not gradients.is_floating_point():
        raise ValueError(
            "gradients must be floats [runs, clients, dim], got "
            f"{gradients.dtype} of the shape {tuple(gradients.shape)}."
        )
    num_runs, num_rows = gradients.shape[:2]
    is_mask = is_byzantine.dim() == 2 and is_byzantine.dtype == torch.bool
    if not is_mask or len(is_byzantine) != num_runs or is_byzantine.shape[1] < num_rows:
        raise ValueError(
            f"is_byzantine must be true or false for each of the {(num_runs, num_rows)} "
            f"rows, got {is_byzantine.dtype} of the shape {tuple(is_byzantine.shape)}."
        )
    for what, given in (("seeds", seeds), ("states", states)):
        if given is not None and len(given) != num_runs:
            raise ValueError(f"{what} must be one per run, {num_runs}, got {len(given)}.")


def _needs_a_rule(attack: Attack, remedy: str) -> str:
    return f"{attack} searches against the defence and needs a rule, got none; {remedy}."


def poison_batch(
    attack: Attack, samples: Tensor, targets: Tensor, num_classes: int
) -> tuple[Tensor, Tensor]:
    """Return the batch that an attacker trains on; raise if `poison` changes a shape or dtype."""
    found = attack.poison(samples, targets, num_classes)
    for what, old, new in zip(("samples", "targets"), (samples, targets), found, strict=True):
        if (new.shape, new.dtype) != (old.shape, old.dtype):
            raise ValueError(
                f"{attack}.poison must keep the shape and dtype of the {what}, "
                f"{tuple(old.shape)} {old.dtype}, got {tuple(new.shape)} {new.dtype}."
            )
    return found


def inspect_attack(
    attack: Attack,
    honest: Any,
    *,
    num_byzantine: int,
    own: Any,
    rule: Any,
    seed: Seed,
    state: Any,
    round: int | None,  # noqa: A002  (the word of rules and simulator)
) -> AttackOutput:
    """Attack a single run: a batch of one through `craft_rows`, in the caller's kind of arrays."""
    _check_num_byzantine(num_byzantine)
    num_byzantine = int(num_byzantine)
    received, own_rows, num_honest = _read(honest, own, num_byzantine)
    if num_byzantine == 0:
        rows = received.rows.new_empty(0, received.rows.shape[1])
        return AttackOutput(rows=_restore(rows, received), state=state, notes=received.notes)
    if attack.needs_rule() and rule is None:
        raise ValueError(_needs_a_rule(attack, "pass rule=, as in rule=ov.GAS(ov.MultiKrum())"))
    drawn = seed_from(seed)
    defence = None
    if attack.needs_rule():
        defence = rule_defence(rule, received, num_honest, num_byzantine, attack.needs_kept)
    output = craft_rows(
        attack,
        received.rows.unsqueeze(0),
        torch.arange(num_honest + num_byzantine).unsqueeze(0) >= num_honest,
        seeds=(drawn,),
        own=None if own_rows is None else own_rows.detach().unsqueeze(0),
        defence=defence,
        states=(state,),
        round=round,
    )
    rows = output.rows[0]
    if len(rows) < num_byzantine:
        # A write into the row of one attacker must not change others.
        rows = fresh((num_byzantine, rows.shape[1]), rows.dtype, rows.device).copy_(rows)
    return replace(
        output,
        rows=_restore(rows, received),
        factor=None if output.factor is None else float(output.factor[0]),
        state=output.state[0],
        seed=drawn,
        notes=received.notes + output.notes,
    )


def _restore(rows: Tensor, received: Received) -> Any:
    if received.layer_sizes is not None:
        return [received.restore(row) for row in rows]
    return received.restore(rows)


def rule_defence(
    rule: Any, received: Received, num_honest: int, num_byzantine: int, needs_kept: bool
) -> Defence:
    """Return the defence of a single run that is a rule, asked in the caller's kind of arrays.

    A rule with `inspect` reports whom it keeps, if that is needed and known; any other function
    of gradients does not. A rule that tolerates fewer attackers is asked with its limit.
    """
    info: dict[str, Any] = {"num_byzantine": num_byzantine}
    inner = rule
    while isinstance(inner, partial):
        info, inner = {**inner.keywords, **info}, inner.func
    if isinstance(inner, type):
        raise TypeError(f"rule must be an object, got the class {inner.__name__}; call it first.")
    if not callable(inner):
        raise TypeError(
            f"rule must be a rule or a function, got {type(rule).__name__}; make_rule builds rules "
            "from text."
        )
    if hasattr(inner, "max_byzantine"):
        info.setdefault("when_too_many", "lower")
    inspect = getattr(inner, "inspect", None) if needs_kept else None
    as_given = _as_given(received, num_honest)

    def defence(gradients: Rows, seeds: Sequence[int]) -> tuple[PerCoordinate, Tensor | None]:
        given = as_given(gradients[0])
        if inspect is None:
            with warnings.catch_warnings():
                # Each question would repeat the notes of the rule.
                warnings.simplefilter("ignore", OutvoteWarning)
                update = rule(given, **info, seed=seeds[0])
            return _vector(update, received), None
        verdict = inspect(given, **info, seed=seeds[0])
        is_kept = None
        # What a rule does not report is unknown, not dropped.
        if verdict.weights is not None and not np.isnan(verdict.weights).any():
            kept = torch.as_tensor(np.asarray(verdict.weights) > 0, device=gradients.device)
            is_kept = kept.unsqueeze(0)
        return _vector(verdict.update, received), is_kept

    return defence


def _as_given(received: Received, num_honest: int) -> Callable[[Tensor], Any]:
    """Return what converts a matrix to the caller's kind: dicts, numpy or torch."""
    example = received.restore(received.rows[0])
    if isinstance(example, np.ndarray):
        return lambda matrix: matrix.numpy()
    if not isinstance(example, dict):
        return lambda matrix: matrix
    honest: list[dict[str, Any]] = []

    def named(matrix: Tensor) -> list[dict[str, Any]]:
        # The honest rows are the same in every question.
        if not honest:
            honest.extend(map(one, matrix[:num_honest]))
        return [*honest, *map(one, matrix[num_honest:])]

    def one(row: Tensor) -> dict[str, Any]:
        return {name: _widened(part) for name, part in received.restore(row).items()}

    return named


def _widened(part: Any) -> Any:
    if isinstance(part, Tensor):
        return part.to(work_dtype(part.dtype))
    return part.astype(np.float32) if part.dtype == np.float16 else part


def _vector(update: Any, received: Received) -> Tensor:
    if isinstance(update, dict):
        return received.to_vector(update).unsqueeze(0)
    vector = as_tensor(update, "the rule's update").to(received.rows.device)
    if vector.shape != received.rows.shape[1:]:
        raise ValueError(
            f"the rule must return {received.rows.shape[1]} coordinates, got the shape "
            f"{tuple(vector.shape)}; check the rule."
        )
    return vector.unsqueeze(0)


def _read(honest: Any, own: Any, num_byzantine: int) -> tuple[Received, Tensor | None, int]:
    """Read honest and own gradients; return the rows to attack by, own, and the honest number.

    Without honest clients the rows are what the attackers would have sent.
    """
    for what, rows in (("honest", honest), ("own", [] if own is None else own)):
        _check_rows(what, rows)
    if len(honest) == 0:
        return _read_own_only(honest, own, num_byzantine), None, 0
    received = receive(honest)
    if own is None:
        return received, None, len(received.rows)
    rows = received.rows[:0]
    if isinstance(honest[0], Mapping):
        layout = Layout.of(honest[0])
        vectors = [layout.flatten(named, f"own row {k}") for k, named in enumerate(own)]
        rows = torch.stack(vectors) if vectors else rows
    elif len(own):
        rows = receive(own, "own", "attacker").rows
    _check_own(rows, received.rows.shape[1], num_byzantine)
    rows = rows.to(received.rows.device, received.rows.dtype)
    return received, rows, len(received.rows)


def _read_own_only(honest: Any, own: Any, num_byzantine: int) -> Received:
    if own is None or len(own) == 0:
        raise ValueError(
            "an attack needs the gradients of at least one honest client, got none; pass "
            "own=, what the attackers would have sent honestly, or leave the round out."
        )
    received = receive(own, "own", "attacker")
    if getattr(honest, "ndim", 0) == 2:
        # Even an empty array has a kind, a dtype and a number of coordinates.
        is_tensor, dim = isinstance(honest, Tensor), honest.shape[1]
        wanted = receive(
            honest.new_zeros(1, dim) if is_tensor else np.zeros((1, dim), honest.dtype)
        )
        _check_own(received.rows, dim, num_byzantine)
        received = replace(wanted, rows=received.rows.to(wanted.rows.device, wanted.rows.dtype))
    _check_own(received.rows, received.rows.shape[1], num_byzantine)
    return received


def _check_num_byzantine(num_byzantine: object) -> None:
    if isinstance(num_byzantine, bool) or not isinstance(num_byzantine, int | np.integer):
        raise TypeError(f"num_byzantine must be an integer, got {num_byzantine!r}.")
    if num_byzantine < 0:
        raise ValueError(
            f"num_byzantine must be 0 or larger, got {num_byzantine}; 0 means no attacker."
        )
    if num_byzantine > LARGEST_COUNT:
        raise ValueError(f"num_byzantine must be at most {LARGEST_COUNT}, got {num_byzantine}.")


def _check_rows(what: str, rows: Any) -> None:
    is_scalar = getattr(rows, "shape", None) == ()
    if is_scalar or not hasattr(rows, "__len__") or isinstance(rows, str | bytes | Mapping):
        kind = "a single number" if is_scalar else type(rows).__name__
        raise TypeError(
            f"{what} must be gradients, one row per client, as an array, a tensor or a list, "
            f"got {kind}."
        )


def _check_own(own: Tensor, dim: int, num_byzantine: int) -> None:
    if tuple(own.shape) != (num_byzantine, dim):
        raise ValueError(
            f"own must be {plural(num_byzantine, 'row')} of {plural(dim, 'coordinate')}, one row "
            f"per attacker, got the shape {tuple(own.shape)}."
        )
