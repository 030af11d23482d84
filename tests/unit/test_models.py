"""The networks: their sizes are the papers', and stacked ones compute what plain ones do."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

import outvote as ov
from outvote.models.model_spec import MODELS

SIZES = {
    "alexnet": (10, (32, 32, 3), 2_472_266, 0),
    "squeezenet": (100, (32, 32, 3), 781_156, 5_977),
    "resnet18": (12, (32, 32, 3), 11_182_668, 9_620),
    "leaf-cnn": (62, (28, 28, 1), 6_603_710, 0),
    "leaf-cnn-small": (62, (28, 28, 1), 848_382, 0),
    "small-cnn": (10, (28, 28, 1), 11_274, 0),
    "mlp": (10, (28, 28, 1), 79_510, 0),
    "gelu-mlp": (3, (46,), 7_363, 0),
    "char-transformer": (63, (64,), 31_615, 0),
}
# The others train by torch.func or one by one.
STACKED = [name for name in MODELS if name not in ("gelu-mlp", "char-transformer")]
# Small, so that float64 is fast; alexnet takes none that are smaller.
SHAPES = {"squeezenet": (16, 16, 3), "leaf-cnn": (8, 8, 1)}
BATCHES = (4, 3)
MLP = MODELS["mlp"]


def test_threads_that_make_networks_at_once_get_those_of_their_own_seeds(monkeypatch):
    def slow(*given):
        time.sleep(0.01)  # Another thread runs.
        return MLP(*given)

    def weights(seed):
        network = ov.make_model("mlp", num_classes=10, seed=seed)
        return nn.utils.parameters_to_vector(network.parameters()).detach()

    alone = [weights(seed) for seed in range(4)]
    monkeypatch.setitem(MODELS, "mlp", slow)
    with ThreadPoolExecutor(4) as pool:
        for found, expected in zip(pool.map(weights, range(4)), alone, strict=True):
            assert torch.equal(found, expected)


def test_every_model_has_its_size_here():
    assert set(SIZES) == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_as_many_parameters_as_published(name: str):
    num_classes, _, num_parameters, num_buffers = SIZES[name]
    model = ov.make_model(name, num_classes=num_classes)
    assert sum(p.numel() for p in model.parameters()) == num_parameters
    assert sum(b.numel() for b in model.buffers()) == num_buffers


def test_first_weights_are_a_function_of_the_seed_and_leave_the_global_generator_alone():
    before = torch.random.get_rng_state()
    one, same, other, fresh, fresher = (
        _vector(ov.make_model("mlp", num_classes=3, seed=seed).parameters())
        for seed in (1, 1, 2, None, None)
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert not torch.equal(fresh, fresher)


def test_a_character_does_not_see_the_ones_after_it():
    model = ov.make_model("char-transformer", num_classes=5, input_shape=(8,), seed=0).double()
    tokens = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2]])
    changed = tokens.clone()
    changed[:, 5:] = 3
    one, other = model(tokens), model(changed)
    assert one.shape == (1, 8, 5)
    assert torch.equal(one[:, :5], other[:, :5])
    assert not torch.allclose(one[:, 5:], other[:, 5:])


def test_a_character_sees_all_the_ones_before_it():
    model = ov.make_model("char-transformer", num_classes=5, input_shape=(8,), seed=0).double()
    tokens = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2]])
    changed = tokens.clone()
    changed[:, 0] = 3
    gaps = (model(tokens) - model(changed)).abs().amax(dim=-1)[0]
    assert (gaps > 1e-6).all()


def test_a_table_network_takes_samples_of_any_shape():
    images = torch.zeros(2, 3, 4, 4)
    assert ov.make_model("gelu-mlp", num_classes=3, input_shape=(4, 4, 3))(images).shape == (2, 3)
    assert ov.make_model("gelu-mlp", num_classes=5, input_shape=(4,))(images[:, 0, 0]).shape == (
        2,
        5,
    )


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("mlp", (46,), r"mlp takes samples \(height, width, channels\), got the shape \(46,\)"),
        ("char-transformer", (8, 8, 1), r"takes samples \(length,\), got the shape \(8, 8, 1\)"),
    ],
)
def test_a_network_for_other_samples_is_refused(name, shape, words):
    with pytest.raises(ValueError, match=words):
        ov.make_model(name, num_classes=3, input_shape=shape)


def test_an_unknown_model_names_the_closest():
    with pytest.raises(ValueError, match="alexnet"):
        ov.make_model("alexnett", num_classes=10)
    with pytest.raises(ValueError, match="num_classes"):
        ov.make_model("alexnet", num_classes=1)


def _vector(parameters) -> Tensor:
    return nn.utils.parameters_to_vector(parameters).detach().clone()
