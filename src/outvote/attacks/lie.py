"""LIE (a little is enough): a shift small enough to hide among the honest; ALIE, Optimal LIE."""

from collections.abc import Callable
from dataclasses import dataclass
from math import floor
from statistics import NormalDist
from typing import ClassVar, final

import torch
from torch import Tensor

from outvote.attacks.attack import Attack, AttackOutput
from outvote.attacks.context import SPREADS, AttackContext, in_range
from outvote.attacks.line_search import LineSearch, strongest_factor
from outvote.attacks.parameters import check_count, check_number, check_reference_set, check_sign
from outvote.axes import PerCoordinate, Rows
from outvote.errors import check_choice
from outvote.ops.process import on_device


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LIE(Attack):
    r"""The honest mean, shifted by z standard deviations in every coordinate.

    $$ b = \mu - z \sigma $$

    Needs: the honest gradients. Differs from the paper: z is given (1.5 in the GAS paper; `alie`
    computes it). Others add the shift (sign=1), take the sample standard deviation
    (spread="sample"), or include the attackers' own gradients (reference_set="all"); the released
    code of GAS shifts by the variance (spread="variance"), which is almost no attack.
    Reference: Baruch et al., NeurIPS 2019.

    >>> LIE(z=1)([[1.0, 2.0], [3.0, 2.0]], num_byzantine=1)
    array([[1., 2.]])
    """

    name: ClassVar[str] = "lie"
    sees_own: ClassVar[bool] = False

    z: float = 1.5
    """How many standard deviations to shift by."""
    spread: str = "population"
    """"population" or "sample" standard deviation, or the "variance" in its place."""
    sign: int = -1
    """-1: against the standard deviation; 1: along it."""
    reference_set: str = "honest"
    """Whose mean and spread: "honest" clients, or "all" (with the attackers' own gradients)."""

    def __post_init__(self) -> None:
        check_number("lie: z", self.z)
        _check(self)

    def craft(self, context: AttackContext) -> AttackOutput:
        """Shift the mean."""
        factor = context.per_run(self.z)
        return AttackOutput(rows=_shift(self, context)(factor), factor=factor)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ALIE(Attack):
    r"""LIE with the z at which enough honest clients are further out than the attackers.

    $$ b = \mu - z \sigma, \quad z = \Phi^{-1}\Big(\frac{n - f - s}{n - f}\Big), \quad
       s = \lfloor n/2 + 1 \rfloor - f $$

    Needs: the honest gradients. Differs from the paper: z is kept finite where attackers are a
    majority, and not below 0; it is 0, which is no attack, for 1 of 5 and 2 of 10.
    Reference: Baruch et al., NeurIPS 2019.

    >>> round(ALIE().inspect([[0.0], [2.0]] * 20, num_byzantine=10).factor, 3)
    0.253
    """

    name: ClassVar[str] = "alie"
    sees_own: ClassVar[bool] = False

    spread: str = "population"
    """"population" or "sample" standard deviation, or the "variance" in its place."""
    sign: int = -1
    """-1: against the standard deviation; 1: along it."""
    reference_set: str = "honest"
    """Whose mean and spread: "honest" clients, or "all" (with the attackers' own gradients)."""

    def __post_init__(self) -> None:
        _check(self)

    def craft(self, context: AttackContext) -> AttackOutput:
        """Shift the mean by as many standard deviations as the numbers of clients allow."""
        pairs = zip(context.honest_counts.tolist(), context.num_byzantine, strict=True)
        z = [hiding_z(int(honest) + f, f) for honest, f in pairs]
        factor = on_device(z, context.device, torch.float64)
        return AttackOutput(rows=_shift(self, context)(factor), factor=factor)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OptimalLIE(Attack):
    r"""LIE with the shift that moves the defence most, by ByzFL's search.

    $$ b = \mu - z \sigma, \qquad z = \arg\max \|A(H \cup \{b\}^f) - \mu\| $$

    Needs: the honest gradients and a rule. Differs from ByzFL: the population standard deviation
    and the sign of LIE (ByzFL: spread="sample", sign=1), and the limit max_factor. The search
    starts with 10, doubles while that helps, and then tries larger factors than the best only.
    Reference: Baruch et al., NeurIPS 2019; the search is that of the library ByzFL.

    >>> def mean(X, num_byzantine, seed):
    ...     return X.mean(axis=0)
    >>> OptimalLIE(evals=2)([[1.0, 2.0], [3.0, 2.0]], num_byzantine=1, rule=mean)
    array([[-8.,  2.]])
    """

    name: ClassVar[str] = "optimal-lie"
    sees_own: ClassVar[bool] = False

    evals: int = 20
    """How often the search asks the rule."""
    spread: str = "population"
    """"population" or "sample" standard deviation, or the "variance" in its place."""
    sign: int = -1
    """-1: against the standard deviation; 1: along it."""
    reference_set: str = "honest"
    """Whose mean and spread: "honest" clients, or "all" (with the attackers' own gradients)."""
    max_factor: float = 1e6
    """The largest factor that the search tries."""

    def __post_init__(self) -> None:
        check_count("optimal-lie: evals", self.evals)
        _check(self)
        check_number("optimal-lie: max_factor", self.max_factor, low=0, above=True)

    def needs_rule(self) -> bool:
        """The search asks a rule."""
        return True

    def craft(self, context: AttackContext) -> AttackOutput:
        """Search for the shift."""
        search = LineSearch(evals=self.evals, delta=10, highest=self.max_factor, looks_left=False)
        return strongest_factor(context, _shift(self, context), search)


def _check(attack: LIE | ALIE | OptimalLIE) -> None:
    check_choice(f"{attack.name}: spread", attack.spread, SPREADS)
    check_sign(attack.name, attack.sign)
    check_reference_set(attack.name, attack.reference_set)


def _shift(attack: LIE | ALIE | OptimalLIE, context: AttackContext) -> Callable[[Tensor], Rows]:
    """Return what makes rows of factors."""
    seen = context.with_reference_set(attack.reference_set)
    mean, spread = seen.moments.mean, seen.spread(attack.spread)
    return lambda factor: shifted(mean, spread, attack.sign * factor)


def shifted(mean: PerCoordinate, spread: PerCoordinate, factor: Tensor) -> Rows:
    """Return mean + factor * spread, one row per run."""
    # A factor beyond the range of the dtype times a spread of 0 would be NaN.
    return torch.addcmul(mean, spread, in_range(factor, mean.dtype).unsqueeze(-1)).unsqueeze(1)


def hiding_z(num_clients: int, num_byzantine: int) -> float:
    """Return by how many standard deviations so many attackers among so many clients can hide."""
    num_honest = num_clients - num_byzantine
    if num_honest < 1:
        return 0.0
    num_supporters = floor(num_clients / 2 + 1) - num_byzantine
    # A majority needs no supporter; half a client keeps z finite.
    share = (num_honest - max(num_supporters, 0.5)) / num_honest
    return max(0.0, NormalDist().inv_cdf(share)) if share > 0 else 0.0
