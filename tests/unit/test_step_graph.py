"""Steps that are alike are recorded once and repeated."""

import numpy as np
import pytest
import torch

import outvote as ov
from outvote.seeding import RandomStream
from outvote.training import step_graph
from outvote.training.batches import draw_batches
from outvote.training.local_sgd import LocalSGD
from outvote.training.samples import ByteImages
from outvote.training.stacked_trainer import StackedTrainer
from outvote.training.step_graph import LEAST_REPEATED, StepBatch, StepRunner
from outvote.training.trainer import ClientTask


def _batch(number: int, models: int = 2, num_going: int = 2) -> StepBatch:
    index = torch.full((models, 3), number)
    return StepBatch(index, index > 0, None, is_full=True, num_going=num_going)


class _Recorded:
    """Stands for a graph where there is no GPU: it runs the step, and counts."""

    made, runs = 0, 0

    def __init__(self, step, batch, pool):
        self.step, self.batch = step, batch.copied()
        _Recorded.made += 1

    def run(self, batch):
        self.batch.copy_(batch)
        self.step(self.batch)
        _Recorded.runs += 1


class _End:
    """Stands for the end of a step on a GPU."""

    is_done = True

    def is_reached(self):
        return _End.is_done


@pytest.fixture
def recorded(monkeypatch):
    monkeypatch.setattr(step_graph, "RecordedStep", _Recorded)
    monkeypatch.setattr(step_graph, "StepEnd", _End)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    _Recorded.made = _Recorded.runs = 0
    return _Recorded


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("lengths", [[1], [2, 1], [20], [LEAST_REPEATED + 1, 1], [9, 12, 3, 9]])
def test_every_step_runs_once_and_in_order(lengths, records, recorded):
    batches = [
        _batch(10 * kind + k, models=9 - kind)
        for kind, length in enumerate(lengths)
        for k in range(length)
    ]
    found = []
    StepRunner().run(lambda batch: found.append(int(batch.index[0, 0])), batches, records=records)
    assert found == [int(batch.index[0, 0]) for batch in batches]
    # The first step of all and the first of each kind are not recorded.
    least = [LEAST_REPEATED + 1 + (k == 0) for k in range(len(lengths))]
    long = [length >= few for length, few in zip(lengths, least, strict=True)]
    assert recorded.made == (sum(long) if records else 0)


def test_a_step_with_another_number_of_models_is_another_step(recorded):
    batches = [*(_batch(k) for k in range(10)), _batch(10, num_going=0)]
    StepRunner().run(lambda _: None, batches, records=True)
    assert recorded.runs == 8


def test_nothing_is_recorded_while_the_gpu_is_behind(recorded, monkeypatch):
    monkeypatch.setattr(_End, "is_done", False)
    found, batches = [], [_batch(k) for k in range(12)]
    runner = StepRunner()
    runner.run(lambda batch: found.append(int(batch.index[0, 0])), batches, records=True)
    assert (found, recorded.made) == (list(range(12)), 0)
    monkeypatch.setattr(_End, "is_done", True)
    runner.run(lambda _: None, batches, records=True)
    assert recorded.made == 1


def test_steps_that_alternate_are_recorded_too(recorded):
    batches = [_batch(k, models=2 + k % 2) for k in range(20)]
    found = []
    StepRunner().run(lambda batch: found.append(int(batch.index[0, 0])), batches, records=True)
    assert found == list(range(20))
    assert (recorded.made, recorded.runs) == (2, 17)


def _trained(trainer: StackedTrainer, device: torch.device, rounds: int = 2) -> list[torch.Tensor]:
    random = np.random.default_rng(0)
    training = LocalSGD(learning_rate=0.1, momentum=0.5, batch_size=8, num_epochs=8, augment=True)
    sizes = (32, 32, 27, 20, 0)
    found = []
    torch.manual_seed(0)  # noqa: TID251
    module = ov.make_model("small-cnn", num_classes=4, input_shape=(28, 28, 1), seed=0)
    weights = torch.nn.utils.parameters_to_vector(module.parameters()).detach().to(device)
    weights = torch.stack([weights, weights / 2])
    buffers = torch.empty(2, 0, dtype=torch.float64, device=device)
    for number in range(rounds):
        tasks = [
            ClientTask(
                k % 2,
                draw_batches(
                    torch.from_numpy(random.permutation(96)[:size]), training, RandomStream((k,))
                ),
                label_map=torch.tensor([1, 2, 3, 0]) if k == 1 else None,
            )
            for k, size in enumerate(sizes)
        ]
        updates = trainer.train(weights, buffers, tasks, training, 0.1)
        weights = weights - 0.1 * (number + 1) * updates.gradients[:2]
        found += [updates.gradients.clone(), updates.losses.clone()]
    return found


def _trainer(device: torch.device) -> StackedTrainer:
    random = np.random.default_rng(1)
    images = random.integers(0, 256, (96, 28, 28, 1), dtype=np.uint8)
    labels = random.integers(0, 4, 96)
    samples = ByteImages(images, labels, mean=[0.5], std=[0.3], device=device)
    module = ov.make_model("small-cnn", num_classes=4, input_shape=(28, 28, 1), seed=0)
    return StackedTrainer(module, samples)


def test_repeated_steps_train_as_others_do(device, monkeypatch):
    expected = _trained(_trainer(device), device)
    if device.type != "cuda":
        # Without graphs, the way through the loop is the same.
        monkeypatch.setattr(step_graph, "RecordedStep", _Recorded)
        monkeypatch.setattr(step_graph, "StepEnd", _End)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    made, real = [], step_graph.RecordedStep

    def record(*given):
        made.append(real(*given))
        return made[-1]

    monkeypatch.setattr(step_graph, "RecordedStep", record)
    monkeypatch.setattr(StackedTrainer, "_records", lambda *_: True)
    found = _trained(_trainer(device), device)
    assert made
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_few_models_are_recorded_on_a_gpu(device):
    trainer = _trainer(device)
    made, real = [], step_graph.RecordedStep.__init__
    if device.type != "cuda":
        assert not trainer._records(type("Plan", (), {"index": torch.empty(0), "poisons": {}}))
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            step_graph.RecordedStep, "__init__", lambda *given: (made.append(1), real(*given))[1]
        )
        _trained(trainer, device)
    assert made
