"""Sample counts give the same update in the library, the simulator, files and Flower."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import outvote as ov
from bad_replies import arrays_of, content_of, record_of, run_round
from command_line import run
from flower_small import NODES, grid_of, strategy_of
from outvote.files import StreamingAggregator
from outvote.flower.node_metrics import average_metrics
from simulations import execute, tiny
from update_files import fill, floats_of, updates_of

RULES = ["mean", "median", "trimmed-mean", "bulyan", "gas(rfa, num_groups=3)", "clip(median)"]
COUNTS = [5, 9, 7, 3, 10**9, 8, 6]


@pytest.mark.parametrize("rule", RULES)
def test_files_are_weighed_as_rows_are(capsys, tmp_path, rule):
    folder = tmp_path / "updates"
    folder.mkdir()
    updates = updates_of(7, torch.float64)
    fill(folder, updates)
    counts = {f"client-{k}": count for k, count in enumerate(COUNTS)}
    path, output = tmp_path / "counts.json", tmp_path / "out.safetensors"
    path.write_text(json.dumps(counts))
    f = min(1, ov.make_rule(rule).max_byzantine(7))
    options = ["--rule", rule, "--num-byzantine", f, "--seed", 3, "-o", output]
    result = run(capsys, "aggregate", folder, *options, "--sample-counts", path)
    assert (result.code, result.err) == (0, "")
    rows = [dict(sorted(floats_of(update).items())) for update in updates]
    wanted = ov.make_rule(rule)(rows, num_byzantine=f, seed=3, sample_counts=COUNTS)
    found = load_file(output)
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


# Nine clients claim 10 samples and send 0; the last one claims a billion and sends 1.
CLAIMS = [10] * 9 + [10**9]
DIMS = {"in memory": 20, "streamed": 5000}


@pytest.mark.parametrize("dim", DIMS.values(), ids=DIMS)
def test_a_claim_in_a_file_counts_three_times_at_most(tmp_path, dim):
    fill(tmp_path, [{"w": torch.full((dim,), float(k == 9))} for k in range(10)])
    counts = {f"client-{k}": claim for k, claim in enumerate(CLAIMS)}
    found = ov.aggregate_files(tmp_path, rule="mean", sample_counts=counts)
    np.testing.assert_allclose(found.update["w"], 3 / 12)
    assert any("client-9" in note for note in found.notes)


@pytest.mark.parametrize("dim", DIMS.values(), ids=DIMS)
@pytest.mark.parametrize("cap", [1, 1.5, 3, 100])
def test_a_claim_in_a_stream_counts_as_often_as_the_cap(dim, cap):
    rows = [np.full(dim, float(k == 9)) for k in range(10)]
    streaming = StreamingAggregator("mean", rows, sample_counts=CLAIMS, count_cap=cap)
    assert streaming.verdict().weights[9] == pytest.approx(cap / (9 + cap))
    update = torch.cat([values.clone() for _, values in streaming.update()])
    np.testing.assert_allclose(update, cap / (9 + cap))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2]", "must be a JSON object"),
        ('{"client-0": "many"}', "must be a JSON object"),
        ('{"client-0": 3}', "must have every client, got none for 'client-1'"),
        ("{", "cannot read"),
        ('{"client-0": -1, "client-1": 2}', "none negative"),
    ],
)
def test_wrong_counts_of_files_are_one_line(capsys, tmp_path, content, message):
    fill(tmp_path, updates_of(2))
    path = tmp_path / "counts.json"
    path.write_text(content)
    options = ["--rule", "mean", "-o", tmp_path / "out", "--sample-counts", path]
    result = run(capsys, "aggregate", tmp_path, *options)
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1


def test_runs_weigh_by_samples_only_if_asked(tmp_path):
    given = {"data": {"partition": "dirichlet", "balance": False, "beta": 0.3}, "attack": "none"}
    plain = execute(tiny(**given), tmp_path)["mean"]
    weighed = execute(tiny("federation.sample_counts=true", **given), tmp_path)["mean"]
    assert plain.job.name != weighed.job.name
    assert "sample_counts" not in (plain.job.folder.path / "config.toml").read_text()
    losses = [(end.job.folder.path / "metrics.jsonl").read_text() for end in (plain, weighed)]
    assert losses[0] != losses[1]


@pytest.mark.parametrize("rule", [rule for rule in RULES if "gas" not in rule])
def test_flower_weighs_as_rows_are(rule):
    model = {"w": np.zeros(8)}
    sent = {node: np.random.default_rng(node).normal(size=8) for node in NODES}
    counts = {node: 10**9 if node == 104 else 5 + node % 4 for node in NODES}

    def send(node, model):
        return content_of({"w": sent[node]}, **{"num-examples": counts[node]})

    f = min(2, ov.make_rule(rule).max_byzantine(len(NODES)))
    strategy = strategy_of(rule, num_byzantine=f, use_num_examples=True, seed=5)
    found, _ = run_round(strategy, grid_of(send), record_of(model))
    wanted = ov.make_rule(rule)(
        np.stack([sent[node] for node in NODES]),
        num_byzantine=f,
        sample_counts=[counts[node] for node in NODES],
    )
    np.testing.assert_allclose(arrays_of(found)["w"], wanted, rtol=1e-12)


def test_a_claim_moves_a_metric_by_its_cap_alone():
    reports = [{"loss": 0.0}] * 9 + [{"loss": 1.0}]
    found = average_metrics(reports, 0, "num-examples", [10.0] * 9 + [1e9])
    assert found["loss"] == pytest.approx(3 / 12)
