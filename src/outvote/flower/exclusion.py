"""Exclusion of nodes that are outvoted or send malformed replies again and again."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, final

Offence = Literal["malformed", "outvoted"]
MOST_KEPT = 100
"""How many offences of a node are stored, unless exclusion needs more."""


@final
class Exclusions:
    """The offences of all nodes, and which nodes are excluded because of them.

    A node is excluded when it has `exclude_after` offences. Being outvoted is forgiven as soon as
    the node is kept again, because every rule drops a node in every round; malformed replies are
    not. After `probation` rounds an excluded node is asked again, one offence short of exclusion.
    """

    def __init__(self, exclude_after: int | None = None, probation: int | None = None) -> None:
        """Start without offences; None: no node is excluded, or for good."""
        self.exclude_after, self.probation = exclude_after, probation
        self._offences: dict[int, list[tuple[int, Offence]]] = {}
        self._excluded: dict[int, int] = {}

    def record(self, round_: int, kept: Iterable[int], offences: Mapping[int, Offence]) -> None:
        """Add the outcome of a round."""
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
        """Return the nodes not to ask; the worst if not all of them can be left out.

        Never more than may be Byzantine, and never so many that the rule could not work with the
        others: it tolerates what offenders send. `tolerates` returns how many Byzantine nodes the
        rule tolerates among so many.
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
        """Return why a node is excluded."""
        offences = ", ".join(f"{what} in round {round_}" for round_, what in self._offences[node])
        return f"excluded after round {self._excluded[node]}: {offences}"

    def to_notes(self) -> dict[str, Any]:
        """Return everything as JSON can write it."""
        return {
            "offences": [[node, *each] for node, all_ in self._offences.items() for each in all_],
            "excluded": [[node, round_] for node, round_ in self._excluded.items()],
        }

    def from_notes(self, notes: Mapping[str, Any]) -> None:
        """Restore what `to_notes` returned; `exclude_after` may have changed since."""
        self._offences = {}
        for node, round_, offence in notes["offences"]:
            self._offences.setdefault(node, []).append((round_, offence))
        self._excluded = {
            node: round_
            for node, round_ in notes["excluded"]
            if self.exclude_after and len(self._offences[node]) >= self.exclude_after
        }

    def _rank(self, node: int) -> tuple[int, int, int, int]:
        """Put the worst first: a malformed reply is certain, being outvoted may be bad luck."""
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
