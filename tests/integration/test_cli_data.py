"""`outvote data list|fetch|verify` from the outside; nothing here reaches the network."""

import pytest

from command_line import run
from data_files import gzipped, mnist_download, mnist_entry, serving, small_mnist
from outvote.data import catalog


@pytest.fixture(autouse=True)
def root(monkeypatch, tmp_path):
    monkeypatch.setenv("OUTVOTE_DATA", str(tmp_path))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path


@pytest.fixture
def small(monkeypatch):
    """A dataset of the table that is served on this machine."""
    files = small_mnist()
    with serving(gzipped(files)) as (server, address):
        entry = mnist_entry(files, mnist_download(address, files))
        monkeypatch.setitem(catalog.DATASETS, "made-up", entry)
        yield server


def test_list_prints_where_each_dataset_is_or_how_to_get_it(capsys):
    result = run(capsys, "data", "list")
    assert (result.code, result.err) == (0, "")
    for name in catalog.DATASETS:
        assert name in result.out
    assert "outvote data fetch cifar10" in result.out
    assert "50,000 + 10,000" in result.out
    rows = {row["name"]: row for row in run(capsys, "data", "list", "--json").json}
    assert rows["fashion-mnist-small"]["found"] == "part of outvote"
    assert rows["cifar10"]["found"] is None
    assert rows["cifar10"]["shape"] == [32, 32, 3]


def test_fetch_then_list_then_verify(capsys, small, root):
    fetched = run(capsys, "data", "fetch", "made-up", "--json")
    assert (fetched.code, fetched.err) == (0, "")
    assert fetched.json["num_train"] == 6
    assert len(list((root / "made-up").iterdir())) == 4
    verified = run(capsys, "data", "verify", "made-up", "--json")
    assert verified.json == fetched.json
    assert len(small.asked) == 4
    rows = {row["name"]: row for row in run(capsys, "data", "list", "--json").json}
    assert rows["made-up"]["found"] == f"idx, {root / 'made-up'}"


def test_a_failed_fetch_is_work_that_failed(capsys, small, root):
    small.files.clear()
    result = run(capsys, "data", "fetch", "made-up")
    result.assert_fails(1, "made-up", "404", str(root / "made-up"), "by hand")


def test_a_damaged_file_is_work_that_failed(capsys, small, root):
    run(capsys, "data", "fetch", "made-up")
    path = root / "made-up" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:20])
    result = run(capsys, "data", "verify", "made-up")
    result.assert_fails(1, path.name, "delete it and fetch it again")
    assert run(capsys, "data", "fetch", "made-up").code == 0
    assert [path for path, _ in small.asked[4:]] == [f"/{path.name}"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["fetch", "cifar11"], ["'cifar11'", "'cifar10'"]),
        (["verify", "femist"], ["'femist'", "'femnist'"]),
        (["fetch"], ["NAME"]),
        (["verify", "fashion-mnist-small", "--folder", "here"], ["takes no folder"]),
        (["lst"], ["'lst'", "'list'"]),
        (["verify", "cifar10"], ["cifar10 is not in", "outvote data fetch cifar10", "--folder"]),
        (["fetch", "femnist"], ["LEAF", "preprocess.sh"]),
        (["fetch", "imagenet12"], ["train/<class>", "copy or link"]),
    ],
)
def test_a_mistake_of_the_user_is_reported_in_one_line(capsys, words, expected):
    run(capsys, "data", *words).assert_fails(2, *expected)


def test_nothing_is_left_where_nothing_can_be_written(capsys, small, root):
    del small
    (root / "made-up").write_text("a file in the way")
    run(capsys, "data", "fetch", "made-up").assert_fails(1, "made-up")
