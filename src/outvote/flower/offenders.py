"""Who is not asked any more: nodes that were outvoted or sent nonsense again and again."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, final

Offence = Literal["malformed", "outvoted"]
MOST_KEPT = 100
"""How many offences of a node are remembered, unless exclusion asks for more: a file holds them."""


@final
class Offenders:
    """The offences of all nodes, and who is excluded because of them.

    A node is excluded when it has `exclude_after` offences. Being outvoted is forgiven as soon as
    the node is kept again, because every rule drops somebody in every round; malformed replies are
    not. After `probation` rounds an excluded node is asked again, one offence short of exclusion.
    """

    def __init__(self, exclude_after: int | None = None, probation: int | None = None) -> None:
        """Start with a clean sheet; None: nobody is excluded, or for good."""
        self.exclude_after, self.probation = exclude_after, probation
        self._offences: dict[int, list[tuple[int, Offence]]] = {}
        self._excluded: dict[int, int] = {}

    def record(self, round_: int, kept: Iterable[int], offences: Mapping[int, Offence]) -> None:
        """Take note of a round."""
        for node in kept:
            before = self._offences.pop(node, [])
            unforgiven = [each for each in before if each[1] == "malformed"]
            if unforgiven:
                self._offences[node] = unforgiven
            if not self.exclude_after or len(unforgiven) < self.exclude_after:
                self._excluded.pop(node, None)
        for node, offence in offences.items():
            known = [*self._offences.get(node, []), (round_, offence)]
            self._offences[node] = known[-max(MOST_KEPT, self.exclude_after or 0) :]
            if self.exclude_after and len(known) >= self.exclude_after:
                self._excluded[node] = round_

    def excluded(
        self,
        round_: int,
        online: Collection[int],
        num_wanted: int,
        num_byzantine: int,
        tolerates: Callable[[int], int],
    ) -> list[int]:
        """Return whom not to ask; the worst if not all of them can be left out.

        Never more than may be liars, and never so many that the rule could not do its work with
        the others: it bears what offenders send. `tolerates` tells how many liars the rule bears
        among so many nodes.
        """
        self._readmit(round_)
        worst = sorted((node for node in self._excluded if node in online), key=self._rank)
        worst = worst[:num_byzantine]
        while worst and (left := len(online) - len(worst)) < num_wanted:
            if tolerates(left) >= num_byzantine:
                break
            worst.pop()
        return sorted(worst)

    def evidence(self, node: int) -> str:
        """Tell why a node is excluded."""
        told = ", ".join(f"{offence} in round {round_}" for round_, offence in self._offences[node])
        return f"excluded after round {self._excluded[node]}: {told}"

    def to_notes(self) -> dict[str, Any]:
        """Return everything as JSON can write it."""
        return {
            "offences": [[node, *each] for node, all_ in self._offences.items() for each in all_],
            "excluded": [[node, round_] for node, round_ in self._excluded.items()],
        }

    def from_notes(self, notes: Mapping[str, Any]) -> None:
        """Remember what `to_notes` told; who is excluded by it may have been settled anew since."""
        self._offences = {}
        for node, round_, offence in notes["offences"]:
            self._offences.setdefault(node, []).append((round_, offence))
        self._excluded = {
            node: round_
            for node, round_ in notes["excluded"]
            if self.exclude_after and len(self._offences[node]) >= self.exclude_after
        }

    def _rank(self, node: int) -> tuple[int, int, int, int]:
        """Put the worst first: nonsense is no opinion, and being outvoted may be bad luck."""
        offences = [offence for _, offence in self._offences[node]]
        return -offences.count("malformed"), -len(offences), self._excluded[node], node

    def _readmit(self, round_: int) -> None:
        if self.probation is None or self.exclude_after is None:
            return
        for node, since in list(self._excluded.items()):
            if round_ > since + self.probation:
                del self._excluded[node]
                num_forgiven = len(self._offences[node]) - self.exclude_after + 1
                self._offences[node] = self._offences[node][num_forgiven:]
