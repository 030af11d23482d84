"""The systems and Pythons that the package names are those that it works on."""

import sys
import tomllib
from pathlib import Path

import pytest

from outvote.cli import app
from outvote.results import disk
from outvote.results.folder import RunFolder, Writer

ROOT = Path(__file__).parents[2]


def test_only_posix_systems_are_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    systems = [each for each in project["classifiers"] if each.startswith("Operating System")]
    assert systems == ["Operating System :: POSIX"]


def test_this_python_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"Programming Language :: Python :: {here}" in project["classifiers"]


def test_another_system_is_named_in_one_line_at_start(capsys, monkeypatch):
    monkeypatch.setattr(app, "IS_POSIX", False)
    assert app.main(["--version"]) == 0
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "POSIX" in err
    assert "WSL" in err


def test_nothing_is_stored_where_nothing_can_be_locked(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "fcntl", None)
    with pytest.raises(disk.StoreError, match="cannot be locked on this system"):
        Writer(RunFolder(tmp_path / "run"), b"", "c")
    assert disk.is_locked(tmp_path) is None
