"""Files are replaced whole, and nothing but files is replaced."""

import os
import stat
import threading

import pytest

from outvote.results.disk import StoreError, write_whole


def test_a_file_is_replaced_and_no_temporary_file_is_left(tmp_path):
    (tmp_path / "a").write_text("old")
    write_whole(tmp_path / "a", b"new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "new")]


def test_a_link_stays_and_leads_to_the_new_content(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    real, link = tmp_path / "elsewhere" / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_whole(pipe, b"new")
    reader.join(timeout=10)
    assert read == [b"new"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_folder_is_not_replaced(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(StoreError, match="could not be written: Is a directory; it stays"):
        write_whole(tmp_path / "a", b"new", stays="it stays")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
