"""The LoRA example: a poisoned node does not spoil the adapter, which comes out as PEFT's."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from safetensors.torch import load_file

from bad_replies import HandMadeGrid
from outvote.files.aggregate_files import aggregate_clients

EXAMPLE = Path(__file__).parents[2] / "examples" / "lora"
NODES = range(10, 16)


@pytest.fixture
def federation(monkeypatch, tmp_path, caplog):
    """Return what runs the app with six nodes, and returns the accuracy after each round."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from finetune import client_app, server_app

    defaults = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]

    def context(node, config):
        node_config = {"partition-id": node - 10, "num-partitions": len(NODES)}
        return Context(1, node, node_config, RecordDict(), config)

    def run(name, **changes):
        config = defaults["config"] | {
            "output": str(tmp_path / name),
            "audit-dir": str(tmp_path / "audit"),
            **{key.replace("_", "-"): value for key, value in changes.items()},
        }

        def respond(message):
            return client_app.app(message, context(message.metadata.dst_node_id, config))

        caplog.set_level("INFO", "flwr")
        caplog.clear()
        server_app.app(HandMadeGrid(NODES, respond), context(0, config))
        return [float(found) for found in re.findall(r"'accuracy': ([0-9.]+)", caplog.text)]

    return run


def test_a_poisoned_node_spoils_the_mean_and_not_gas(federation, tmp_path):
    spoiled = federation("mean", rule="mean", num_byzantine=0, num_rounds=1)
    assert max(spoiled[1:]) < 0.3
    learned = federation("gas", num_rounds=1, num_batches=30)
    assert learned[0] < 0.1
    assert learned[-1] > 0.9
    read_again = federation("more", num_rounds=0, start_from=str(tmp_path / "gas"))
    assert read_again[0] == learned[1]

    tensors = load_file(tmp_path / "gas" / "adapter_model.safetensors")
    assert len(tensors) == 2 * 4 * 2  # Two blocks, four layers in each, two matrices for each.
    assert tensors["base_model.model.blocks.0.query.lora_A.weight"].shape == (4, 32)
    config = json.loads((tmp_path / "gas" / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"]) == ("LORA", 4)

    merged = tmp_path / "merged"
    merged.mkdir()
    found = aggregate_clients(
        [tmp_path / name for name in ("mean", "gas", "more")],
        rule="median",
        num_byzantine=1,
        output=merged / "adapter_model.safetensors",
    )
    assert [each["client"] for each in found.clients] == ["mean", "gas", "more"]
    assert json.loads((merged / "adapter_config.json").read_text()) == config
