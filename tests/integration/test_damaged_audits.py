"""A damaged audit.npz: the report names the run and goes on."""

import io
import zipfile

import numpy as np
import pytest

from command_line import run
from made_results import write_store

TWO = {"rule": ["mean", "gas(median)"], "attack": "lie", "rounds": 3}


def _saved(**arrays) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _with_counts(counts):
    def damage(content: bytes) -> bytes:
        with np.load(io.BytesIO(content)) as arrays:
            return _saved(**{**arrays, "label_counts": counts})

    return damage


def _method(content: bytes) -> bytes:
    """Name a compression that nobody has, in the archive's directory and before each member."""
    changed = bytearray(content)
    for mark, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        at = changed.find(mark)
        while at >= 0:
            changed[at + place : at + place + 2] = (97).to_bytes(2, "little")
            at = changed.find(mark, at + 4)
    return bytes(changed)


def _encrypted(content: bytes) -> bytes:
    changed = bytearray(content)
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = changed.find(mark)
        while at >= 0:
            changed[at + place] |= 1
            at = changed.find(mark, at + 4)
    return bytes(changed)


def _header(text: str):
    """A label_counts.npy whose header promises something else than it holds."""

    def damage(content: bytes) -> bytes:
        del content
        body = text.encode().ljust(118, b" ") + b"\n"
        member = b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("label_counts.npy", member)
        return file.getvalue()

    return damage


KINDS = {
    "unknown compression": _method,
    "encrypted": _encrypted,
    "a shape beyond memory": _header(
        "{'descr': '<i8', 'fortran_order': False, 'shape': (1 << 20, 1000000000, ), }".replace(
            "1 << 20", "1048576"
        )
    ),
    "a shape that is no number": _header(
        "{'descr': '<i8', 'fortran_order': False, 'shape': ('a', 'b'), }"
    ),
    "counts that are text": _with_counts(np.array([["a", "b"]])),
    "counts below zero": _with_counts(np.array([[-1, 2]])),
    "counts that are not finite": _with_counts(np.array([[np.nan, np.inf]])),
    "one axis": _with_counts(np.arange(10)),
    "no counts": lambda content: _saved(round=np.arange(3)),
    "no archive": lambda content: b"not an archive",
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "pickled": _with_counts(np.array([[{"a": 1}]], dtype=object)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_audit_is_named_and_does_not_stop_the_report(capsys, tmp_path, kind):
    first, _ = write_store(tmp_path / "runs", TWO, seeds=1)
    path = first.folder.path / "audit.npz"
    path.write_bytes(KINDS[kind](path.read_bytes()))
    page = tmp_path / "report.html"
    done = run(capsys, "report", tmp_path / "runs", "-o", page)
    assert done.code == 0, done.err
    assert f"{path} is damaged" in done.err
    assert done.err.count("\n") == 1
    assert "2 runs" in done.out
    assert first.name in page.read_text()
