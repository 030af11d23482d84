"""Damaged files for every reader: each must be read, or refused in one clear line.

python tools/fuzz_readers.py --inputs 100000 --minutes 10 -o FILE.json
python tools/fuzz_readers.py --only idx:1234 -o FILE.json    one input again, with its traceback

Inputs are made of sound files by seeded changes (damaged_copies.py). They are read in processes of
limited memory, with a limit of time for each. A finding is any other exception than a one-line
error of the library, a read that takes too long, one beyond the memory, or the end of the process.
Findings are counted by reader, kind and place; each is kept with the number of its first input.
"""

import argparse
import gzip
import json
import mmap
import multiprocessing
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import outvote
from audit_logs import line, write_log
from damaged_copies import damaged
from data_files import (
    archive,
    batches,
    cifar_entry,
    entry_of,
    md5,
    mnist_entry,
    small_cifar,
    small_mnist,
    write_png,
    write_webp,
)
from kept_result import new_call, save_result
from made_results import made_results, write_store
from outvote.data.faults import DamagedDataError, MissingDataError
from outvote.files.client_files import FilesError
from outvote.files.safetensors_file import UnusableFile
from outvote.results.disk import StoreError
from sample_files import small_flights, small_kjv

PACKAGE = str(Path(outvote.__file__).parent)
CHUNK = 250
"""Inputs of one process."""
SETTINGS = """
rule = ["mean", "gas(bucketing(multi-krum(num_selected=3), size=2), num_groups=10)"]
attack = ["lie(z=1.5)", "none"]
seed = [0, 1]
rounds = 4
data = { name = "fashion-mnist-small", partition = "dirichlet", beta = 0.5 }
federation = { num_clients = 10, sampled = 5, byzantine = 0.2 }
training = { num_steps = 2, batch_size = 16, learning_rate = 0.1, schedule = [[2, 0.05]] }
model.name = "mlp"
"""
SUITE = """
title = "Tiny"
[settings]
rounds = 3
attack = ["lie", "none"]
model.name = "mlp"
[[part]]
name = "main"
columns = "attack"
kind = "table"
[part.settings]
rule = ["mean", "gas(median)"]
"""


@dataclass(frozen=True, slots=True)
class Reader:
    """How sound files are made, and how one of them is read after it was damaged."""

    make: Callable[[Path], list[Path]]
    """Fills a folder; returns the files that are damaged in turn."""
    read: Callable[[Path, Path], object]
    """Of the folder and the damaged file."""
    clear: tuple[type[Exception], ...] = (StoreError,)
    """The library's own errors; each must be raised in its source, as one line."""


class TooLong(BaseException):
    """A read takes too long; no reader may catch it."""


def main(words: list[str] | None = None) -> int:
    """Read damaged files until enough were read, or the time is over; 1 if there are findings."""
    words = sys.argv[1:] if words is None else words
    options = parse(words)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        os.environ["OUTVOTE_DATA"] = str(Path(folder) / "cache")
        if options.only:
            name, _, number = options.only.partition(":")
            return show(Fuzz(name, Path(folder), options), int(number))
        return run(options, Path(folder), words)


def parse(words: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--readers", nargs="+", choices=list(READERS), default=list(READERS))
    parser.add_argument("--seconds", type=float, default=5, help="of one input")
    parser.add_argument("--megabytes", type=int, default=1000, help="beyond those of the start")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", metavar="READER:NUMBER", help="show one input")
    parser.add_argument("-o", "--output", type=Path, required=True)
    return parser.parse_args(words)


def run(options: argparse.Namespace, folder: Path, words: list[str]) -> int:
    """Damage files of all readers in turn, the one that had the least time first."""
    result = new_call("tools/fuzz_readers.py", words)
    result |= {"seed": options.seed, "inputs": 0, "readers": {}, "findings": {}}
    last = time.monotonic() + 60 * options.minutes
    fuzzes = {
        name: Fuzz(name, folder / name.replace(" ", "-"), options) for name in options.readers
    }
    zero = {"inputs": 0, "read": 0, "refused": 0, "findings": 0, "seconds": 0}
    counts = result["readers"] = {name: dict(zero) for name in fuzzes}
    while result["inputs"] < options.inputs and time.monotonic() < last:
        name = min(fuzzes, key=lambda each: counts[each]["seconds"])
        begun = time.monotonic()
        most = min(CHUNK, options.inputs - result["inputs"])
        found = fuzzes[name].chunk(counts[name]["inputs"], most)
        result["inputs"] += add(result, name, found, time.monotonic() - begun)
        save_result(options.output, result)
    sys.stdout.write(summary(result))
    return int(bool(result["findings"]))


def add(result: dict[str, Any], name: str, found: dict[str, Any], seconds: float) -> int:
    """Add what a chunk found; return how many inputs it had."""
    count = result["readers"][name]
    for key in ("read", "refused"):
        count[key] += found[key]
    done = found["read"] + found["refused"] + len(found["findings"])
    count["findings"] += len(found["findings"])
    count["inputs"] += done
    count["seconds"] = round(count["seconds"] + seconds, 2)
    count["peak_megabytes"] = max(count.get("peak_megabytes", 0), found["peak_megabytes"])
    for each in found["findings"]:
        about = each | {"reader": name, "count": 0}
        known = result["findings"].setdefault(f"{name}: {each['what']} in {each['where']}", about)
        known["count"] += 1
    return done


def summary(result: dict[str, Any]) -> str:
    """Return one line for each reader and finding."""
    rows = [
        f"{name:16} {each['inputs']:9,} inputs, {each['read']:8,} read, "
        f"{each['refused']:9,} refused, {each['findings']:5,} findings, "
        f"at most {each.get('peak_megabytes', 0):,} MB\n"
        for name, each in result["readers"].items()
    ]
    rows += [
        f"{key}: {each['count']} times, first {each['reader']}:{each['number']}: {each['text']}\n"
        for key, each in result["findings"].items()
    ]
    kinds = len(result["findings"])
    return "".join([*rows, f"{result['inputs']:,} inputs, {kinds} kinds of findings\n"])


class Fuzz:
    """One reader and its sound files."""

    def __init__(self, name: str, folder: Path, options: argparse.Namespace) -> None:
        self.name, self.folder, self.options = name, folder, options
        self.reader = READERS[name]
        folder.mkdir(parents=True, exist_ok=True)
        self.paths = self.reader.make(folder)
        self.contents = tuple(path.read_bytes() for path in self.paths)
        for path in self.paths:
            self.reader.read(folder, path)  # A reader that refuses sound files would prove nothing.

    def damaged(self, number: int) -> tuple[int, bytes]:
        """Return which file an input damages, and its content."""
        chance = random.Random(f"{self.options.seed}/{self.name}/{number}")
        which = chance.randrange(len(self.paths))
        return which, damaged(self.contents[which], chance, self.contents)

    def chunk(self, start: int, number: int) -> dict[str, Any]:
        """Read some inputs in a process of its own; if it ends or hangs, that is a finding."""
        progress = mmap.mmap(-1, 8)
        progress[:] = struct.pack("q", start)
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=self._work, args=(sender, progress, start, number))
        process.start()
        sender.close()
        found = self._wait(receiver, process, progress)
        process.join()
        if found is not None:
            return found
        (bad,) = struct.unpack("q", progress[:])
        # The inputs before the one that ended the process are read again, then it is counted.
        before = self.chunk(start, bad - start) if bad > start else dict(NOTHING, findings=[])
        what = f"process ended ({process.exitcode})"
        finding = {"what": what, "where": "process", "text": "", "number": bad}
        return before | {"findings": [*before["findings"], finding]}

    def _wait(
        self, receiver: Connection, process: Any, progress: mmap.mmap
    ) -> dict[str, Any] | None:
        """Return what a process found; None if it ended, or was ended because it hung."""
        seen, since = b"", time.monotonic()
        while not receiver.poll(0.5):
            if progress[:] != seen:
                seen, since = progress[:], time.monotonic()
            if not process.is_alive() and not receiver.poll(0):
                return None
            if time.monotonic() - since > 4 * self.options.seconds + 10:
                process.kill()
                return None
        try:
            return dict(receiver.recv())
        except EOFError:
            return None

    def _work(self, sender: Connection, progress: mmap.mmap, start: int, number: int) -> None:
        warnings.simplefilter("ignore")
        limit_memory(self.options.megabytes)
        signal.signal(signal.SIGALRM, _raise_too_long)
        found: dict[str, Any] = dict(NOTHING, findings=[])
        for each in range(start, start + number):
            progress[:] = struct.pack("q", each)
            finding = self.one(each)
            if isinstance(finding, str):
                found[finding] += 1
            else:
                found["findings"].append(finding)
        found["peak_megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        sender.send(found)
        sender.close()
        os._exit(0)  # Threads and caches of a limited process need no clean end.

    def one(self, number: int) -> str | dict[str, Any]:
        """Read one input: "read", "refused", or a finding."""
        which, content = self.damaged(number)
        path = self.paths[which]
        path.write_bytes(content)
        signal.setitimer(signal.ITIMER_REAL, self.options.seconds)
        try:
            self.reader.read(self.folder, path)
        except (Exception, TooLong) as error:  # noqa: BLE001  (that is what it is looking for)
            signal.setitimer(signal.ITIMER_REAL, 0)
            what = fault(error, self.reader.clear)
            if not what:
                return "refused"
            text = str(error).replace(f"{self.folder}/", "").partition("\n")[0][:300]
            return {"what": what, "where": place(error), "text": text, "number": number}
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            path.write_bytes(self.contents[which])
        return "read"


NOTHING = {"read": 0, "refused": 0, "findings": [], "peak_megabytes": 0}
LONGEST_MESSAGE = 2000


def fault(error: BaseException, clear: tuple[type[Exception], ...]) -> str:
    """Return what is wrong with an error; "" if it is a clear line of the library."""
    kind = type(error).__name__
    if not isinstance(error, clear) or not frames(error)[-1].filename.startswith(PACKAGE):
        return kind
    text = str(error)
    if not text.strip():
        return f"{kind} without a text"
    if len(text.splitlines()) > 1:
        return f"{kind} of several lines"
    return f"{kind} that is too long" if len(text) > LONGEST_MESSAGE else ""


def place(error: BaseException) -> str:
    """Return the function of the library where an error came from."""
    own = [each for each in frames(error) if each.filename.startswith(PACKAGE)]
    if not own:
        return "outside"
    return f"{Path(own[-1].filename).relative_to(PACKAGE).as_posix()}:{own[-1].name}"


def frames(error: BaseException) -> Any:
    """Return the frames of a traceback, the innermost last."""
    return traceback.extract_tb(error.__traceback__)


def limit_memory(megabytes: int) -> None:
    """Let this process have so much more address space than now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + megabytes * 1_000_000
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def show(fuzz: Fuzz, number: int) -> int:
    """Read one input here, and let its error be seen."""
    which, content = fuzz.damaged(number)
    limit_memory(fuzz.options.megabytes)
    fuzz.paths[which].write_bytes(content)
    sys.stdout.write(f"{fuzz.paths[which].name}: {content[:2000]!r}\n")
    fuzz.reader.read(fuzz.folder, fuzz.paths[which])
    return 0


def _raise_too_long(*_about: object) -> None:
    raise TooLong


def _write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def _settings(folder: Path) -> list[Path]:
    return [_write(folder / "settings.toml", SETTINGS), _write(folder / "suite.toml", SUITE)]


def _read_settings(_folder: Path, path: Path) -> None:
    from outvote.experiment.plan import plan_suite, read_plan
    from outvote.suites.suite import read_suite

    if path.name == "suite.toml":
        plan_suite(read_suite(str(path)))
    else:
        read_plan(path)


TINY = {
    "rule": "gas(median)",
    "attack": "lie",
    "rounds": 3,
    "federation": {"num_clients": 6, "sampled": 4, "byzantine": 1},
}


def _exports(folder: Path) -> list[Path]:
    from outvote.results.export import to_export

    results = made_results(TINY, seeds=1)
    packed = _write(folder / "export.csv.gz", to_export(results))
    return [packed, _write(folder / "export.csv", to_export(results, is_packed=False))]


def _read_runs(path: Path) -> outvote.Runs:
    """Read runs, and show them: numbers that cannot be shown should not be read."""
    found = outvote.read_runs(path)
    str(found.summary())
    return found


def _runs(*names: str) -> Callable[[Path], list[Path]]:
    """Return what writes the run of a store, and lists some of its files."""

    def make(folder: Path) -> list[Path]:
        write_store(folder / "runs", TINY, seeds=1)
        (run,) = (folder / "runs" / "own").iterdir()
        return [run / name for name in names]

    return make


def _read_run(folder: Path, path: Path) -> None:
    from outvote.report.audit import audit_run, client_summaries, findings
    from outvote.results.check import check_run
    from outvote.results.folder import RunFolder

    found = check_run(RunFolder(path.parent), deep=True)
    for text in found.texts():
        if len(text.splitlines()) != 1 or len(text) > LONGEST_MESSAGE:
            raise AssertionError(f"a fault of {len(text)} characters: {text[:100]!r}")
    for each in _read_runs(folder / "runs"):
        audit = audit_run(each)
        if audit is not None:
            findings(audit, client_summaries(audit))


def _logs(*names: str) -> Callable[[Path], list[Path]]:
    def make(folder: Path) -> list[Path]:
        from outvote.results.audit_log import ClientRecord

        def client(number: int, round_: int) -> ClientRecord:
            score = 0.5 + number + round_
            about = {"norm": 1.0 + number, "cosine": 0.5 - number, "distance": 1.0}
            return ClientRecord(client=f"node-{number}", score=score, kept=number < 3, **about)

        rounds = [line(k, *(client(number, k) for number in range(4))) for k in range(1, 5)]
        write_log(folder / "log", rounds, num_byzantine=1, settings={"exclude_after": 3})
        return [folder / "log" / name for name in names]

    return make


def _read_log(folder: Path, _path: Path) -> None:
    from outvote.flower.settings import resumed_settings
    from outvote.report.audit import audit_log, client_summaries, findings

    audit = audit_log(folder / "log")
    if audit is not None:
        findings(audit, client_summaries(audit))
    resumed_settings(folder / "log", {})


def _safetensors(folder: Path) -> list[Path]:
    from update_files import fill, updates_of

    fill(folder, updates_of(3))
    return sorted(folder.glob("*.safetensors"))[:1]


def _read_safetensors(folder: Path, path: Path) -> None:
    from outvote.files.safetensors_file import read_header

    outvote.aggregate_files(folder, rule="median", num_byzantine=0)
    read_header(path)


def _checkpoint(folder: Path) -> list[Path]:
    from outvote.results.checkpoint import NEWEST, Checkpoint

    arrays = {"model": np.arange(6, dtype=np.float32), "seen": np.ones((2, 2), dtype=np.int64)}
    one = Checkpoint(
        round=3, config="abc", arrays=arrays, notes={"metrics": "a", "more": [1, None]}
    )
    return [_write(folder / NEWEST, one.to_bytes())]


def _read_checkpoint(_folder: Path, path: Path) -> None:
    from outvote.results.checkpoint import read_checkpoint

    read_checkpoint(path)


def _npz(folder: Path) -> list[Path]:
    from outvote.results.audit_log import to_npz

    arrays = {"images": np.arange(24, dtype=np.uint8).reshape(2, 3, 4), "labels": np.arange(2)}
    return [_write(folder / "some.npz", to_npz(arrays))]


def _read_npz(_folder: Path, path: Path) -> None:
    from outvote.data.checksum import read_npz

    read_npz(path, ["images", "labels"], "get it again")


def _idx(folder: Path) -> list[Path]:
    return [_write(folder / name, content) for name, content in small_mnist().items()]


def _read_idx(folder: Path, _path: Path) -> None:
    """Read idx files; the checksums are those of the damaged files, so that they are decoded."""
    from outvote.data.loader import load_entry
    from outvote.data.mnist import DIGITS, idx_form

    sums = {path.name: md5(path.read_bytes()) for path in folder.iterdir()}
    load_entry(entry_of((idx_form(sums, DIGITS),), shape=(28, 28, 1)), folder)


def _idx_gzip(folder: Path) -> list[Path]:
    return [
        _write(folder / f"{name}.gz", gzip.compress(content, mtime=0))
        for name, content in small_mnist().items()
    ]


def _read_idx_gzip(folder: Path, _path: Path) -> None:
    from outvote.data.loader import load_entry

    load_entry(_mnist(), folder)


@cache
def _mnist() -> Any:
    return mnist_entry(small_mnist())


def _cifar(folder: Path) -> list[Path]:
    images, labels, facts = small_cifar()
    return [
        _write(folder / facts.folder / name, content) for name, content in batches(images, labels)
    ]


@cache
def _cifar_facts() -> Any:
    return small_cifar()[2]


def _cifar_archive(folder: Path) -> list[Path]:
    images, labels, facts = small_cifar()
    unpacked = gzip.decompress(archive(images, labels))
    return [_write(folder / facts.archive, gzip.compress(unpacked, mtime=0))]


def _cifar_mosaics(folder: Path) -> list[Path]:
    images, labels, _ = small_cifar()
    for part, write in (("png", write_png), ("webp", write_webp)):
        (folder / part).mkdir()
        write(folder / part, images, labels)
    return sorted(path for path in folder.glob("*/*"))


def _read_cifar(_folder: Path, path: Path) -> None:
    from outvote.data.loader import load_entry

    load_entry(cifar_entry(_cifar_facts()), path.parent)


def _leaf(folder: Path) -> list[Path]:
    users = {}
    for name, number in (("f01", 3), ("f02", 2)):
        pixels = np.zeros((number, 784))
        pixels[:, :: 2 + number] = 0.5
        users[name] = {"x": pixels.tolist(), "y": list(range(number))}
    content = {"users": list(users), "num_samples": [3, 2], "user_data": users}
    return [_write(folder / "all_data_0.json", json.dumps(content))]


def _read_leaf(folder: Path, _path: Path) -> None:
    from outvote.data.femnist import read_leaf

    read_leaf(folder)


FORMATS = ("png", "jpeg", "gif", "bmp", "webp", "tiff", "ppm", "tga", "ico", "pcx", "jpeg2000")
"""Formats of Pillow; it takes a file for what it looks like, whatever its name."""


def _images(folder: Path) -> list[Path]:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    for kind in FORMATS:
        _write(folder / "train" / "cat" / kind, b"")
        with suppress(OSError, KeyError):  # A build of Pillow may lack a format.
            Image.fromarray(pixels).save(folder / "train" / "cat" / kind, format=kind)
    for path in folder.glob("train/cat/*"):
        if not path.stat().st_size:
            path.unlink()
    for part in ("train/dog", "val/cat", "val/dog"):
        (folder / part).mkdir(parents=True)
        Image.fromarray(pixels).save(folder / part / "one.png")
    return sorted(folder.glob("train/cat/*"))


def _read_image(_folder: Path, path: Path) -> None:
    from outvote.data.image_files import read_square

    read_square(path, 8)


def _image_folder(folder: Path) -> list[Path]:
    paths = _images(folder)
    for path in paths[2:]:
        path.unlink()
    return paths[:2]


def _read_image_folder(folder: Path, _path: Path) -> None:
    from outvote.data.image_folder import read_image_folder

    read_image_folder(folder, size=8)


def _flights(folder: Path) -> list[Path]:
    small_flights(folder)
    path = folder / "flights.csv.zip"
    with zipfile.ZipFile(path) as opened:
        content = opened.read("flights.csv")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr(zipfile.ZipInfo("flights.csv"), content)  # Without the time of now.
    return [path]


def _kjv(folder: Path) -> list[Path]:
    small_kjv(folder)
    return [folder / "bible.data"]


def _read_entry(make: Callable[[Path], Any]) -> Callable[[Path, Path], None]:
    """Return what reads a folder by the entry that `make` returns; its files are made once."""
    with tempfile.TemporaryDirectory() as aside:
        entry = make(Path(aside))

    def read(folder: Path, _path: Path) -> None:
        from outvote.data.loader import load_entry

        load_entry(entry, folder)

    return read


def _index(folder: Path) -> list[Path]:
    from outvote.results.index import NAME, list_runs

    write_store(folder / "runs", TINY, seeds=1)
    list_runs(folder / "runs", str)
    return [folder / "runs" / NAME]


def _read_index(folder: Path, _path: Path) -> None:
    """List the runs of a store with a damaged index: a fault is a warning, the runs stay known."""
    from outvote.results.index import list_runs

    faults: list[str] = []
    found = list_runs(folder / "runs", faults.append)
    if len(found) != 1 or any(len(text.splitlines()) != 1 for text in faults):
        raise AssertionError(f"{len(found)} of 1 runs, warnings {faults}")


OF_DATA = (DamagedDataError, MissingDataError)
READERS = {
    "settings": Reader(_settings, _read_settings, (ValueError,)),
    "exports": Reader(_exports, lambda _, path: _read_runs(path)),
    "metrics": Reader(_runs("metrics.jsonl", "timings.jsonl"), _read_run),
    "status": Reader(_runs("status.json", "env.json", "config.toml"), _read_run),
    "audit.npz": Reader(_runs("audit.npz"), _read_run),
    "index": Reader(_index, _read_index),
    "audit log": Reader(_logs("audit.jsonl"), _read_log),
    "manifest": Reader(_logs("manifest.json"), _read_log, (StoreError, ValueError)),
    "checkpoint": Reader(_checkpoint, _read_checkpoint),
    "safetensors": Reader(_safetensors, _read_safetensors, (UnusableFile, FilesError, ValueError)),
    "npz": Reader(_npz, _read_npz, OF_DATA),
    "idx": Reader(_idx, _read_idx, (*OF_DATA, ValueError)),
    "idx gzip": Reader(_idx_gzip, _read_idx_gzip, OF_DATA),
    "cifar": Reader(_cifar, _read_cifar, OF_DATA),
    "cifar archive": Reader(_cifar_archive, _read_cifar, OF_DATA),
    "cifar mosaics": Reader(_cifar_mosaics, _read_cifar, OF_DATA),
    "leaf": Reader(_leaf, _read_leaf, OF_DATA),
    "images": Reader(_images, _read_image, OF_DATA),
    "image folder": Reader(_image_folder, _read_image_folder, OF_DATA),
    "flights": Reader(_flights, _read_entry(small_flights), OF_DATA),
    "kjv": Reader(_kjv, _read_entry(small_kjv), OF_DATA),
}


if __name__ == "__main__":
    sys.exit(main())
