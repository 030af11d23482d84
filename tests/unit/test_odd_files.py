"""Stores of strangers: pipes, devices, huge files and paths that lead elsewhere end no reader."""

import os
import shutil
import signal

import pytest

from command_line import run
from made_results import write_store
from outvote.results import disk
from outvote.results.check import check_run
from outvote.results.checkpoint import NEWEST
from outvote.results.disk import DamagedFileError, StoreError, read_json
from outvote.results.folder import RunFolder, status_bytes

TINY = {"rule": "mean", "attack": "none", "rounds": 2, "federation": {"num_clients": 5}}
NAMES = ("status.json", "config.toml", "env.json", "metrics.jsonl", "audit.npz", "timings.jsonl")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A store of one finished run; not to be written to."""
    folder = tmp_path_factory.mktemp("sound")
    write_store(folder, TINY, seeds=1)
    return folder


@pytest.fixture
def store(sound, tmp_path):
    """A store of one run, and its folder."""
    shutil.copytree(sound, tmp_path / "runs")
    (path,) = (tmp_path / "runs").glob("*/*/status.json")
    return tmp_path / "runs", path.parent


@pytest.fixture(autouse=True)
def _no_hang():
    """A read that blocks fails after some seconds."""
    before = signal.signal(signal.SIGALRM, _stop)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _stop(*_):
    raise AssertionError("it hangs")


def faults(folder):
    return check_run(RunFolder(folder), deep=True).texts()


@pytest.mark.parametrize("name", [*NAMES, NEWEST, ".lock"])
def test_a_pipe_in_a_run_blocks_no_reader(store, name, capsys):
    root, folder = store
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    if name == ".lock":
        assert disk.is_locked(folder) is None
    elif name not in ("timings.jsonl", "audit.npz"):  # These runs have no checksums.
        assert any(name in text and "no regular file" in text for text in faults(folder))
        found = run(capsys, "verify", root)
        assert found.code == 1
        assert "1 of 1 run is damaged" in found.err
    for verb in ("table", "report", "list"):
        words = ["list", "runs", root] if verb == "list" else [verb, root]
        words += ["-o", root.parent / "report.html"] if verb == "report" else []
        assert run(capsys, *words).code in (0, 1, 2)


@pytest.mark.parametrize("name", ["status.json", "config.toml", "env.json", "metrics.jsonl"])
def test_a_link_to_a_device_without_an_end_is_refused(store, name):
    _, folder = store
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")
    assert any(name in text and "no regular file" in text for text in faults(folder))


@pytest.mark.parametrize("name", ["status.json", "config.toml", "env.json"])
def test_a_sparse_file_of_terabytes_is_not_read(store, name):
    _, folder = store
    os.truncate(folder / name, 1 << 40)
    assert any(name in text and "more than 100,000,000 bytes" in text for text in faults(folder))


def test_checksums_of_files_elsewhere_are_damage(store):
    _, folder = store
    status = RunFolder(folder).status()
    for file in ("/dev/zero", "../../../other", ".lock"):
        changed = status.with_sums(folder.name[-12:], {file: "0" * 32})
        (folder / "status.json").write_bytes(status_bytes(changed))
        (text,) = faults(folder)
        assert text.endswith(f"status.json is damaged: it has the checksum of {file}")


def test_a_folder_where_a_file_should_be_is_named_as_one(tmp_path):
    (tmp_path / "status.json").mkdir()
    with pytest.raises(DamagedFileError, match="Is a directory"):
        read_json(tmp_path / "status.json", dict)
    with pytest.raises(StoreError):
        read_json(tmp_path / "status.json", dict)
