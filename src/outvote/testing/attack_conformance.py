"""The conformance suite for attacks: `check_attack` runs the checks on any attack."""

from collections.abc import Callable, Mapping

import torch

from outvote.attacks.attack import Attack
from outvote.errors import closest
from outvote.testing import attack_checks as checks
from outvote.testing.attack_trial import AttackTrial
from outvote.testing.conformance import ConformanceError, Failure
from outvote.testing.trial import BrokenError

ATTACK_CHECKS: dict[str, Callable[[AttackTrial], None]] = {
    "no-global-state": checks.no_global_state,
    "keeps-kind-and-dtype": checks.keeps_kind_and_dtype,
    "finite": checks.finite,
    "same-seed-same-rows": checks.same_seed_same_rows,
    "seed-matters-only-if-random": checks.seed_matters_only_if_random,
    "independent-of-order": checks.independent_of_order,
    "leaves-inputs-alone": checks.leaves_inputs_alone,
    "colluding-rows-are-identical": checks.colluding_rows_are_identical,
    "no-attacker": checks.no_attacker,
    "one-honest-client": checks.one_honest_client,
    "zero-spread": checks.zero_spread,
    "text-round-trip": checks.text_round_trip,
    "batch-equals-loop": checks.batch_equals_loop,
    "state-run-by-run": checks.state_run_by_run,
    "poison-keeps-shapes": checks.poison_keeps_shapes,
}


def check_attack(
    attack: Attack,
    *,
    exempt: Mapping[str, str] | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
    sample_shape: tuple[int, ...] = (1, 28, 28),
) -> None:
    """Check that an attack does what every attack guarantees; raise a ConformanceError if not.

    What an attack declares (`is_random`, `is_colluding`, `depends_on_order`, `sends_nonfinite`,
    `has_state`, `poisons_data`) decides what is checked. `exempt` maps the name of a check to the
    reason why the attack need not pass it; `sample_shape` is the shape of a sample that a data
    attack is tested on. The checks are in `outvote.testing.ATTACK_CHECKS`.

    >>> from outvote import LIE
    >>> check_attack(LIE())
    """
    if not isinstance(attack, Attack):
        raise TypeError(
            f"check_attack checks an outvote.Attack, got {type(attack).__name__}; pass an object, "
            "not a class, or build one with make_attack('lie')."
        )
    reasons = dict(exempt or {})
    for name, reason in reasons.items():
        if name not in ATTACK_CHECKS:
            raise ValueError(f"exempt: there is no check {name!r}; {closest(name, ATTACK_CHECKS)}")
        if not str(reason or "").strip():
            raise ValueError(f"exempt: {name!r} needs a reason in words, got {reason!r}.")
    trial = AttackTrial(attack, seed, torch.device(device), tuple(sample_shape))
    found = [_run(name, trial) for name in ATTACK_CHECKS if name not in reasons]
    failures = [failure for failure in found if failure is not None]
    if failures:
        raise ConformanceError(trial.name, failures, num_checks=len(ATTACK_CHECKS))


def _run(name: str, trial: AttackTrial) -> Failure | None:
    fact = ATTACK_CHECKS[name].__doc__ or ""
    try:
        ATTACK_CHECKS[name](trial)
    except BrokenError as broken:
        return Failure(name, broken.given, broken.seen, fact)
    except Exception as error:  # noqa: BLE001  (an attack under test may raise anything)
        seen = f"{type(error).__name__}: {error}"
        return Failure(name, "see the traceback of the cause", seen, fact)
    return None
