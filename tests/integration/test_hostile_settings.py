"""Settings and paths from elsewhere: one line, exit code 2, nothing outside the store."""

import errno
from pathlib import Path
from time import monotonic

import pytest

from command_line import run
from made_results import write_store

CONFIG = """
attack = "lie"
rounds = 1
data.partition = "iid"
federation = { num_clients = 10, sampled = 5 }
model.name = "mlp"
training = { num_steps = 1, batch_size = 16 }
"""
TWO = {"rule": ["mean", "median"], "attack": "lie", "rounds": 2}
DEEP = "gas(" * 5000 + "mean" + ")" * 5000


def written(folder, text, name="hostile.toml"):
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "name",
    ["..", ".", "", ".hidden", "a/b", "a\\\\b", "a\\nb", "a\\u0000b", "a\\u001bb", "x" * 300],
)
def test_a_suite_is_the_name_of_a_folder_in_the_store(capsys, tmp_path, name):
    config = written(tmp_path, f'suite = "{name}"\nrule = "mean"\n{CONFIG}')
    store = tmp_path / "out" / "runs"
    done = run(capsys, "run", config, "--device", "cpu", "-o", store)
    done.assert_fails(2, "suite must be the name of a folder")
    assert len(done.err) < 500
    assert not store.parent.exists()


@pytest.mark.parametrize("verb", ["run", "bench", "show", "stress"])
def test_thousands_of_parentheses_are_one_line(capsys, tmp_path, verb):
    if verb == "run":
        words = [written(tmp_path, f'rule = "{DEEP}"\n{CONFIG}')]
    elif verb == "bench":
        words = [written(tmp_path, f'[settings]\nrule = "{DEEP}"\n{CONFIG}\n[[part]]\n')]
    else:
        words = [DEEP] if verb == "show" else ["--rule", DEEP]
    done = run(capsys, verb, *words)
    done.assert_fails(2, "parentheses inside each other")
    assert len(done.err) < 1000


def test_a_stored_run_with_thousands_of_parentheses_is_named(capsys, tmp_path):
    first, _ = write_store(tmp_path, TWO, seeds=1)
    path = first.folder.path / "config.toml"
    path.write_text(path.read_text().replace('rule = "mean"', f'rule = "{DEEP}"'))
    done = run(capsys, "table", tmp_path)
    assert done.code == 0
    assert f"{path} is damaged: its rule has too many parentheses" in done.err


def test_a_grid_without_end_is_refused_at_once(capsys, tmp_path):
    seeds = list(range(300_000))
    config = written(tmp_path, f'seed = {seeds}\nrule = "mean"\n{CONFIG}')
    suite = written(tmp_path, f'[settings]\nrule = "mean"\n{CONFIG}\n[[part]]\n', "suite.toml")
    start = monotonic()
    run(capsys, "run", config).assert_fails(2, "300,000 runs, at most 20,000")
    done = run(capsys, "bench", suite, "--seeds", 300_000, "--dry-run")
    done.assert_fails(2, "300,000 runs, at most 20,000")
    # A minute and more without the limit.
    assert monotonic() - start < 20


@pytest.mark.parametrize("verb", ["report", "export", "plot"])
def test_an_output_that_cannot_be_written_is_one_line(capsys, tmp_path, verb):
    write_store(tmp_path / "runs", TWO, seeds=1)
    suffix = {"report": ".html", "export": ".csv.gz", "plot": ".png"}[verb]
    (tmp_path / "file").write_text("")
    (tmp_path / f"folder{suffix}").mkdir()
    for place in (f"file/out{suffix}", f"missing/out{suffix}", f"folder{suffix}"):
        done = run(capsys, verb, tmp_path / "runs", "-o", tmp_path / place)
        done.assert_fails(2)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_read_only_folder_is_one_line(capsys, tmp_path, monkeypatch, number):
    write_store(tmp_path / "runs", TWO, seeds=1)
    usual = Path.open

    def refused(path, mode="r", *args, **named):
        if "x" in mode:
            raise OSError(number, "refused")
        return usual(path, mode, *args, **named)

    monkeypatch.setattr(Path, "open", refused)
    done = run(capsys, "report", tmp_path / "runs", "-o", tmp_path / "report.html")
    done.assert_fails(2, "report.html could not be written", "choose another path")


@pytest.mark.parametrize("name", ["status.json", "metrics.jsonl", "config.toml", "env.json"])
def test_a_folder_in_the_place_of_a_file_is_named(capsys, tmp_path, name):
    first, _ = write_store(tmp_path / "runs", TWO, seeds=1)
    path = first.folder.path / name
    path.unlink()
    path.mkdir()
    done = run(capsys, "table", tmp_path / "runs")
    assert done.code == 0
    assert str(path) in done.err
    assert done.err.count("\n") == 1


def test_a_file_in_the_place_of_the_suites_folder_is_one_line(capsys, tmp_path):
    config = written(tmp_path, f'rule = "mean"\n{CONFIG}')
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "hostile").write_text("")
    done = run(capsys, "run", config, "--device", "cpu", "-o", tmp_path / "runs")
    done.assert_fails(2, "could not be written")
