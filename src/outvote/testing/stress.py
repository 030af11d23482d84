"""Every attack against every rule on made-up gradients: how far each moves the update."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from outvote.attacks.base import Attack
from outvote.rules.rule import Rule
from outvote.seeding import RandomStream
from outvote.testing.made_up import MadeUp, made_up_round
from outvote.testing.server import Server
from outvote.threads import mapped

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One attack against one rule.

    `error` is the distance of the update to the honest mean relative to the length of that mean,
    on average over the seeds of the server; None if it failed. Then `failure` tells why, and
    `failed` who: "attack" or "rule".
    """

    attack: str
    rule: str
    error: float | None = None
    failure: str = ""
    failed: str = ""

    @property
    def severity(self) -> float:
        """The error, comparable: an update that is not finite is the worst there is."""
        if self.error is None:
            return -inf
        return self.error if isfinite(self.error) else inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Stress:
    """The table of errors, attack by attack and rule by rule."""

    gradients: MadeUp
    attacks: tuple[str, ...]
    rules: tuple[str, ...]
    cells: tuple[Cell, ...]

    def cell(self, attack: str, rule: str) -> Cell:
        """Return one cell of the table."""
        return next(each for each in self.cells if (each.attack, each.rule) == (attack, rule))

    def worst(self, rule: str) -> Cell | None:
        """Return the attack that takes the rule furthest from the honest mean."""
        found = [each for each in self.cells if each.rule == rule and each.error is not None]
        return max(found, key=lambda cell: cell.severity, default=None)

    def safest(self) -> Cell | None:
        """Return the smallest of the worst cases; rules with a failure do not take part."""
        failed = {each.rule for each in self.cells if each.failure}
        worst = [self.worst(rule) for rule in self.rules if rule not in failed]
        return min(
            (cell for cell in worst if cell is not None),
            key=lambda cell: cell.severity,
            default=None,
        )


def stress(
    rules: Sequence[Rule],
    attacks: Sequence[Attack],
    gradients: MadeUp,
    *,
    num_servers: int = 3,
    on_progress: Progress | None = None,
) -> Stress:
    """Let every attack have a go at every rule; what fails is told in its cell.

    The attackers know the gradients and the rule but not the randomness of the server, which is
    drawn `num_servers` times. A rule that tolerates fewer attackers works with its limit.

    >>> from outvote import LIE, Mean
    >>> table = stress([Mean()], [LIE()], MadeUp(num_clients=5, num_byzantine=1, dim=100))
    >>> table.worst("mean").attack
    'lie'
    """
    if num_servers < 1:
        raise ValueError(f"num_servers must be at least 1, got {num_servers}.")
    names = {str(attack): attack for attack in attacks}
    columns = {str(rule): rule for rule in rules}
    arena = _Arena(gradients, num_servers, names)
    servers = dict(zip(columns, mapped(arena.serve, columns.values()), strict=True))
    count = _Counter(len(columns) * len(names), on_progress)

    def work(place: tuple[str, str]) -> Cell:
        rule, attack = place
        server = servers[rule]
        answer: float | Failure
        if isinstance(server, Failure):
            answer = server
        else:
            answer = arena.error(names[attack], server.afresh())
        count.one_more()
        if isinstance(answer, Failure):
            return Cell(attack=attack, rule=rule, failure=answer.why, failed=answer.who)
        return Cell(attack=attack, rule=rule, error=answer)

    # The last ones first: wrappers come late in most lists, and searches take longest.
    places = [(rule, attack) for attack in names for rule in columns]
    cells = mapped(work, places[::-1])[::-1]
    return Stress(
        gradients=gradients, attacks=tuple(names), rules=tuple(columns), cells=tuple(cells)
    )


@dataclass(frozen=True, slots=True)
class Failure:
    """What was raised, in one line, and by whom."""

    who: str
    why: str


class _Arena:
    """The gradients of the round, and the attacks that need not know the rule, worked out once."""

    def __init__(self, gradients: MadeUp, num_servers: int, attacks: dict[str, Attack]) -> None:
        self.num_byzantine = gradients.num_byzantine
        self.honest, self.own = made_up_round(gradients)
        self.mean = self.honest.double().mean(dim=0)
        stream = RandomStream((gradients.seed,))
        self.seeds = [stream.fold_in(f"server-{k}").derived()[0] for k in range(num_servers)]
        self.attack_seed = stream.fold_in("attackers").derived()[0]
        self.known = {
            text: self.craft(attack, None)
            for text, attack in attacks.items()
            if not attack.needs_rule()
        }

    def serve(self, rule: Rule) -> Server | Failure:
        """Return a server with the rule, or why it cannot serve."""
        server = Server(rule, self.honest, self.num_byzantine)
        try:
            server.look_for_randomness(self.own)
        except Exception as error:  # noqa: BLE001  (a rule under test may raise anything)
            return Failure("rule", _why(error))
        return server

    def craft(self, attack: Attack, server: Server | None) -> Tensor | Failure:
        """Return the rows that the attackers send, or why there are none."""
        info: dict[str, Any] = {"rule": server, "own": self.own, "seed": self.attack_seed}
        try:
            return torch.as_tensor(attack(self.honest, num_byzantine=self.num_byzantine, **info))
        except Exception as error:  # noqa: BLE001  (an attack under test may raise anything)
            # What the attack asked the rule may be what failed.
            has_rule_failed = server is not None and server.has_failed
            return Failure("rule" if has_rule_failed else "attack", _why(error))

    def error(self, attack: Attack, server: Server) -> float | Failure:
        """Return the mean error over the servers' seeds, or why there is none."""
        known = self.known.get(str(attack))
        rows = self.craft(attack, server) if known is None else known
        if isinstance(rows, Failure):
            return rows
        try:
            errors = [self.distance(update) for update in server.updates(rows, self.seeds)]
        except Exception as error:  # noqa: BLE001  (a rule under test may raise anything)
            return Failure("rule", _why(error))
        return sum(errors) / len(errors)

    def distance(self, update: Any) -> float:
        """Return the distance to the honest mean, relative to its length."""
        away = torch.as_tensor(update).double() - self.mean
        return float(away.norm() / self.mean.norm())


class _Counter:
    """Counts the cells that are done, from any thread."""

    def __init__(self, total: int, on_progress: Progress | None) -> None:
        self.lock, self.total, self.on_progress = Lock(), total, on_progress
        self.done = 0

    def one_more(self) -> None:
        with self.lock:
            self.done += 1
            if self.on_progress is not None:
                self.on_progress(self.done, self.total)


def _why(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
