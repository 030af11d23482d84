"""Every rule of EVERY_RULE passes the checks, and the checks catch rules that are broken."""

import random
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import outvote as ov
from every_rule import EVERY_RULE, PLAIN, WRAPPABLE_NAMES, WRAPPER_NAMES, WRAPPERS, cases
from outvote.rules.rule_spec import RULES
from outvote.testing import CHECKS

# The inputs are small: more threads only wait for each other.
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("text", cases(EVERY_RULE))
def test_every_rule_passes_every_check(text, device):
    with warnings.catch_warnings():
        if device.type != "cpu":  # Draws and rounding differ: a tie may pass by chance there.
            warnings.simplefilter("ignore", ov.OutvoteWarning)
        ov.check_rule(ov.make_rule(text), exempt=EVERY_RULE[text], device=device)


def test_every_name_of_the_registry_is_in_the_table():
    names = {text.split("(")[0] for text in EVERY_RULE}
    assert names == set(RULES)


def test_every_wrapper_is_tried_around_every_rule_that_can_be_wrapped():
    assert set(PLAIN) == set(WRAPPABLE_NAMES)
    assert {name for name in RULES if issubclass(RULES[name], ov.Rule)} >= set(WRAPPER_NAMES)
    wrapped = {template.format(inside) for template in WRAPPERS for inside in PLAIN}
    assert wrapped <= set(EVERY_RULE)
    for name in WRAPPER_NAMES:
        with pytest.raises(ValueError, match="wraps one rule"):
            ov.make_rule(name)


class Middle(ov.VectorRule):
    """A correct rule of a third party, as short as possible."""

    name = "middle"
    traits = ov.Traits(uses_num_byzantine=False)

    def max_byzantine(self, num_clients):
        return (num_clients - 1) // 2

    def aggregate(self, rows, num_byzantine):
        ordered = rows.sort(dim=0).values
        return ordered[(len(rows) - 1) // 2] / 2 + ordered[len(rows) // 2] / 2


class NearestHalf(ov.AffineRule):
    name = "nearest-half"

    def max_byzantine(self, num_clients):
        return max(0, (num_clients - 3) // 2)

    def weigh(self, matrix, info):
        far = matrix.squared_distances.sort(dim=-1).values
        scores = far[..., : matrix.num_clients // 2 + 1].sum(dim=-1)
        best = scores.argmin(dim=-1, keepdim=True)
        return ov.Aggregation(
            weights=torch.zeros_like(scores).scatter_(-1, best, 1.0), scores=scores
        )


@dataclass(frozen=True)
class Quantile(ov.CoordinatewiseRule):
    share: float = 0.5
    name = "quantile"
    traits = ov.Traits(uses_num_byzantine=False)

    def max_byzantine(self, num_clients):
        return min(int((num_clients - 1) * self.share), int((num_clients - 1) * (1 - self.share)))

    def reduce(self, columns, num_byzantine):
        rank = int((columns.shape[-1] - 1) * self.share)
        return columns.float().sort(dim=-1).values[..., rank].to(columns.dtype)


def test_a_correct_vector_rule_passes():
    ov.check_rule(Middle())


def test_a_correct_affine_rule_passes():
    ov.check_rule(NearestHalf(), exempt={"mean-without-byzantine": "it takes one client"})


def test_a_correct_coordinate_wise_rule_passes():
    ov.check_rule(Quantile(), exempt={"sign-equivariant": "the lower of two middle values"})


class Broken(ov.VectorRule):
    """A mean that has one thing wrong; each subclass has its own."""

    name = "broken"

    def max_byzantine(self, num_clients):
        return 0

    def aggregate(self, rows, num_byzantine):
        return (rows.double() / len(rows)).sum(dim=0)


class WritesIntoItsInput(Broken):
    def aggregate(self, rows, num_byzantine):
        mean = super().aggregate(rows, num_byzantine)
        rows[0] = 0
        return mean


class ReturnsNan(Broken):
    def aggregate(self, rows, num_byzantine):
        norms = rows.double().norm(dim=1, keepdim=True)
        return (rows / norms).sum(dim=0) * norms.mean() / len(rows)


class DrawsFromNumpy(Broken):
    def aggregate(self, rows, num_byzantine):
        return rows[np.random.randint(len(rows))]  # noqa: NPY002


class ChangesASetting(Broken):
    def aggregate(self, rows, num_byzantine):
        torch.set_float32_matmul_precision("medium")
        return super().aggregate(rows, num_byzantine)


class PrefersTheFirst(Broken):
    def aggregate(self, rows, num_byzantine):
        return rows[0]


class IsTooConfident(Broken):
    def max_byzantine(self, num_clients):
        return (num_clients - 1) // 2


class DropsTheFarthestFromTheMean(Broken):
    def max_byzantine(self, num_clients):
        return (num_clients - 1) // 2

    def aggregate(self, rows, num_byzantine):
        far = torch.linalg.vector_norm(rows - rows.mean(dim=0), dim=1)
        return rows[far.argsort()[: len(rows) - num_byzantine]].mean(dim=0)


class CountsInFractions(Broken):
    def max_byzantine(self, num_clients):
        return num_clients / 2


class HidesState(Broken):
    def __init__(self):
        self.last = 0

    def aggregate(self, rows, num_byzantine):
        mean = super().aggregate(rows, num_byzantine)
        self.last = self.last / 2 + float(mean[0]) / 2
        return mean + self.last


class AddsOne(Broken):
    def aggregate(self, rows, num_byzantine):
        return super().aggregate(rows, num_byzantine) + 1


class Sums(Broken):
    def aggregate(self, rows, num_byzantine):
        return rows.double().sum(dim=0)


class TakesTheLargest(Broken):
    def aggregate(self, rows, num_byzantine):
        return rows.amax(dim=0)


class Raises(Broken):
    def aggregate(self, rows, num_byzantine):
        raise RuntimeError("no")


class LooksAtOtherCoordinates(ov.CoordinatewiseRule):
    def max_byzantine(self, num_clients):
        return 0

    def reduce(self, columns, num_byzantine):
        mean = columns.double().mean(dim=-1)
        return mean + 0.01 * (mean - mean.mean(dim=-1, keepdim=True))


class WeighsTooMuch(ov.AffineRule):
    def max_byzantine(self, num_clients):
        return 0

    def weigh(self, matrix, info):
        return ov.Aggregation(weights=torch.full((*matrix.batch, matrix.num_clients), 0.3).double())


class MixesTheRuns(ov.AffineRule):
    def max_byzantine(self, num_clients):
        return 0

    def weigh(self, matrix, info):
        far = matrix.squared_distances.sum(dim=-1)
        total = far.flatten(end_dim=-2).sum(dim=0).expand_as(far)
        return ov.Aggregation(weights=(total / total.sum(dim=-1, keepdim=True)))


@dataclass(frozen=True)
class HidesAParameter(ov.VectorRule):
    size: int = 1

    def __repr__(self):
        return "HidesAParameter()"

    def max_byzantine(self, num_clients):
        return 0

    def aggregate(self, rows, num_byzantine):
        return rows.double().mean(dim=0)


class Stateful(ov.Rule):
    """A mean that carries the previous update; the subclasses have one thing wrong."""

    traits = ov.Traits(uses_num_byzantine=False, has_state=True)

    def max_byzantine(self, num_clients):
        return 0

    def compute(self, matrix, info):
        mean = matrix.rows.double().mean(dim=-2)
        before = mean[0] if info.state is None else info.state["mean"]
        return ov.Aggregation(vector=(mean + before) / 2, state=self.state_after(mean[0], info))

    def state_after(self, mean, info):
        return {"mean": mean, "round": info.round}


class ReturnsNoState(Stateful):
    def state_after(self, mean, info):
        return None


class DeclaresNoState(Stateful):
    traits = ov.Traits(uses_num_byzantine=False)


class ChangesItsState(Stateful):
    def state_after(self, mean, info):
        if info.state is None:
            return super().state_after(mean, info)
        info.state["mean"] += mean
        return info.state


class SharesItsState(Stateful):
    def __init__(self):
        self.shared = {"mean": torch.zeros(())}

    def state_after(self, mean, info):
        self.shared["mean"] = mean
        return self.shared


class SavesAnObject(Stateful):
    def state_after(self, mean, info):
        return {**super().state_after(mean, info), "made": object()}


def test_a_correct_stateful_rule_passes():
    ov.check_rule(Stateful())


class TrustsThePast(ov.Rule):
    """Averages the clients that were nearest to the median so far, as a careless rule would."""

    traits = ov.Traits(has_state=True, can_be_wrapped=False)
    limit = None

    def max_byzantine(self, n):  # the argument may have any name
        return (n - 1) // 2

    def compute(self, matrix, info):
        rows = matrix.rows[0].double()
        middle = (rows.median(dim=0).values - (-rows).median(dim=0).values) / 2
        far = (rows - middle).norm(dim=1)
        far = far / far.median().clamp(min=1e-200)
        past = info.state or {}
        old = torch.tensor([past.get(client, 1.0) for client in info.clients]).to(far)
        bad = 0.9 * old + 0.1 * far.clamp(max=10)
        score = bad if self.limit is None else torch.maximum(bad, far)
        kept = score.argsort(stable=True)[: matrix.num_clients - info.num_byzantine]
        weights = torch.zeros_like(bad).index_fill(0, kept, 1 / len(kept))
        state = {**past, **dict(zip(info.clients, bad.tolist(), strict=True))}
        return ov.Aggregation(weights=weights[None], scores=score[None], state=state)


class TrustsNoOutlier(TrustsThePast):
    """The same, and no past excuses a row that is far away in this round."""

    limit = 1


def test_breakdown_is_also_checked_after_rounds_of_good_behaviour():
    ov.check_rule(TrustsNoOutlier())
    with pytest.raises(ov.ConformanceError) as caught:
        ov.check_rule(TrustsThePast())
    (failure,) = caught.value.failures
    assert failure.check == "breakdown"
    assert failure.given.startswith("after 30 rounds near the honest mean: num_byzantine=")


CAUGHT = [
    (WritesIntoItsInput(), "leaves-inputs-alone"),
    (ReturnsNan(), "finite"),
    (DrawsFromNumpy(), "no-global-state"),
    (DrawsFromNumpy(), "same-seed-same-verdict"),
    (ChangesASetting(), "no-global-state"),
    (PrefersTheFirst(), "permutation-invariant"),
    (PrefersTheFirst(), "mean-without-byzantine"),
    (IsTooConfident(), "breakdown"),
    (DropsTheFarthestFromTheMean(), "geometric-scales"),
    (CountsInFractions(), "limit-makes-sense"),
    (HidesState(), "same-seed-same-verdict"),
    (AddsOne(), "unanimous"),
    (AddsOne(), "one-client"),
    (AddsOne(), "scale-equivariant"),
    (Sums(), "translation-equivariant"),
    (Sums(), "inside-the-box"),
    (TakesTheLargest(), "sign-equivariant"),
    (LooksAtOtherCoordinates(), "per-coordinate"),
    (WeighsTooMuch(), "average-of-clients"),
    (MixesTheRuns(), "batch-equals-loop"),
    (HidesAParameter(size=2), "repr-round-trip"),
    (Raises(), "finite"),
    (ReturnsNoState(), "state-is-declared"),
    (DeclaresNoState(), "state-is-declared"),
    (SharesItsState(), "state-run-by-run"),
    (ChangesItsState(), "state-survives-saving"),
    (SavesAnObject(), "state-survives-saving"),
]


@pytest.fixture
def _global_state():
    """Put back what the broken rules do to the world."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    precision = torch.get_float32_matmul_precision()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.set_rng_state(states[2])
    torch.set_float32_matmul_precision(precision)


@pytest.mark.parametrize(
    ("rule", "check"),
    CAUGHT,
    ids=lambda part: part if isinstance(part, str) else type(part).__name__,
)
@pytest.mark.usefixtures("_global_state")
def test_a_broken_rule_is_caught(rule, check):
    with pytest.raises(ov.ConformanceError) as caught:
        ov.check_rule(rule)
    assert check in [failure.check for failure in caught.value.failures]


def test_all_but_the_text_checks_have_caught_something():
    """A check that nothing fails is no check; these hold by the calling contract alone."""
    by_contract = {
        "rejects-non-finite",
        "refuses-too-many",
        "refuses-nonsense",
        "keeps-kind-and-dtype",
        "promotes-integers",
        "call-equals-inspect",
        "verdict-adds-up",
        "text-round-trip",
    }
    assert {check for _, check in CAUGHT} | by_contract == set(CHECKS)


def test_a_failure_names_the_rule_the_fact_the_input_and_what_was_seen():
    with pytest.raises(ov.ConformanceError) as caught:
        ov.check_rule(Sums())
    message = str(caught.value)
    assert message.startswith("Sums fails ")
    assert "inside-the-box: No coordinate of the update is outside" in message
    assert "seen: update [" in message
    assert "input: num_byzantine=0, float64 gradients [[" in message
    assert len(caught.value.failures) > 1
    assert isinstance(caught.value, AssertionError)


def test_a_failure_keeps_what_was_raised_and_names_the_line():
    with pytest.raises(ov.ConformanceError) as caught:
        ov.check_rule(Raises())
    assert caught.value.__cause__ is caught.value.failures[0].cause is not None
    assert "see the traceback" not in str(caught.value)
    assert "test_conformance.py, line " in caught.value.failures[0].given


def test_an_exemption_needs_a_known_check_and_a_reason():
    with pytest.raises(TypeError, match="exempt must map the name of a check to the reason"):
        ov.check_rule(Middle(), exempt=["unanimous"])
    with pytest.raises(ValueError, match="no check 'unanimus'; did you mean 'unanimous'"):
        ov.check_rule(Middle(), exempt={"unanimus": "a reason"})
    for reason in ("", " ", None):
        with pytest.raises(ValueError, match="'unanimous' needs a reason in words"):
            ov.check_rule(Middle(), exempt={"unanimous": reason})


def test_an_exemption_that_is_not_needed_warns():
    with pytest.warns(ov.OutvoteWarning, match="middle passes 'unanimous'; the exemption"):
        ov.check_rule(Middle(), exempt={"unanimous": "no idea"})


@pytest.mark.parametrize("thing", ["median", ov.Median, None])
def test_what_is_no_rule_is_refused(thing):
    with pytest.raises(TypeError, match="check_rule checks an outvote\\.Rule"):
        ov.check_rule(thing)
