"""The same question gets the same answer, and nothing else in the world changes."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from outvote.rules.verdict import Verdict
from outvote.testing.trial import BrokenError, Round, Trial, as_array, require, require_close


def call_equals_inspect(trial: Trial) -> None:
    """A plain call returns the update of the verdict."""
    for one in trial.rounds():
        called = trial.call(trial.given(one.rows), num_byzantine=one.num_byzantine)
        require_close(as_array(called), trial.update(one), one, "called")


def verdict_adds_up(trial: Trial) -> None:
    """Every client has a finite score and a weight from 0 to 1, and is kept or dropped."""
    for one in trial.rounds():
        ids = [f"client-{k}" for k in range(len(one.rows))]
        verdict = trial.inspect(trial.given(one.rows), num_byzantine=one.num_byzantine, clients=ids)
        shape = (len(ids),)
        require(verdict.scores.shape == shape, one, f"{verdict.scores.shape} scores")
        require(verdict.weights.shape == shape, one, f"{verdict.weights.shape} weights")
        is_finite = bool(np.isfinite(verdict.scores).all())
        require(is_finite, one, f"scores {verdict.scores.tolist()}")
        is_share = bool(np.all((verdict.weights >= 0) & (verdict.weights <= 1 + 1e-9)))
        require(is_share, one, f"weights {verdict.weights.tolist()}")
        is_split = sorted(verdict.kept + verdict.dropped) == sorted(ids) and not verdict.rejected
        seen = f"kept {verdict.kept}, dropped {verdict.dropped}, rejected {verdict.rejected}"
        require(is_split, one, seen)


def same_seed_same_verdict(trial: Trial) -> None:
    """The same seed gives the same verdict, whatever was asked in between; it is recorded."""
    for one in trial.rounds():
        first = trial.verdict(one)
        require(first.seed == trial.seed, one, f"seed {first.seed} in place of {trial.seed}")
        trial.verdict(Round(one.rows[::-1] * 3 + 1, one.num_byzantine))
        _require_same(trial.verdict(one), first, one)
        info = {"num_byzantine": one.num_byzantine}
        fresh = trial.inspect(trial.given(one.rows), **info, seed=None)
        again = trial.inspect(trial.given(one.rows), **info, seed=fresh.seed)
        _require_same(again, fresh, one)


def no_global_state(trial: Trial) -> None:
    """No global generator is drawn from or seeded, and no setting of torch is left changed."""
    for one in trial.rounds():
        with stirred_generators():
            before = global_state()
            trial.verdict(one)
            after = global_state()
        changed = [name for name, value in before.items() if after[name] != value]
        require(not changed, one, f"changed {', '.join(changed)}")


def _require_same(got: Verdict, wanted: Verdict, one: Round) -> None:
    is_same = np.array_equal(as_array(got.update), as_array(wanted.update))
    is_same = is_same and np.array_equal(got.scores, wanted.scores)
    is_same = is_same and np.array_equal(got.weights, wanted.weights)
    if not is_same:
        raise BrokenError(one, f"{got.update} the second time, {wanted.update} the first")


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
