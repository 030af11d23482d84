"""Wrappers that mix the clients before the rule inside sees them."""

from abc import abstractmethod
from dataclasses import dataclass

from outvote.axes import Mixture
from outvote.rules.answer import Answer
from outvote.rules.base import Facts
from outvote.rules.points import Points
from outvote.rules.wrapper import Wrapper


@dataclass(frozen=True, slots=True)
class Mixing(Wrapper):
    """Replaces the clients by averages of some of them: a matrix, whatever the dimension."""

    @abstractmethod
    def mixture(self, points: Points, facts: Facts) -> Mixture:
        """Return the averaging matrix ``[runs, *groups, mixed, clients]``; its rows sum to 1."""

    def needs_values(self) -> bool:
        """Tell whether the rule inside looks at values: averages have distances of their own."""
        return self.rule.needs_values()

    def answer(self, points: Points, facts: Facts) -> Answer:
        """Let the rule inside answer on the mixed clients, and tell it in terms of the clients."""
        mixture = self.mixture(points, facts)
        num_byzantine = self.inside_num_byzantine(facts.num_byzantine, points.num_clients)
        inside = self.rule.answer(points.mixed(mixture), facts.inside(self, num_byzantine))
        return inside.unmixed(mixture)
