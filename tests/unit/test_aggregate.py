"""Runs aggregated together get what each gets alone."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from outvote.ops.distances import CancellationCheck

import outvote as ov
import outvote.rules.aggregate
import outvote.rules.groups
from outvote.ops import is_for_kernels
from outvote.rules.aggregate import aggregate, aggregate_later
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.groups import SplitAhead
from outvote.rules.rule import RoundInfo
from outvote.rules.split import IndexBlock, Split
from outvote.rules.values import UsualRows, are_looked_at_later, row_facts
from outvote.seeding import RandomStream

SPECS = [
    "mean",
    "median",
    "trimmed-mean",
    "meamed",
    "multi-krum",
    "bulyan",
    "rfa",
    "geometric-median",
    "dnc(num_coordinates=7)",
    "mda",
    "centered-clipping",
    "norm-clipping",
    "foolsgold",
    "signguard",
    "nnm(krum)",
    "bucketing(median)",
    "clip(median, max_norm=adaptive)",
    "gas(multi-krum, num_groups=5)",
    "gas(median, num_groups=3)",
    "gas(bucketing(rfa), num_groups=4)",
    "bucketing(gas(bulyan, num_groups=4), size=2)",
    "gas(dnc, num_groups=2, split=ceil)",
]


def gradients(device):
    """Six runs of seven clients; some rows are missing, not finite, huge or copies."""
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(6, 7, 23, generator=generator, dtype=torch.float64)
    rows[1, 2, 5] = torch.nan
    rows[2, 0] *= 1e8
    rows[3, 4] = rows[3, 5]
    rows[4, 1, 0] = torch.inf
    rows[4, 6, 0] = -torch.inf
    rows[0, 5] = rows[0, 6] = rows[0, 3]  # The first of these copies is missing.
    is_present = torch.ones(6, 7, dtype=torch.bool)
    is_present[0, 3] = is_present[5, :6] = False
    return rows.to(device), is_present


@pytest.mark.parametrize("spec", SPECS)
def test_a_run_in_a_batch_gets_what_it_gets_alone(spec, device):
    rule = ov.make_rule(spec)
    rows, is_present = gradients(device)
    assumed, seeds = [1, 2, 1, 0, 3, 1], [11, 12, 13, 14, 15, 16]
    found = aggregate(rule, rows, num_byzantine=assumed, seeds=seeds, is_present=is_present)
    for run in range(len(rows)):
        here = is_present[run].to(device)
        alone = rule.inspect(
            rows[run][here], num_byzantine=assumed[run], seed=seeds[run], when_too_many="lower"
        )
        np.testing.assert_allclose(
            found.vector[run].cpu(), alone.update.cpu(), rtol=1e-9, atol=1e-12
        )
        weights = found.weights[run][here].cpu()
        np.testing.assert_allclose(weights, alone.weights, rtol=1e-9, atol=1e-12)
        assert found.num_byzantine[run] == alone.num_byzantine
        assert found.is_rejected[run][here.cpu()].nonzero().flatten().tolist() == alone.rejected


@pytest.mark.parametrize("spec", SPECS)
def test_finite_runs_with_different_numbers_get_what_they_get_alone(spec, device):
    rule = ov.make_rule(spec)
    generator = torch.Generator().manual_seed(5)
    rows = torch.randn(6, 7, 23, generator=generator, dtype=torch.float64).to(device)
    before = rows.clone()
    # Neighbours, a run alone, and runs apart from each other.
    assumed, seeds = [2, 2, 1, 0, 1, 0], [11, 12, 13, 14, 15, 16]
    found = aggregate(rule, rows, num_byzantine=assumed, seeds=seeds)
    assert torch.equal(rows, before)
    for run in range(len(rows)):
        alone = rule.inspect(
            rows[run], num_byzantine=assumed[run], seed=seeds[run], when_too_many="lower"
        )
        np.testing.assert_allclose(
            found.vector[run].cpu(), alone.update.cpu(), rtol=1e-9, atol=1e-12
        )


@pytest.mark.parametrize("spec", SPECS)
def test_a_whole_batch_gets_what_runs_get_alone_and_stays_as_it_was(spec, device):
    rule = ov.make_rule(spec)
    generator = torch.Generator().manual_seed(4)
    # Every second run of a larger batch: rows are read where they are, without a copy.
    larger = torch.randn(6, 7, 23, generator=generator, dtype=torch.float64).to(device)
    rows, before = larger[::2], larger.clone()
    found = aggregate(rule, rows, num_byzantine=[2] * 3, seeds=[1, 2, 3])
    assert torch.equal(larger, before)
    for run in range(3):
        alone = rule.inspect(rows[run], num_byzantine=2, seed=run + 1, when_too_many="lower")
        np.testing.assert_allclose(
            found.vector[run].cpu(), alone.update.cpu(), rtol=1e-9, atol=1e-12
        )


def test_huge_rows_of_a_run_do_not_change_the_rounding_of_others(device):
    # Kernels take few coordinates in float32, or in float64 where squares may be infinite.
    rule = ov.make_rule("multi-krum")
    rows = torch.randn(2, 5, 20, generator=torch.Generator().manual_seed(6)).to(device)
    alone = aggregate(rule, rows[:1], num_byzantine=[1], seeds=[1])
    rows[1] *= 1e19
    found = aggregate(rule, rows, num_byzantine=[1, 1], seeds=[1, 2])
    assert torch.equal(found.scores[0], alone.scores[0])
    exact = (rows.double().unsqueeze(1) - rows.double().unsqueeze(2)).square().sum(dim=-1)
    exact = exact.sort(dim=-1).values[..., :3].sum(dim=-1)
    torch.testing.assert_close(found.scores, exact, rtol=2e-6, atol=0)


@pytest.mark.parametrize("spec", ["multi-krum", "rfa", "median", "gas(krum, num_groups=7)"])
@pytest.mark.parametrize("factor", [1e-13, 0.0])
def test_tiny_rows_of_a_run_do_not_change_the_rounding_of_others(spec, factor, device):
    rule = ov.make_rule(spec)
    rows = torch.randn(3, 7, 501, generator=torch.Generator().manual_seed(6)).to(device)
    rows[1] *= factor
    found = aggregate(rule, rows, num_byzantine=[1] * 3, seeds=[1, 2, 3])
    others = aggregate(rule, rows[::2], num_byzantine=[1] * 2, seeds=[1, 3])
    assert torch.equal(found.vector[::2], others.vector)
    assert torch.equal(found.scores[::2], others.scores)


@pytest.mark.parametrize("inside", ["krum", "multi-krum", "geometric-median"])
def test_neighbours_that_are_all_copies_are_averaged_to_the_copy(inside, device):
    rows = torch.randn(9, 200, generator=torch.Generator().manual_seed(9)).to(device)
    rows[:7] = rows[0]
    found = ov.make_rule(f"nnm({inside})").inspect(rows, num_byzantine=2, seed=0)
    assert torch.equal(found.update, rows[0])
    assert float(found.weights.sum()) == pytest.approx(1, abs=1e-14)


def test_groups_and_averages_are_as_long_as_the_clients_at_most(device, monkeypatch):
    seen = []
    monkeypatch.setattr(
        ClientMatrix,
        "sums_of_smallest_distances",
        lambda matrix, _: seen.append(matrix.largest_norm) or matrix.squared_distances.sum(dim=-1),
    )
    rows = torch.randn(1, 5, 40, generator=torch.Generator().manual_seed(6)).to(device)
    longest = float(torch.linalg.vector_norm(rows.double(), dim=-1).max())
    for spec in ("gas(multi-krum, num_groups=4)", "gas(nnm(krum), num_groups=4)", "nnm(krum)"):
        aggregate(ov.make_rule(spec), rows, num_byzantine=[1], seeds=[1])
        assert seen
        assert seen == pytest.approx([longest] * len(seen))
        seen.clear()


@pytest.mark.parametrize("spec", SPECS)
def test_facts_of_a_larger_batch_serve_some_of_its_runs(spec, device):
    rule = ov.make_rule(spec)
    rows, is_present = gradients(device)
    numbers = [4, 0, 3]
    facts = row_facts(rows).of(numbers)
    some, here = rows[numbers], is_present[numbers]
    calls = {"num_byzantine": [1, 2, 1], "seeds": [5, 6, 7], "is_present": here}
    alone, shared = (
        aggregate(rule, some, **calls),
        aggregate(rule, some, facts=facts, **calls),
    )
    assert torch.equal(shared.vector, alone.vector)
    assert torch.equal(shared.scores, alone.scores)
    assert torch.equal(shared.is_rejected, alone.is_rejected)


def test_the_facts_of_a_batch_are_those_of_its_rows(device):
    rows, _ = gradients(device)
    facts = row_facts(rows)
    norms = torch.tensor(facts.norms, dtype=torch.float64)[[0, 3]]
    expected = torch.linalg.vector_norm(rows[[0, 3]], dim=-1).cpu()
    torch.testing.assert_close(norms, expected)
    assert [k for k, own in enumerate(facts.is_finite[4]) if not own] == [1, 6]
    assert facts.originals[3] == [0, 1, 2, 3, 4, 4, 6]
    assert facts.originals[0] == [0, 1, 2, 3, 4, 3, 3]


def test_a_run_with_no_row_left_gives_the_update_zero(device):
    rows = torch.full((1, 3, 4), torch.nan, device=device)
    found = aggregate(ov.Median(), rows, num_byzantine=[1], seeds=[0])
    assert found.vector.eq(0).all()
    assert found.is_rejected.all()


def test_a_batch_needs_one_number_and_one_seed_per_run(device):
    with pytest.raises(ValueError, match="one entry for each of the 2 runs"):
        aggregate(ov.Median(), torch.zeros(2, 3, 4, device=device), num_byzantine=[1], seeds=[0, 1])


class PlainMean(ov.VectorRule):
    """A third party's rule that does not report weights."""

    def max_byzantine(self, num_clients):
        return 0

    def aggregate(self, rows, num_byzantine):
        return rows.mean(dim=0)


class WeightedMean(PlainMean):
    def aggregate(self, rows, num_byzantine):
        weights = torch.full((len(rows),), 1 / len(rows), dtype=rows.dtype, device=rows.device)
        weights[0] = 0
        return rows[1:].mean(dim=0), weights


class Bad(PlainMean):
    def aggregate(self, rows, num_byzantine):
        return rows.mean(dim=0) * float("nan")


def test_what_is_not_known_is_none(device):
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).to(device)
    verdict = PlainMean().inspect(rows, num_byzantine=0)
    assert verdict.weights is None
    assert verdict.kept is None
    assert verdict.dropped is None
    assert verdict.rejected == []
    assert aggregate(PlainMean(), rows[None], num_byzantine=[0], seeds=[0]).weights is None
    known = WeightedMean().inspect(rows, num_byzantine=0)
    assert (known.kept, known.dropped) == ([1, 2, 3, 4], [0])


def test_a_run_without_weights_beside_one_without_rows_is_nan(device):
    rows = torch.randn(3, 5, 3, generator=torch.Generator().manual_seed(0)).to(device)
    rows[1] = torch.nan
    rows[2, 4] = torch.nan
    weights = aggregate(WeightedMean(), rows, num_byzantine=[0] * 3, seeds=[0] * 3).weights
    assert weights[1].eq(0).all()
    assert weights[2].tolist() == pytest.approx([0, 0.25, 0.25, 0.25, 0])
    assert aggregate(PlainMean(), rows, num_byzantine=[0] * 3, seeds=[0] * 3).weights is None


@pytest.mark.parametrize(
    "rule",
    [
        Bad(),
        ov.NNM(Bad()),
        ov.Bucketing(Bad()),
        ov.Clip(Bad()),
        ov.GAS(Bad(), num_groups=2),
        ov.GAS(ov.NNM(Bad()), num_groups=2),
        ov.NNM(ov.GAS(Bad(), num_groups=2)),
    ],
    ids=str,
)
def test_nan_of_a_rule_is_an_error_that_names_it_wherever_it_is(rule, device):
    rows = torch.randn(1, 5, 12, generator=torch.Generator().manual_seed(0)).to(device)
    with pytest.raises(ValueError, match=r"^Bad gave NaN or infinity for finite gradients"):
        rule(rows[0], num_byzantine=0)
    with pytest.raises(ValueError, match=r"^Bad gave NaN or infinity for finite gradients"):
        aggregate(rule, rows, num_byzantine=[0], seeds=[0])


def test_parameters_are_lowered_for_rejected_rows_in_a_batch_as_alone(device):
    rows = torch.randn(1, 10, 4, generator=torch.Generator().manual_seed(0)).to(device)
    rows[0, :2] = torch.nan
    rule = ov.MultiKrum(num_selected=9)
    alone = rule.inspect(rows[0], num_byzantine=2, seed=0)
    found = aggregate(rule, rows, num_byzantine=[2], seeds=[0])
    assert alone.notes == found.notes
    assert "used 8" in found.notes[0]
    assert torch.equal(found.vector[0], alone.update)


class Momentum(ov.Rule):
    """The mean plus half of its own previous update."""

    traits = ov.Traits(uses_num_byzantine=False, has_state=True)

    def max_byzantine(self, num_clients):
        return 0

    def compute(self, matrix, info):
        mean = matrix.rows.double().mean(dim=-2)
        assert mean.shape[0] == 1, "one run at a time"
        update = mean if info.state is None else mean + info.state / 2
        return ov.Aggregation(vector=update, state=update[0])


def test_a_tensor_state_belongs_to_one_run_and_keeps_its_shape(device):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 4, 6, generator=generator, dtype=torch.float64).to(device)
    states = None
    for number in (1, 2, 3):
        info = {"num_byzantine": [0] * 3, "seeds": [0] * 3, "round": number}
        found = aggregate(Momentum(), rows, states=states, **info)
        states = found.states
    mean = rows.mean(dim=1)
    assert [state.shape for state in states] == [(6,)] * 3
    torch.testing.assert_close(found.vector, mean * 1.75)
    state = None
    for _ in range(3):
        verdict = Momentum().inspect(rows[1], state=state)
        state = verdict.state
    torch.testing.assert_close(verdict.update, found.vector[1])


class NeedsAll(ov.Rule):
    """Asks for everything that a round has."""

    traits = ov.Traits(uses_num_byzantine=False, needs_model=True, needs_reference=True)

    def max_byzantine(self, num_clients):
        return 0

    def compute(self, matrix, info):
        vector = info.model + info.reference + info.round
        return ov.Aggregation(vector=vector[None], notes=(f"{info.clients} {info.layer_sizes}",))


def test_a_rule_gets_round_model_reference_and_ids_of_its_run(device):
    rows = torch.zeros(2, 3, 2, device=device)
    rows[0, 1] = torch.nan
    ones = torch.ones(2, 2, device=device)
    found = aggregate(
        NeedsAll(),
        rows,
        num_byzantine=[0, 0],
        seeds=[0, 0],
        clients=[["a", "b", "c"], ["d", "e", "f"]],
        references=[ones[0], 2 * ones[0]],
        models=10 * ones,
        round=5,
        layer_sizes=(1, 1),
    )
    assert found.vector.tolist() == [[16, 16], [17, 17]]
    assert found.notes == ("('a', 'c') (1, 1)", "('d', 'e', 'f') (1, 1)")
    alone = NeedsAll().inspect(rows[1], model=ones[0], reference=ones[0], round=1)
    assert alone.update.tolist() == [3, 3]


def test_layer_sizes_of_a_matrix_may_be_given(device):
    rows = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).to(device)
    rule = ov.GAS(ov.Median(), split="by-layer")
    verdict = rule.inspect(rows, num_byzantine=1, layer_sizes=[1, 3])
    wanted = ov.GAS(ov.Median()).inspect(rows, num_byzantine=1, groups=[[0], [1, 2, 3]])
    assert verdict.num_groups == 2
    np.testing.assert_allclose(verdict.scores, wanted.scores, rtol=1e-6)


class InPrecision(ov.Rule):
    """The mean, returned in some precision."""

    traits = ov.Traits(uses_num_byzantine=False)

    def __init__(self, dtype):
        self.dtype = dtype

    def max_byzantine(self, num_clients):
        return 0

    def compute(self, matrix, info):
        return ov.Aggregation(vector=matrix.rows.double().mean(dim=-2).to(self.dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("given", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_rule_may_return_a_vector_in_any_precision(given, dtype, device):
    rows = torch.tensor([[1.0, 4.0], [3.0, -2.0]]).to(device, given)
    update = InPrecision(dtype)(rows)
    assert update.dtype == given
    assert update.tolist() == [2.0, 1.0]
    verdict = ov.GAS(InPrecision(dtype), num_groups=1).inspect(rows, num_byzantine=0)
    assert verdict.update.tolist() == [2.0, 1.0]


class Forgetful(Momentum):
    """Returns a state that its traits do not declare."""

    traits = ov.Traits(uses_num_byzantine=False, has_state=False)


def test_a_state_that_is_not_declared_is_an_error(device):
    rows = torch.ones(1, 3, 2, device=device)
    with pytest.raises(ValueError, match=r"Forgetful returned a state.*has_state=True"):
        aggregate(Forgetful(), rows, num_byzantine=[0], seeds=[0])
    with pytest.raises(ValueError, match=r"Forgetful returned a state.*has_state=True"):
        Forgetful().inspect(rows[0])
    with pytest.raises(ValueError, match=r"Forgetful returned a state.*has_state=True"):
        ov.GAS(Forgetful()).inspect(rows[0], num_byzantine=0)


def test_a_round_looks_at_the_rows_once_for_all_rules(monkeypatch):
    looked = []

    def look(rows):
        looked.append(tuple(rows.shape[:2]))
        return row_facts(rows)

    monkeypatch.setattr("outvote.engine.aggregate_step.row_facts", look)
    data = torch.randn(40, 3), torch.randint(2, (40,))
    ov.simulate(
        model=lambda: torch.nn.Linear(3, 2),
        train=data,
        test=data,
        partition="iid",
        num_clients=5,
        byzantine=1,
        rules=["mean", "gas(multi-krum, num_groups=2)", "median"],
        attacks=["lie"],
        seeds=[0, 1],
        rounds=2,
        device="cpu",
        output=None,
    )
    assert looked == [(6, 5)] * 2


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_average_of_copies_is_the_copy_to_the_last_bit(kind, device):
    rows = torch.randn(3, 4, 50, generator=torch.Generator().manual_seed(1)).to(device)
    rows[0, 1:] = rows[0, :1]
    rows[1, 3] = rows[1, 2]
    originals = torch.tensor([[0, 0, 0, 0], [0, 1, 2, 2], [0, 1, 2, 3]], device=device)
    matrix = ClientMatrix.from_rows(
        rows, torch.zeros(3, dtype=torch.long, device=device), originals
    )
    # Which way is taken depends on the device that the matrix names.
    matrix.device = torch.device(kind)
    weights = torch.tensor([[1, 1, 1, 0], [0, 0, 3, 3], [1, 1, 0, 0]], device=device).double()
    weights /= weights.sum(dim=-1, keepdim=True)
    vector = matrix.vector(ov.Aggregation(weights=weights))
    assert torch.equal(vector[0], rows[0, 0])
    assert torch.equal(vector[1], rows[1, 2])
    torch.testing.assert_close(vector[2], rows[2, :2].mean(dim=0))


@pytest.fixture
def counting(monkeypatch):
    """Count inexact distances on a CPU too, as on a GPU, and note what was found."""
    found = []
    has_failed = CancellationCheck.has_failed

    def noted(check):
        found.append(has_failed(check))
        return found[-1]

    def copied_now(values):
        copy = values.tolist()
        return lambda: copy

    monkeypatch.setattr(CancellationCheck, "has_failed", noted)
    monkeypatch.setattr("outvote.rules.aggregate.new_check", CancellationCheck)
    # A GPU copies a number when it is asked for, whatever is counted afterwards.
    monkeypatch.setattr("outvote.ops.distances.listed_later", copied_now)
    return found


def near(rows):
    """Two clients that differ by so little that products of float32 are the same."""
    rows = rows.float()
    rows[:, 1] = rows[:, 0] + 1e-6 * rows[:, 2]
    return rows


@pytest.mark.parametrize("is_near", [False, True])
@pytest.mark.parametrize("spec", SPECS)
def test_distances_that_are_checked_later_give_the_same(
    spec, is_near, device, counting, monkeypatch
):
    rule = ov.make_rule(spec)
    rows, is_present = gradients(device)
    rows = near(rows) if is_near else rows
    calls = {"num_byzantine": [1, 2, 1, 0, 1, 1], "seeds": [1, 2, 3, 4, 5, 6]}
    calls["is_present"] = is_present
    later = aggregate(rule, rows, **calls)
    monkeypatch.undo()
    at_once = aggregate(rule, rows, **calls)
    assert torch.equal(later.vector, at_once.vector)
    assert torch.equal(later.scores, at_once.scores)
    assert len(counting) == 1


def test_distances_are_looked_at_when_the_result_is_asked_for(counting, device):
    rows = torch.randn(1, 7, 3000, generator=torch.Generator().manual_seed(1)).to(device)
    rows[0, 0] *= 5  # Far from the central client.
    rows = near(rows)
    rule = ov.make_rule("multi-krum")
    finish = aggregate_later(rule, rows, num_byzantine=[1], seeds=[0])
    assert counting == []
    exact = aggregate(rule, rows.double(), num_byzantine=[1], seeds=[0])
    torch.testing.assert_close(finish().vector.double(), exact.vector, rtol=1e-5, atol=1e-6)
    assert counting[-1]


@dataclass(frozen=True)
class RefusesEqual(ov.Rule):
    """A rule of a user that does not bear two clients at the same place."""

    name = "refuses-equal"

    def max_byzantine(self, num_clients):
        return num_clients - 1

    def compute(self, matrix, info):
        far = matrix.squared_distances
        off_diagonal = far + torch.eye(far.shape[-1], dtype=far.dtype, device=far.device)
        if bool((off_diagonal <= 0).any()):
            raise ValueError("two clients are equal")
        weights = torch.ones(*matrix.batch, matrix.num_clients, dtype=torch.float64)
        return ov.Aggregation(weights=weights.to(matrix.device) / matrix.num_clients)


def test_an_error_that_came_from_inexact_distances_is_none(counting, device):
    rows = torch.randn(1, 4, 500, generator=torch.Generator().manual_seed(0)).to(device)
    rows[0, 0] *= 5  # Far from the central client.
    rows[0, 1] = rows[0, 0] * (1 + 2.0**-23)  # The next number: no product of float32 differs.
    found = aggregate(RefusesEqual(), rows, num_byzantine=[1], seeds=[0])
    torch.testing.assert_close(found.vector, rows.mean(dim=1))
    assert counting == [True]
    rows[0, 1] = rows[0, 0]
    with pytest.raises(ValueError, match="two clients are equal"):
        aggregate(RefusesEqual(), rows, num_byzantine=[1], seeds=[0])


def simulated(rules, num_byzantine):
    generator = torch.Generator().manual_seed(2)
    data = torch.randn(120, 40, generator=generator), torch.arange(120) % 2
    return ov.simulate(
        model=lambda: torch.nn.Linear(40, 2),
        train=data,
        test=data,
        partition="iid",
        num_clients=8,
        byzantine=num_byzantine,
        rules=rules,
        attacks=["lie"],
        seeds=[0],
        rounds=2,
        device="cpu",
        output=None,
    ).to_frame()


def test_a_stack_redoes_a_rule_with_inexact_distances(monkeypatch):
    checks = []

    def compute(*given, **named):
        checks.append(given[4])
        return plain(*given, **named)

    plain = outvote.rules.aggregate._compute
    monkeypatch.setattr("outvote.rules.aggregate._compute", compute)
    rules = ["mean", "multi-krum", "gas(krum, num_groups=3)"]
    at_once = simulated(rules, num_byzantine=3)
    assert checks == [None] * 6

    class Failed(CancellationCheck):
        def has_failed(self):
            return True

    monkeypatch.setattr("outvote.rules.aggregate.new_check", Failed)
    checks.clear()
    redone = simulated(rules, num_byzantine=3)
    # In each round, all rules are begun before one is finished.
    assert [check is None for check in checks] == ([False] * 3 + [True] * 3) * 2
    assert redone["accuracy"].equals(at_once["accuracy"])
    assert redone["loss"].equals(at_once["loss"])
    assert redone["deviation"].equals(at_once["deviation"])


@pytest.mark.parametrize("f", [[2, 2], [1, 2], [2, 1]])
def test_what_is_inexact_in_any_runs_is_found(f, counting, device):
    rows = torch.randn(2, 12, 2000, generator=torch.Generator().manual_seed(0))
    # Around the central client, which is far from all others of its run, their distances cancel.
    offset = 1e4 * torch.randn(2000, generator=torch.Generator().manual_seed(1))
    rows[1] = rows[1] * torch.linspace(1, 1.5, 12).unsqueeze(-1) + offset
    rows[1, 0] = -offset / offset.norm() * rows[1].norm(dim=-1).median()
    found = aggregate(ov.make_rule("krum"), rows.to(device), num_byzantine=f, seeds=[1, 2])
    assert counting == [True]
    alone = aggregate(ov.make_rule("krum"), rows[1:].to(device), num_byzantine=f[1:], seeds=[2])
    assert torch.equal(found.weights[1], alone.weights[0])


def test_a_count_that_was_fetched_before_more_was_counted_is_fetched_again(device, counting):
    check = CancellationCheck(device)
    check.fetch()
    check.add(torch.ones(3, dtype=torch.bool, device=device))
    assert check.has_failed()
    check.fetch()
    assert check.has_failed()


def test_mixed_clients_in_groups_do_not_count_as_inexact(counting, device):
    rows = torch.randn(1, 20, 900, generator=torch.Generator().manual_seed(0)).to(device)
    rule = ov.make_rule("gas(nnm(krum), num_groups=4)")
    aggregate(rule, rows, num_byzantine=[4], seeds=[0])
    assert counting == [False]


@pytest.mark.parametrize("spec", ["median", "multi-krum", "gas(multi-krum)", "gas(median)"])
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (1, 0, 4)])
def test_nothing_to_aggregate_gives_nothing(shape, spec, device):
    rows = torch.zeros(shape, device=device)
    rule = ov.make_rule(spec)
    found = aggregate(rule, rows, num_byzantine=[0] * shape[0], seeds=[0] * shape[0])
    assert found.vector.shape == (shape[0], shape[2])


ONE = {"num_byzantine": [2], "seeds": [3]}


def _kinds_of_rows(kind, device):
    """Return one run of seven clients, as the split is made ahead for them or in vain."""
    rows = torch.randn(1, 7, 1001, generator=torch.Generator().manual_seed(5))
    if kind == "copies":
        rows[0, 4] = rows[0, 2] = rows[0, 1]
    if kind == "not finite":
        rows[0, 3, 7] = torch.nan
    if kind == "tiny":
        rows *= 1e-20
    return rows.to(device)


@pytest.mark.parametrize("kind", ["usual", "copies", "not finite", "tiny"])
@pytest.mark.parametrize("spec", ["gas(multi-krum, num_groups=9)", "gas(median, num_groups=300)"])
def test_a_split_made_ahead_gives_the_same(spec, kind, device, monkeypatch):
    rule, rows = ov.make_rule(spec), _kinds_of_rows(kind, device)
    made = []

    def split_ahead(*asked, **named):
        made.append(outvote.rules.groups.split_ahead(*asked, **named))
        return made[-1]

    monkeypatch.setattr("outvote.rules.aggregate.split_ahead", split_ahead)
    ahead = aggregate(rule, rows, **ONE)
    assert [found is not None for found in made] == [True] * is_for_kernels(rows)
    monkeypatch.setattr("outvote.rules.aggregate.split_ahead", lambda *_, **__: None)
    later = aggregate(rule, rows, **ONE)
    torch.testing.assert_close(ahead.vector, later.vector, rtol=1e-6, atol=0)
    torch.testing.assert_close(ahead.scores, later.scores, rtol=1e-6, atol=0)
    with_facts = aggregate(rule, rows, facts=row_facts(rows), **ONE)
    torch.testing.assert_close(with_facts.scores, later.scores, rtol=1e-6, atol=0)


@pytest.mark.parametrize("other", ["how", "number", "seed", "none"])
def test_a_split_made_ahead_is_taken_where_it_is_asked_for(other, device):
    rows = _kinds_of_rows("usual", device)
    stream = RandomStream((3,))
    index = torch.arange(1001, device=device).view(1, 7, 143)
    marked = SplitAhead(("balanced", 7, stream), Split((IndexBlock(index),)), rows)
    matrix = ClientMatrix.from_rows(rows, ahead=marked)
    how = "ceil" if other == "how" else "balanced"
    info = RoundInfo(num_byzantine=1, stream=RandomStream((4,)) if other == "seed" else stream)
    groups = matrix.split(how, 8 if other == "number" else 7, info)
    assert (groups.split is marked.split) == (other == "none")


def test_the_results_are_put_together_before_a_gpu_is_waited_for(counting, device, monkeypatch):
    merged = []
    merge = outvote.rules.aggregate._merged

    def noted(*given, **named):
        merged.append(len(counting))
        return merge(*given, **named)

    monkeypatch.setattr("outvote.rules.aggregate._merged", noted)
    aggregate(ov.make_rule("multi-krum"), _kinds_of_rows("usual", device), **ONE)
    assert (merged, counting) == ([0], [False])


@pytest.fixture(autouse=True)
def _usual_before(monkeypatch):
    """Begin every test as after a call with usual rows."""
    monkeypatch.setattr(outvote.rules.values._LAST, "were_usual", True)


LATER = ["gas(multi-krum, num_groups=9)", "krum", "rfa"]
KINDS = ["usual", "copies", "not finite", "tiny", "huge", "near", "all zero", "none finite"]


def _unusual_rows(kind, device):
    rows = _kinds_of_rows(kind, device)
    if kind == "huge":
        rows[0, 3] *= 1e30
    if kind == "near":
        rows[0, 4] = rows[0, 1] * (1 + 1e-6)
    if kind == "all zero":
        rows.zero_()
    if kind == "none finite":
        rows.fill_(torch.nan)
    return rows


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", LATER)
def test_rows_that_are_looked_at_later_give_the_same(spec, kind, device, monkeypatch):
    rule, rows = ov.make_rule(spec), _unusual_rows(kind, device)
    looked = []

    class Noted(UsualRows):
        def are_usual(self):
            looked.append(super().are_usual())
            return looked[-1]

    monkeypatch.setattr("outvote.rules.aggregate.UsualRows", Noted)
    later = aggregate(rule, rows, **ONE)
    assert looked == [kind in {"usual", "near"}] * is_for_kernels(rows)
    monkeypatch.setattr("outvote.rules.aggregate.are_looked_at_later", lambda *_: False)
    at_first = aggregate(rule, rows, **ONE)
    assert torch.equal(later.vector, at_first.vector)
    assert torch.equal(later.scores, at_first.scores)
    assert torch.equal(later.weights, at_first.weights)
    assert torch.equal(later.is_rejected, at_first.is_rejected)
    assert (later.num_byzantine, later.notes) == (at_first.num_byzantine, at_first.notes)


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
@pytest.mark.parametrize("kind", ["copies", "not finite", "tiny", "huge"])
def test_after_unusual_rows_the_next_ones_are_looked_at_first(kind, device):
    rule, usual = ov.make_rule("krum"), _kinds_of_rows("usual", device)
    aggregate(rule, _unusual_rows(kind, device), **ONE)
    assert not outvote.rules.values._LAST.were_usual
    assert not are_looked_at_later(rule, usual)
    aggregate(rule, usual, **ONE)
    assert outvote.rules.values._LAST.were_usual
    assert are_looked_at_later(rule, usual) == is_for_kernels(usual)


class Foreign(ov.Krum.__bases__[0]):
    """A rule from outside the library with the name of one inside."""

    name = "krum"

    def max_byzantine(self, num_clients):
        return 0

    def weigh(self, matrix, info):
        return ov.Aggregation(weights=torch.ones(1, matrix.num_clients))


@pytest.mark.parametrize(
    ("rule", "is_later"),
    [
        (ov.make_rule("gas(krum)"), True),
        (ov.make_rule("median"), False),
        (ov.make_rule("gas(median)"), False),
        (ov.make_rule("gas(nnm(krum))"), False),
        (Foreign(), False),
        (ov.GAS(Foreign()), False),
    ],
)
def test_rules_that_may_see_what_is_not_finite(rule, is_later, device):
    rows = _kinds_of_rows("usual", device)
    assert are_looked_at_later(rule, rows) == (is_later and is_for_kernels(rows))
    assert not are_looked_at_later(rule, rows.double())
    assert not are_looked_at_later(rule, rows.expand(2, -1, -1))
    assert not are_looked_at_later(rule, rows[:, :0])


def test_an_error_that_comes_from_unusual_rows_is_forgotten(device, monkeypatch):
    rows = _kinds_of_rows("not finite", device)
    rule = ov.make_rule("multi-krum")
    plain = outvote.rules.aggregate._compute

    def compute(*given, **named):
        if given[6] is not None:
            raise ValueError("this must not be seen")
        return plain(*given, **named)

    expected = aggregate(rule, rows, **ONE)
    monkeypatch.setattr("outvote.rules.aggregate._compute", compute)
    outvote.rules.values._LAST.were_usual = True
    assert torch.equal(aggregate(rule, rows, **ONE).vector, expected.vector)
    if is_for_kernels(rows):
        outvote.rules.values._LAST.were_usual = True
        with pytest.raises(ValueError, match="this must not be seen"):
            aggregate(rule, _kinds_of_rows("usual", device), **ONE)


@pytest.mark.parametrize("shape", [(3, 1), (1, 4), (1, 1)])
def test_signguard_takes_rows_that_lie_as_columns_do(shape, device):
    rows = torch.full(shape, 2.0, device=device)
    assert ov.SignGuard()(rows).tolist() == [2.0] * shape[1]


def _far_central_client(seed, widths):
    """Clients that differ by little in the wider group, and one of median length far from them."""
    generator = torch.Generator().manual_seed(seed)
    narrow, wide = widths
    direction = torch.randn(wide, generator=generator)
    rows = torch.zeros(1, 9, narrow + wide)
    noise = torch.randn(9, wide, generator=generator) * torch.rand(9, 1, generator=generator)
    rows[0, :, narrow:] = 10 * direction / direction.norm() + 1e-5 * noise
    rows[0, :, :narrow] = 1e-7 * torch.randn(9, narrow, generator=generator)
    lengths = rows[0, :8].double().norm(dim=1).sort().values
    far = torch.randn(wide, generator=generator, dtype=torch.float64)
    rows[0, 8, :narrow] = 0
    rows[0, 8, narrow:] = far / far.norm() * lengths[3:5].mean()
    return rows


@pytest.mark.parametrize("is_flushed", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_inexact_distances_are_seen_behind_narrow_groups(seed, is_flushed, device, monkeypatch):
    rows = _far_central_client(seed, (8, 200)).to(device)
    rule = ov.make_rule("gas(krum, split=by-layer)")
    asked = {**ONE, "layer_sizes": (8, 200)}
    if is_flushed and not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush")
    try:
        later = aggregate(rule, rows, **asked)
    finally:
        torch.set_flush_denormal(False)
    monkeypatch.setattr("outvote.rules.aggregate.are_looked_at_later", lambda *_: False)
    assert torch.equal(later.weights, aggregate(rule, rows, **asked).weights)
