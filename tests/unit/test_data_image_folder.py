"""Folders of images: decoded once, again when something changed, bad files named."""

import os

import numpy as np
import pytest
from PIL import Image

from outvote.data import DamagedDataError, MissingDataError, image_folder, load


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("OUTVOTE_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache" / "decoded"


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "images"
    for part, num in (("train", 3), ("val", 2)):
        for label, name in enumerate(("cat", "dog")):
            (path / part / name).mkdir(parents=True)
            for number in range(num):
                colour = (label * 100, number * 50, 7)
                Image.new("RGB", (40, 30), colour).save(path / part / name / f"{number}.png")
    return path


def test_images_are_read_by_class(folder):
    dataset = load("imagenet12", folder=folder, size=16)
    assert dataset.class_names == ("cat", "dog")
    assert dataset.train_images.shape == (6, 16, 16, 3)
    assert dataset.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.test_labels.tolist() == [0, 0, 1, 1]
    assert dataset.train_images[5, 8, 8].tolist() == [100, 100, 7]


def test_the_centre_is_cut_out_after_scaling(folder):
    """The pixels of a 512 x 256 image of size 224 are those at 144 to 368 and 16 to 240."""
    random = np.random.default_rng(0)
    whole = random.integers(0, 256, (256, 512, 3), dtype=np.uint8)
    for transposed, name in ((whole, "wide"), (whole.transpose(1, 0, 2), "tall")):
        Image.fromarray(np.ascontiguousarray(transposed)).save(folder / "train/cat" / f"{name}.png")
    cats = load("imagenet12", folder=folder).train_images[:5]
    assert np.array_equal(cats[4], whole[16:240, 144:368])
    assert np.array_equal(cats[3], whole[16:240, 144:368].transpose(1, 0, 2))


def test_they_are_decoded_once(folder, monkeypatch, cache):
    first = load("imagenet12", folder=folder, size=8)
    monkeypatch.setattr(image_folder, "read_square", None)
    second = load("imagenet12", folder=folder, size=8)
    assert np.array_equal(first.train_images, second.train_images)
    assert len(list(cache.iterdir())) == 1


def test_a_cut_array_in_the_cache_is_made_again(folder, cache):
    first = load("imagenet12", folder=folder, size=8)
    (path,) = cache.iterdir()
    for size in (0, 10, 200):
        path.write_bytes(path.read_bytes()[:size])
        again = load("imagenet12", folder=folder, size=8)
        assert np.array_equal(first.train_images, again.train_images)


def test_a_change_is_noticed_and_the_old_array_removed(folder, cache):
    load("imagenet12", folder=folder, size=8)
    load("imagenet12", folder=folder, size=9)
    path = folder / "train/dog/1.png"
    Image.new("RGB", (40, 30), (9, 9, 9)).save(path)
    os.utime(path, ns=(1, 1))
    changed = load("imagenet12", folder=folder, size=8)
    assert changed.train_images[4].max() == 9
    Image.new("RGB", (40, 30), (7, 7, 7)).save(folder / "train/dog/same-size.png")
    assert (folder / "train/dog/same-size.png").stat().st_size == path.stat().st_size
    (folder / "train/dog/same-size.png").replace(path)
    assert load("imagenet12", folder=folder, size=8).train_images[4].max() == 7
    (folder / "train/dog/0.png").unlink()
    assert len(load("imagenet12", folder=folder, size=8).train_labels) == 5
    assert sorted(path.name.split("-")[2] for path in cache.iterdir()) == ["8.npy", "9.npy"]


def test_unreadable_images_are_all_counted_and_named(folder, cache):
    (folder / "val/cat/notes.txt").write_text("no image")
    good = (folder / "train/dog/0.png").read_bytes()
    (folder / "train/dog/0.png").write_bytes(good[: len(good) // 2])
    (folder / "train/dog/.DS_Store").write_text("hidden")
    (folder / "train/dog/nested").mkdir()
    with pytest.raises(DamagedDataError) as caught:
        load("imagenet12", folder=folder, size=8)
    for word in ("3 of 12", "notes.txt", "dog/0.png", "nested", "repair or remove"):
        assert word in str(caught.value).replace(os.sep, "/")
    assert list(cache.iterdir()) == []


def test_grey_palette_and_transparent_images_become_colours(folder):
    for mode in ("L", "P", "RGBA", "1", "CMYK"):
        suffix = "tif" if mode == "CMYK" else "png"
        Image.new(mode, (20, 20)).save(folder / "train/cat" / f"mode-{mode}.{suffix}")
    assert load("imagenet12", folder=folder, size=8).train_images.shape == (11, 8, 8, 3)


def test_classes_must_agree(folder):
    (folder / "val/mouse").mkdir()
    with pytest.raises(DamagedDataError, match="only one has mouse"):
        load("imagenet12", folder=folder)


@pytest.mark.parametrize("size", [0, -1, 2.5, True, "big"])
def test_a_wrong_size_is_refused(folder, size):
    with pytest.raises(ValueError, match="size must be a whole number"):
        load("imagenet12", folder=folder, size=size)


def test_a_folder_without_images_is_missing_data(tmp_path):
    with pytest.raises(MissingDataError, match="train/<class>"):
        load("imagenet12", folder=tmp_path)


def test_the_folder_test_will_do_as_well(folder):
    (folder / "val").rename(folder / "test")
    assert len(load("imagenet12", folder=folder, size=8).test_labels) == 4


def test_tiny_imagenet_is_a_folder_of_images_of_its_own_size(folder):
    dataset = load("tiny-imagenet12", folder=folder)
    assert dataset.shape == (64, 64, 3)
    assert np.array_equal(
        dataset.train_images, load("imagenet12", folder=folder, size=64).train_images
    )
    assert load("tiny-imagenet12", folder=folder, size=8).shape == (8, 8, 3)
