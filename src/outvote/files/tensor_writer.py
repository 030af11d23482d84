"""Writes a safetensors file in pieces, in any order; it appears whole or not at all."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, final

import torch
from torch import Tensor

from outvote.files.safetensors_file import DTYPES, Entry
from outvote.results.disk import replacing

NAMES = {dtype: name for name, dtype in DTYPES.items()}


@final
class TensorWriter:
    """An open file whose header is written."""

    def __init__(
        self, file: BinaryIO, entries: Mapping[str, Entry], metadata: Mapping[str, str]
    ) -> None:
        """Write the header: wide numbers first, so that all are aligned."""
        self.file, self.entries = file, entries
        self.offsets: dict[str, int] = {}
        header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
        end = 0
        for name in sorted(entries, key=lambda name: (-entries[name].dtype.itemsize, name)):
            entry = entries[name]
            start, end = end, end + entry.size * entry.dtype.itemsize
            self.offsets[name] = start
            about = {"dtype": NAMES[entry.dtype], "shape": list(entry.shape)}
            header[name] = about | {"data_offsets": [start, end]}
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        self.first = 8 + len(text)
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(self.first + end)

    def write(self, name: str, start: int, values: Tensor) -> None:
        """Write values of a tensor from the number `start` on, in its dtype."""
        itemsize = self.entries[name].dtype.itemsize
        self.file.seek(self.first + self.offsets[name] + start * itemsize)
        own = values.to(self.entries[name].dtype).contiguous().reshape(-1)
        self.file.write(own.view(torch.uint8).numpy().data)


@contextmanager
def writing(
    path: Path, entries: Mapping[str, Entry], metadata: Mapping[str, str]
) -> Iterator[TensorWriter]:
    """Write a file that replaces `path` at the end; a failure is a StoreError."""
    with replacing(path, stays="what was there stays") as file:
        yield TensorWriter(file, entries, metadata)
