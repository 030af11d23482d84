"""Small data in the forms of the real datasets, and a server that misbehaves on demand."""

import gzip
import hashlib
import io
import json
import pickle  # noqa: TID251  (CIFAR is published like that)
import struct
import tarfile
import threading
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from outvote.data.array_dataset import sha256_of
from outvote.data.cifar import Cifar, cifar_forms
from outvote.data.dataset_entry import DatasetEntry, Download, Form, RemoteFile, has_all
from outvote.data.mnist import FILES, read_idx

NUM = 4
"""Samples per batch of the small CIFAR."""


def small_cifar():
    """Samples and labels of six batches, and the facts to check them against."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (6 * NUM, 32, 32, 3), dtype=np.uint8)
    labels = random.integers(0, 10, 6 * NUM)
    facts = Cifar(
        folder="cifar-10-batches-py",
        archive="cifar-10-python.tar.gz",
        batches=(*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"),
        label_key="labels",
        mosaic_key="labels",
        class_names=tuple("abcdefghij"),
        images_sha256=sha256_of(images),
        labels_sha256=sha256_of(labels.astype(np.uint8)),
    )
    return images, labels, facts


def batches(images, labels):
    """The content of the six files of the official archive."""
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for index, name in enumerate(names):
        part = slice(index * NUM, (index + 1) * NUM)
        rows = images[part].transpose(0, 3, 1, 2).reshape(NUM, -1).copy()
        batch = {b"data": rows, b"labels": labels[part].tolist(), b"batch_label": b"some"}
        yield name, pickle.dumps(batch, protocol=2)


def archive(images, labels):
    """The bytes of the official archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as opened:
        for name, content in batches(images, labels):
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            opened.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def write_png(folder, images, labels):
    """The files of the npm package."""
    from PIL import Image

    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for index, name in enumerate(names):
        rows = images[index * NUM : (index + 1) * NUM].reshape(NUM, 1024, 3)
        Image.fromarray(rows).save(folder / f"{name}.png")
    (folder / "train_lables.json").write_text(json.dumps(labels[: 5 * NUM].tolist()))
    (folder / "test_lables.json").write_text(json.dumps(labels[5 * NUM :].tolist()))


def write_webp(folder, images, labels):
    """Mosaics of 2 x 2 images."""
    from PIL import Image

    for index in range(6):
        tiles = images[index * NUM : (index + 1) * NUM].reshape(2, 2, 32, 32, 3)
        mosaic = tiles.transpose(0, 2, 1, 3, 4).reshape(64, 64, 3)
        Image.fromarray(mosaic).save(folder / f"part{index}.webp", lossless=True)
    np.savez_compressed(folder / "labels.npz", labels=labels.astype(np.uint8))


def idx_bytes(array):
    """An idx file."""
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def small_mnist():
    """The content of four idx files."""
    random = np.random.default_rng(1)
    shapes = [(6, 28, 28), (6,), (4, 28, 28), (4,)]
    arrays = [random.integers(0, 10, shape, dtype=np.uint8) for shape in shapes]
    return {name: idx_bytes(array) for name, array in zip(FILES, arrays, strict=True)}


def md5(content):
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def entry_of(forms, *sources, shape=(32, 32, 3)):
    """An entry for data that is made up."""
    return DatasetEntry(
        name="made-up",
        doc="a test",
        num_train=None,
        num_test=None,
        shape=shape,
        num_classes=10,
        mean=(0.5,) * shape[-1],
        std=(0.5,) * shape[-1],
        pixels="any",
        checks="all",
        forms=forms,
        sources=sources,
    )


def cifar_entry(facts, *sources):
    return entry_of(cifar_forms(facts), *sources)


def mnist_entry(files, *sources):
    sums = {name: md5(content) for name, content in files.items()}
    read = partial(read_idx, md5=sums, class_names=tuple("0123456789"))
    form = Form(doc="idx", is_there=has_all(*(f"{name}.gz" for name in FILES)), read=read)
    return entry_of((form,), *sources, shape=(28, 28, 1))


def mnist_download(address, files):
    return Download(
        files=tuple(
            RemoteFile(url=f"{address}/{name}.gz", name=f"{name}.gz", md5=md5(c), is_inside=True)
            for name, c in files.items()
        ),
        num_bytes=1,
    )


def gzipped(files):
    """The files as a server has them."""
    return {f"/{name}.gz": gzip.compress(content) for name, content in files.items()}


class Server:
    """Serves bytes by path; can cut connections, ignore ranges, and remembers what was asked."""

    def __init__(self, files):
        self.files, self.asked = files, []
        self.num_cuts, self.cut_after = 0, 0
        self.takes_ranges = True
        self.status = 200

    def answer(self, request):
        self.asked.append((request.path, request.headers.get("Range")))
        content = self.files.get(request.path)
        if content is None or self.status != 200:
            request.send_error(404 if content is None else self.status)
            return
        start = 0
        if self.takes_ranges and (wanted := request.headers.get("Range")):
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if start >= len(content):
            request.send_error(416)
            return
        request.send_response(206 if start else 200)
        request.send_header("Content-Length", str(len(content) - start))
        request.end_headers()
        rest = content[start:]
        if self.num_cuts:
            self.num_cuts -= 1
            rest = rest[: self.cut_after]
        request.wfile.write(rest)
        request.close_connection = True


@contextmanager
def serving(files):
    """Serve files on this machine; yields the server and its address."""
    server = Server(files)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            server.answer(self)

        def log_message(self, *words):
            del words

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server, f"http://127.0.0.1:{listening.server_address[1]}"
        finally:
            listening.shutdown()
            thread.join()
