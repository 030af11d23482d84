"""The Flower example in this process: its server, its nodes, and messages between them."""

import importlib
import tomllib

import pytest
from flwr.app import Context, RecordDict

from bad_replies import HandMadeGrid
from flower_federation import EXAMPLE
from outvote.results.audit_log import read_audit

NODES = {101: "none", 102: "none", 103: "bit-flip"}


@pytest.fixture
def apps(monkeypatch):
    """The apps that its pyproject.toml names, and its settings."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    settings = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    found = {}
    for name, text in settings["components"].items():
        module, _, attribute = text.partition(":")
        found[name] = getattr(importlib.import_module(module), attribute)
    return found, settings["config"]


def context_of(node, run_config, **node_config):
    return Context(
        run_id=1, node_id=node, node_config=node_config, state=RecordDict(), run_config=run_config
    )


def test_a_round_of_the_example_names_a_byzantine_node(apps, tmp_path):
    found, config = apps
    # The nodes' data differ little: a Byzantine node cannot pass as unusual.
    config |= {"audit-dir": str(tmp_path), "num-rounds": 1, "min-nodes": 3, "beta": 5.0}
    contexts = {
        node: context_of(
            node, config, attack=attack, **{"partition-id": k, "num-partitions": len(NODES)}
        )
        for k, (node, attack) in enumerate(NODES.items())
    }

    def respond(message):
        return found["clientapp"](message, contexts[message.metadata.dst_node_id])

    grid = HandMadeGrid(NODES, respond)
    found["serverapp"](grid, context_of(1, config))
    (entry,) = read_audit(tmp_path)
    assert entry.is_updated
    kept = {each.client: each.kept for each in entry.clients}
    assert kept == {"101": True, "102": True, "103": False}
    assert sorted(map(sorted, grid.asked)) == [[*NODES]] * 2, "they train, then evaluate"
