"""Exclusion of nodes: for malformed replies, or because a sequential test finds them outvoted."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, final

from outvote.flower.sequential_test import SequentialTest

Cause = Literal["malformed", "outvoted"]
MOST_KEPT = 100
"""How many malformed replies of a node are stored, unless exclusion needs more."""


@final
class Exclusions:
    """The evidence against all nodes, and which nodes are excluded because of it.

    A node is excluded after `exclude_after` malformed replies. If `rate` is given, it is also
    excluded when a `SequentialTest` rejects that it is honest, which befalls an honest node with a
    probability of at most `rate` each time that it is admitted. After `probation` rounds an
    excluded node is asked again: one malformed reply short of exclusion, with a new test.
    """

    def __init__(
        self,
        exclude_after: int | None = None,
        probation: int | None = None,
        *,
        rate: float | None = None,
    ) -> None:
        """Start without evidence; None: no node is excluded for that cause, or for good."""
        self.exclude_after, self.probation, self.rate = exclude_after, probation, rate
        self._malformed: dict[int, list[int]] = {}
        self._tests: dict[int, SequentialTest] = {}
        self._excluded: dict[int, tuple[int, Cause]] = {}

    def record(
        self, round_: int, malformed: Iterable[int] = (), verdicts: Mapping[int, bool] | None = None
    ) -> None:
        """Add a round: who sent malformed replies, and whether it counts against other nodes.

        A round counts against a node if the rule dropped it and it was far from the others.
        """
        for node in malformed:
            known = [*self._malformed.get(node, []), round_]
            self._malformed[node] = known[-max(MOST_KEPT, self.exclude_after or 0) :]
            if self.exclude_after and len(known) >= self.exclude_after:
                self._excluded[node] = round_, "malformed"
        for node, is_against in (verdicts or {}).items():
            if node in self._excluded:
                continue  # It is asked because too few others are there; its test is over.
            test = self._tests.setdefault(node, SequentialTest())
            test.add(is_against=is_against)
            if self._is_rejected(test):
                self._excluded[node] = round_, "outvoted"

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
        round_, cause = self._excluded[node]
        if cause == "malformed":
            rounds = ", ".join(f"round {each}" for each in self._malformed[node])
            return f"excluded after round {round_}: malformed replies in {rounds}"
        test = self._tests[node]
        return (
            f"excluded after round {round_}: outvoted and far from the others in "
            f"{test.num_against} of {test.num_rounds} rounds"
        )

    def to_notes(self) -> dict[str, Any]:
        """Return everything as JSON can write it."""
        return {
            "offences": [
                [node, round_, "malformed"]
                for node, rounds in self._malformed.items()
                for round_ in rounds
            ],
            "excluded": [[node, *each] for node, each in self._excluded.items()],
            "tests": [
                [node, test.num_rounds, test.num_against, list(test.capitals)]
                for node, test in self._tests.items()
            ],
        }

    def from_notes(self, notes: Mapping[str, Any]) -> None:
        """Restore what `to_notes` returned; the settings may have changed since."""
        self._malformed, self._excluded = {}, {}
        for node, round_, _ in notes["offences"]:
            self._malformed.setdefault(int(node), []).append(int(round_))
        self._tests = {
            int(node): SequentialTest.of(num_rounds, num_against, capitals)
            for node, num_rounds, num_against, capitals in notes["tests"]
        }
        for node, round_ in ((int(line[0]), int(line[1])) for line in notes["excluded"]):
            if self.exclude_after and len(self._malformed.get(node, [])) >= self.exclude_after:
                self._excluded[node] = round_, "malformed"
            elif node in self._tests and self._is_rejected(self._tests[node]):
                self._excluded[node] = round_, "outvoted"

    def _is_rejected(self, test: SequentialTest) -> bool:
        return self.rate is not None and test.wealth * self.rate >= 1

    def _rank(self, node: int) -> tuple[bool, int, float, int, int]:
        """Put the worst first: a malformed reply is certain, being outvoted may be bad luck."""
        round_, cause = self._excluded[node]
        wealth = self._tests[node].wealth if node in self._tests else 0.0
        num_malformed = len(self._malformed.get(node, []))
        return cause == "outvoted", -num_malformed, -wealth, round_, node

    def _readmit(self, round_: int) -> None:
        if self.probation is None:
            return
        for node, (since, cause) in list(self._excluded.items()):
            if round_ <= since + self.probation:
                continue
            del self._excluded[node]
            self._tests.pop(node, None)
            if cause == "malformed" and self.exclude_after:
                rounds = self._malformed[node]
                self._malformed[node] = rounds[len(rounds) - self.exclude_after + 1 :]
