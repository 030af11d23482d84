"""The embedded dataset: in the package, real, balanced, licensed, small."""

import importlib.resources
import runpy
import subprocess
from pathlib import Path

import numpy as np
import pytest

from outvote.data import MissingDataError, load, mnist
from outvote.data.cache import data_root, search_folders
from outvote.data.faults import DamagedDataError

ROOT = Path(__file__).parents[2]
FOLDER = importlib.resources.files("outvote.data") / "embedded"


def test_it_is_in_the_package_with_its_licence_and_at_most_4_mb():
    assert (FOLDER / "fashion_mnist_small.npz").is_file()
    assert len((FOLDER / "fashion_mnist_small.npz").read_bytes()) <= 4_000_000
    licence = (FOLDER / "LICENSE-fashion-mnist").read_text(encoding="utf-8")
    assert "Zalando SE" in licence
    assert "The above copyright notice and this permission notice shall be included" in licence


def test_git_does_not_ignore_it_so_the_wheel_has_it():
    """The wheel holds every file of the package that git does not ignore."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    files = [str(path) for path in (ROOT / "src/outvote/data/embedded").iterdir()]
    done = subprocess.run(["git", "check-ignore", *files], cwd=ROOT, check=False)
    assert done.returncode == 1


def test_it_needs_no_folder_and_is_balanced(monkeypatch, tmp_path):
    monkeypatch.setenv("OUTVOTE_DATA", str(tmp_path / "nothing"))
    small = load("fashion-mnist-small")
    assert small.train_images.shape == (6000, 28, 28, 1)
    assert small.test_images.shape == (2000, 28, 28, 1)
    assert np.bincount(small.train_labels).tolist() == [600] * 10
    assert np.bincount(small.test_labels).tolist() == [200] * 10
    assert small.train_labels[:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5], "the original order"
    assert small.class_names[9] == "ankle boot"
    assert small.train_groups is None


def test_damage_is_noticed(monkeypatch, tmp_path):
    copy = tmp_path / "small.npz"
    with np.load(mnist.EMBEDDED) as stored:
        arrays = {name: stored[name] for name in mnist.EMBEDDED_KEYS}
    arrays["test_labels"][0] ^= 1
    np.savez(copy, **arrays)
    monkeypatch.setattr(mnist, "EMBEDDED", copy)
    with pytest.raises(DamagedDataError, match=r"small\.npz.*install outvote again"):
        load("fashion-mnist-small")
    copy.write_bytes(b"no archive")
    with pytest.raises(DamagedDataError, match=r"small\.npz"):
        load("fashion-mnist-small")


@pytest.mark.slow
def test_it_is_what_its_maker_makes(monkeypatch, tmp_path):
    """Needs fashion-mnist in the cache folder or in OUTVOTE_DATA."""
    try:
        load("fashion-mnist")
    except MissingDataError:
        pytest.skip("fashion-mnist is not there")
    found = search_folders("fashion-mnist")
    folder = next(each for each in found if any(each.glob("train-images*")))
    made = tmp_path / "made.npz"
    maker = runpy.run_path(str(ROOT / "tools" / "make_embedded.py"))
    monkeypatch.setitem(maker["main"].__globals__, "EMBEDDED", made)
    maker["main"](folder)
    with np.load(made) as new, np.load(mnist.EMBEDDED) as old:
        assert all(np.array_equal(new[name], old[name]) for name in mnist.EMBEDDED_KEYS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mnist", "fashion-mnist", "femnist"])
def test_the_real_data_is_the_original(name):
    """Whatever is in the cache folder or in OUTVOTE_DATA."""
    try:
        dataset = load(name)
    except MissingDataError:
        pytest.skip(f"{name} is not in {data_root()}")
    counts = np.bincount(dataset.test_labels)
    assert len(counts) == dataset.num_classes
    if name.startswith("cifar"):
        assert set(counts.tolist()) == {10_000 // dataset.num_classes}
