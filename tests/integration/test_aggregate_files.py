"""`outvote.aggregate_files`: the files of clients from Python."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save, save_file

import outvote as ov
from outvote.files.aggregate_files import aggregate_clients
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


def test_mistakes_are_value_errors(folder):
    with pytest.raises(ov.TooManyByzantine):
        ov.aggregate_files(folder, rule="bulyan", num_byzantine=3)
    with pytest.raises(ValueError, match="no file matches"):
        ov.aggregate_files(folder / "*.none", rule="median")
    with pytest.raises(ValueError, match="is one of the input files"):
        ov.aggregate_files(folder, rule="median", output=folder / "client-1.safetensors")


def test_a_bad_file_lowers_nothing(tmp_path):
    """One of eight files is cut off, one is poisoned; the rule is told that one may be."""
    save_file({"w": torch.zeros(1000)}, tmp_path / "base.safetensors")
    for k in range(8):
        row = 1 + 0.1 * torch.randn(1000, generator=torch.Generator().manual_seed(k))
        path = tmp_path / f"client-{k}.safetensors"
        save_file({"w": -40 * row if k == 3 else row}, path)
    path = tmp_path / "client-5.safetensors"
    for content in (path.read_bytes()[:-10], save({"w": torch.full((1000,), torch.nan)})):
        path.write_bytes(content)
        for rule in ("gas(multi-krum)", "multi-krum", "trimmed-mean"):
            found = ov.aggregate_files(tmp_path / "client-*", rule=rule, num_byzantine=1)
            assert found.rejected == ["client-5"]
            assert (found.num_byzantine, found.base_num_byzantine) == (1, 1)
            assert np.isinf(found.scores[5])
            if rule == "trimmed-mean":
                assert found.update["w"].min() > 0
            else:
                assert found.dropped == ["client-3"]


def test_too_many_byzantine_clients_for_the_files_that_are_left(tmp_path):
    for k in range(6):
        save_file({"w": torch.ones(3) * k}, tmp_path / f"{k}.safetensors")
    (tmp_path / "0.safetensors").write_bytes(b"")
    (tmp_path / "1.safetensors").write_bytes(b"")
    output = tmp_path / "out"
    for rule in ("gas(median)", "median", "gas(multi-krum)"):
        with pytest.raises(ValueError, match="2 of 6 files are bad"):
            ov.aggregate_files(tmp_path, rule=rule, num_byzantine=2, output=output)
        assert not output.exists()
    found = ov.aggregate_files(tmp_path, rule="gas(median)", num_byzantine=2, when_too_many="lower")
    assert found.base_num_byzantine == 1
    assert any("too few" in note for note in found.notes)


LORA = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q", "v"]}


def write_adapters(folder, num_clients=6):
    generator = torch.Generator().manual_seed(0)
    for k in range(num_clients):
        own = folder / f"node-{k}"
        own.mkdir(parents=True)
        names = [f"base_model.model.h.0.{part}.lora_{x}.weight" for part in "qv" for x in "AB"]
        tensors = {name: torch.randn(40, 30, generator=generator).bfloat16() for name in names}
        save_file(tensors, own / "adapter_model.safetensors")
        modules = LORA["target_modules"][:: (-1) ** k]  # PEFT writes a set.
        config = LORA | {"target_modules": modules, "inference_mode": k == 5}
        (own / "adapter_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("pattern", ["*", "*/adapter_model.safetensors"])
def test_lora_adapters_are_named_by_their_folders_and_come_out_as_one(tmp_path, pattern):
    write_adapters(tmp_path / "nodes")
    changed = tmp_path / "nodes" / "node-2" / "adapter_config.json"
    changed.write_text(json.dumps(LORA | {"lora_alpha": 800}))
    deep = json.dumps(LORA)[:-1] + ', "deep": ' + "[" * 600 + "]" * 600 + "}"
    for node, text in (("node-3", "{"), ("node-4", deep)):
        (tmp_path / "nodes" / node / "adapter_config.json").write_text(text)
    merged = tmp_path / "merged"
    merged.mkdir()
    found = aggregate_clients(
        str(tmp_path / "nodes" / pattern),
        rule="mean",
        output=merged / "adapter_model.safetensors",
    )
    reasons = {each["client"]: each["reason"] for each in found.clients if each["reason"]}
    assert reasons == {
        "node-2": "adapter_config.json has lora_alpha 800 instead of 8",
        "node-3": "adapter_config.json is not JSON",
        "node-4": "adapter_config.json has more than 500 lists and objects",
    }
    config = json.loads((merged / "adapter_config.json").read_text())
    assert {key: config[key] for key in ("r", "lora_alpha")} == {"r": 4, "lora_alpha": 8}
    assert config["inference_mode"] is False
    paths = [tmp_path / "nodes" / f"node-{k}" / "adapter_model.safetensors" for k in (0, 1, 5)]
    kept = [load_file(path) for path in paths]
    written = load_file(merged / "adapter_model.safetensors")
    for name, values in written.items():
        wanted = torch.stack([each[name].float() for each in kept]).mean(dim=0)
        torch.testing.assert_close(values.float(), wanted, rtol=1e-2, atol=1e-2)


def test_one_client_does_not_choose_the_configuration_of_the_output(tmp_path):
    write_adapters(tmp_path / "nodes")
    for k in range(6):
        own = LORA | {"base_model_name_or_path": "ours", "date": k}
        if k == 0:
            own |= {"base_model_name_or_path": "theirs", "auto_mapping": {"a": "b"}}
        (tmp_path / "nodes" / f"node-{k}" / "adapter_config.json").write_text(json.dumps(own))
    output = tmp_path / "adapter_model.safetensors"
    ov.aggregate_files(tmp_path / "nodes" / "*", rule="median", num_byzantine=1, output=output)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "ours"
    assert "auto_mapping" not in config


def test_integer_tensors_without_numbers_are_written(tmp_path):
    for k in range(3):
        empty = torch.zeros(0, 3, dtype=torch.int64)
        save_file({"w": torch.ones(3) * k, "n": empty}, tmp_path / f"{k}.safetensors")
    output = tmp_path / "out" / "out.safetensors"
    output.parent.mkdir()
    ov.aggregate_files(tmp_path, rule="median", output=output)
    assert load_file(output)["n"].shape == (0, 3)


def test_adapters_without_a_configuration_are_plain_files(tmp_path):
    write_adapters(tmp_path / "nodes")
    for path in tmp_path.glob("nodes/*/adapter_config.json"):
        path.unlink()
    (tmp_path / "nodes" / "node-1" / "adapter_config.json").write_text(json.dumps(LORA))
    output = tmp_path / "adapter_model.safetensors"
    found = aggregate_clients(
        str(tmp_path / "nodes" / "*"), rule="median", num_byzantine=1, output=output
    )
    assert found.verdict.rejected == ["node-1"]
    assert output.exists()
    assert not (tmp_path / "adapter_config.json").exists()
