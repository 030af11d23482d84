"""A server for attackers to try: one rule, told of the attackers, that never works twice."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from outvote.rules.rule import Rule

NUM_REFERENCE_ROWS = 5


class Server:
    """A rule that is asked about the same honest gradients and many attackers.

    Rules that want a gradient of the server's own get the mean of a few honest ones. If a rule is
    not random, a question that was just asked is not asked again, whatever the seed.
    """

    def __init__(self, rule: Rule, honest: Tensor, num_byzantine: int) -> None:
        """Take the rule, the gradients of the honest, and the number of attackers."""
        self.rule, self.honest = rule, honest
        self.info: dict[str, Any] = {
            "num_byzantine": num_byzantine,
            "when_too_many": "lower",
            "reference": honest[:NUM_REFERENCE_ROWS].mean(dim=0),
        }
        self.is_random = True
        self.has_failed = False
        self._last: dict[str, tuple[Tensor, Any]] = {}

    def max_byzantine(self, num_clients: int) -> int:
        """Return what the rule tolerates."""
        return self.rule.max_byzantine(num_clients)

    def __call__(self, gradients: Tensor, *, seed: int, **_: Any) -> Any:
        """Return the update."""
        return self._answer("update", gradients, seed)

    def inspect(self, gradients: Tensor, *, seed: int, **_: Any) -> Any:
        """Return the verdict."""
        return self._answer("verdict", gradients, seed)

    def updates(self, rows: Tensor, seeds: list[int]) -> Iterator[Any]:
        """Return the update on the attackers' rows for every seed; one will do if all are alike."""
        matrix = torch.cat([self.honest, rows])
        for seed in seeds if self.is_random else seeds[:1]:
            yield self(matrix, seed=seed)

    def look_for_randomness(self, own: Tensor) -> None:
        """Find out whether two seeds give different verdicts where nobody attacks."""
        matrix = torch.cat([self.honest, own])
        one, other = (self.rule.inspect(matrix, seed=k, **self.info) for k in range(2))
        pairs = [(one.update, other.update), (one.scores, other.scores)]
        self.is_random = not all(torch.equal(*map(torch.as_tensor, pair)) for pair in pairs)

    def afresh(self) -> "Server":
        """Return the same server with no memory of questions, for another thread."""
        server = Server(self.rule, self.honest, self.info["num_byzantine"])
        server.is_random = self.is_random
        return server

    def _answer(self, kind: str, gradients: Tensor, seed: int) -> Any:
        if self.is_random:
            return self._ask(kind, gradients, seed)
        rows = gradients[len(self.honest) :]
        if kind not in self._last or not torch.equal(self._last[kind][0], rows):
            # The caller may write other rows into the same matrix.
            self._last[kind] = rows.clone(), self._ask(kind, gradients, seed)
        return self._last[kind][1]

    def _ask(self, kind: str, gradients: Tensor, seed: int) -> Any:
        ask = self.rule if kind == "update" else self.rule.inspect
        try:
            return ask(gradients, seed=seed, **self.info)
        except Exception:
            self.has_failed = True
            raise
