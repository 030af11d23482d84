"""IPM (inner product manipulation): the negative of the honest mean; Optimal IPM."""

from dataclasses import dataclass
from typing import ClassVar, final

from outvote.attacks.attack import Attack, AttackOutput
from outvote.attacks.context import AttackContext
from outvote.attacks.line_search import LineSearch, scaled, strongest_factor
from outvote.attacks.parameters import check_count, check_number


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class IPM(Attack):
    r"""The negative of the honest mean, scaled as far as the defence lets it pass.

    $$ b = -\epsilon \mu, \qquad \epsilon = \arg\max \|A(H \cup \{b\}^f) - \mu\| $$

    Needs: the honest gradients; a rule, unless epsilon is given. Differs from the paper: nothing;
    evals=2 (the GAS paper) tries epsilon 0 and 1, and stays with 0 on a tie. Each evaluation asks
    the rule once, with randomness of the attackers' own; against a rule that is not robust epsilon
    doubles with each, up to max_epsilon.
    Reference: Xie et al., UAI 2020; the search is that of El-Mhamdi et al., ICLR 2021.

    >>> IPM(epsilon=0.5)([[1.0, 2.0], [3.0, 2.0]], num_byzantine=1)
    array([[-1., -1.]])
    """

    name: ClassVar[str] = "ipm"
    sees_own: ClassVar[bool] = False

    epsilon: float | None = None
    """The factor; None: search for it."""
    evals: int = 2
    """How often the search asks the rule."""
    max_epsilon: float = 1e6
    """The largest factor that the search tries."""

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            check_number("ipm: epsilon", self.epsilon)
        check_count("ipm: evals", self.evals)
        check_number("ipm: max_epsilon", self.max_epsilon, low=0, above=True)

    def needs_rule(self) -> bool:
        """A given factor needs no search."""
        return self.epsilon is None

    def craft(self, context: AttackContext) -> AttackOutput:
        """Negate the mean and scale it."""
        if self.epsilon is not None:
            factor = context.per_run(self.epsilon)
            return AttackOutput(rows=scaled(-factor, context.mean).unsqueeze(1), factor=factor)
        return _search(context, LineSearch(evals=self.evals, delta=1, highest=self.max_epsilon))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OptimalIPM(Attack):
    r"""IPM with the factor that moves the defence most, by ByzFL's search.

    $$ b = -\epsilon \mu, \qquad \epsilon = \arg\max \|A(H \cup \{b\}^f) - \mu\| $$

    Needs: the honest gradients and a rule. Differs from ByzFL: nothing but the limit max_factor.
    The search starts with 10, doubles while that helps, and then tries larger factors than the
    best only. Reference: Xie et al., UAI 2020; the search is that of the library ByzFL.

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
        check_count("optimal-ipm: evals", self.evals)
        check_number("optimal-ipm: max_factor", self.max_factor, low=0, above=True)

    def needs_rule(self) -> bool:
        """The search asks a rule."""
        return True

    def craft(self, context: AttackContext) -> AttackOutput:
        """Search for the factor."""
        search = LineSearch(evals=self.evals, delta=10, highest=self.max_factor, looks_left=False)
        return _search(context, search)


def _search(context: AttackContext, search: LineSearch) -> AttackOutput:
    return strongest_factor(
        context, lambda factor: scaled(-factor, context.mean).unsqueeze(1), search
    )
