"""The King James Bible: characters, and the book that they are from.

The task: which character comes next?
"""

import hashlib
import re
import string
import struct
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outvote.data.array_dataset import ArrayDataset
from outvote.data.checksum import check_sum
from outvote.data.dataset_entry import DatasetEntry, Form, Package, has_all
from outvote.data.faults import fetch_again
from outvote.data.lzw import decode_lzw

Tokens = NDArray[np.int64]
FILE = "bible.data"
TEXT_SHA256 = "e53aaf0af1e58f259e35d0d9f7ca1bbe154fd77bb95471279b37b34d3c397a98"
CHARACTERS = "\n !'(),-.:;?" + string.ascii_uppercase.replace("X", "") + string.ascii_lowercase
"""All characters of the text; the number of a token is its index. There is no capital X."""
LENGTH = 64
TRAIN_SHARE = 0.9
SPLIT_SEED = 0
MAGIC = b"EC02"
HEADER = 84
"""Bytes before the numbers: the magic number and a comment."""
LZW_HEADER = b"\x1f\x9d\x90"
VERSE = re.compile(r"(\d?[A-Za-z]+)(\d+):(\d+) (.*)")


class Chapter(NamedTuple):
    """A chapter of a book, its verses separated by newlines."""

    book: str
    text: str


def read_kjv(folder: Path, *, sha256: str = TEXT_SHA256) -> ArrayDataset:
    """Read the file of Debian's package bible-kjv-text; the group of a sample is its book.

    A sample is 64 characters of a chapter, its targets are the same characters one later; the rest
    of a chapter is left out. Of every book 9 of 10 chapters, drawn at random with a fixed seed,
    are for training, at least one.
    """
    path = folder / FILE
    content = decode_text(path.read_bytes(), str(path))
    check_sum(f"the text in {path}", sha256, hashlib.sha256(content).hexdigest())
    chapters = read_chapters(content.decode("latin-1"), str(path))
    names = tuple(dict.fromkeys(chapter.book for chapter in chapters))
    is_train = _split([names.index(chapter.book) for chapter in chapters])
    parts = [
        _samples(
            [each for each, is_one in zip(chapters, is_train, strict=True) if is_one == wanted]
        )
        for wanted in (True, False)
    ]
    (train, train_books), (test, test_books) = parts
    return ArrayDataset(
        name="kjv",
        train_inputs=(train[:, :-1],),
        train_targets=train[:, 1:],
        test_inputs=(test[:, :-1],),
        test_targets=test[:, 1:],
        num_classes=len(CHARACTERS),
        source=str(folder),
        train_groups=np.array([names.index(book) for book in train_books], dtype=np.int64),
        test_groups=np.array([names.index(book) for book in test_books], dtype=np.int64),
        class_names=tuple(CHARACTERS),
        group_names=names,
    )


def decode_text(content: bytes, what: str) -> bytes:
    """Decode the package's own format.

    After the magic number and a comment there are big-endian numbers of 4 bytes: the size of a
    window of the text, the number of windows, where each begins and where the last ends. Every
    window is compressed for itself as by Unix `compress`, whose header is stored once, before the
    first of them.
    """
    try:
        if content[: len(MAGIC)] != MAGIC:
            raise fetch_again(f"{what} does not begin with {MAGIC.decode()}")
        size, num_windows = struct.unpack_from(">II", content, HEADER)
        starts = struct.unpack_from(f">{num_windows + 1}I", content, HEADER + 8)
    except struct.error as error:
        raise fetch_again(f"{what} is too short: {error}") from error
    is_whole = list(starts) == sorted(starts) and starts[-1] == len(content)
    if not is_whole or content[starts[0] - 3 : starts[0]] != LZW_HEADER:
        raise fetch_again(f"{what} has {len(content)} bytes and announces windows at {starts[:3]}")
    windows = [decode_lzw(content[start:end], what) for start, end in pairwise(starts)]
    if any(len(window) != size for window in windows[:-1]):
        raise fetch_again(f"{what} has windows that do not hold {size} bytes")
    return b"".join(windows)


def read_chapters(text: str, what: str) -> list[Chapter]:
    """Read lines such as "Ge1:1 In the beginning ..." after the title; references are left out."""
    verses: dict[tuple[str, str], list[str]] = {}
    for line in text.splitlines()[1:]:
        found = VERSE.fullmatch(line)
        if found is None:
            raise fetch_again(f"{what} has a line that is no verse: {line[:40]!r}")
        book, chapter, _, words = found.groups()
        if unknown := set(words) - set(CHARACTERS):
            raise fetch_again(f"{what} has the unknown character {min(unknown)!r}")
        verses.setdefault((book, chapter), []).append(words + "\n")
    return [Chapter(book, "".join(lines)) for (book, _), lines in verses.items()]


def _split(books: list[int]) -> NDArray[np.bool_]:
    """Return which chapters are for training."""
    is_train = np.zeros(len(books), dtype=bool)
    random = np.random.default_rng(SPLIT_SEED)
    for book in dict.fromkeys(books):
        own = np.flatnonzero(np.array(books) == book)
        num_train = max(1, int(TRAIN_SHARE * len(own)))
        is_train[random.permutation(own)[:num_train]] = True
    return is_train


def _samples(chapters: list[Chapter]) -> tuple[Tokens, list[str]]:
    """Return ``[samples, 65]`` token ids, and the book of every sample."""
    number = np.zeros(256, dtype=np.int64)
    number[np.frombuffer(CHARACTERS.encode(), dtype=np.uint8)] = np.arange(len(CHARACTERS))
    samples, books = [np.empty((0, LENGTH + 1), dtype=np.int64)], []
    for chapter in chapters:
        tokens = number[np.frombuffer(chapter.text.encode(), dtype=np.uint8)]
        if len(tokens) > LENGTH:
            windows = np.lib.stride_tricks.sliding_window_view(tokens, LENGTH + 1)[::LENGTH]
            samples.append(windows)
            books += [chapter.book] * len(windows)
    return np.concatenate(samples), books


KJV_ENTRY = DatasetEntry(
    name="kjv",
    doc="the King James Bible, the next of 64 characters, by book",
    num_train=55_882,
    num_test=8_185,
    shape=(LENGTH,),
    num_classes=len(CHARACTERS),
    samples="samples",
    groups="books",
    checks="sha256 of the text",
    forms=(
        Form(doc=f"the file of bible-kjv-text ({FILE})", is_there=has_all(FILE), read=read_kjv),
    ),
    sources=(
        Package(
            client="apt-get",
            name="bible-kjv-text",
            members=(f"usr/lib/{FILE}",),
            num_bytes=2_445_000,
        ),
    ),
)
