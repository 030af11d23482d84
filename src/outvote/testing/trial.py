"""The rule or attack under test, the rounds that it is tested on, and how a failure is reported."""

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outvote.attacks.attack import Attack, AttackOutput
from outvote.attacks.attack_spec import ATTACKS, make_attack
from outvote.attacks.run_attack import run_attack
from outvote.errors import OutvoteWarning
from outvote.rules.aggregate import Batch, aggregate
from outvote.rules.gas import GAS
from outvote.rules.krum import MultiKrum
from outvote.rules.rule import Rule, known
from outvote.rules.rule_spec import RULES, make_rule
from outvote.rules.verdict import Verdict

Array = NDArray[Any]
# Whatever a rule takes and returns: arrays, tensors, lists, dicts.
Gradients = Any

# Clients, coordinates and size of the gradients: more clients than coordinates and fewer, an odd
# and an even number, a single coordinate, and gradients long enough for any clipping to show.
SIZES = ((5, 1, 1.0), (8, 5, 1.0), (9, 12, 1000.0))
# Honest clients, attackers, coordinates, and the size of the gradients.
ATTACK_SIZES = ((5, 1, 1, 1.0), (8, 2, 5, 1.0), (9, 4, 12, 1000.0), (3, 3, 7, 1e-3))
# What attacks that know the defence search against.
DEFENCE = GAS(MultiKrum(), num_groups=3)
NUMPY_FLOATS = ("float16", "float32", "float64")
# Up to these numbers all must stay finite: the dtype's own range, within the promised 1e38.
LARGEST = {
    torch.float16: 65504.0,
    torch.bfloat16: 1e38,
    torch.float32: 1e38,
    torch.float64: 1e38,
}
# Rules that iterate stop when their weights change by less than 1e-13; selecting rules are exact.
TOLERANCE = 1e-7


class BrokenError(AssertionError):
    """A check that does not hold: on which input, and what was found there."""

    def __init__(self, given: object, seen: str) -> None:
        super().__init__(f"{seen}; input: {given}")
        self.given, self.seen = str(given), seen


@dataclass(frozen=True, slots=True)
class Round:
    """Gradients and the number of Byzantine clients that the rule assumes."""

    rows: Array
    num_byzantine: int

    def __str__(self) -> str:
        rows = _text(self.rows, threshold=200, precision=17)
        return f"num_byzantine={self.num_byzantine}, {self.rows.dtype} gradients {rows}"


@dataclass(frozen=True, slots=True)
class Scenario:
    """The gradients of the honest clients, and what the attackers would have sent honestly."""

    honest: Array
    own: Array

    def __str__(self) -> str:
        parts = {"honest": self.honest, "own": self.own}
        return ", ".join(
            f"{name} {rows.dtype} {_text(rows, precision=17)}" for name, rows in parts.items()
        )


@dataclass(frozen=True, slots=True)
class Trial:
    """A rule or an attack under test."""

    subject: Any
    seed: int
    device: torch.device
    make: ClassVar[Any]
    table: ClassVar[Any]

    @property
    def name(self) -> str:
        """The text of the subject, or the name of its class if it has none."""
        return str(self.subject) or type(self.subject).__name__

    def random(self, *key: int) -> np.random.Generator:
        """Return a generator of its own for every use."""
        return np.random.default_rng([self.seed, *key])

    def given(self, rows: Array) -> Array | Tensor:
        """Return rows as numpy on the CPU, and as a tensor on any other device."""
        return rows if self.device.type == "cpu" else torch.from_numpy(rows.copy()).to(self.device)

    def rounds(self) -> Iterator[Any]:
        """Yield rounds of several sizes."""
        raise NotImplementedError

    def run(self, one: Any) -> Any:
        """Call the subject on a round."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class RuleTrial(Trial):
    """A rule under test."""

    make: ClassVar[Any] = staticmethod(make_rule)
    table: ClassVar[Any] = RULES

    @property
    def rule(self) -> Rule:
        """The rule."""
        rule: Rule = self.subject
        return rule

    def rows(self, num_clients: int, dim: int, size: float = 1.0) -> Array:
        """Return float64 gradients of clients that differ, away from the origin, without ties."""
        random = self.random(num_clients, dim)
        centre = random.normal(size=dim) + 1.5
        scale = 10.0 ** random.uniform(-0.5, 0.5, size=(num_clients, 1))
        return np.asarray(size * (centre + scale * random.normal(size=(num_clients, dim))))

    def some_byzantine(self, num_clients: int) -> int:
        """Return as many as the rule tolerates, but no majority."""
        return min(self.rule.max_byzantine(num_clients), (num_clients - 1) // 2)

    def rounds(self) -> Iterator[Round]:
        """Yield rounds without Byzantine clients and with as many as the rule tolerates."""
        for num_clients, dim, size in SIZES:
            for num_byzantine in sorted({0, self.some_byzantine(num_clients)}):
                yield Round(self.rows(num_clients, dim, size), num_byzantine)

    def inspect(self, gradients: Gradients, **info: Any) -> Verdict:
        """Call the rule with the seed, and with the vectors that its traits ask for."""
        return self.rule.inspect(gradients, **(self.info(gradients) | info))

    def call(self, gradients: Gradients, **info: Any) -> Gradients:
        """Call the rule for the update alone; its notes are no fault."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OutvoteWarning)
            return self.rule(gradients, **(self.info(gradients) | info))

    def run(self, one: Round, **info: Any) -> Verdict:
        """Return the verdict on a round."""
        return self.inspect(self.given(one.rows), num_byzantine=one.num_byzantine, **info)

    def update(self, one: Round) -> Array:
        """Return the update of a round as float64."""
        return as_array(self.run(one).update)

    def info(self, gradients: Gradients) -> dict[str, Any]:
        """Return no attacker, the seed, and the vectors that the rule needs, all ones."""
        traits = self.rule.traits
        wanted = {"reference": traits.needs_reference, "model": traits.needs_model}
        ones: Gradients
        if isinstance(gradients, list) and isinstance(gradients[0], dict):
            ones = {key: value * 0 + 1 for key, value in gradients[0].items()}
        else:
            ones = np.ones(len(gradients[0]))
        vectors = {name: ones for name, is_wanted in wanted.items() if is_wanted}
        return {"num_byzantine": 0, "seed": self.seed, **vectors}


@dataclass(frozen=True, slots=True)
class AttackTrial(Trial):
    """An attack under test."""

    make: ClassVar[Any] = staticmethod(make_attack)
    table: ClassVar[Any] = ATTACKS
    sample_shape: tuple[int, ...] = (1, 28, 28)

    @property
    def attack(self) -> Attack:
        """The attack."""
        attack: Attack = self.subject
        return attack

    def scenario(self, num_honest: int, num_byzantine: int, dim: int, size: float) -> Scenario:
        """Return float64 gradients of clients that differ, away from the origin, without ties."""
        random = self.random(num_honest, num_byzantine, dim)
        centre = random.normal(size=dim) + 1.5
        rows = size * (centre + random.normal(size=(num_honest + num_byzantine, dim)))
        return Scenario(rows[:num_honest], rows[num_honest:])

    def rounds(self) -> Iterator[Scenario]:
        """Yield rounds of several sizes."""
        for sizes in ATTACK_SIZES:
            yield self.scenario(*sizes)

    def inspect(self, honest: Gradients, own: Gradients, **info: Any) -> AttackOutput:
        """Call the attack, with a rule to ask."""
        info = {"num_byzantine": len(own), "seed": self.seed, "rule": partial(DEFENCE), **info}
        return self.attack.inspect(honest, own=own, **info)

    def run(self, one: Scenario, **info: Any) -> AttackOutput:
        """Attack one round."""
        return self.inspect(self.given(one.honest), self.given(one.own), **info)

    def rows(self, one: Scenario, **info: Any) -> Array:
        """Return the rows of a round as float64."""
        return as_array(self.run(one, **info).rows)

    def attacked(self, rows: Tensor, is_byzantine: Tensor, **info: Any) -> tuple[Tensor, Any]:
        """Attack a batch of runs as the simulator does."""
        counts = is_byzantine.sum(dim=1).tolist()

        def defence(gradients: Tensor, seeds: Any) -> tuple[Tensor, Tensor]:
            batch = Batch(gradients=gradients, num_byzantine=counts, seeds=list(seeds))
            found = aggregate(DEFENCE, batch)
            return known(found.vector), known(found.weights) > 0

        return run_attack(self.attack, rows.to(self.device), is_byzantine, defence=defence, **info)


def forms(rows: Array, device: torch.device) -> Iterator[tuple[str, Gradients]]:
    """Yield the same rows of 4 coordinates as numpy, as torch, and as dicts of either."""
    for name in NUMPY_FLOATS:
        yield f"numpy {name} {[*rows.shape]}", rows.astype(name)
    for dtype in LARGEST:
        yield f"torch {dtype} {[*rows.shape]}", torch.from_numpy(rows).to(device, dtype)
    for name in NUMPY_FLOATS:
        named = [{"a": row[:3, None].astype(name), "b": row[3:]} for row in rows]
        yield f"dicts with {kind_of(named[0])}", named
        tensors = [
            {key: torch.from_numpy(part).to(device) for key, part in row.items()} for row in named
        ]
        yield f"dicts with {kind_of(tensors[0])}", tensors


def is_like(got: Gradients, wanted: Gradients) -> bool:
    """Return whether two results have the same kind, dtypes, shapes and device."""
    if type(got) is not type(wanted):
        return False
    if isinstance(wanted, list):
        return len(got) == len(wanted) and all(map(is_like, got, wanted))
    if isinstance(wanted, dict):
        return [*got] == [*wanted] and all(is_like(got[key], wanted[key]) for key in wanted)
    is_same = (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    return is_same and getattr(got, "device", None) == getattr(wanted, "device", None)


def kind_of(result: Gradients) -> str:
    """Return the kind, dtype, shape and device in words."""
    if isinstance(result, dict):
        return ", ".join(f"{name}: {kind_of(part)}" for name, part in result.items())
    where = f" on {result.device}" if isinstance(result, Tensor) else ""
    shape, dtype = getattr(result, "shape", "?"), getattr(result, "dtype", "?")
    return f"{type(result).__name__} {dtype} {tuple(shape)}{where}"


def leaves(gradients: Gradients) -> Iterator[Any]:
    """Yield the arrays or tensors that lists and dicts hold."""
    if not isinstance(gradients, list | dict):
        yield gradients
        return
    for part in gradients.values() if isinstance(gradients, dict) else gradients:
        yield from leaves(part)


def equal(one: Gradients, two: Gradients) -> bool:
    """Return whether two of the same kind hold the same numbers."""
    return all(bool((a == b).all()) for a, b in zip(leaves(one), leaves(two), strict=True))


def as_array(update: Gradients) -> Array:
    """Return an update as a float64 array on the CPU."""
    if isinstance(update, Tensor):
        update = update.detach().cpu().double().numpy()
    return np.asarray(update, dtype=np.float64)


def require(is_so: bool, given: object, seen: str) -> None:
    """Raise unless it holds."""
    if not is_so:
        raise BrokenError(given, seen)


def require_close(got: Array, wanted: Array, given: object, what: str) -> None:
    """Raise unless two results agree to rounding."""
    size = max(1.0, float(np.abs(wanted).max()))
    is_close = got.shape == wanted.shape and bool(np.all(np.abs(got - wanted) <= TOLERANCE * size))
    if not is_close:  # Numbers are only formatted if they are shown.
        raise BrokenError(
            given, f"{what}: got {_text(got, threshold=50)}, wanted {_text(wanted, threshold=50)}"
        )


def expect(error: type[Exception], call: Callable[[], object], given: object, what: str) -> None:
    """Raise unless a call raises exactly the documented kind of error."""
    try:
        call()
    except error:
        return
    raise BrokenError(given, f"{what} did not raise {error.__name__}")


def _text(values: Array, **style: Any) -> str:
    return " ".join(np.array2string(values, separator=", ", **style).split())


@contextmanager
def stirred_generators() -> Iterator[None]:
    """Put the global generators where no fixed seed puts them, and back afterwards."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    random.seed(repr(states[0]))
    np.random.seed(random.getrandbits(32))  # noqa: NPY002
    torch.rand(random.randrange(1, 100))
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])


def global_state() -> dict[str, object]:
    """Return what a call must leave as it was."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    kind, words, *rest = np.random.get_state()  # noqa: NPY002  (read, not used)
    return {
        "Python's random state": random.getstate(),
        "numpy's random state": (kind, np.asarray(words).tobytes(), *rest),
        "torch's random state": torch.get_rng_state().numpy().tobytes(),
        "CUDA's random state": [state.numpy().tobytes() for state in cuda],
        "torch's precision of matrix products": torch.get_float32_matmul_precision(),
        "torch's default dtype": torch.get_default_dtype(),
        "torch's number of threads": torch.get_num_threads(),
        "torch's gradient mode": torch.is_grad_enabled(),
    }
