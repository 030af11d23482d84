"""How many values a program of a kernel takes at once."""

import pytest

from outvote.ops.triton import block_of


@pytest.mark.parametrize(
    ("size", "largest", "block"),
    [
        (576, 512, 128),
        (144, 512, 32),
        (512, 512, 512),
        (96, 128, 32),
        (100, 128, 16),
        (64, 128, 64),
    ],
)
def test_blocks_of_sizes_that_networks_have(size, largest, block):
    assert block_of(size, largest) == block


def test_little_is_computed_in_vain():
    for size in range(1, 2500):
        block = block_of(size, 512)
        assert block & (block - 1) == 0
        assert block <= 512
        beyond = -size % block
        assert beyond < 16 or beyond <= size / 8
