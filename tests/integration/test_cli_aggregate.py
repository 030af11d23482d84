"""`outvote aggregate` on good files: the right update, and a full report."""

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import outvote as ov
from command_line import run
from outvote.files import streaming
from update_files import fill, floats_of, status_of, updates_of

RULE = "gas(multi-krum, num_groups=5)"
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the updates are; they are read in pieces that begin and end within a tensor."""
    monkeypatch.setattr(streaming, "LARGEST_CHUNK", 7)
    monkeypatch.setattr(streaming, "SMALLEST_CHUNK", 7)
    path = tmp_path / "updates"
    path.mkdir()
    return path


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_output_is_the_update_of_the_rule_in_the_type_that_was_sent(capsys, folder, dtype):
    updates = updates_of(7, dtype)
    updates[2]["layer.weight"] += 50
    fill(folder, updates)
    output = folder.parent / "out.safetensors"
    result = run(
        capsys, "aggregate", folder, "--rule", RULE, "--num-byzantine", 2, "--seed", 3, "-o", output
    )
    assert (result.code, result.err) == (0, "")
    found = load_file(output)
    # Tensors are taken in the order of their names, so the same split is drawn.
    rows = [dict(sorted(floats_of(update).items())) for update in updates]
    wanted = ov.make_rule(RULE)(rows, num_byzantine=2, seed=3)
    assert set(found) == {*wanted, "steps"}
    for name, tensor in wanted.items():
        assert found[name].dtype == dtype
        assert torch.equal(found[name], tensor)


def test_the_table_and_the_json_hold_the_verdict(capsys, folder):
    updates = updates_of(7)
    updates[2]["layer.weight"] += 50
    fill(folder, updates)
    words = ["aggregate", folder, "--rule", RULE, "--num-byzantine", 2, "--seed", 3]
    output = folder.parent / "out.safetensors"
    table = run(capsys, *words, "-o", output)
    for text in (
        "client-2",
        "dropped",
        "assumed 2 Byzantine of 7 clients",
        "groups 5",
        "seed 3",
        "steps",
    ):
        assert text in table.out
    found = run(capsys, *words, "-o", output, "--json").json
    rows = [dict(sorted(floats_of(update).items())) for update in updates]
    verdict = ov.make_rule(RULE).inspect(rows, num_byzantine=2, seed=3)
    assert [row["score"] for row in found["clients"]] == pytest.approx(verdict.scores.tolist())
    assert [row["share"] for row in found["clients"]] == pytest.approx(verdict.weights.tolist())
    assert (found["seed"], found["num_groups"]) == (3, 5)
    update = torch.cat([verdict.update[name].flatten() for name in rows[0]]).double()
    for row, sent in zip(found["clients"], rows, strict=True):
        vector = torch.cat([sent[name].flatten() for name in sent]).double()
        assert row["norm"] == pytest.approx(float(vector.norm()))
        cosine = torch.nn.functional.cosine_similarity(vector, update, dim=0)
        assert row["cosine"] == pytest.approx(float(cosine))


@pytest.mark.parametrize("dtype", FLOATS)
def test_with_a_base_the_files_are_models_and_so_is_the_output(capsys, folder, dtype):
    updates = updates_of(5)
    base = {
        "layer.weight": torch.full((4, 3), 8.0, dtype=dtype),
        "layer.bias": torch.full((5,), -8.0, dtype=dtype),
        "steps": torch.tensor(1),
    }
    models = [
        {name: (base[name] + update[name]).to(base[name].dtype) for name in base}
        for update in updates
    ]
    fill(folder, models)
    start, output = folder.parent / "base.safetensors", folder.parent / "out.safetensors"
    save_file(base, start, metadata={"round": "7"})
    words = ["aggregate", folder, "--base", start, "--rule", "multi-krum", "--num-byzantine", 1]
    result = run(capsys, *words, "-o", output, "--json")
    assert (result.code, result.err) == (0, "")
    found = load_file(output)
    kept = [k for k in range(5) if status_of(result)[f"client-{k}"] == "kept"]
    assert len(kept) == 4
    for name in ("layer.weight", "layer.bias"):
        mean = torch.stack([models[k][name].double() for k in kept]).mean(dim=0)
        assert found[name].dtype == dtype
        # One rounding to the type of the base; float64 is summed in another order here.
        assert torch.allclose(found[name].double(), mean, rtol=torch.finfo(dtype).eps, atol=1e-12)
    with safe_open(output, "pt") as file:
        assert file.metadata() == {"round": "7"}


def test_rules_that_know_the_origin_see_differences_and_not_models(capsys, folder):
    base = {"w": torch.full((4,), 1000.0)}
    fill(folder, [{"w": base["w"] + step} for step in (0.5, 0.25, 0.75)])
    start, output = folder.parent / "base.safetensors", folder.parent / "out.safetensors"
    save_file(base, start)
    words = ["aggregate", folder, "--base", start, "--rule", "norm-clipping(max_norm=100)"]
    assert run(capsys, *words, "-o", output).code == 0
    assert load_file(output)["w"].tolist() == [1000.5] * 4


def test_integers_and_flags_are_the_maximum_over_the_kept_clients(capsys, folder):
    updates = [
        {
            "w": torch.ones(6) * (100 if k == 4 else 1 + k / 100),
            "count": torch.tensor([k, -k]),
            "small": torch.tensor(k, dtype=torch.uint16),
            "flag": torch.tensor([k == 1, k == 4]),
        }
        for k in range(5)
    ]
    fill(folder, updates)
    output = folder.parent / "out.safetensors"
    words = ["aggregate", folder, "--rule", "multi-krum", "--num-byzantine", 1, "-o", output]
    result = run(capsys, *words)
    assert "maximum over the kept clients" in result.out
    found = load_file(output)
    # Client 4 is dropped, so its counts do not count.
    assert found["count"].tolist() == [3, 0]
    assert (found["small"].item(), found["small"].dtype) == (3, torch.uint16)
    assert found["flag"].tolist() == [True, False]


def test_a_fraction_counts_all_files_that_were_received(capsys, folder):
    fill(folder, updates_of(9))
    (folder / "empty.safetensors").touch()
    output = folder.parent / "out.safetensors"
    words = ["aggregate", folder, "--rule", "gas(median)", "--byzantine-fraction", 0.3]
    found = run(capsys, *words, "-o", output, "--json").json
    assert (found["num_byzantine"], found["num_rejected"]) == (3, 1)
    assert (found["num_byzantine_assumed"], found["byzantine_fraction"]) == (None, 0.3)


def test_clients_with_the_same_file_name_are_named_by_their_paths(capsys, tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        save_file({"w": torch.ones(3)}, tmp_path / name / "update.safetensors")
    output = tmp_path / "out.safetensors"
    words = ["aggregate", f"{tmp_path}/*/update.safetensors", "--rule", "median"]
    found = run(capsys, *words, "-o", output, "--json").json
    names = [row["client"] for row in found["clients"]]
    assert names == [str(tmp_path / name / "update.safetensors") for name in ("a", "b", "c")]


def test_a_rule_of_the_user_that_reports_no_weights_drops_no_client(capsys, folder):
    fill(folder, updates_of(3))
    mine = folder.parent / "mine.py"
    mine.write_text(
        "import outvote\n"
        "class First(outvote.VectorRule):\n"
        "    def max_byzantine(self, num_clients): return num_clients - 1\n"
        "    def aggregate(self, rows, num_byzantine): return rows[0]\n"
    )
    output = folder.parent / "out.safetensors"
    words = ["aggregate", folder, "--rule", f"{mine}:First", "--num-byzantine", 1, "-o", output]
    result = run(capsys, *words, "--json")
    assert set(status_of(result).values()) == {"used"}
    assert [row["share"] for row in result.json["clients"]] == [None] * 3
    assert torch.equal(load_file(output)["layer.bias"], updates_of(3)[0]["layer.bias"])
