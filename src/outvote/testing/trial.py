"""The rule under test, the rounds that it is tried on, and how a failure is reported."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outvote.rules.rule import Rule
from outvote.rules.verdict import Verdict

Array = NDArray[Any]
# Whatever a rule takes and returns: arrays, tensors, lists, dicts.
Gradients = Any

# Clients, coordinates and size of the gradients: more clients than coordinates and fewer, an odd
# and an even number, a single coordinate, and gradients long enough for any clipping to show.
SIZES = ((5, 1, 1.0), (8, 5, 1.0), (9, 12, 1000.0))
# Rules that iterate stop when their weights change by less than 1e-13; selecting rules are exact.
TOLERANCE = 1e-7


class BrokenError(AssertionError):
    """A check that does not hold: on which input, and what was found there."""

    def __init__(self, given: object, seen: str) -> None:
        """Keep both for the report."""
        super().__init__(f"{seen}; input: {given}")
        self.given, self.seen = str(given), seen


@dataclass(frozen=True, slots=True)
class Round:
    """Gradients and the number of Byzantine clients that the rule assumes."""

    rows: Array
    num_byzantine: int

    def __str__(self) -> str:
        """Return what is needed to see the failure again."""
        rows = np.array2string(self.rows, separator=", ", threshold=200, precision=17)
        head = f"num_byzantine={self.num_byzantine}, {self.rows.dtype} gradients"
        return f"{head} {' '.join(rows.split())}"


@dataclass(frozen=True, slots=True)
class Trial:
    """A rule under test."""

    rule: Rule
    seed: int
    device: torch.device

    @property
    def name(self) -> str:
        """The text of the rule, or the name of its class if it has none."""
        return str(self.rule) or type(self.rule).__name__

    def random(self, *key: int) -> np.random.Generator:
        """Return a generator of its own for every use."""
        return np.random.default_rng([self.seed, *key])

    def rows(self, num_clients: int, dim: int, size: float = 1.0) -> Array:
        """Return float64 gradients of clients that differ, away from the origin, without ties."""
        random = self.random(num_clients, dim)
        centre = random.normal(size=dim) + 1.5
        spread = 10.0 ** random.uniform(-0.5, 0.5, size=(num_clients, 1))
        return np.asarray(size * (centre + spread * random.normal(size=(num_clients, dim))))

    def some_byzantine(self, num_clients: int) -> int:
        """Return as many as the rule tolerates, but no majority."""
        return min(self.rule.max_byzantine(num_clients), (num_clients - 1) // 2)

    def rounds(self) -> Iterator[Round]:
        """Yield rounds without Byzantine clients and with as many as the rule tolerates."""
        for num_clients, dim, size in SIZES:
            for num_byzantine in sorted({0, self.some_byzantine(num_clients)}):
                yield Round(self.rows(num_clients, dim, size), num_byzantine)

    def given(self, rows: Array) -> Array | Tensor:
        """Return rows as numpy on the CPU, and as a tensor on any other device."""
        return rows if self.device.type == "cpu" else torch.from_numpy(rows).to(self.device)

    def inspect(self, gradients: Gradients, **info: Any) -> Verdict:
        """Call the rule with the seed, and with the vectors that its traits ask for."""
        info = {"num_byzantine": 0, "seed": self.seed, **info}
        return self.rule.inspect(gradients, **info, **self.vectors(gradients))

    def call(self, gradients: Gradients, **info: Any) -> Gradients:
        """Call the rule for the update alone."""
        info = {"num_byzantine": 0, "seed": self.seed, **info}
        return self.rule(gradients, **info, **self.vectors(gradients))

    def verdict(self, one: Round) -> Verdict:
        """Return the verdict on a round."""
        return self.inspect(self.given(one.rows), num_byzantine=one.num_byzantine)

    def update(self, one: Round) -> Array:
        """Return the update of a round as float64."""
        return as_array(self.verdict(one).update)

    def vectors(self, gradients: Gradients) -> dict[str, Any]:
        """Return the server's gradient and the model, all ones, if the rule needs them."""
        traits = self.rule.traits
        wanted = {"reference": traits.needs_reference, "model": traits.needs_model}
        ones: Gradients
        if isinstance(gradients, list) and isinstance(gradients[0], dict):
            ones = {key: value * 0 + 1 for key, value in gradients[0].items()}
        else:
            ones = np.ones(len(gradients[0]))
        return {name: ones for name, is_wanted in wanted.items() if is_wanted}


def as_array(update: Gradients) -> Array:
    """Return an update as a float64 array on the CPU."""
    if isinstance(update, Tensor):
        update = update.detach().cpu().double().numpy()
    return np.asarray(update, dtype=np.float64)


def require(is_so: bool, given: object, seen: str) -> None:
    """Raise unless the fact holds."""
    if not is_so:
        raise BrokenError(given, seen)


def require_close(got: Array, wanted: Array, given: object, what: str) -> None:
    """Raise unless two results agree to rounding."""
    size = max(1.0, float(np.abs(wanted).max()))
    is_close = got.shape == wanted.shape and bool(np.all(np.abs(got - wanted) <= TOLERANCE * size))
    if not is_close:  # Numbers are only formatted if they are shown.
        raise BrokenError(given, f"{what}: got {_text(got)}, wanted {_text(wanted)}")


def expect(error: type[Exception], call: Callable[[], object], given: object, what: str) -> None:
    """Raise unless a call raises exactly the documented kind of error."""
    try:
        call()
    except error:
        return
    raise BrokenError(given, f"{what} did not raise {error.__name__}")


def _text(values: Array) -> str:
    return " ".join(np.array2string(values, separator=", ", threshold=50).split())


def _cuda_states() -> list[torch.Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []


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
    kind, words, *rest = np.random.get_state()  # noqa: NPY002  (read, not used)
    return {
        "Python's random state": random.getstate(),
        "numpy's random state": (kind, np.asarray(words).tobytes(), *rest),
        "torch's random state": torch.get_rng_state().numpy().tobytes(),
        "CUDA's random state": [state.numpy().tobytes() for state in _cuda_states()],
        "torch's precision of matrix products": torch.get_float32_matmul_precision(),
        "torch's default dtype": torch.get_default_dtype(),
        "torch's number of threads": torch.get_num_threads(),
        "torch's gradient mode": torch.is_grad_enabled(),
    }
