"""Optimal IPM: the factor of IPM by a search to the right."""

from dataclasses import dataclass
from typing import ClassVar, final

from outvote.attacks.base import Attack
from outvote.attacks.context import AttackContext
from outvote.attacks.crafted import Forged
from outvote.attacks.parameters import check_count, check_number
from outvote.attacks.search import LineSearch, scaled, strongest_factor


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OptimalIPM(Attack):
    r"""IPM with the factor that moves the defence most, by ByzFL's search.

    $$ b = -\epsilon \mu, \qquad \epsilon = \arg\max \|A(H \cup \{b\}^f) - \mu\| $$

    Needs: the honest gradients and a rule. Differs from ByzFL: nothing but the limit max_factor.
    The search starts with 10, doubles while that helps, and then looks to the right of the best
    only. Reference: Xie et al., UAI 2020; the search is that of the library ByzFL.

    >>> def mean(X, num_byzantine, seed):
    ...     return X.mean(axis=0)
    >>> OptimalIPM(evals=2)([[1.0, 2.0], [3.0, 2.0]], num_byzantine=1, rule=mean)
    array([[-20., -20.]])
    """

    name: ClassVar[str] = "optimal-ipm"
    sees_own: ClassVar[bool] = False

    evals: int = 20
    """How often the search asks the rule."""
    max_factor: float = 1e6
    """The largest factor that the search tries."""

    def __post_init__(self) -> None:
        """Check the parameters."""
        check_count("optimal-ipm: evals", self.evals)
        check_number("optimal-ipm: max_factor", self.max_factor, low=0, above=True)

    def needs_rule(self) -> bool:
        """Tell that the search asks a rule."""
        return True

    def craft(self, context: AttackContext) -> Forged:
        """Search for the factor."""
        search = LineSearch(evals=self.evals, delta=10, highest=self.max_factor, looks_left=False)
        factor = strongest_factor(
            context, lambda eps: scaled(-eps, context.mean).unsqueeze(1), search
        )
        rows = scaled(-factor, context.mean).unsqueeze(1)
        return Forged(rows=rows, factor=factor, num_evaluations=self.evals)
