"""Readers: every form gives the same arrays, and a wrong file is refused by name."""

import gzip
import json
import os
import pickle  # noqa: TID251  (CIFAR is published like that)

import numpy as np
import pytest

from data_files import (
    archive,
    batches,
    cifar_entry,
    gzipped,
    idx_bytes,
    mnist_entry,
    small_cifar,
    small_mnist,
    write_png,
    write_webp,
)
from outvote.data import femnist
from outvote.data.array_dataset import image_dataset
from outvote.data.faults import DamagedDataError, MissingDataError
from outvote.data.femnist import SUBSET, SUBSET_KEYS, has_leaf, read_leaf, read_subset
from outvote.data.loader import load_entry
from outvote.data.mnist import decode_idx, idx_form
from outvote.data.python_batch import KNOWN, read_batch

IMAGES, LABELS, FACTS = small_cifar()


def write_batches(folder, images, labels):
    (folder / FACTS.folder).mkdir()
    for name, content in batches(images, labels):
        (folder / FACTS.folder / name).write_bytes(content)


def write_bare_batches(folder, images, labels):
    for name, content in batches(images, labels):
        (folder / name).write_bytes(content)


def write_archive(folder, images, labels):
    (folder / FACTS.archive).write_bytes(archive(images, labels))


WRITERS = [write_batches, write_bare_batches, write_archive, write_png, write_webp]


@pytest.mark.parametrize("write", WRITERS)
def test_every_form_of_cifar_gives_the_same_arrays(tmp_path, write):
    write(tmp_path, IMAGES, LABELS)
    dataset = load_entry(cifar_entry(FACTS), tmp_path)
    assert np.array_equal(dataset.train_images, IMAGES[:20])
    assert np.array_equal(dataset.test_images, IMAGES[20:])
    assert np.array_equal(dataset.train_labels, LABELS[:20])
    assert np.array_equal(dataset.test_labels, LABELS[20:])
    assert dataset.train_labels.dtype == np.int64
    assert dataset.train_images.flags.writeable, "torch warns about arrays that are not"
    assert dataset.test_images.flags.writeable
    assert str(tmp_path) in dataset.source


@pytest.mark.parametrize("write", WRITERS)
def test_one_changed_pixel_or_label_is_noticed(tmp_path, write):
    images, labels = IMAGES.copy(), LABELS.copy()
    images[7, 3, 2, 1] ^= 1
    write(tmp_path, images, labels)
    with pytest.raises(DamagedDataError, match=f"{FACTS.images_sha256} expected, got"):
        load_entry(cifar_entry(FACTS), tmp_path)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.unlink()
    labels[-1] ^= 1
    if (tmp_path / FACTS.folder).exists():
        (tmp_path / FACTS.folder).rmdir()
    write(tmp_path, IMAGES, labels)
    with pytest.raises(DamagedDataError, match=f"labels.*{FACTS.labels_sha256} expected, got"):
        load_entry(cifar_entry(FACTS), tmp_path)


@pytest.mark.parametrize("write", WRITERS)
def test_a_cut_file_is_named(tmp_path, write):
    write(tmp_path, IMAGES, LABELS)
    path = min(path for path in tmp_path.rglob("*") if path.is_file())
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DamagedDataError, match=path.name):
        load_entry(cifar_entry(FACTS), tmp_path)


class Malicious:
    """Runs a command when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"echo owned > '{self.path}'",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_malicious_pickle_is_refused(tmp_path, protocol):
    content = pickle.dumps({b"data": Malicious(tmp_path / "owned")}, protocol=protocol)
    with pytest.raises(DamagedDataError, match=r"asks for (posix|nt)\.system"):
        read_batch(content, "some batch")
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no pickle",
        b"cbuiltins\neval\n(S'1+1'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\n_reconstruct\n(tRN.",
        b"cnumpy\nndarray\n(tR(I1\n(I2\ntcnumpy\ndtype\n(S'O8'\ntRI00\nS'xx'\ntb.",
        b"cnumpy\nndarray\n(tR(I1\n(I9\ntcnumpy\ndtype\n(S'u1'\ntRI00\nS'xx'\ntb.",
        b"cnumpy\nndarray\n(tR(I1\n(I-2\ntcnumpy\ndtype\n(S'u1'\ntRI00\nS'xx'\ntb.",
        b"cnumpy\nndarray\n(tRI5\nb.",
        b"cnumpy.core.multiarray\n_reconstruct.__globals__\n.",
        b"\x80\x04\x8c\x1cnumpy.core.multiarray\x8c\x18_reconstruct.__globals__\x93.",
        b"Pelsewhere\n.",
        b"c_codecs\nencode\n(S'abc'\nS'zlib'\ntR.",
        b"]q\x01.",
        b"\x80\x09.",
        b"r\xff\xff\xff\xff.",
    ],
)
def test_a_strange_pickle_is_refused_in_one_way(content):
    with pytest.raises(DamagedDataError, match="some batch is no batch of CIFAR"):
        read_batch(content, "some batch")


@pytest.mark.parametrize("name", KNOWN)
def test_a_pickle_cannot_change_what_it_is_read_with(name):
    module, _, function = name.rpartition(".")
    before = KNOWN[name].__doc__
    content = f"c{module}\n{function}\n(N(V__doc__\nVowned\ndtb.".encode()
    with pytest.raises(DamagedDataError):
        read_batch(content, "some batch")
    assert KNOWN[name].__doc__ == before


def test_a_batch_as_python_2_wrote_it_is_read():
    """Protocol 2 with byte strings, as in the official files."""
    content = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\n"
        b"q\x04K\x00\x85U\x01b\x87Rq\x05(K\x01K\x01K\x03\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01"
        b"\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x03abctb"
        b"U\x06labelsq\x08]q\tK\x06au."
    )
    batch = read_batch(content, "some batch")
    assert batch["labels"] == [6]
    assert batch["data"].tolist() == [[97, 98, 99]]


@pytest.mark.parametrize("is_plain", [True, False])
def test_idx_files_are_read_plain_or_as_gzip(tmp_path, is_plain):
    files = small_mnist()
    for (name, content), packed in zip(files.items(), gzipped(files).values(), strict=True):
        (tmp_path / (name if is_plain else f"{name}.gz")).write_bytes(
            content if is_plain else packed
        )
    form = mnist_entry(files).forms[0]
    arrays = form.read(tmp_path)
    assert arrays.train_images.shape == (6, 28, 28, 1)
    assert arrays.test_labels.shape == (4,)
    path = next(path for path in tmp_path.iterdir() if "t10k-labels" in path.name)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DamagedDataError, match=path.name):
        form.read(tmp_path)
    assert idx_form({}, ()).is_there(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"abc",
        b"\0\0\x0d\1\0\0\0\1x",
        idx_bytes(np.zeros((2, 2), np.uint8))[:-1],
        b"\0\0\x08\3\0",
    ],
)
def test_what_is_no_idx_file_is_refused(content):
    with pytest.raises(DamagedDataError, match="some file"):
        decode_idx(content, "some file")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("OUTVOTE_DATA", str(tmp_path_factory.mktemp("cache")))


def leaf_json(users):
    return {
        "users": list(users),
        "num_samples": [len(labels) for _, labels in users.values()],
        "user_data": {user: {"x": x.tolist(), "y": y} for user, (x, y) in users.items()},
    }


def leaf_user(num, seed):
    random = np.random.default_rng(seed)
    return random.random((num, 784)), random.integers(0, 62, num).tolist()


def test_leaf_without_a_split_is_split_within_every_writer(tmp_path):
    users = {"f02": leaf_user(20, 0), "f01": leaf_user(9, 1), "f03": leaf_user(1, 2)}
    (tmp_path / "all_data_0.json").write_text(json.dumps(leaf_json(users)))
    (tmp_path / "all_data_1.json").write_text(json.dumps(leaf_json({"f04": leaf_user(10, 3)})))
    assert has_leaf(tmp_path)
    arrays = read_leaf(tmp_path)
    assert arrays.group_names == ("f01", "f02", "f03", "f04")
    assert np.bincount(arrays.train_groups).tolist() == [8, 18, 1, 9]
    assert np.bincount(arrays.test_groups, minlength=4).tolist() == [1, 2, 0, 1]
    pixels = {np.rint(255 * x).astype(np.uint8).tobytes() for x in users["f02"][0]}
    of_writer = [*arrays.train_images[arrays.train_groups == 1]]
    of_writer += [*arrays.test_images[arrays.test_groups == 1]]
    assert {image.tobytes() for image in of_writer} == pixels
    again, other = read_leaf(tmp_path, split_seed=0), read_leaf(tmp_path, split_seed=1)
    assert np.array_equal(arrays.test_images, again.test_images)
    assert not np.array_equal(arrays.test_images, other.test_images)


def test_json_is_read_once_and_again_when_it_changed(tmp_path, monkeypatch):
    path = tmp_path / "all_data_0.json"
    path.write_text(json.dumps(leaf_json({"f1": leaf_user(10, 0)})))
    first = read_leaf(tmp_path)
    with monkeypatch.context() as context:
        context.setattr(femnist.json, "loads", None)
        assert np.array_equal(read_leaf(tmp_path).train_images, first.train_images)
    path.write_text(json.dumps(leaf_json({"f1": leaf_user(20, 0)})))
    assert len(read_leaf(tmp_path).train_labels) == 18


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", "no output of LEAF"),
        ("{}", "KeyError"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [[0.5]], "y": [1]}}}), "writer a"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [[9] * 784], "y": [1]}}}), "9.0"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [["b"]], "y": [1]}}}), "writer a"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [[0] * 784], "y": [1.5]}}}), "whole"),
        (json.dumps({"users": [], "user_data": {}}), "no samples"),
    ],
)
def test_bad_json_is_named(tmp_path, content, message):
    (tmp_path / "all_data_0.json").write_text(content)
    with pytest.raises(DamagedDataError, match=message):
        read_leaf(tmp_path)


def test_writers_of_the_subset_without_training_data_are_left_out(tmp_path):
    from outvote.data.array_dataset import sha256_of

    arrays = {
        "train_x": np.zeros((3, 28, 28), np.uint8),
        "train_y": np.array([1, 61, 3], np.uint8),
        "train_writer": np.array([0, 1, 1], np.int16),
        "test_x": np.arange(3, dtype=np.uint8).repeat(784).reshape(3, 28, 28),
        "test_y": np.array([1, 2, 3], np.uint8),
        "test_writer": np.array([1, 2, 0], np.int16),
        "writers": np.array(["f1", "f2", "f3"]),
    }
    np.savez_compressed(tmp_path / SUBSET, **arrays)
    good = sha256_of(*(arrays[key] for key in SUBSET_KEYS))
    read = read_subset(tmp_path, sha256=good)
    assert read.test_labels.tolist() == [1, 3]
    assert read.test_groups.tolist() == [1, 0]
    is_used = np.isin(arrays["test_writer"], [0, 1])
    assert np.array_equal(read.test_images[..., 0], arrays["test_x"][is_used])
    assert read.group_names == ("f1", "f2")
    with pytest.raises(DamagedDataError, match=f"got {good}"):
        read_subset(tmp_path)


def test_missing_data_is_reported_with_the_folder_and_the_way_to_get_it(tmp_path):
    with pytest.raises(MissingDataError) as caught:
        load_entry(cifar_entry(FACTS), tmp_path)
    for word in (str(tmp_path), FACTS.archive, "OUTVOTE_DATA"):
        assert word in str(caught.value)


GOOD = {
    "train_images": np.zeros((3, 4, 4, 1), np.uint8),
    "train_labels": np.array([0, 1, 1]),
    "test_images": np.zeros((1, 4, 4, 1), np.uint8),
    "test_labels": np.array([0]),
    "class_names": ("a", "b"),
}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"train_images": np.zeros((3, 4, 4), np.uint8)}, r"got uint8 \[4, 4\]"),
        ({"train_images": np.zeros((3, 4, 4, 1))}, "must be bytes .* got float64"),
        ({"test_images": np.zeros((0, 4, 4, 1), np.uint8)}, "one target per sample"),
        ({"test_images": np.zeros((1, 5, 4, 1), np.uint8)}, "samples of one kind"),
        ({"train_labels": np.array([0, 1])}, "one target per sample"),
        ({"train_labels": np.array([0, 1, 2])}, "classes from 0 to 1 .*, got 0 to 2"),
        ({"train_groups": np.array([0, 1])}, "one entry for each of the 3"),
    ],
)
def test_a_dataset_that_does_not_fit_together_is_refused(wrong, message):
    with pytest.raises(DamagedDataError, match=message):
        image_dataset(**(GOOD | wrong))


def test_a_gzip_file_that_unpacks_to_gigabytes_is_refused(tmp_path, monkeypatch):
    from outvote.data import checksum

    monkeypatch.setattr(checksum, "MOST_INSIDE", 1000)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(1001)))
    with pytest.raises(DamagedDataError, match="more than the 1,000 bytes"):
        checksum.read_inside(path)
    path.write_bytes(gzip.compress(bytes(1000)))
    assert checksum.read_inside(path)[0] == bytes(1000)


def test_an_image_that_grows_beyond_memory_is_refused(tmp_path):
    from PIL import Image

    from outvote.data.image_files import read_rgb, read_square

    Image.new("1", (1, 60_000)).save(tmp_path / "long.png")
    with pytest.raises(DamagedDataError, match="too long for its width: 1 x 60000"):
        read_square(tmp_path / "long.png", 224)
    Image.new("1", (11_000, 11_000)).save(tmp_path / "large.png")
    with pytest.raises(DamagedDataError, match="at most 100,000,000 are read"):
        read_rgb(tmp_path / "large.png")
