"""Samples that are picked by an index of any shape."""

import pytest
import torch

from outvote.training.samples import ArraySamples, ByteImages

IMAGES = torch.arange(7 * 4 * 3 * 2).remainder(256).to(torch.uint8).view(7, 4, 3, 2)
INDICES = {
    "batch": torch.tensor([6, 0, 6, 3]),
    "stack": torch.tensor([[1, 5, 5], [2, 0, 6]]),
    "some-of-a-stack": torch.tensor([[1, 5, 5], [2, 0, 6]])[:, :2],
    "empty": torch.empty(0, dtype=torch.int64),
}


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_samples_are_those_of_the_index(device, index):
    images = IMAGES.to(device)
    index = index.to(device)
    labels = torch.zeros(len(images), dtype=torch.int64)
    as_bytes = ByteImages(images, labels, mean=(0.0, 0.0), std=(1 / 255,) * 2, device=device)
    as_floats = ArraySamples([images.float()], labels, device=device, is_channels_last=True)
    expected = images.float()[index]
    for samples in (as_bytes, as_floats):
        assert torch.equal(samples.batch(index), expected)
        assert torch.equal(samples.inputs(index)[0], expected.movedim(-1, -3))
