"""Runs on a table and on a text, small ones in the format of the real ones; nothing is fetched."""

import json

import numpy as np
import pytest
import torch

from command_line import run
from outvote.data import catalog
from outvote.data.array_dataset import ArrayDataset
from outvote.experiment import dataset_cache as building
from outvote.experiment.builder import RunBuilder
from outvote.experiment.plan import make_plan
from sample_files import small_flights, small_kjv

CPU = ["--device", "cpu"]
SMALL = [
    "--set=rounds=2",
    "--set=evaluate_every=1",
    "--set=federation.sampled=2",
    "--set=training.num_steps=2",
]


@pytest.fixture(autouse=True)
def root(monkeypatch, tmp_path):
    """A folder with a small table and a small text in place of the real ones."""
    monkeypatch.setenv("OUTVOTE_DATA", str(tmp_path))
    for name, make in (("flights", small_flights), ("kjv", small_kjv)):
        monkeypatch.setitem(catalog.DATASETS, name, make(tmp_path / name))
    return tmp_path


def specs(*settings):
    return make_plan({}, list(settings)).specs


@pytest.mark.parametrize(("suite", "num_cells", "num_groups"), [("tabular", 20, 4), ("text", 9, 3)])
def test_a_suite_runs_from_the_files_to_the_table(capsys, root, suite, num_cells, num_groups):
    words = ["bench", suite, "-o", root / "runs", *CPU, *SMALL]
    dry = run(capsys, *words, "--dry-run")
    assert (dry.code, dry.err) == (0, "")
    assert f"all: {num_cells} runs, 0 finished" in dry.out
    result = run(capsys, *words)
    assert (result.code, result.err) == (0, "")
    assert f"{num_cells} of {num_cells} runs are over" in result.out
    folders = list((root / "runs" / suite).iterdir())
    assert len(folders) == num_cells
    for folder in folders:
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert [row["round"] for row in rows] == [1, 2]
        assert all(0 <= row["accuracy"] <= 1 for row in rows)
    with np.load(folders[0] / "audit.npz") as audit:
        assert len(audit["is_byzantine"]) == num_groups


@pytest.mark.parametrize("rule", ["fltrust", "centered-clipping"])
def test_data_attacks_and_rules_with_root_samples_take_a_text(capsys, root, rule):
    words = ["bench", "text", "-o", root / "runs", *CPU, *SMALL, "--set=root_size=4"]
    result = run(capsys, *words, f"--rule={rule}", "--attack=label-flip")
    assert (result.code, result.err) == (0, "")
    assert "1 of 1 run are over" in result.out


@pytest.mark.parametrize("name", ["flights", "kjv"])
def test_the_verbs_for_data_know_it(capsys, name):
    verified = run(capsys, "data", "verify", name)
    assert (verified.code, verified.err) == (0, "")
    assert {"flights": "4 destinations", "kjv": "3 books"}[name] in verified.out
    found = run(capsys, "data", "fetch", name, "--json").json
    assert found["num_classes"] == catalog.DATASETS[name].num_classes
    for verb in (["data", "list"], ["list", "datasets"]):
        assert name in run(capsys, *verb).out
    assert run(capsys, "show", name, "--json").json["name"] == name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["data.name=kjv", "model.name=char-transformer", "federation.num_clients=3"],
            "'dirichlet' needs one class per sample, and kjv has none; choose 'iid' or 'by-group'",
        ),
        (
            ["data.name=kjv", "data.partition=shards", "federation.num_clients=3"],
            "'shards' needs one class per sample",
        ),
        (
            ["data.name=flights", "model.name=small-cnn", "federation.num_clients=3"],
            r"small-cnn takes samples \(height, width, channels\), got the shape \(46,\)",
        ),
        (
            ["data.name=flights", "model.name=char-transformer", "federation.num_clients=3"],
            "char-transformer cannot take the 46 samples of flights",
        ),
        (
            [
                "data.name=flights",
                "model.name=gelu-mlp",
                "federation.num_clients=3",
                "training.augment=true",
            ],
            "training.augment is for images stored as bytes, got true for flights",
        ),
    ],
)
def test_what_does_not_fit_is_one_line_before_training(settings, message):
    with pytest.raises(ValueError, match=message):
        RunBuilder(torch.device("cpu")).check(specs(*settings))


def test_a_text_can_be_split_at_random():
    builder = RunBuilder(torch.device("cpu"))
    (spec,) = specs("data.name=kjv", "data.partition=iid", "federation.num_clients=5")
    federation = builder.run(spec).federation
    sizes = [len(part) for part in federation.parts]
    dataset = builder.datasets.dataset(spec.data)
    assert sum(sizes) == len(dataset.train_targets)
    assert max(sizes) - min(sizes) <= 1
    # Every target of a sample counts.
    counts = builder.label_counts(spec, federation)
    assert counts.shape == (5, 63)
    assert counts.sum(axis=1).tolist() == [64 * size for size in sizes]


def test_the_flights_of_a_destination_are_a_client():
    builder = RunBuilder(torch.device("cpu"))
    (spec,) = specs("data.name=flights", "data.partition=by-group", "federation.num_clients=all")
    federation = builder.run(spec).federation
    dataset = builder.datasets.dataset(spec.data)
    assert builder.num_clients(spec) == 4
    for group, part in enumerate(federation.parts):
        assert set(dataset.train_groups[part.numpy()]) == {group}
    counts = builder.label_counts(spec, federation)
    expected = np.bincount(dataset.train_targets)
    assert counts.sum(axis=0).tolist() == expected.tolist()


def test_without_classes_samples_are_counted_and_named_networks_refused(monkeypatch):
    values = np.zeros((6, 3), dtype=np.float32)
    made = ArrayDataset(
        name="values",
        train_inputs=(values,),
        train_targets=values[:, 0],
        test_inputs=(values,),
        test_targets=values[:, 0],
        num_classes=None,
        source="a test",
    )
    monkeypatch.setattr(building, "load", lambda *given, **options: made)
    builder = RunBuilder(torch.device("cpu"))
    (spec,) = specs("data.partition=iid", "federation.num_clients=2", "model.name=gelu-mlp")
    federation = builder.run(spec).federation
    assert builder.label_counts(spec, federation).tolist() == [[3], [3]]
    with pytest.raises(ValueError, match="gelu-mlp is for classes"):
        builder.check([spec])


def test_targets_that_do_not_count_are_not_counted(monkeypatch):
    values = np.zeros((4, 3), dtype=np.float32)
    made = ArrayDataset(
        name="tagged",
        train_inputs=(values,),
        train_targets=np.array([0, 1, -100, 1]),
        test_inputs=(values,),
        test_targets=np.array([0, 1, 1, 1]),
        num_classes=2,
        source="a test",
    )
    monkeypatch.setattr(building, "load", lambda *given, **options: made)
    builder = RunBuilder(torch.device("cpu"))
    (spec,) = specs("data.partition=iid", "federation.num_clients=1")
    assert builder.label_counts(spec, builder.run(spec).federation).tolist() == [[1, 2]]
