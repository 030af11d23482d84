"""The lowest versions that pyproject.toml allows are known, and below those that are pinned."""

import re

import pytest

import lowest

PINS = dict(
    re.findall(
        r"^([\w-]+)==([\d.]+)", (lowest.ROOT / "constraints-dev.txt").read_text(), re.MULTILINE
    )
)


def numbers(version):
    return [int(part) for part in version.split(".")]


def test_every_dependency_has_a_lowest_version_below_its_pin():
    found = dict(each.split("==") for each in lowest.lowest())
    assert len(found) == 8
    for name, version in found.items():
        assert numbers(version) <= numbers(PINS[name]), name


def test_a_dependency_without_a_lowest_version_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["numpy"]\n')
    monkeypatch.setattr(lowest, "ROOT", tmp_path)
    with pytest.raises(ValueError, match=r"'numpy' in pyproject\.toml must be a name with >="):
        lowest.lowest()


def test_the_tests_that_it_runs_exist():
    assert all((lowest.ROOT / path).is_file() for path in lowest.TESTS)
