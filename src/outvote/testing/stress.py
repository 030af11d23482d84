"""Every attack against every rule on synthetic gradients: how far each moves the update."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import inf, isfinite
from threading import Lock
from typing import Any, TypeVar

import torch
from torch import Tensor

from outvote.attacks.attack import Attack
from outvote.attacks.parameters import check_count, check_number
from outvote.ops.process import mapped
from outvote.rules.rule import Rule
from outvote.seeding import RandomStream

Value = TypeVar("Value")
Progress = Callable[[int, int], None]
SHARE_OF_COORDINATES = 0.1
NUM_REFERENCE_ROWS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticGradients:
    r"""How to draw gradients: a common gradient, a shift of each client's own, and noise.

    $$ g_i = m + h \, u_i c_i + s \, e_i $$

    m and e_i are normal vectors of length about 1. c_i is one too, but on a random tenth of the
    coordinates alone, as if client i had seen other classes than the rest. The factors u_i are
    uniform in [0.5, 1.5]: some clients are more unusual than others. Attackers would be like that
    too if they were honest. Real gradients differ in other ways.
    """

    num_clients: int = 50
    """All clients, the attackers included."""
    num_byzantine: int = 10
    """How many of them attack."""
    dim: int = 10_000
    """How many coordinates a gradient has."""
    heterogeneity: float = 2.0
    """h: the length of a client's own shift, in lengths of the common gradient."""
    noise: float = 1.0
    """s: the length of the noise, in lengths of the common gradient."""
    seed: int = 0
    """Where all randomness comes from."""

    def __post_init__(self) -> None:
        for name, low in {"num_clients": 1, "num_byzantine": 0, "dim": 1, "seed": 0}.items():
            check_count(name, getattr(self, name), low=low)
        if self.num_byzantine >= self.num_clients:
            raise ValueError(
                f"num_byzantine must be below the {self.num_clients} of num_clients, got "
                f"{self.num_byzantine}; at least one client must be honest."
            )
        for name in ("heterogeneity", "noise"):
            check_number(name, getattr(self, name), low=0)


def draw_round(recipe: SyntheticGradients) -> tuple[Tensor, Tensor]:
    """Draw a round: the gradients of the honest, and what the attackers would have sent."""
    generator = RandomStream((recipe.seed,)).fold_in("made-up").generator(0, torch.device("cpu"))
    shape = (recipe.num_clients, recipe.dim)

    def normal(*size: int) -> Tensor:
        drawn: Tensor = torch.randn(size, generator=generator) / float(recipe.dim) ** 0.5
        return drawn

    common = normal(recipe.dim)
    strength = 0.5 + torch.rand(recipe.num_clients, 1, generator=generator)
    is_own = torch.rand(shape, generator=generator) < SHARE_OF_COORDINATES
    shift = normal(*shape) * is_own * strength / SHARE_OF_COORDINATES**0.5
    rows = common + recipe.heterogeneity * shift + recipe.noise * normal(*shape)
    num_honest = recipe.num_clients - recipe.num_byzantine
    return rows[:num_honest], rows[num_honest:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One attack against one rule.

    `error` is the distance of the update to the honest mean relative to the length of that mean,
    on average over the seeds of the server; None if it failed. Then `failure` is the reason, and
    `failed` who failed: "attack" or "rule".
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

    gradients: SyntheticGradients
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
        found = [cell for cell in worst if cell is not None]
        return min(found, key=lambda cell: cell.severity, default=None)


def stress(
    rules: Sequence[Rule],
    attacks: Sequence[Attack],
    gradients: SyntheticGradients,
    *,
    num_servers: int = 3,
    on_progress: Progress | None = None,
) -> Stress:
    """Run every attack against every rule; a failure is reported in its cell.

    The attackers know the gradients and the rule but not the randomness of the server, which is
    drawn `num_servers` times. A rule that tolerates fewer attackers gets its limit.

    >>> from outvote import LIE, Mean
    >>> gradients = SyntheticGradients(num_clients=5, num_byzantine=1, dim=100)
    >>> table = stress([Mean()], [LIE()], gradients)
    >>> table.worst("mean").attack
    'lie'
    """
    check_count("num_servers", num_servers)
    names = {str(attack): attack for attack in attacks}
    columns = {str(rule): rule for rule in rules}
    table = _Table(gradients, num_servers, names)
    pairs = [(rule, attack) for attack in names for rule in columns]
    lock, num_done = Lock(), count(1)

    def work(pair: tuple[str, str]) -> Cell:
        rule, attack = pair
        answer = table.error(names[attack], columns[rule])
        with lock:
            if on_progress is not None:
                on_progress(next(num_done), len(pairs))
        if isinstance(answer, Failure):
            return Cell(attack=attack, rule=rule, failure=answer.why, failed=answer.who)
        return Cell(attack=attack, rule=rule, error=answer)

    # The last first: wrappers come late in most lists, and searches take longest.
    cells = mapped(work, pairs[::-1])[::-1]
    return Stress(
        gradients=gradients, attacks=tuple(names), rules=tuple(columns), cells=tuple(cells)
    )


@dataclass(frozen=True, slots=True)
class Failure:
    """The error, in one line, and whether the attack or the rule raised it."""

    who: str
    why: str


class AskedRule:
    """A rule that an attack may ask; it gets what it needs, and notes whether it failed.

    Rules that need a reference gradient get the mean of a few honest ones.
    """

    def __init__(self, rule: Rule, honest: Tensor, num_byzantine: int) -> None:
        self.rule, self.has_failed = rule, False
        self.info: dict[str, Any] = {
            "num_byzantine": num_byzantine,
            "when_too_many": "lower",
            "reference": honest[:NUM_REFERENCE_ROWS].mean(dim=0),
        }

    def max_byzantine(self, num_clients: int) -> int:
        """Return what the rule tolerates."""
        return self.rule.max_byzantine(num_clients)

    def __call__(self, gradients: Tensor, *, seed: int, **_: Any) -> Any:
        """Return the update."""
        return self._answer(self.rule, gradients, seed)

    def inspect(self, gradients: Tensor, *, seed: int, **_: Any) -> Any:
        """Return the verdict."""
        return self._answer(self.rule.inspect, gradients, seed)

    def _answer(self, ask: Callable[..., Any], gradients: Tensor, seed: int) -> Any:
        try:
            return ask(gradients, seed=seed, **self.info)
        except Exception:
            self.has_failed = True
            raise


class _Table:
    """The gradients of the round, and the rows of attacks that do not ask the rule."""

    def __init__(
        self, gradients: SyntheticGradients, num_servers: int, attacks: dict[str, Attack]
    ) -> None:
        self.num_byzantine = gradients.num_byzantine
        self.honest, self.own = draw_round(gradients)
        self.mean = self.honest.double().mean(dim=0)
        stream = RandomStream((gradients.seed,))
        self.seeds = [stream.fold_in(f"server-{k}").derived()[0] for k in range(num_servers)]
        self.attack_seed = stream.fold_in("attackers").derived()[0]
        self.known = {
            text: self.craft(attack, None)
            for text, attack in attacks.items()
            if not attack.needs_rule()
        }

    def craft(self, attack: Attack, server: AskedRule | None) -> Tensor | Failure:
        """Return the rows that the attackers send, or why the attack fails."""
        info: dict[str, Any] = {"rule": server, "own": self.own, "seed": self.attack_seed}
        info["num_byzantine"] = self.num_byzantine
        found = _attempt(
            "attack", lambda: torch.as_tensor(attack.inspect(self.honest, **info).rows)
        )
        # The rule may have failed when the attack asked it.
        if isinstance(found, Failure) and server is not None and server.has_failed:
            return replace(found, who="rule")
        return found

    def error(self, attack: Attack, rule: Rule) -> float | Failure:
        """Return the mean error over the seeds of the server, or why there is none."""
        server = AskedRule(rule, self.honest, self.num_byzantine)
        known = self.known.get(str(attack))
        rows = self.craft(attack, server) if known is None else known
        if isinstance(rows, Failure):
            return rows
        errors = _attempt("rule", lambda: self.errors(server, torch.cat([self.honest, rows])))
        return errors if isinstance(errors, Failure) else sum(errors) / len(errors)

    def errors(self, server: AskedRule, matrix: Tensor) -> list[float]:
        """Return the distance to the honest mean, relative to its length, for every seed."""
        found: list[float] = []
        for seed in self.seeds:
            away = torch.as_tensor(server(matrix, seed=seed)).double() - self.mean
            found.append(float(away.norm() / self.mean.norm()))
            if len(found) == 2 and found[0] == found[1]:
                break  # The rule is not random.
        return found


def _attempt(who: str, call: Callable[[], Value]) -> Value | Failure:
    try:
        return call()
    except Exception as error:  # noqa: BLE001  (what is under test may raise anything)
        return Failure(who, " ".join(f"{type(error).__name__}: {error}".split()))
