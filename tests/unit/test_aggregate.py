"""Runs aggregated together get what each gets alone."""

import numpy as np
import pytest
import torch

import outvote as ov
from outvote.rules.aggregate import Batch
from outvote.rules.aggregate import aggregate as aggregate_batch
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.values import row_facts

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


def aggregate(rule, rows, **given):
    return aggregate_batch(rule, Batch(gradients=rows, **given))


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


def test_the_average_of_copies_is_the_copy_to_the_last_bit(device):
    rows = torch.randn(3, 4, 50, generator=torch.Generator().manual_seed(1)).to(device)
    rows[0, 1:] = rows[0, :1]
    rows[1, 3] = rows[1, 2]
    originals = torch.tensor([[0, 0, 0, 0], [0, 1, 2, 2], [0, 1, 2, 3]], device=device)
    matrix = ClientMatrix.from_rows(rows, originals=originals)
    weights = torch.tensor([[1, 1, 1, 0], [0, 0, 3, 3], [1, 1, 0, 0]], device=device).double()
    weights /= weights.sum(dim=-1, keepdim=True)
    vector = matrix.vector(ov.Aggregation(weights=weights))
    assert torch.equal(vector[0], rows[0, 0])
    assert torch.equal(vector[1], rows[1, 2])
    torch.testing.assert_close(vector[2], rows[2, :2].mean(dim=0))


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


@pytest.mark.parametrize("spec", ["median", "multi-krum", "gas(multi-krum)", "gas(median)"])
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (1, 0, 4)])
def test_nothing_to_aggregate_gives_nothing(shape, spec, device):
    rows = torch.zeros(shape, device=device)
    rule = ov.make_rule(spec)
    found = aggregate(rule, rows, num_byzantine=[0] * shape[0], seeds=[0] * shape[0])
    assert found.vector.shape == (shape[0], shape[2])


@pytest.mark.parametrize("shape", [(3, 1), (1, 4), (1, 1)])
def test_signguard_takes_rows_that_lie_as_columns_do(shape, device):
    rows = torch.full(shape, 2.0, device=device)
    assert ov.SignGuard()(rows).tolist() == [2.0] * shape[1]
