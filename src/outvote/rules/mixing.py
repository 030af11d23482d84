"""Wrappers that mix the clients before the rule inside sees them."""

from abc import abstractmethod
from dataclasses import dataclass

from outvote.axes import Mixture
from outvote.rules.aggregation import Aggregation
from outvote.rules.base import RoundInfo
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.wrapper import Wrapper


@dataclass(frozen=True, slots=True)
class Mixing(Wrapper):
    """Replaces the clients by averages of some of them: a matrix, whatever the dimension."""

    @abstractmethod
    def mixture(self, matrix: ClientMatrix, info: RoundInfo) -> Mixture:
        """Return the averaging matrix ``[runs, *groups, mixed, clients]``; its rows sum to 1."""

    def needs_values(self) -> bool:
        """Tell whether the rule inside looks at values: averages have distances of their own."""
        return self.rule.needs_values()

    def answer(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Let the rule inside answer on the mixed clients, and tell it in terms of the clients."""
        mixture = self.mixture(matrix, info)
        num_byzantine = self.inside_num_byzantine(info.num_byzantine, matrix.num_clients)
        inside = self.rule.answer(matrix.mixed(mixture), info.inside(self, num_byzantine))
        return inside.unmixed(mixture)
