"""Where data is looked for, and names that are not known."""

from pathlib import Path

import pytest

from outvote.data import cache, load


def test_outvote_data_comes_first(monkeypatch, tmp_path):
    monkeypatch.setenv("OUTVOTE_DATA", str(tmp_path))
    assert cache.data_root() == tmp_path
    assert cache.search_folders("cifar10") == (tmp_path / "cifar10", tmp_path)
    assert cache.search_folders("cifar10", "here") == (Path("here"),)


@pytest.mark.parametrize(
    ("platform", "variable", "value", "wanted"),
    [
        ("linux", "XDG_CACHE_HOME", "/big/cache", "/big/cache/outvote"),
        ("linux", "XDG_CACHE_HOME", "relative", "~/.cache/outvote"),
        ("linux", "XDG_CACHE_HOME", "", "~/.cache/outvote"),
        ("darwin", "XDG_CACHE_HOME", "/big/cache", "~/Library/Caches/outvote"),
        ("win32", "LOCALAPPDATA", "/local", "/local/outvote"),
        ("win32", "LOCALAPPDATA", "", "~/AppData/Local/outvote"),
    ],
)
def test_else_the_cache_folder_of_the_platform(monkeypatch, platform, variable, value, wanted):
    monkeypatch.delenv("OUTVOTE_DATA", raising=False)
    monkeypatch.setenv(variable, value)
    monkeypatch.setattr(cache.sys, "platform", platform)
    assert cache.data_root() == Path(wanted).expanduser()


def test_an_unknown_name_is_an_error_that_names_the_closest():
    with pytest.raises(ValueError, match="unknown dataset 'cifar-10'; did you mean 'cifar10'"):
        load("cifar-10")


def test_an_option_that_does_not_apply_is_refused():
    with pytest.raises(ValueError, match="takes no size, got 32"):
        load("fashion-mnist-small", size=32)


def test_the_embedded_dataset_takes_no_folder():
    with pytest.raises(ValueError, match="part of outvote and takes no folder, got here"):
        load("fashion-mnist-small", folder="here")
    assert load("fashion-mnist-small").source == "part of outvote"
