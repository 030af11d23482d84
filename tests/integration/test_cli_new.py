"""`outvote new`: the project is made, runs, and passes its own tests."""

import pytest

import outvote as ov
from command_line import run

FILES = [
    "README.md",
    "my_attack.py",
    "my_data.py",
    "my_model.py",
    "my_rule.py",
    "outvote.toml",
    "pytest.ini",
    "tests/test_rule.py",
]


@pytest.fixture
def project(tmp_path, capsys):
    folder = tmp_path / "inside" / "my-project"
    assert run(capsys, "new", folder).code == 0
    return folder


def test_a_project_is_made_and_the_next_commands_are_printed(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "new", tmp_path / "empty"):
        done = run(capsys, "new", folder)
        assert done.code == 0, done.err
        found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))
        assert found == FILES
        assert f"  cd {folder}\n  outvote run outvote.toml --allow-code\n  pytest\n" in done.out
    answer = run(capsys, "new", tmp_path / "other", "--json").json
    assert answer == {"path": str(tmp_path / "other"), "files": FILES}


def test_it_runs(project, tmp_path, capsys):
    words = ("run", project / "outvote.toml", "-o", tmp_path / "runs", "--device", "cpu")
    done = run(capsys, *words, "--set", "rounds=2")
    assert done.code == 0, done.err
    runs = ov.read_runs(tmp_path / "runs")
    assert {run.status.outcome for run in runs} == {"finished"}
    assert len(runs) == 6
    assert {each.path for run in runs for each in run.environment.code} >= {
        "my_data.py",
        "my_model.py",
        "my_rule.py",
    }


@pytest.mark.slow
def test_it_learns_as_it_is(project, tmp_path, capsys):
    done = run(capsys, "run", project / "outvote.toml", "-o", tmp_path / "runs")
    assert done.code == 0, done.err
    assert min(run.best for run in ov.read_runs(tmp_path / "runs")) > 0.4


def test_what_is_there_is_not_touched(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    run(capsys, "new", tmp_path).assert_fails(2, "must be a new or an empty folder", "has files")
    run(capsys, "new", tmp_path / "mine.txt").assert_fails(2, "got the file")
    run(capsys, "new", tmp_path / "mine.txt" / "new").assert_fails(1, "could not be written")
    run(capsys, "new").assert_fails(2, "Missing argument 'DIR'")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
