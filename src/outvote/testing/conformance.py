"""The conformance suite: what every rule promises, checked on any rule."""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from outvote.errors import OutvoteWarning, closest
from outvote.rules.rule import Rule
from outvote.testing import algebra, calling, robustness, rule_state
from outvote.testing.trial import BrokenError, Trial

CHECKS: dict[str, Callable[[Trial], None]] = {
    # First: a setting that another check left changed could not be seen to change.
    "no-global-state": calling.no_global_state,
    "finite": robustness.finite,
    "rejects-non-finite": robustness.rejects_non_finite,
    "breakdown": robustness.breakdown,
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

# On so many inputs a check must pass before an exemption from it counts as not needed.
NUM_TRIES = 10


@dataclass(frozen=True, slots=True)
class Failure:
    """One check that fails; `fact` is what it checks, in words."""

    check: str
    given: str
    seen: str
    fact: str = ""

    def __str__(self) -> str:
        """Return what is checked, what was found instead, and the input."""
        fact = self.fact or inspect.getdoc(CHECKS[self.check]) or ""
        return f"{self.check}: {fact}\n    seen: {self.seen}\n    input: {self.given}"


class ConformanceError(AssertionError):
    """A rule or an attack fails some checks; `failures` lists them."""

    def __init__(
        self, rule: str, failures: Sequence[Failure], num_checks: int = len(CHECKS)
    ) -> None:
        """List every failure, one after another."""
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
    reasons = dict(exempt or {})
    _check_reasons(reasons)
    trial = Trial(rule, seed, torch.device(device))
    for name, reason in reasons.items():
        if _always_passes(name, trial):
            message = f"{trial.name} passes {name!r}; the exemption ({reason}) is not needed."
            warnings.warn(message, OutvoteWarning, stacklevel=2)
    found = [_run(name, trial) for name in CHECKS if name not in reasons]
    failures = [failure for failure in found if failure is not None]
    if failures:
        raise ConformanceError(trial.name, failures)


def _check_reasons(reasons: Mapping[str, str]) -> None:
    for name, reason in reasons.items():
        if name not in CHECKS:
            raise ValueError(f"exempt: there is no check {name!r}; {closest(name, CHECKS)}")
        if not str(reason or "").strip():
            raise ValueError(f"exempt: {name!r} needs a reason in words, got {reason!r}.")


def _always_passes(name: str, trial: Trial) -> bool:
    """Return whether a check holds on several inputs: a failure may be rare."""
    trials = (replace(trial, seed=trial.seed + k) for k in range(NUM_TRIES))
    return all(_run(name, another) is None for another in trials)


def _run(name: str, trial: Trial) -> Failure | None:
    try:
        CHECKS[name](trial)
    except BrokenError as broken:
        return Failure(name, broken.given, broken.seen)
    except Exception as error:  # noqa: BLE001  (a rule under test may raise anything)
        return Failure(name, "see the traceback of the cause", f"{type(error).__name__}: {error}")
    return None
