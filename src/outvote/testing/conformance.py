"""The conformance suites: what every rule and every attack promises, checked on any of them."""

import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import outvote
from outvote.attacks.attack import Attack
from outvote.errors import OutvoteWarning, closest
from outvote.rules.rule import Rule
from outvote.testing import algebra, attack_checks, calling, robustness, rule_state
from outvote.testing.trial import AttackTrial, BrokenError, RuleTrial, Trial

CHECKS: dict[str, Callable[[RuleTrial], None]] = {
    # First: a setting that another check left changed could not be seen to change.
    "no-global-state": calling.no_global_state,
    "finite": robustness.finite,
    "rejects-non-finite": robustness.rejects_non_finite,
    "breakdown": robustness.breakdown,
    "geometric-scales": robustness.geometric_scales,
    "limit-makes-sense": robustness.limit_makes_sense,
    "refuses-too-many": robustness.refuses_too_many,
    "refuses-nonsense": robustness.refuses_nonsense,
    "keeps-kind-and-dtype": calling.keeps_kind_and_dtype,
    "promotes-integers": calling.promotes_integers,
    "leaves-inputs-alone": calling.leaves_inputs_alone,
    "call-equals-inspect": calling.call_equals_inspect,
    "verdict-adds-up": calling.verdict_adds_up,
    "same-seed-same-verdict": calling.same_seed_same_verdict,
    "one-client": algebra.one_client,
    "unanimous": algebra.unanimous,
    "permutation-invariant": algebra.permutation_invariant,
    "translation-equivariant": algebra.translation_equivariant,
    "scale-equivariant": algebra.scale_equivariant,
    "sign-equivariant": algebra.sign_equivariant,
    "inside-the-box": algebra.inside_the_box,
    "mean-without-byzantine": algebra.mean_without_byzantine,
    "per-coordinate": algebra.per_coordinate,
    "average-of-clients": algebra.average_of_clients,
    "batch-equals-loop": algebra.batch_equals_loop,
    "state-is-declared": rule_state.state_is_declared,
    "state-run-by-run": rule_state.state_run_by_run,
    "state-survives-saving": rule_state.state_survives_saving,
    "text-round-trip": calling.text_round_trip,
    "repr-round-trip": calling.repr_round_trip,
}
ATTACK_CHECKS: dict[str, Callable[[AttackTrial], None]] = {
    "no-global-state": calling.no_global_state,
    "keeps-kind-and-dtype": attack_checks.keeps_kind_and_dtype,
    "finite": attack_checks.finite,
    "same-seed-same-rows": attack_checks.same_seed_same_rows,
    "seed-matters-only-if-random": attack_checks.seed_matters_only_if_random,
    "independent-of-order": attack_checks.independent_of_order,
    "leaves-inputs-alone": attack_checks.leaves_inputs_alone,
    "colluding-rows-are-identical": attack_checks.colluding_rows_are_identical,
    "no-attacker": attack_checks.no_attacker,
    "one-honest-client": attack_checks.one_honest_client,
    "zero-spread": attack_checks.zero_spread,
    "text-round-trip": calling.text_round_trip,
    "batch-equals-loop": attack_checks.batch_equals_loop,
    "state-run-by-run": attack_checks.state_run_by_run,
    "poison-keeps-shapes": attack_checks.poison_keeps_shapes,
}

# On so many inputs a check must pass before an exemption from it counts as not needed.
NUM_TRIES = 10


@dataclass(frozen=True, slots=True)
class Failure:
    """One check that fails."""

    check: str
    """The name of the check."""
    given: str
    """The input, in words."""
    seen: str
    """What the rule or attack did."""
    fact: str
    """What the check is about: what must hold."""
    cause: Exception | None = None
    """What was raised, if anything."""

    def __str__(self) -> str:
        return f"{self.check}: {self.fact}\n    seen: {self.seen}\n    input: {self.given}"


class ConformanceError(AssertionError):
    """A rule or an attack fails some checks; `failures` lists them."""

    def __init__(self, rule: str, failures: Sequence[Failure], num_checks: int) -> None:
        listed = "\n".join(f"  {failure}" for failure in failures)
        super().__init__(f"{rule} fails {len(failures)} of {num_checks} checks:\n{listed}")
        self.rule, self.failures = rule, tuple(failures)


def check_rule(
    rule: Rule,
    *,
    exempt: Mapping[str, str] | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> None:
    """Check that a rule keeps what every rule promises; raise a ConformanceError if it does not.

    `exempt` maps the name of a check to the reason why the rule need not pass it: a rule that clips
    to a fixed norm depends on the origin, a random mixing on the order of the clients. An
    exemption that is not needed gives a warning. The checks are in `outvote.testing.CHECKS`.

    >>> from outvote import Median
    >>> check_rule(Median())
    """
    if not isinstance(rule, Rule):
        raise TypeError(
            f"check_rule checks an outvote.Rule, got {type(rule).__name__}; pass an object, not a "
            "class, or build one with make_rule('median')."
        )
    _check(RuleTrial(rule, seed, torch.device(device)), CHECKS, exempt)


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
    reason why the attack need not pass it: ``exempt={"one-honest-client": "copies two clients"}``.
    An exemption that is not needed gives a warning.
    `sample_shape` is the shape of a sample that a data attack is tested on. The checks are in
    `outvote.testing.ATTACK_CHECKS`.

    >>> from outvote import LIE
    >>> check_attack(LIE())
    """
    if not isinstance(attack, Attack):
        raise TypeError(
            f"check_attack checks an outvote.Attack, got {type(attack).__name__}; pass an object, "
            "not a class, or build one with make_attack('lie')."
        )
    trial = AttackTrial(attack, seed, torch.device(device), tuple(sample_shape))
    _check(trial, ATTACK_CHECKS, exempt)


def _check(trial: Trial, checks: Mapping[str, Any], exempt: Mapping[str, str] | None) -> None:
    if not isinstance(exempt or {}, Mapping):
        raise TypeError(
            "exempt must map the name of a check to the reason, as in "
            f"exempt={{'finite': 'why'}}, got {exempt!r}."
        )
    reasons = dict(exempt or {})
    for name, reason in reasons.items():
        if name not in checks:
            raise ValueError(f"exempt: there is no check {name!r}; {closest(name, checks)}")
        if not str(reason or "").strip():
            raise ValueError(f"exempt: {name!r} needs a reason in words, got {reason!r}.")
    for name, reason in reasons.items():
        # Several inputs: a failure may be rare.
        trials = (replace(trial, seed=trial.seed + k) for k in range(NUM_TRIES))
        if all(_failure(name, checks[name], another) is None for another in trials):
            message = f"{trial.name} passes {name!r}; the exemption ({reason}) is not needed."
            warnings.warn(message, OutvoteWarning, stacklevel=3)
    found = [_failure(name, checks[name], trial) for name in checks if name not in reasons]
    failures = [failure for failure in found if failure is not None]
    if failures:
        cause = next((failure.cause for failure in failures if failure.cause), None)
        raise ConformanceError(trial.name, failures, len(checks)) from cause


def _failure(name: str, check: Callable[[Any], None], trial: Trial) -> Failure | None:
    fact = (check.__doc__ or "").partition("\n")[0]
    try:
        check(trial)
    except BrokenError as broken:
        cause = broken.__cause__ if isinstance(broken.__cause__, Exception) else None
        return Failure(name, broken.given, broken.seen, fact, cause)
    except Exception as error:  # noqa: BLE001  (what is under test may raise anything)
        return Failure(name, _place(error), f"{type(error).__name__}: {error}", fact, error)
    return None


def _place(error: Exception) -> str:
    """Return the line that raised: the last one outside of outvote, torch and the like, if any."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = (str(Path(outvote.__file__).parent), "site-packages", "dist-packages")
    own = [each for each in frames if not any(part in each.filename for part in inside)]
    last = (own or frames)[-1]
    return f"not shown; raised in {last.filename}, line {last.lineno}: {last.line}"
