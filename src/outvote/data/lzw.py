"""The compression of Unix `compress`: LZW with codes of 9 to 16 bits."""

from outvote.data.faults import fetch_again

FIRST_WIDTH = 9
LAST_WIDTH = 16
CLEAR = 256
"""The code that starts the table anew."""


def decode_lzw(content: bytes, what: str) -> bytes:
    """Decode codes in "block mode", without the header of three bytes.

    >>> decode_lzw(bytes([97, 196, 4, 4]), "an example")
    b'abab'
    """
    known = [bytes([value]) for value in range(256)]
    table, decoded = [*known, b""], bytearray()
    width, before = FIRST_WIDTH, b""
    at = start = 0  # In bits; codes of this width begin at `start`.
    while at + width <= 8 * len(content):
        three = int.from_bytes(content[at >> 3 : (at >> 3) + 3], "little")
        code = three >> (at & 7) & ((1 << width) - 1)
        at += width
        if code == CLEAR:
            at = start = _group_end(at, start, width)
            table, width, before = [*known, b""], FIRST_WIDTH, b""
            continue
        if code > len(table) or (code == len(table) and not before):
            raise fetch_again(f"{what} is damaged: code {code} before it is defined")
        entry = table[code] if code < len(table) else before + before[:1]
        decoded += entry
        if before and len(table) < 1 << LAST_WIDTH:
            table.append(before + entry[:1])
        before = entry
        if len(table) >= 1 << width and width < LAST_WIDTH:
            at = start = _group_end(at, start, width)
            width += 1
    return bytes(decoded)


def _group_end(at: int, start: int, width: int) -> int:
    """Return where codes of another width begin: codes are written in groups of eight."""
    return at + (start - at) % (8 * width)
