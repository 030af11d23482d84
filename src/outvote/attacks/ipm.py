"""IPM (inner product manipulation): the opposite of the honest mean."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from outvote.attacks.base import Attack
from outvote.attacks.context import AttackContext
from outvote.attacks.crafted import Forged
from outvote.attacks.parameters import check_count, check_number
from outvote.attacks.search import LineSearch, scaled, strongest_factor


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class IPM(Attack):
    r"""The honest mean turned around, as long as the defence lets it be.

    $$ b = -\epsilon \mu, \qquad \epsilon = \arg\max \|A(H \cup \{b\}^f) - \mu\| $$

    Needs: the honest gradients; a rule, unless epsilon is given. Differs from the paper: nothing;
    evals=2 (the GAS paper) tries epsilon 0 and 1, and stays with 0 where both do as well. Each
    evaluation asks the rule once, with randomness of the attackers' own; against a rule that is
    not robust epsilon doubles with each, up to max_epsilon.
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
        """Check the parameters."""
        if self.epsilon is not None:
            check_number("ipm: epsilon", self.epsilon)
        check_count("ipm: evals", self.evals)
        check_number("ipm: max_epsilon", self.max_epsilon, low=0, above=True)

    def needs_rule(self) -> bool:
        """Tell that a given factor needs no search."""
        return self.epsilon is None

    def craft(self, context: AttackContext) -> Forged:
        """Turn the mean around and scale it."""
        if self.epsilon is not None:
            factor = torch.full((context.num_runs,), float(self.epsilon), dtype=torch.float64)
            factor = factor.to(context.device)
            return Forged(rows=scaled(-factor, context.mean).unsqueeze(1), factor=factor)
        search = LineSearch(evals=self.evals, delta=1, highest=self.max_epsilon)
        factor = strongest_factor(
            context, lambda eps: scaled(-eps, context.mean).unsqueeze(1), search
        )
        rows = scaled(-factor, context.mean).unsqueeze(1)
        return Forged(rows=rows, factor=factor, num_evaluations=self.evals)
