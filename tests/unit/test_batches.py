"""The batches of a client."""

import pytest
import torch

from outvote.seeding import RandomStream
from outvote.training.batches import draw_batches
from outvote.training.local_sgd import LocalSGD

STREAM = RandomStream((7,))


@pytest.mark.parametrize("num_own", [1, 2, 15, 16, 17, 33, 40])
@pytest.mark.parametrize("num_epochs", [1, 3])
def test_every_epoch_has_every_sample_once(num_own: int, num_epochs: int):
    part = torch.arange(100, 100 + num_own)
    batches = draw_batches(part, LocalSGD(batch_size=16, num_epochs=num_epochs), STREAM)
    seen = batches.index[batches.index >= 0]
    assert sorted(seen.tolist()) == sorted(part.tolist() * num_epochs)
    assert batches.sizes == (batches.index >= 0).sum(dim=1).tolist()
    assert batches.num_samples == num_own * num_epochs
    first = seen[:num_own]
    assert sorted(first.tolist()) == part.tolist()


@pytest.mark.parametrize(
    ("num_own", "expected"), [(17, [16]), (18, [16, 2]), (1, []), (2, [2]), (33, [16, 16])]
)
def test_batches_too_small_for_normalisation_are_left_out(num_own: int, expected: list[int]):
    training = LocalSGD(batch_size=16, augment=True)
    batches = draw_batches(torch.arange(num_own), training, STREAM, least=2)
    assert batches.moves.shape == (len(expected), 16, 3)
    assert batches.sizes == expected
    assert batches.sizes == (batches.index >= 0).sum(dim=1).tolist()


def test_a_number_of_steps_goes_through_as_many_epochs_as_it_takes():
    batches = draw_batches(torch.arange(20), LocalSGD(batch_size=8, num_steps=7), STREAM)
    assert batches.sizes == [8, 8, 4, 8, 8, 4, 8]


def test_another_stream_gives_another_order_and_the_same_one_the_same():
    one, same, other = (
        draw_batches(torch.arange(50), LocalSGD(), stream).index
        for stream in (STREAM, STREAM, STREAM.fold_in("other"))
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
