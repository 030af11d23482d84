"""What every attack guarantees: the checks of `check_attack`."""

from copy import deepcopy
from typing import Any

import numpy as np
import torch

from outvote.attacks.run_attack import poison_batch
from outvote.testing.trial import (
    LARGEST,
    AttackTrial,
    BrokenError,
    Scenario,
    as_array,
    equal,
    forms,
    global_state,
    is_like,
    kind_of,
    require,
    require_close,
    stirred_generators,
)


def keeps_kind_and_dtype(trial: AttackTrial) -> None:
    """The rows have the kind, dtype and device of the honest gradients, one row per attacker."""
    one = trial.scenario(6, 3, 4, 1.0)
    pairs = zip(forms(one.honest, trial.device), forms(one.own, trial.device), strict=True)
    for (form, honest), (_, own) in pairs:
        rows = trial.inspect(honest, own).rows
        require(is_like(rows, own), form, f"rows {kind_of(rows)}")


def finite(trial: AttackTrial) -> None:
    """The rows are finite for all finite gradients, also where clients diverged, or never are."""
    if trial.attack.sends_nonfinite:
        for one in trial.rounds():
            is_finite = bool(np.isfinite(trial.rows(one)).all())
            require(not is_finite, one, "finite rows; declare sends_nonfinite = False")
        return
    for number, (dtype, largest) in enumerate(LARGEST.items()):
        values = np.array([0.0, 1.0, -1.0, largest, -largest, float(torch.finfo(dtype).tiny) / 8])
        for num_honest in (1, 4, 7):
            random = trial.random(number, num_honest)
            honest, own = (random.choice(values, size=(k, 5)) for k in (num_honest, 2))
            if num_honest == 7:
                honest[2, 1] = np.nan
            given = (torch.from_numpy(rows).to(trial.device, dtype) for rows in (honest, own))
            rows = as_array(trial.inspect(*given).rows)
            seen = f"{dtype} rows {rows.tolist()}"
            require(bool(np.isfinite(rows).all()), Scenario(honest, own), seen)


def same_seed_same_rows(trial: AttackTrial) -> None:
    """The same seed gives the same rows, whatever was asked in between; it is recorded."""
    for one in trial.rounds():
        first = trial.rows(one)
        seed = trial.run(one).seed
        require(seed == trial.seed, one, f"seed {seed} in place of {trial.seed}")
        trial.rows(Scenario(one.honest[::-1] * 3 + 1, one.own))
        is_same = np.array_equal(trial.rows(one), first, equal_nan=True)
        require(is_same, one, "other rows the second time")


def seed_matters_only_if_random(trial: AttackTrial) -> None:
    """Another seed gives the same rows, unless the attack is random, or asks a rule that is."""
    if trial.attack.is_random or trial.attack.needs_rule():
        return
    for one in trial.rounds():
        again = trial.rows(one, seed=trial.seed + 1)
        is_same = np.array_equal(trial.rows(one), again, equal_nan=True)
        require(is_same, one, "other rows for another seed; declare is_random = True")


def independent_of_order(trial: AttackTrial) -> None:
    """The order of the honest clients does not matter."""
    if trial.attack.depends_on_order:
        return
    for number, one in enumerate(trial.rounds()):
        order = trial.random(number).permutation(len(one.honest))
        moved = trial.rows(Scenario(one.honest[order], one.own))
        _require_close(moved, trial.rows(one), one, f"rows in the order {order.tolist()}")


def leaves_inputs_alone(trial: AttackTrial) -> None:
    """The gradients are never changed, and no row is a view of them."""
    for one in trial.rounds():
        given = [torch.from_numpy(rows.copy()).to(trial.device) for rows in (one.honest, one.own)]
        before = deepcopy(given)
        rows = trial.inspect(*given).rows
        rows[0].fill_(77.0)
        require(
            equal(given, before),
            one,
            "the gradients changed, or a write into the rows went through",
        )


def colluding_rows_are_identical(trial: AttackTrial) -> None:
    """All attackers send the same row if the attack declares is_colluding."""
    if not trial.attack.is_colluding:
        return
    for one in trial.rounds():
        rows = trial.rows(one)
        is_same = all(np.array_equal(row, rows[0], equal_nan=True) for row in rows)
        require(is_same, one, "different rows; declare is_colluding = False")


def no_attacker(trial: AttackTrial) -> None:
    """Without an attacker there are no rows, nothing is drawn, and the rule is not asked."""
    one = trial.scenario(4, 1, 3, 1.0)
    asked = []
    generator = np.random.default_rng(trial.seed)
    before = str(generator.bit_generator.state)
    output = trial.run(
        Scenario(one.honest, one.own[:0]),
        seed=generator,
        rule=lambda *_, **__: asked.append(1),
    )
    require(tuple(output.rows.shape) == (0, 3), one, f"rows {kind_of(output.rows)}")
    require(not asked, one, "the rule was asked")
    require(str(generator.bit_generator.state) == before, one, "a number was drawn")


def one_honest_client(trial: AttackTrial) -> None:
    """A single honest client is enough."""
    one = trial.scenario(1, 2, 4, 1.0)
    _require_sound(trial, one, trial.rows(one))


def zero_spread(trial: AttackTrial) -> None:
    """Honest clients that all send the same are no problem, nor are zeros."""
    one = trial.scenario(5, 2, 4, 1.0)
    for row in (one.honest[:1], 0 * one.honest[:1]):
        same = Scenario(np.repeat(row, 5, axis=0), one.own)
        _require_sound(trial, same, trial.rows(same))


def batch_equals_loop(trial: AttackTrial) -> None:
    """Runs attacked at once get what each gets alone with its own seed; idle ones stay."""
    rows = np.stack([trial.scenario(7, k, 6, 1.0).honest * (k + 1) for k in range(4)])
    is_byzantine = np.zeros((4, 7), dtype=bool)
    is_byzantine[0, [1, 4]] = is_byzantine[1, 6] = is_byzantine[3] = True
    seeds = [trial.seed + k for k in range(4)]
    sent, _ = trial.attacked(torch.from_numpy(rows), torch.from_numpy(is_byzantine), seeds=seeds)
    together = sent.double().cpu().numpy()
    is_same = np.array_equal(together[~is_byzantine], rows[~is_byzantine])
    require(is_same, f"{is_byzantine.tolist()}", "rows of honest clients changed")
    for run in (0, 1, 3):
        own = rows[run][is_byzantine[run]]
        one = Scenario(rows[run][~is_byzantine[run]], own)
        wanted = trial.rows(one, seed=seeds[run])
        what = (
            f"rows of run {run} in a batch, where context.gradients has the attackers' own rows "
            "too (context.is_honest marks the honest ones)"
        )
        _require_close(together[run][is_byzantine[run]], wanted, one, what)


def state_run_by_run(trial: AttackTrial) -> None:
    """Over three rounds, runs attacked at once keep the states that each has alone; idle ones wait.

    A state is a value: the same one gives the same rows again.
    """
    if not trial.attack.has_state:
        return
    rounds = [
        torch.from_numpy(np.stack([trial.scenario(7, 3 * t + k, 6, 1.0).honest for k in range(3)]))
        for t in range(3)
    ]
    # One run is attacked in all rounds, one not in the first, one not in the second.
    is_attacked = torch.tensor([[True, False, True], [True, True, False], [True, True, True]])
    is_first = torch.arange(7) < 2
    together: Any = [None] * 3
    alone: list[Any] = [None] * 3
    for t, rows in enumerate(rounds):
        mask = is_attacked[t].unsqueeze(-1) & is_first
        seeds = [trial.seed + t + 3 * k for k in range(3)]
        sent, output = trial.attacked(rows, mask, seeds=seeds, states=together, round=t + 1)
        again, _ = trial.attacked(rows, mask, seeds=seeds, states=together, round=t + 1)
        is_same = torch.equal(sent, again)
        require(is_same, f"round {t + 1}", "other rows for the same state; it was changed in place")
        together = output.state
        for k in range(3):
            where = f"run {k} of 3 in round {t + 1}, {rows[k].tolist()}"
            if is_attacked[t, k]:
                require(together[k] is not None, where, "no state; declare has_state = False")
            mine = slice(k, k + 1)
            one, found = trial.attacked(
                rows[mine], mask[mine], seeds=seeds[mine], states=alone[mine], round=t + 1
            )
            alone[k] = found.state[0]
            got, wanted = (values.double().cpu().numpy() for values in (sent[k], one[0]))
            require_close(got, wanted, where, "rows in the batch")


def poison_keeps_shapes(trial: AttackTrial) -> None:
    """Poisoned batches keep shape and dtype, targets stay classes, and the input is not changed."""
    if not trial.attack.poisons_data:
        return
    require(trial.attack.needs_own(), trial.name, "needs_own() is false; attackers must train")
    num_classes = 10
    for size in (6, 1):
        random = trial.random(num_classes, size)
        samples = torch.from_numpy(random.normal(size=(size, *trial.sample_shape))).float()
        targets = torch.from_numpy(random.integers(num_classes, size=size))
        given = samples.clone().to(trial.device), targets.clone().to(trial.device)
        shape = tuple(samples.shape)
        where = f"samples {shape}, targets {targets.tolist()}, num_classes={num_classes}"
        with stirred_generators():
            before = global_state()
            try:
                found, labels = poison_batch(trial.attack, *given, num_classes)
            except Exception as error:
                raise BrokenError(where, f"{type(error).__name__}: {error}") from error
            require(global_state() == before, where, "a global generator or setting changed")
        is_unchanged = torch.equal(given[0].cpu(), samples) and torch.equal(given[1].cpu(), targets)
        require(is_unchanged, where, "poison changed its arguments; copy them first")
        again = poison_batch(trial.attack, *given, num_classes)
        is_same = torch.equal(again[0], found) and torch.equal(again[1], labels)
        require(is_same, where, "another batch the second time; a resumed run would differ")
        is_class = bool(((labels >= 0) & (labels < num_classes)).all())
        require(is_class, where, f"targets {labels.tolist()}")
        require(bool(found.isfinite().all()), where, "samples that are not finite")


def _require_sound(trial: AttackTrial, one: Scenario, rows: Any) -> None:
    require(rows.shape == one.own.shape, one, f"rows {kind_of(rows)}")
    if not trial.attack.sends_nonfinite:
        require(bool(np.isfinite(rows).all()), one, f"rows {rows.tolist()}")


def _require_close(got: Any, wanted: Any, one: Scenario, what: str) -> None:
    """Compare rows; NaN and infinity are replaced by numbers that nobody sends."""
    got, wanted = (np.nan_to_num(rows, nan=-7e7, posinf=7e7) for rows in (got, wanted))
    require_close(got, wanted, one, what)
