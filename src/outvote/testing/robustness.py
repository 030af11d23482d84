"""What Byzantine clients can do: break nothing, and as a minority not move the update far."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from outvote.errors import TooManyByzantine
from outvote.rules.rule import base_num_byzantine
from outvote.testing.trial import (
    LARGEST,
    Array,
    Round,
    RuleTrial,
    as_array,
    expect,
    require,
    require_close,
)

# A running mean with the usual weight of 0.9 on the past has forgotten its start by then.
GOOD_ROUNDS = 30
# The largest row, and by how much the next is smaller.
SCALES = ((1e38, 1e3), (1e9, 1e3), (1e4, 10.0))


def finite(trial: RuleTrial) -> None:
    """Whatever finite numbers come in, update, scores and weights are finite."""
    for dtype, largest in LARGEST.items():
        for one in _nasty_rounds(trial, largest, float(torch.finfo(dtype).tiny)):
            given = torch.from_numpy(one.rows).to(trial.device, dtype)
            verdict = trial.inspect(given, num_byzantine=one.num_byzantine)
            update = as_array(verdict.update)
            require(bool(np.isfinite(update).all()), one, f"{dtype} update {update.tolist()}")
            require(not verdict.rejected, one, f"{dtype}, rejected {verdict.rejected}")
            for part in ("scores", "weights"):
                values = getattr(verdict, part)
                is_finite = values is None or bool(np.isfinite(values).all())
                require(is_finite, one, f"{dtype} {part} {values}")


def rejects_non_finite(trial: RuleTrial) -> None:
    """Rows with NaN or infinity are named and left out, each counted as one Byzantine client."""
    rows = trial.rows(9, 5)
    rows[1, 2], rows[4, 0], rows[8] = np.nan, np.inf, -np.inf
    is_bad = ~np.isfinite(rows).all(axis=1)
    for assumed in sorted({0, trial.some_byzantine(9)}):
        one = Round(rows, assumed)
        verdict = trial.run(one, clients=list("abcdefghi"))
        require(verdict.rejected == ["b", "e", "i"], one, f"rejected {verdict.rejected}")
        is_out = np.array_equal(np.isinf(verdict.scores), is_bad)
        is_out = is_out and (verdict.weights is None or not verdict.weights[is_bad].any())
        require(is_out, one, f"scores {verdict.scores.tolist()}, weights {verdict.weights}")
        wanted = trial.update(Round(rows[~is_bad], max(0, assumed - 3)))
        require_close(as_array(verdict.update), wanted, one, "update, against the finite rows")
    nobody = Round(np.full((3, 2), np.nan), 0)
    verdict = trial.run(nobody)
    is_zero = not as_array(verdict.update).any() and verdict.rejected == [0, 1, 2]
    require(is_zero, nobody, f"update {verdict.update}, rejected {verdict.rejected}")


def breakdown(trial: RuleTrial) -> None:
    """A Byzantine minority within the limit cannot move the update far from the honest.

    A rule with state is also tested after rounds in which the Byzantine clients behave.
    """
    for num_clients, dim in ((7, 5), (11, 12)):
        num_byzantine = _counted_byzantine(trial, num_clients)
        honest = trial.rows(num_clients - num_byzantine, dim)
        # The square of 1e30 does not fit into float32.
        for dtype in (np.float64, np.float32):
            pasts: list[dict[str, Any]] = [{}]
            if trial.rule.traits.has_state:
                pasts.append(_after_good_rounds(trial, honest, num_byzantine, dtype))
            for bad in _byzantine_rows(trial, num_byzantine, dim):
                one = Round(np.concatenate([bad, honest]).astype(dtype), num_byzantine)
                for past in pasts:
                    after = f"after {GOOD_ROUNDS} rounds near the honest mean: " if past else ""
                    update = as_array(trial.run(one, **past).update)
                    _require_near(update, honest, f"{after}{one}")


def _require_near(update: Array, honest: Array, given: object) -> None:
    """Raise unless an update is at most ten times as far from the honest rows as they reach."""
    low, high = honest.min(axis=0), honest.max(axis=0)
    reach = 10 * float((high - low).max())
    is_near = bool(np.all((update >= low - reach) & (update <= high + reach)))
    seen = f"update {update.tolist()}, honest from {low.tolist()} to {high.tolist()}"
    require(is_near, given, seen)


def geometric_scales(trial: RuleTrial) -> None:
    """Byzantine clients of ever smaller scales, within the limit, cannot move the update far.

    The longest hides the next in a rule that averages or projects before it drops; all entries of a
    row are alike, so that every group of coordinates looks the same.
    """
    for num_clients, dim in ((7, 5), (11, 12), (15, 9)):
        num_byzantine = _counted_byzantine(trial, num_clients)
        honest = trial.rows(num_clients - num_byzantine, dim)
        steps = np.arange(num_byzantine)[:, None]
        signs = np.where(steps % 2 == 0, 1.0, -1.0)
        for first, ratio in SCALES:
            for sign in (1.0, signs):
                bad = sign * np.full((num_byzantine, dim), first) / ratio**steps
                one = Round(np.concatenate([bad, honest]), num_byzantine)
                _require_near(trial.update(one), honest, one)


def _after_good_rounds(
    trial: RuleTrial, honest: Array, num_byzantine: int, dtype: Any
) -> dict[str, Any]:
    """Return state and number of the round after some in which all behave.

    The Byzantine clients stay nearer to the mean than any honest client: no rule of reputation
    trusts others more.
    """
    random, state = trial.random(num_byzantine, len(honest)), None
    spread = float(honest.std())
    for number in range(GOOD_ROUNDS):
        rows = honest + 0.1 * spread * random.normal(size=honest.shape)
        shape = (num_byzantine, honest.shape[1])
        near = rows.mean(axis=0) + 0.1 * spread * random.normal(size=shape)
        one = Round(np.concatenate([near, rows]).astype(dtype), num_byzantine)
        state = trial.run(one, state=state, round=number + 1).state
    return {"state": state, "round": GOOD_ROUNDS + 1}


def limit_makes_sense(trial: RuleTrial) -> None:
    """What a rule tolerates is a whole number from 0 to n that does not fall when n grows."""
    limits = [trial.rule.max_byzantine(n) for n in range(1, 60)]
    for n, limit in enumerate(limits, start=1):
        is_count = type(limit) is int and 0 <= limit <= n
        require(is_count, f"num_clients={n}", f"max_byzantine {limit!r}")
        before = limits[n - 2] if n > 1 else 0
        require(before <= limit, f"num_clients={n}", f"max_byzantine {limit} after {before}")


def refuses_too_many(trial: RuleTrial) -> None:
    """Above the limit a call raises TooManyByzantine; "lower" takes the limit instead."""
    for num_clients in (1, 4, 9):
        limit = trial.rule.max_byzantine(num_clients)
        one = Round(trial.rows(num_clients, 3), limit + 1)
        what = f"num_byzantine={limit + 1} above the limit {limit}"
        expect(TooManyByzantine, lambda one=one: trial.run(one), one, what)  # type: ignore[misc]
        verdict = trial.run(one, when_too_many="lower")
        seen = f"num_byzantine {verdict.num_byzantine} in the verdict, the limit is {limit}"
        require(verdict.num_byzantine == limit, one, seen)
        wanted = trial.update(Round(one.rows, limit))
        require_close(as_array(verdict.update), wanted, one, "update, against that at the limit")


def refuses_nonsense(trial: RuleTrial) -> None:
    """A negative number or a fraction of one half or more is a ValueError."""
    given = trial.given(trial.rows(5, 3))
    for info in (
        {"num_byzantine": -1},
        {"num_byzantine": None, "byzantine_fraction": -0.1},
        {"num_byzantine": None, "byzantine_fraction": 0.5},
        {"num_byzantine": None, "byzantine_fraction": float("nan")},
        {"num_byzantine": 0, "byzantine_fraction": 0.1},
    ):
        expect(ValueError, lambda info=info: trial.inspect(given, **info), info, "the call")  # type: ignore[misc]


def _nasty_rounds(trial: RuleTrial, largest: float, tiny: float) -> Iterator[Round]:
    values = np.array([0.0, -0.0, tiny, -tiny / 8, 1.0, -1.0, largest, -largest])
    for number, (num_clients, dim) in enumerate(((1, 1), (4, 3), (7, 12))):
        random = trial.random(number)
        shape = (num_clients, dim)
        limit = trial.rule.max_byzantine(num_clients)
        for num_byzantine in sorted({0, limit}):
            yield Round(random.choice(values, size=shape), num_byzantine)
            yield Round(random.choice(values[-2:], size=shape), num_byzantine)
            yield Round(random.choice(values[:4], size=shape), num_byzantine)
            same = np.full(shape, largest)
            same[0] = random.choice(values, size=dim)
            yield Round(same, num_byzantine)


def _counted_byzantine(trial: RuleTrial, num_clients: int) -> int:
    """Return the largest tolerated minority that the innermost rule assumes in full.

    GAS goes on with more than the rule inside tolerates, but promises nothing there.
    """
    num_byzantine = trial.some_byzantine(num_clients)
    counted = [base_num_byzantine(trial.rule, k, num_clients) for k in range(num_byzantine + 1)]
    while num_byzantine > 0 and counted[num_byzantine] == counted[num_byzantine - 1]:
        num_byzantine -= 1
    return num_byzantine


def _byzantine_rows(trial: RuleTrial, num_byzantine: int, dim: int) -> Iterator[Array]:
    """Yield Byzantine rows: all alike, on opposite sides, in directions of their own."""
    yield np.full((num_byzantine, dim), 1e30)
    sides = np.where(np.arange(num_byzantine) % 2 == 0, 1e30, -1e30)
    yield np.repeat(sides[:, None], dim, axis=1)
    yield 1e30 * trial.random(num_byzantine, dim).normal(size=(num_byzantine, dim))
