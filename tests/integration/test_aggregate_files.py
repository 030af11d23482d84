"""`outvote.aggregate_files`: the files of clients from Python."""

import pytest
import torch
from safetensors.torch import load_file, save_file

import outvote as ov
from update_files import fill, updates_of


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "updates"
    path.mkdir()
    fill(path, updates_of(7))
    return path


def test_the_verdict_is_that_of_the_rule_on_the_same_updates(folder, tmp_path):
    output = tmp_path / "out.safetensors"
    verdict = ov.aggregate_files(
        folder / "*.safetensors", rule="gas(median)", num_byzantine=2, seed=3, output=output
    )
    names = [f"client-{k}" for k in range(7)]
    floats = [
        {name: tensor for name, tensor in sorted(update.items()) if tensor.is_floating_point()}
        for update in updates_of(7)
    ]
    same = ov.GAS(ov.Median()).inspect(floats, num_byzantine=2, seed=3, clients=names)
    assert verdict.kept == same.kept
    for name, tensor in same.update.items():
        assert torch.equal(verdict.update[name], tensor)
        assert torch.equal(load_file(output)[name], tensor)


def test_without_an_output_nothing_is_written_and_a_bad_file_is_rejected(folder):
    (folder / "zero.safetensors").touch()
    before = sorted(folder.parent.rglob("*"))
    verdict = ov.aggregate_files([folder], rule=ov.Median(), num_byzantine=2)
    assert verdict.rejected == ["zero"]
    assert len(verdict.clients) == 8
    assert sorted(folder.parent.rglob("*")) == before


def test_with_a_base_the_output_is_the_new_model(folder, tmp_path):
    base = tmp_path / "base.safetensors"
    start = {name: torch.zeros_like(tensor) for name, tensor in updates_of(1)[0].items()}
    save_file(start, base)
    output = tmp_path / "out.safetensors"
    verdict = ov.aggregate_files(
        str(folder), rule="median", byzantine_fraction=0.2, base=str(base), output=str(output)
    )
    for name, tensor in verdict.update.items():
        assert torch.equal(load_file(output)[name], tensor)


def test_mistakes_are_value_errors(folder, tmp_path):
    with pytest.raises(ov.TooManyByzantine):
        ov.aggregate_files(folder, rule="bulyan", num_byzantine=3)
    assert (
        ov.aggregate_files(
            folder, rule="bulyan", num_byzantine=3, when_too_many="lower"
        ).num_byzantine
        == 1
    )
    with pytest.raises(ValueError, match="no file matches"):
        ov.aggregate_files(tmp_path / "*.none", rule="median")
    with pytest.raises(ValueError, match="is one of the input files"):
        ov.aggregate_files(folder, rule="median", output=folder / "client-1.safetensors")
    with pytest.raises(ValueError, match="'medin'"):
        ov.aggregate_files(folder, rule="medin")
