"""Processes that share the coordinates have the verdict that one process has."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import outvote as ov
from every_rule import EVERY_RULE
from outvote.files import ShardedRule
from update_files import write_tensors

WORKER = Path(__file__).parents[1] / "shard_worker.py"
NUM_PROCESSES, NUM_CLIENTS, DIM = 4, 11, 2501
CUTS = [0, 700, 1100, 1101, DIM]
SECONDS = 10
"""How long a process is waited for."""
FEW_CUTS = [0, 3, 5, 9, 12]
CLIENTS = [f"client {k}" for k in range(NUM_CLIENTS)]
RULES = [
    "mean",
    "median",
    "krum",
    "bulyan",
    "dnc(num_coordinates=40)",
    "signguard",
    "centered-clipping",
    "nnm(trimmed-mean)",
    "bucketing(rfa)",
    "clip(krum)",
    "norm-filter(gas(rfa, num_groups=9), factor=1)",
    "gas(multi-krum)",
    "gas(median)",
    "gas(bulyan, num_groups=20)",
    "gas(multi-krum, num_groups=5, split=contiguous)",
]
FAILS_IN_ONE = {
    "too many": {"num_byzantine": 12},
    "no memory": {"max_memory": "none"},
    "equal ids": {"clients": ["client"] * NUM_CLIENTS},
}
HARD_RULES = ["krum", "gas(multi-krum)", "gas(median)", "rfa"]
NEED_ROWS = ["rows", "foolsgold"]
# Scores of these are differences or powers of what is rounded in float32 in memory.
ROUGH = ("dnc", "power=", "nnm(", "clip(", "norm-filter(")


def gradients(dim=DIM):
    rows = np.random.default_rng(0).normal(size=(NUM_CLIENTS, dim)).astype(np.float32)
    rows[-2:] += 1
    rows[3, dim * 2 // 3] = np.nan
    return rows


def hard_gradients():
    rows = gradients()
    rows[4:6] = rows[6]  # Copies,
    rows[7] = rows[8] + np.float32(1e-4) * rows[9]  # nearly one,
    rows[0] *= np.float32(1e30)  # and one that overflows.
    return rows


ROWS = {"usual": gradients(), "few": gradients(FEW_CUTS[-1]), "hard": hard_gradients()}


def case(rule, rows="usual", **more):
    limit = NUM_CLIENTS if rule in NEED_ROWS else ov.make_rule(rule).max_byzantine(NUM_CLIENTS)
    return {
        "rule": rule,
        "rows": f"{rows}.npy",
        "cuts": FEW_CUTS if rows == "few" else CUTS,
        "clients": CLIENTS,
        "options": {"num_byzantine": min(3, limit), "seed": 5},
        **more,
    }


def run(folder, cases, timeout=300):
    """Return what every process found; None for those that did not end."""
    for name, rows in ROWS.items():
        np.save(folder / f"{name}.npy", rows)
    (folder / "job.json").write_text(json.dumps({"size": NUM_PROCESSES, "cases": cases}))
    with (folder / "errors.txt").open("w") as errors:
        processes = [
            subprocess.Popen([sys.executable, WORKER, folder, str(rank)], stderr=errors)
            for rank in range(NUM_PROCESSES)
        ]
    stopped = {each["who"] for each in cases.values() if each.get("how") == "signal"}
    for rank, process in enumerate(processes):
        try:
            if rank not in stopped:
                process.wait(timeout)
        except subprocess.TimeoutExpired:
            pass
    for process in processes:
        process.kill()
        process.wait()
    paths = [folder / f"found-{rank}.json" for rank in range(NUM_PROCESSES)]
    return [json.loads(path.read_text()) if path.exists() else None for path in paths]


CAPPED = {
    "num_byzantine": 0,
    "seed": 5,
    "sample_counts": [10] * (NUM_CLIENTS - 1) + [10**9],
    "count_cap": 1.5,
}


def write_updates(folder):
    (folder / "updates").mkdir()
    generator = torch.Generator().manual_seed(0)
    for k in range(7):
        values = torch.randn(2000, generator=generator) + 5 * (k == 6)
        tensors = {"a": values[:900].view(30, 30).bfloat16(), "b": values[900:]}
        write_tensors(folder / "updates" / f"{k}.safetensors", tensors | {"n": torch.tensor(k)})


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """All quick cases, in one start of four processes."""
    folder = tmp_path_factory.mktemp("shards")
    write_updates(folder)
    cases = {text: case(text) for text in [*RULES, *NEED_ROWS]}
    cases |= {f"hard {text}": case(text, "hard") for text in HARD_RULES}
    cases |= {f"few {text}": case(text, "few") for text in ("median", "gas(multi-krum)")}
    cases["cap"] = case("mean", options=CAPPED)
    cases["torch"] = case("gas(median)", is_torch=True)
    no_seed = {"options": {"num_byzantine": 2}}
    cases["no seed"] = case("gas(median)", **no_seed)
    cases["another f"] = case("gas(median)", differs={"2": {"num_byzantine": 1}})
    cases["another cap"] = case("mean", options=CAPPED, differs={"2": {"count_cap": 3}})
    for name, own in FAILS_IN_ONE.items():
        cases[name] = case("gas(median)", differs={"2": own})
        cases[f"after {name}"] = case("median")
    options = {"options": {"num_byzantine": 2, "seed": 1}, "rule": "gas(multi-krum)"}
    cases["files"] = {"output": "out.safetensors", **options}
    cases["no folder"] = {"output": "none/out.safetensors", **options}
    full = {"who": 0, "how": "write", "after": 3}
    cases["full disk"] = {"output": "full.safetensors", **options, **full}
    fails = {"who": 2, "how": "read", "after": 3}
    cases["one cannot read"] = {"output": "left.safetensors", **options, **fails}
    cases["one cannot read"]["options"] = {"num_byzantine": 1, "seed": 1}
    results = run(folder, cases)
    assert None not in results, (folder / "errors.txt").read_text()[-2000:]
    return {name: [each[name] for each in results] for name in cases} | {"folder": folder}


def assert_same(text, found, rows, options=None):
    options = case(text)["options"] if options is None else options
    same = ov.make_rule(text).inspect(rows, clients=CLIENTS, **options)
    assert not [each["error"] for each in found if "error" in each]
    rtol = 1e-4 if any(word in text for word in ROUGH) else 1e-6
    for each in found:
        assert (each["kept"], each["rejected"]) == (same.kept, ["client 3"])
        assert (each["num_groups"], each["num_byzantine"]) == (same.num_groups, same.num_byzantine)
        assert (tuple(each["notes"]), each["seed"]) == (same.notes, 5)
        # In all processes the same to the last bit.
        assert (each["scores"], each["weights"]) == (found[0]["scores"], found[0]["weights"])
    if same.weights is not None:
        np.testing.assert_allclose(found[0]["weights"], same.weights, rtol=1e-5, atol=1e-12)
    scale = np.abs(same.scores[np.isfinite(same.scores)]).max()
    np.testing.assert_allclose(found[0]["scores"], same.scores, rtol=rtol, atol=rtol * scale)
    update = np.concatenate([each["update"] for each in found])
    np.testing.assert_allclose(update, same.update, rtol=1e-4, atol=1e-5 * np.abs(update).max())


@pytest.mark.parametrize("text", RULES)
def test_four_processes_have_the_verdict_of_one(found, text):
    assert_same(text, found[text], ROWS["usual"])
    assert found[text][1]["dtype"] == "float32"


def test_a_claim_counts_as_often_as_the_cap(found):
    assert_same("mean", found["cap"], ROWS["usual"], CAPPED)
    num_others = NUM_CLIENTS - 2  # One sends NaN.
    assert found["cap"][0]["weights"][-1] == pytest.approx(1.5 / (num_others + 1.5))


@pytest.mark.parametrize("text", HARD_RULES)
def test_hard_numbers_have_the_verdict_of_one_process(found, text):
    assert_same(text, found[f"hard {text}"], ROWS["hard"])


@pytest.mark.parametrize("text", ["median", "gas(multi-krum)"])
def test_few_coordinates_are_gathered(found, text):
    assert_same(text, found[f"few {text}"], ROWS["few"])


@pytest.mark.parametrize("text", NEED_ROWS)
def test_a_rule_that_needs_whole_rows_is_refused_in_one_line(found, text):
    for each in found[text]:
        assert each["error"].startswith(f"ValueError: {text} cannot be streamed")
        assert "\n" not in each["error"]


def test_tensors_keep_their_dtype_and_the_first_process_draws_the_seed(found):
    assert {each["dtype"] for each in found["torch"]} == {"torch.bfloat16"}
    seeds = {each["seed"] for each in found["no seed"]}
    assert len(seeds) == 1
    assert found["no seed"][0]["scores"] == found["no seed"][3]["scores"]


def test_processes_that_differ_are_named(found):
    for each in found["another f"]:
        assert "same num_byzantine, got 3 in process 0 and 1 in process 2" in each["error"]
    for each in found["another cap"]:
        assert "same count_cap, got 1.5 in process 0 and 3 in process 2" in each["error"]


@pytest.mark.parametrize("name", FAILS_IN_ONE)
def test_what_fails_in_one_process_fails_in_all_and_the_next_call_is_right(found, name):
    errors = [each["error"] for each in found[name]]
    text = errors[2].partition(": ")[2]
    assert text.startswith(("gas(median) ", "max_memory must", "clients must"))
    for rank in (0, 1, 3):
        assert errors[rank] == f"ValueError: process 2: {text}"
    assert_same("median", found[f"after {name}"], ROWS["usual"])


def test_a_full_disk_is_an_error_in_all_processes_and_leaves_nothing(found):
    errors = [each["error"] for each in found["full disk"]]
    assert "No space left on device; what was there stays" in errors[0]
    assert all(each.startswith("ValueError: process 0: ") for each in errors[1:])
    assert list(found["folder"].glob("*full*")) == []


def test_files_are_shared_and_the_first_process_writes(found):
    folder = found["folder"]
    options = {"rule": "gas(multi-krum)", "num_byzantine": 2, "seed": 1}
    wanted = ov.aggregate_files(folder / "updates", output=folder / "one.safetensors", **options)
    for each in found["files"]:
        assert (each["kept"], each["rejected"], each["is_there"]) == (wanted.kept, [], True)
    written = [(folder / f"{name}.safetensors").read_bytes() for name in ("one", "out")]
    assert written[0] == written[1]
    for each in found["no folder"]:
        assert "there is no folder" in each["error"]


def test_a_file_that_one_process_cannot_read_is_rejected_in_all(found):
    folder = found["folder"]
    paths = [folder / "updates" / f"{k}.safetensors" for k in (0, 1, 2, 4, 5, 6)]
    one = ov.aggregate_files(paths, rule="gas(multi-krum)", num_byzantine=1, seed=1)
    for each in found["one cannot read"]:
        assert (each["rejected"], each["kept"]) == (["3"], one.kept)
        np.testing.assert_allclose(np.delete(each["scores"], 3), one.scores, rtol=1e-6)
        assert each["is_there"]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_every_rule_has_the_verdict_of_one_process(tmp_path, part):
    left_out = ("fltrust", "foolsgold")
    texts = [text for text in EVERY_RULE if not text.startswith(left_out)][part::4]
    results = run(tmp_path, {text: case(text) for text in texts}, timeout=1200)
    assert None not in results, (tmp_path / "errors.txt").read_text()[-2000:]
    for text in texts:
        assert_same(text, [each[text] for each in results], ROWS["usual"])


def assert_ended(folder, results, who, seconds):
    assert results[who] is None
    lost_at = float((folder / "lost-at.txt").read_text())
    for rank in {0, 1, 2, 3} - {who}:
        error = results[rank]["lost"]["error"]
        assert error.startswith(f"ProcessLost: process {rank} of 4 lost another one")
        assert "\n" not in error
        assert results[rank]["lost"]["time"] - lost_at < seconds
    assert not (folder / "out.safetensors").exists()
    if who != 0:  # A killed writer leaves its temporary file.
        assert list(folder.glob("*.safetensors*")) == []


def lost(**more):
    options = {"options": {"num_byzantine": 2}, "rule": "gas(multi-krum)"}
    return {"output": "out.safetensors", "how": "signal", **options, **more}


def test_a_killed_process_ends_the_others_and_nothing_is_written(tmp_path):
    write_updates(tmp_path)
    cases = {"lost": lost(who=1, signal="SIGKILL", after=14, timeout=300)}
    results = run(tmp_path, cases)
    assert_ended(tmp_path, results, 1, seconds=60)  # At once: nobody waits for the time limit.


@pytest.mark.slow
# Opening, agreeing, adding up norms and groups, the last piece of the update.
@pytest.mark.parametrize("after", [1, 7, 9, 10, 13])
@pytest.mark.parametrize(("who", "how"), [(0, "SIGKILL"), (3, "SIGKILL"), (2, "SIGSTOP")])
def test_whenever_a_process_is_lost_the_others_end_in_time(tmp_path, who, how, after):
    write_updates(tmp_path)
    cases = {"lost": lost(who=who, signal=how, after=after, timeout=SECONDS)}
    assert_ended(tmp_path, run(tmp_path, cases), who, seconds=3 * SECONDS)


def test_without_processes_there_is_no_sharded_rule():
    with pytest.raises(ValueError, match="init_process_group"):
        ShardedRule("median")
