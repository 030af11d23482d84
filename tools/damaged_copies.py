"""Damaged copies of files: changed bytes, numbers, words, JSON, and inside of archives."""

import gzip
import io
import json
import random
import re
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

Chance = random.Random
Mutator = Callable[[bytes, Chance], bytes]
NUMBERS = (
    *("0", "-1", "1", "255", "256", "2147483648", "4294967296", "9223372036854775808", "-0.0"),
    *("1e308", "1e999", "-1e999", "5e-324", "nan", "inf", "NaN", "Infinity", "0x10", "1_0", "00"),
    *("9" * 40, "9" * 5000, "0." + "1" * 400, "true", "null", "none", '""', "[]", "{}", "'a'"),
)
WORDS = (
    *(b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\\ud800", b"\\u0000", b"\n", b"\r\n", b'"', b"'"),
    *(
        b"[" * 3000,
        b"{" * 300,
        b"(" * 3000,
        b'{"a":' * 2000,
        b"gas(" * 60,
        b"..",
        b"/",
        b"%s",
        b"#",
    ),
    *(b"x" * 5000, b"\xe2\x80\xae", b"=", b",", b":", b"]", b"}", b")", b"nan", b"../../x"),
)
VALUES = (
    *(None, True, -1, 0, 1, 1.5, -1e308, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, 10**4000),
    *("", "x", "x" * 3000, "\0", "\n", "\ud800", "nan", "1", [], [None], [[]] * 3, {}, {"": 0}),
    *(float("nan"), float("inf"), "é\u202e"),
)
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
MOST_CHANGES = 4
EXTREME = (b"\x00" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\x01\x00\x00\x00")


def damaged(content: bytes, chance: Chance, others: tuple[bytes, ...] = ()) -> bytes:
    """Return a damaged copy: one to four changes, of bytes or of what they stand for.

    >>> damaged(b"rounds = 4", random.Random(1)) != b"rounds = 4"
    True
    """
    for _ in range(chance.randint(1, MOST_CHANGES)):
        if others and chance.random() < 0.05:
            content = _splice(content, chance.choice(others), chance)
        else:
            content = chance.choice(_ways(content))(content, chance)
    return content


def _ways(content: bytes) -> tuple[Mutator, ...]:
    """Return the ways that suit a kind of file; bytes can always be changed."""
    if content[:2] == b"\x1f\x8b":
        return (*BYTES, *(_inside_gzip,) * len(BYTES))
    if content[:4] == b"PK\x03\x04":
        return (*BYTES, *(_inside_zip,) * len(BYTES))
    if content[8:10] == b'{"':
        return (*BYTES, *(_header,) * len(BYTES))
    start = content.lstrip()[:1]
    if start and start in b"{[":
        return (*BYTES, *TEXT, *(_json,) * len(BYTES))
    return (*BYTES, *TEXT)


def _flip(content: bytes, chance: Chance) -> bytes:
    changed = bytearray(content or b"\0")
    for _ in range(chance.choice((1, 1, 1, 3, 20))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _cut(content: bytes, chance: Chance) -> bytes:
    return content[: chance.randint(0, len(content))]


def _remove(content: bytes, chance: Chance) -> bytes:
    start, length = _slice(content, chance)
    return content[:start] + content[start + length :]


def _double(content: bytes, chance: Chance) -> bytes:
    start, length = _slice(content, chance)
    return content[: start + length] + content[start:]


def _overwrite(content: bytes, chance: Chance) -> bytes:
    start = chance.randint(0, len(content))
    if chance.random() < 0.5:
        start = min(start, chance.randint(0, 64))  # Headers are at the start.
    put = chance.choice((*EXTREME, chance.randbytes(chance.choice((1, 2, 4, 8)))))
    return content[:start] + put + content[start + len(put) :]


def _insert(content: bytes, chance: Chance) -> bytes:
    start = chance.randint(0, len(content))
    put = chance.choice((*WORDS, chance.randbytes(chance.randint(1, 32))))
    return content[:start] + put + content[start:]


def _number(content: bytes, chance: Chance) -> bytes:
    found = list(NUMBER.finditer(content[:20_000]))
    if not found:
        return _insert(content, chance)
    where = chance.choice(found)
    return content[: where.start()] + chance.choice(NUMBERS).encode() + content[where.end() :]


def _swap(content: bytes, chance: Chance) -> bytes:
    """Swap two lines, or two words."""
    mark = b"\n" if content.count(b"\n") > 1 and chance.random() < 0.5 else b" "
    parts = content.split(mark)
    first, second = (chance.randrange(len(parts)) for _ in range(2))
    parts[first], parts[second] = parts[second], parts[first]
    return mark.join(parts)


def _json(content: bytes, chance: Chance) -> bytes:
    """Replace a value of one line, or of all, by another."""
    lines = content.split(b"\n") if content.count(b"}\n") > 1 else [content]
    which = chance.randrange(len(lines))
    try:
        value = json.loads(lines[which])
        lines[which] = json.dumps(_other(value, chance)).encode()
    except (ValueError, RecursionError):
        return _number(content, chance)
    return b"\n".join(lines)


def _other(value: Any, chance: Chance) -> Any:
    """Return a copy of a JSON value with one value inside it changed, or a key."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        if chance.random() < 0.15:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: _other(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        where = chance.randrange(len(value))
        return [*value[:where], _other(value[where], chance), *value[where + 1 :]]
    around = ([value] * 2, {"a": value}, str(value)[:100])
    return chance.choice((*VALUES, *around))


def _header(content: bytes, chance: Chance) -> bytes:
    """Change the JSON header of a safetensors file; its length fits."""
    size = int.from_bytes(content[:8], "little")
    header = chance.choice((_json, _number, *TEXT))(content[8 : 8 + size], chance)
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def _inside_gzip(content: bytes, chance: Chance) -> bytes:
    try:
        inside = gzip.decompress(content)
    except (OSError, EOFError, zlib.error):
        return _flip(content, chance)
    return gzip.compress(chance.choice(_ways(inside))(inside, chance), 1, mtime=0)


def _inside_zip(content: bytes, chance: Chance) -> bytes:
    """Change one member, its name, or leave it out."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {each.filename: archive.read(each) for each in archive.infolist()}
    except (OSError, EOFError, ValueError, RuntimeError, zlib.error, zipfile.BadZipFile):
        return _flip(content, chance)
    if not members:
        return _flip(content, chance)
    name = chance.choice(list(members))
    inside = members.pop(name)
    kind = chance.random()
    if kind < 0.9:
        members[name] = chance.choice((*_ways(inside), _overwrite, _number))(inside, chance)
    elif kind < 0.95:
        members[name + "x"] = inside
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for each, text in members.items():
            archive.writestr(zipfile.ZipInfo(each), text)
    return target.getvalue()


def _splice(content: bytes, other: bytes, chance: Chance) -> bytes:
    return content[: chance.randint(0, len(content))] + other[chance.randint(0, len(other)) :]


def _slice(content: bytes, chance: Chance) -> tuple[int, int]:
    start = chance.randint(0, len(content))
    return start, min(chance.choice((1, 2, 4, 16, 200, 5000)), len(content) - start)


BYTES: tuple[Mutator, ...] = (_flip, _cut, _remove, _double, _overwrite, _insert)
TEXT: tuple[Mutator, ...] = (_number, _number, _swap, _insert)
