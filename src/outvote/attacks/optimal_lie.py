"""Optimal LIE: the shift of LIE by a search against the defence."""

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from outvote.attacks.base import Attack
from outvote.attacks.context import AttackContext
from outvote.attacks.crafted import Forged
from outvote.attacks.lie import check_lie, shifted
from outvote.attacks.parameters import check_count, check_number
from outvote.attacks.reference_set import check_reference, more_notes, reference
from outvote.attacks.search import LineSearch, strongest_factor
from outvote.axes import Rows


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OptimalLIE(Attack):
    r"""LIE with the shift that moves the defence most, by ByzFL's search.

    $$ b = \mu - z \sigma, \qquad z = \arg\max \|A(H \cup \{b\}^f) - \mu\| $$

    Needs: the honest gradients and a rule. Differs from ByzFL: the population standard deviation
    and the sign of LIE (ByzFL: spread="sample", sign=1), and the limit max_factor. The search
    starts with 10, doubles while that helps, and then looks to the right of the best only.
    Reference: Baruch et al., NeurIPS 2019; the search is that of the library ByzFL.

    >>> def mean(X, num_byzantine, seed):
    ...     return X.mean(axis=0)
    >>> OptimalLIE(evals=2)([[1.0, 2.0], [3.0, 2.0]], num_byzantine=1, rule=mean)
    array([[-8.,  2.]])
    """

    name: ClassVar[str] = "optimal-lie"

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
        """Check the parameters."""
        check_count("optimal-lie: evals", self.evals)
        check_lie("optimal-lie", self.spread, self.sign)
        check_reference("optimal-lie", self.reference_set)
        check_number("optimal-lie: max_factor", self.max_factor, low=0, above=True)

    def needs_own(self) -> bool:
        """Tell whether the attackers' own gradients count."""
        return self.reference_set == "all"

    def needs_rule(self) -> bool:
        """Tell that the search asks a rule."""
        return True

    def craft(self, context: AttackContext) -> Forged:
        """Search for the shift."""
        seen = reference(context, self.reference_set)
        mean, spread = seen.moments.mean, seen.spread(self.spread)

        def rows_for(factor: Tensor) -> Rows:
            return shifted(mean, spread, self.sign * factor)

        search = LineSearch(evals=self.evals, delta=10, highest=self.max_factor, looks_left=False)
        factor = strongest_factor(context, rows_for, search)
        return Forged(
            rows=rows_for(factor),
            factor=factor,
            notes=more_notes(seen, context),
            num_evaluations=self.evals,
        )
