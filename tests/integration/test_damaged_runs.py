"""A damaged run is named by every reader, and `run` repairs it or runs it again."""

import json
import os
import shutil
import warnings
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import pytest

from command_line import run
from damage import DAMAGE, OF_CHECKPOINT
from outvote.cli import main
from outvote.errors import OutvoteWarning
from outvote.report.runs import read_runs
from outvote.results.disk import StoreError

CONFIG = """
rule = ["mean", "median"]
attack = "lie"
rounds = 4
data.partition = "iid"
federation = { num_clients = 10, sampled = 5 }
model.name = "mlp"
training = { num_steps = 2, batch_size = 16 }
"""


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A file of settings, and the store of its two finished runs; not to be written to."""
    folder = tmp_path_factory.mktemp("sound")
    (folder / "tiny.toml").write_text(CONFIG)
    command = ["run", str(folder / "tiny.toml"), "--device", "cpu", "-o", str(folder / "runs")]
    assert main(command) == 0
    return folder


def damaged(sound, tmp_path, kind, *, without_weights=False):
    """A copy of the store whose first run is damaged; return the store and the folder."""
    store = tmp_path / "runs"
    shutil.copytree(sound / "runs", store)
    first, second = sorted(path for path in (store / "tiny").iterdir())
    if without_weights:
        (first / "checkpoint.safetensors").unlink()
    (DAMAGE | OF_CHECKPOINT)[kind](first, second)
    return store, first


def words_of_run(sound, store):
    return ["run", str(sound / "tiny.toml"), "--device", "cpu", "-o", str(store), "--json"]


def execute(capsys, sound, store):
    return run(capsys, *words_of_run(sound, store))


@pytest.fixture(scope="module")
def shown(sound):
    """What `run` prints of the sound store: no complaint, and the numbers of its runs."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        assert main(words_of_run(sound, sound / "runs")) == 0
    assert err.getvalue() == ""
    return compared(json.loads(out.getvalue()))


def compared(entries):
    keys = ("rule", "outcome", "best", "final", "last_ten", "kept_byzantine")
    return [{key: each[key] for key in keys} for each in entries]


def numbers(store):
    """What tables print of each run, by its name."""
    return {each.name: (each.best, each.final, len(each.series)) for each in read_runs(store)}


WITHOUT_WEIGHTS = (
    *("metrics: half of the lines", "metrics: another number", "config: gone", "env: gone"),
    *("audit: one bit", "timings: gone", "status: gone"),
)


@pytest.mark.parametrize(
    ("kind", "without_weights"),
    [
        pytest.param(kind, without_weights, marks=[pytest.mark.slow] * (number % 3 > 0))
        for without_weights, kinds in ((False, DAMAGE), (True, WITHOUT_WEIGHTS))
        for number, kind in enumerate(kinds)
    ],
)
def test_run_repairs_a_damaged_run_or_runs_it_again(
    capsys, sound, shown, tmp_path, kind, without_weights
):
    store, folder = damaged(sound, tmp_path, kind, without_weights=without_weights)
    done = execute(capsys, sound, store)
    assert done.code == 0
    assert folder.name in done.err
    assert compared(done.json) == shown
    same = sound / "runs" / "tiny" / folder.name
    assert (folder / "metrics.jsonl").read_bytes() == (same / "metrics.jsonl").read_bytes()
    assert run(capsys, "verify", store).code == 0


@pytest.mark.parametrize("kind", DAMAGE)
def test_readers_name_a_damaged_run_and_never_show_other_numbers(sound, tmp_path, kind):
    store, folder = damaged(sound, tmp_path, kind)
    known = numbers(sound / "runs")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = numbers(store)
    assert any(str(folder) in str(each.message) for each in caught)
    assert found.items() <= known.items()
    assert len(found) >= 1


@pytest.mark.parametrize("kind", [*DAMAGE, *OF_CHECKPOINT])
def test_verify_names_every_damage(capsys, sound, tmp_path, kind):
    store, folder = damaged(sound, tmp_path, kind)
    found = run(capsys, "verify", store, "--json")
    assert found.code == 1
    entries = {each["name"]: each for each in found.json["runs"]}
    assert len(entries) == 2
    assert [name for name, each in entries.items() if each["faults"]] == [folder.name]
    plain = run(capsys, "verify", store)
    assert plain.code == 1
    assert folder.name in plain.out
    assert "1 of 2 runs is damaged" in plain.err


def test_verify_of_a_sound_store_is_fine(capsys, sound):
    found = run(capsys, "verify", sound / "runs")
    assert (found.code, found.err) == (0, "")
    assert "2 runs" in found.out
    found = run(capsys, "verify", sound / "runs", "--json").json
    assert [each["outcome"] for each in found["runs"]] == ["finished", "finished"]
    assert not any(each["faults"] for each in found["runs"])


def test_list_runs_names_a_damaged_run(capsys, sound, tmp_path):
    store, folder = damaged(sound, tmp_path, "audit: one bit")
    for _ in range(2):  # The second time from the index.
        found = run(capsys, "list", "runs", "--store", store)
        assert found.code == 0
        assert str(folder) in found.err


def test_a_flipped_number_of_a_half_done_run_is_found_when_it_resumes(capsys, sound, tmp_path):
    store, folder = damaged(sound, tmp_path, "metrics: another number")
    status = json.loads((folder / "status.json").read_text())
    status |= {"outcome": "running", "sums": None}
    (folder / "status.json").write_text(json.dumps(status))
    done = execute(capsys, sound, store)
    assert "metrics.jsonl" in done.err
    assert numbers(store) == numbers(sound / "runs")


@pytest.mark.parametrize("name", ["audit.npz", "config.toml", "timings.jsonl", "metrics.jsonl"])
def test_a_folder_in_the_place_of_a_file_is_named_and_the_run_stays_finished(
    capsys, sound, tmp_path, name
):
    store = tmp_path / "runs"
    shutil.copytree(sound / "runs", store)
    folder = min((store / "tiny").iterdir())
    (folder / name).unlink()
    (folder / name).mkdir()
    status = (folder / "status.json").read_bytes()
    words = ("run", sound / "tiny.toml", "--device", "cpu", "-o", store)
    done = run(capsys, *words)
    assert done.code == 2
    assert f"{name} could not be written: Is a directory" in done.err
    assert (folder / "status.json").read_bytes() == status
    (folder / name).rmdir()
    assert run(capsys, *words).code == 0
    assert numbers(store) == numbers(sound / "runs")
    assert run(capsys, "verify", store).code == 0


def test_a_copy_of_hard_links_does_not_change_with_the_store(capsys, sound, tmp_path):
    store, copy = tmp_path / "runs", tmp_path / "copy"
    shutil.copytree(sound / "runs", store)
    shutil.copytree(store, copy, copy_function=os.link)
    folder = min((store / "tiny").iterdir())
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").unlink()
    status |= {"outcome": "running", "round": 2, "sums": None}
    (folder / "status.json").write_text(json.dumps(status))
    (folder / "checkpoint.safetensors").unlink()
    assert execute(capsys, sound, store).code == 0
    assert run(capsys, "verify", copy).code == 0
    assert not (folder / "metrics.jsonl").samefile(copy / "tiny" / folder.name / "metrics.jsonl")


def test_a_store_without_a_sound_run_is_named_as_such(capsys, sound, tmp_path):
    store = tmp_path / "runs"
    shutil.copytree(sound / "runs", store)
    for folder in (store / "tiny").iterdir():
        DAMAGE["metrics: half of the lines"](folder, folder)
    found = run(capsys, "table", store)
    assert found.code == 2
    assert f"all runs in {store} are damaged" in found.err
    with (
        pytest.warns(OutvoteWarning, match="2 can be read"),
        pytest.raises(StoreError, match="all runs in"),
    ):
        read_runs(store)
