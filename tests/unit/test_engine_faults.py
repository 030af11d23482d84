"""A fault of one client, or one run, harms no other."""

import json
from dataclasses import asdict, replace
from itertools import product
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from federations import TRAINING, make_runs, networks, samples
from outvote.engine import round as rounds
from outvote.engine.federation import make_federation
from outvote.engine.record import honest_losses, weight_shares
from outvote.engine.run_stack import State
from outvote.engine.simulation import first_state, make_run_stack, simulate
from outvote.errors import OutvoteWarning
from outvote.server.selection import ByScore
from outvote.server.step import BufferKinds, Server, merge_buffers
from outvote.training.local_sgd import LocalSGD
from outvote.training.stacked_trainer import StackedTrainer
from simulations import execute, tiny

NAN = float("nan")
IN_TWOS = "5 runs do not fit into memory together; their rounds are run with 2 runs at a time."


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)
    ).double()


class OneDiverges:
    """A trainer whose first client of a round diverges to NaN."""

    def __init__(self, trainer):
        self.trainer, self.evaluate = trainer, trainer.evaluate

    def train(self, *given):
        found = self.trainer.train(*given)
        found.gradients[0] = found.losses[0] = NAN
        found.buffers[0, :-1] = NAN  # The last one is a counter, and a whole number.
        return found


def test_when_all_runs_diverge_the_simulation_ends():
    runs = make_runs([("mean", "none"), ("median", "lie")])
    train, test = samples(120, torch.float32), samples(40, torch.float32)
    modules = networks(runs, dtype=torch.float32)
    for module in modules:
        nn.init.constant_(next(module.parameters()), torch.inf)
    stack = make_run_stack(modules[0], train, test, runs, training=TRAINING, num_classes=4)
    (step,) = simulate(stack, first_state(modules, train), 3)
    assert step.over == [0, 1]


@pytest.mark.parametrize("numbers", [[], [1], [1, 0]])
def test_a_state_without_carried_states_can_be_split(numbers: list[int]):
    state = State(round=1, weights=torch.arange(6.0).view(2, 3), buffers=torch.zeros(2, 0))
    found = state.only(numbers)
    assert found.weights.tolist() == [state.weights[k].tolist() for k in numbers]
    assert (found.attack_states, found.rule_states, found.client_states) == ((), (), ())


@pytest.mark.parametrize("rule", ["median", "multi-krum"])
def test_one_honest_client_that_diverges_ends_no_run_and_spoils_no_statistics(rule: str):
    module, (run,) = normalised(), make_runs([(rule, "none")])
    run = replace(run, federation=replace(run.federation, is_byzantine=(False,) * 8))
    train, test = samples(120), samples(40)
    stack = make_run_stack(module, train, test, [run], training=TRAINING, num_classes=4)
    stack = replace(stack, trainer=OneDiverges(stack.trainer))
    steps = list(simulate(stack, first_state([module], train), 2))
    assert [step.over for step in steps] == [[], []]
    assert all(np.isfinite(step.records[0].loss) for step in steps)
    assert bool(steps[-1].state.buffers.isfinite().all())


def test_a_run_whose_statistics_are_not_finite_is_over():
    module, (run,) = normalised(), make_runs([("mean", "none")])
    train, test = samples(120), samples(40)
    stack = make_run_stack(module, train, test, [run], training=TRAINING, num_classes=4)
    start = first_state([module], train)
    start.buffers[:, 0] = NAN
    (step,) = simulate(stack, start, 3)
    assert step.over == [0]


def test_the_loss_is_that_of_the_honest_clients_that_did_not_diverge():
    losses = torch.tensor([[1.0, NAN, 3.0, 9.0], [NAN] * 4, [0.0] * 4])
    is_byzantine = torch.tensor([[False, False, False, True]] * 3)
    has_trained = torch.tensor([[True] * 4, [True] * 4, [False] * 4])
    first, second, third = honest_losses(losses, is_byzantine, has_trained)
    assert (first, third) == (2.0, None)
    assert np.isnan(second)


def test_the_byzantine_share_is_that_of_all_weights():
    weights = torch.tensor([[0.5, 0.5, 1.0], [0.0, 0.0, 2.0], [0.0, 0.0, 0.0]])
    is_byzantine = torch.tensor([[True, False, False], [True, True, False], [True, False, False]])
    assert weight_shares(weights, is_byzantine) == [0.25, 0.0, None]


def test_under_the_mean_byzantine_clients_weigh_as_much_as_they_are_many():
    runs = make_runs([("mean", "lie"), ("multi-krum", "lie")])
    train, test = samples(120), samples(40)
    modules = networks(runs)
    stack = make_run_stack(modules[0], train, test, runs, training=TRAINING, num_classes=4)
    for step in simulate(stack, first_state(modules, train), 3):
        mean, krum = step.records
        assert mean.byzantine_weight == pytest.approx(len(mean.byzantine) / len(mean.clients))
        assert krum.byzantine_weight == pytest.approx(krum.num_kept_byzantine / len(krum.kept))


def test_statistics_of_clients_that_were_not_kept_do_not_count():
    sent = torch.tensor([[[1.0], [3.0], [NAN], [8.0]]]).double()
    is_kept = torch.tensor([[True, True, False, False]])
    for selects, expected in ((True, 2.0), (False, 3.0)):
        found = merge_buffers(
            torch.zeros(1, 1, dtype=sent.dtype),
            sent,
            is_kept,
            selects=torch.tensor([selects]),
            kinds=BufferKinds(*[torch.tensor([False])] * 3),
        )
        assert found.tolist() == [[expected]]


def test_a_client_with_one_sample_sends_zero_if_batches_are_normalised_in_both_trainers():
    parts = [[0], [1, 2, 3], [4], list(range(5, 22))]
    run = replace(make_runs([("mean", "none")])[0], federation=make_federation(parts))
    run = replace(run, num_sampled=4)
    module, train, test = normalised(), samples(120), samples(40)
    stack = make_run_stack(module, train, test, [run], training=TRAINING, num_classes=4)
    start = first_state([module], train)
    (one,) = simulate(stack, start, 1)
    (other,) = simulate(replace(stack, trainer=StackedTrainer(module, train)), start, 1)
    torch.testing.assert_close(one.state.weights, other.state.weights, rtol=0, atol=1e-9)
    torch.testing.assert_close(one.state.buffers, other.state.buffers, rtol=0, atol=1e-9)
    assert one.records[0].num_samples == 2 * 3 + 2 * 16
    assert one.records[0].loss == pytest.approx(other.records[0].loss)


@pytest.mark.parametrize("is_stacked", [False, True])
def test_a_round_in_which_no_client_can_train_changes_nothing(is_stacked: bool):
    (run,) = make_runs([("mean", "none")])
    run = replace(run, federation=make_federation([[k] for k in range(6)]))
    module, train, test = normalised(), samples(120), samples(40)
    stack = make_run_stack(module, train, test, [run], training=TRAINING, num_classes=4)
    if is_stacked:
        stack = replace(stack, trainer=StackedTrainer(module, train))
    start = first_state([module], train)
    steps = list(simulate(stack, start, 2))
    assert torch.equal(steps[-1].state.weights, start.weights)
    assert [step.records[0].loss for step in steps] == [None, None]


def test_batches_of_one_are_refused_where_they_are_normalised():
    train, test = samples(120), samples(40)
    settings = {"training": LocalSGD(batch_size=1), "num_classes": 4}
    with pytest.raises(ValueError, match=r"batch_size must be at least 2 .* got 1; raise it"):
        make_run_stack(normalised(), train, test, make_runs([("mean", "none")]), **settings)


def test_samples_that_no_client_trained_on_are_not_counted():
    runs = make_runs([("median", "lie"), ("median", "bit-flip")])
    train, test = samples(120), samples(40)
    modules = networks(runs)
    stack = make_run_stack(modules[0], train, test, runs, training=TRAINING, num_classes=4)
    for step in simulate(stack, first_state(modules, train), 3):
        idle, trained = step.records
        assert idle.num_samples == 2 * 15 * (6 - len(idle.byzantine))
        assert trained.num_samples == 2 * 15 * 6


OWN_RULES = """
import torch
import outvote as ov

class Plain(ov.VectorRule):
    def max_byzantine(self, num_clients):
        return num_clients - 1

    def aggregate(self, rows, num_byzantine):
        return rows.mean(dim=0)

class Broken(Plain):
    def aggregate(self, rows, num_byzantine):
        return torch.full_like(rows[0], torch.nan)
"""


def test_a_users_rule_does_not_report_who_was_kept_and_fails_if_it_returns_nan(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN_RULES)
    plan = tiny("rounds=2", f'rule=["mean", "{path}:Plain", "{path}:Broken"]')
    ends = {name.rpartition(":")[2]: end for name, end in execute(plan, tmp_path / "runs").items()}
    outcomes = {name: end.outcome for name, end in ends.items()}
    assert outcomes == {"mean": "finished", "Plain": "finished", "Broken": "failed"}
    assert "Broken" in ends["Broken"].reason
    paths = (tmp_path / "runs").glob("*/*/metrics.jsonl")
    rounds = [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]
    own, mean = sorted((each for each in rounds if each), key=lambda each: each[0]["kept"] or [])
    for ours, theirs in zip(own, mean, strict=True):
        assert ours["kept"] is None
        assert theirs["kept"] == theirs["clients"]
        assert ours["deviation"] == pytest.approx(theirs["deviation"], rel=1e-4)


class SmallMemory:
    """A trainer that runs out of memory above a number of tasks."""

    name, reason = "sequential", ""

    def __init__(self, trainer, most: int) -> None:
        self.trainer, self.most, self.sizes = trainer, most, []

    def train(self, weights, buffers, tasks, training, learning_rate):
        self.sizes.append(len(tasks))
        if len(tasks) > self.most:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return self.trainer.train(weights, buffers, tasks, training, learning_rate)

    def evaluate(self, weights, buffers, samples, strata=None):
        return self.trainer.evaluate(weights, buffers, samples, strata)


def stack_of_five():
    """Five runs with every kind of state, and the state before their first round."""
    learned = "mimic(client=none, warmup=1)"
    pairs = [("mean", learned), ("centered-clipping", "bit-flip"), ("median", learned)]
    pairs += [("krum", "bit-flip"), ("rfa", learned)]
    runs = [replace(run, selection=ByScore()) for run in make_runs(pairs)]
    modules, train = networks(runs), samples(120)
    server = Server(optimizer="adam", learning_rate=0.01)
    how = {"training": replace(TRAINING, client_momentum=0.5), "server": server, "num_classes": 4}
    stack = make_run_stack(modules[0], train, samples(40), runs, trainer="sequential", **how)
    return stack, first_state(modules, train)


def assert_same_steps(found, expected) -> None:
    """Check that rounds are the same, to the last bit."""
    for mine, own in zip(found, expected, strict=True):
        assert torch.equal(mine.state.weights, own.state.weights)
        assert torch.equal(mine.state.buffers, own.state.buffers)
        assert mine.records == own.records
    last, own = found[-1].state, expected[-1].state
    assert len(last.rule_states) == len(last.client_states) == len(own.weights)
    assert last.selection_states == own.selection_states
    last, own = asdict(last), asdict(own)
    for name in ("server_state", "attack_states", "rule_states", "client_states"):
        torch.testing.assert_close(last[name], own[name], rtol=0, atol=0)


def test_round_that_does_not_fit_is_run_in_halves_and_nothing_is_lost():
    stack, start = stack_of_five()
    expected = list(simulate(stack, start, 3))
    # Six clients of two runs fit: the first round is tried with five runs, then with two.
    small = SmallMemory(stack.trainer, most=12)
    messages = []
    found = list(simulate(replace(stack, trainer=small), start, 3, report=messages.append))
    assert messages == [IN_TWOS]
    assert small.sizes == [30, 12, 12, 6, *[12, 12, 6] * 2]
    assert_same_steps(found, expected)


NO_MEMORY = {
    "torch": torch.cuda.OutOfMemoryError("CUDA out of memory"),
    "triton": RuntimeError("Triton Error [CUDA]: out of memory"),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate()`"),
    "cudnn": RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    "cudnn 8": RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    "c++": RuntimeError("std::bad_alloc"),
    "cpu": RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 B."),
    "windows": RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 B."),
    "numpy": MemoryError("Unable to allocate 1.00 TiB for an array"),
}
STEPS = ("local_updates", "attack", "aggregate", "apply_update", "record")


@pytest.mark.parametrize(
    ("step", "kind"), [*product(STEPS, ["torch"]), *product(["aggregate"], [*NO_MEMORY][1:])]
)
def test_memory_that_ends_in_any_step_of_a_round_halves_it_and_nothing_is_lost(
    step, kind, monkeypatch
):
    stack, start = stack_of_five()
    expected = list(simulate(stack, start, 4))
    own, sizes = getattr(rounds, step), []

    def full(stack, state, *given, **named):
        found = own(stack, state, *given, **named)
        sizes.append(len(stack.runs))
        # When the work is done, and in a round that has states: what it changed would show.
        if state.round == 1 and len(stack.runs) > 2:
            raise NO_MEMORY[kind]
        return found

    monkeypatch.setattr(rounds, step, full)
    messages = []
    found = list(simulate(stack, start, 4, report=messages.append))
    assert messages == [IN_TWOS]
    assert sizes == [5, 5, *[2, 2, 1] * 3]
    assert_same_steps(found, expected)


def test_another_error_of_a_round_is_not_taken_for_too_little_memory(monkeypatch):
    stack, start = stack_of_five()
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    monkeypatch.setattr(rounds, "aggregate", Mock(side_effect=error))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        next(simulate(stack, start, 1))
    assert rounds.aggregate.call_count == 1


def test_one_run_that_does_not_fit_is_an_error_and_without_a_listener_a_warning_is_given():
    runs = make_runs([("mean", "none"), ("median", "none")])
    modules, train = networks(runs), samples(120)
    how = {"training": TRAINING, "num_classes": 4, "trainer": "sequential"}
    stack = make_run_stack(modules[0], train, samples(40), runs, **how)
    state = first_state(modules, train)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        next(simulate(replace(stack, trainer=SmallMemory(stack.trainer, most=5)), state, 1))
    with pytest.warns(OutvoteWarning, match="2 runs do not fit into memory together"):
        next(simulate(replace(stack, trainer=SmallMemory(stack.trainer, most=6)), state, 1))
