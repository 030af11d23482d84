"""Files of untrusted clients: found, named, read or refused with a reason; and written whole."""

import contextlib
import json
import os
import stat
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save, save_file

from outvote.files.client_files import client_ids, find_files
from outvote.files.safetensors_file import UnusableFile, read_header
from outvote.files.sources import SafetensorsSource, open_source
from outvote.results import disk
from outvote.results.disk import StoreError
from update_files import write_tensors

GOOD = save({"w": torch.arange(6.0).view(2, 3), "n": torch.tensor(4)})


def with_header(header, data=b""):
    """A file with the given header: a dict, or bytes that need not be JSON."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


BAD_HEADERS = {
    "zero bytes": (b"", "is empty"),
    "seven bytes": (b"1234567", "not a safetensors file"),
    "text": (b"hello, this is not a model", "not a safetensors file"),
    "endless header": (b"\xff" * 8 + b"{}", "not a safetensors file"),
    "header beyond the end": ((10_000).to_bytes(8, "little") + b"{}", "cut off"),
    "header is not JSON": (with_header(b"{nonsense"), "not JSON"),
    "header is not UTF-8": (with_header(b'{"\xff": 1}'), "not JSON"),
    "header nests without end": (with_header(b'{"a":' * 100_000), "not JSON"),
    "header is a list": (with_header(b"[1]"), "not a JSON object"),
    "no tensors": (with_header({}), "holds no tensors"),
    "metadata alone": (with_header({"__metadata__": {"a": "b"}}), "holds no tensors"),
    "tensor is a number": (with_header({"w": 5}, b"12345678"), "no shape for 'w'"),
    "shape is text": (with_header({"w": tensor() | {"shape": "2"}}, b"12345678"), "no shape"),
    "negative shape": (with_header({"w": tensor(shape=(-2,))}, b"12345678"), "no shape"),
    "fractional shape": (with_header({"w": tensor(shape=(2.0,))}, b"12345678"), "no shape"),
    "true as a shape": (with_header({"w": tensor(shape=(True,))}, b"1234"), "no shape"),
    "shape without end": (with_header({"w": tensor(shape=(2**62,) * 65)}), "no shape"),
    "shape beyond the data": (with_header({"w": tensor(shape=(10**15,))}, b"12345678"), "cut off"),
    "data cut off": (GOOD[:-1], "cut off"),
    "data too long": (GOOD + b"x", "bytes too many"),
    "4-bit floats": (with_header({"w": tensor("F4", offsets=(0, 1))}, b"1"), "'F4'"),
    "unknown type": (with_header({"w": tensor("FLOAT")}, b"12345678"), "'FLOAT'"),
    "name is no text": (with_header(b'{"\\ud800":%s}' % json.dumps(tensor()).encode()), "no text"),
    "no type": (with_header({"w": {"shape": [2]}}, b"12345678"), "None"),
    "offsets overlap": (with_header({"v": tensor(), "w": tensor()}, b"0" * 16), "wrong offsets"),
    "offsets are text": (
        with_header({"w": tensor() | {"data_offsets": "0-8"}}, b"12345678"),
        "no offsets for 'w'",
    ),
    "offsets beyond the end": (with_header({"w": tensor(offsets=(8, 16))}, b"12345678"), "offsets"),
    "too long for torch": (with_header({"w": tensor(shape=(2**63 - 1, 2**62, 0))}), "the shape of"),
    "metadata of numbers": (
        with_header({"__metadata__": {"a": 1}, "w": tensor()}, b"12345678"),
        "metadata is not text",
    ),
}


@pytest.mark.parametrize("case", BAD_HEADERS)
def test_a_false_file_is_refused_by_its_header(tmp_path, case):
    data, reason = BAD_HEADERS[case]
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    with pytest.raises(UnusableFile, match=reason):
        read_header(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(at=st.integers(0, len(GOOD) - 1), byte=st.integers(0, 255), cut=st.integers(0, len(GOOD)))
def test_no_damage_to_a_file_raises_anything_but_its_reason(tmp_path, at, byte, cut):
    path = tmp_path / "a.safetensors"
    path.write_bytes((GOOD[:at] + bytes([byte]) + GOOD[at + 1 :])[: cut or None])
    with contextlib.suppress(UnusableFile):
        source = open_source(path)
        source.read(0, torch.empty(source.size))


def test_what_is_not_a_regular_file_is_refused_without_waiting_for_it(tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "link.safetensors").symlink_to(tmp_path / "nowhere")
    for name, reason in (("pipe", "regular"), ("folder", "folder"), ("link", "cannot be read")):
        with pytest.raises(UnusableFile, match=reason):
            read_header(tmp_path / f"{name}.safetensors")


def test_a_file_that_changes_between_header_and_data_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(GOOD)
    source = SafetensorsSource(path)
    save_file({"w": torch.ones(2, 3)}, path)
    with pytest.raises(UnusableFile, match="changed while it was read"):
        source.read(0, torch.empty(2))


def test_tensors_come_in_the_order_of_their_names_and_not_of_the_file(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({"z": torch.ones(1), "a": torch.ones(1).half(), "k": torch.ones(1).double()}, path)
    assert [name for name, _ in open_source(path).entries] == ["a", "k", "z"]


def test_the_name_of_a_client_is_its_file_or_its_path_where_names_repeat():
    paths = [Path("x/a.safetensors"), Path("y/a.safetensors"), Path("y/b.safetensors")]
    assert client_ids(paths) == ["x/a.safetensors", "y/a.safetensors", "b"]
    paths = [Path(name) for name in ("a.safetensors", "x/a.safetensors", "a.safetensors.b")]
    assert client_ids(paths) == ["a.safetensors", "x/a.safetensors", "a.safetensors.b"]


def test_folders_patterns_and_files_are_found_once_each(tmp_path):
    for name in ("b.safetensors", "a.safetensors", ".hidden.safetensors", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "c.safetensors").mkdir()
    found = ["a.safetensors", "b.safetensors", "c.safetensors"]
    one = str(tmp_path / "a.safetensors")
    for words in ([str(tmp_path)], [f"{tmp_path}/*.safetensors"], [one, str(tmp_path), one]):
        assert [path.name for path in find_files(words)] == found


@pytest.mark.parametrize("word", ["none.safetensors", "*.safetensors", "folder"])
def test_naming_nothing_is_the_users_mistake(tmp_path, word):
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="check the path"):
        find_files([str(tmp_path / word)])


def test_a_new_file_obeys_the_umask_and_an_old_one_keeps_its_mode(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.touch()
    old.chmod(0o640)
    before = os.umask(0o027)
    try:
        for path in (old, new):
            write_tensors(path, {"w": torch.ones(2)})
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (old, new)] == [0o640, 0o640]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]


def test_a_write_that_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.zeros(3)}, path)

    def fail(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk.os, "fsync", fail)
    with pytest.raises(StoreError, match="No space left on device; what was there stays: free"):
        write_tensors(path, {"w": torch.ones(3)})
    assert load_file(path)["w"].tolist() == [0, 0, 0]
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_file_is_there_until_the_new_one_is_complete(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.zeros(3)}, path)
    seen = []
    monkeypatch.setattr(disk.os, "fsync", lambda _: seen.append(load_file(path)["w"].tolist()))
    write_tensors(path, {"w": torch.ones(3)})
    assert seen == [[0, 0, 0], [1, 1, 1]]


def test_a_model_is_written_to_a_pipe_or_link_and_does_not_replace_it(tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "real")
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    for path in (pipe, link):
        write_tensors(path, {"w": torch.ones(3)}, {"format": "pt"})
    reader.join(timeout=10)
    assert read == [(tmp_path / "real").read_bytes()]
    assert load_file(tmp_path / "real")["w"].tolist() == [1, 1, 1]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert link.is_symlink()
