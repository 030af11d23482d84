"""Damaged files that a fuzz of the readers found: each is refused in one short line."""

import json
import sqlite3
import struct
import zipfile

import pytest

from data_files import batches, cifar_entry, small_cifar, write_png
from made_results import made_results, write_store
from outvote.data.checksum import read_npz
from outvote.data.faults import DamagedDataError
from outvote.data.femnist import read_leaf
from outvote.data.image_files import read_rgb
from outvote.data.loader import load_entry
from outvote.experiment.plan import read_plan
from outvote.results.audit_log import read_arrays
from outvote.results.check import check_run, read_settings
from outvote.results.disk import DamagedFileError, read_json
from outvote.results.export import read_export, to_export
from outvote.results.folder import RunFolder
from outvote.results.index import NAME, list_runs
from outvote.results.run import read_result
from outvote.results.schema import Environment
from sample_files import small_flights

TINY = {"rule": "mean", "attack": "none", "rounds": 2, "federation": {"num_clients": 5}}
MANY_DIGITS = "9" * 5000


def refused(kind, read, *words):
    """The text of the error that a reader raises."""
    with pytest.raises(kind) as caught:
        read(*words)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert len(text) < 1500
    return text


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("OUTVOTE_DATA", str(tmp_path / "cache"))


def test_a_number_of_thousands_of_digits_in_settings(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text(f'rule = "mean"\nattack = "none"\nseed = {MANY_DIGITS}\n')
    assert str(path) in refused(ValueError, read_plan, path)
    refused(DamagedFileError, read_settings, path)


def test_text_that_is_not_utf_8_in_the_record_of_a_machine(tmp_path):
    write_store(tmp_path, TINY, seeds=1)
    (path,) = tmp_path.glob("*/*/env.json")
    path.write_bytes(path.read_bytes().replace(b"cpu", b"c\xff\xfeu"))
    refused(DamagedFileError, read_json, path, Environment)
    assert [each.file for each in check_run(RunFolder(path.parent)).faults] == ["env.json"]


def test_a_member_of_an_archive_that_is_no_array(tmp_path):
    path = tmp_path / "audit.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("round.npy", b"no array")
    assert "round is no array" in refused(DamagedFileError, read_arrays, path, "round")
    refused(DamagedDataError, read_npz, path, ["round"], "get it again")


def test_a_header_of_an_array_that_has_no_end(tmp_path):
    header = b"{'descr': '|u1', (('shape': (2,), }".ljust(117) + b"\n"
    path = tmp_path / "some.npz"
    with zipfile.ZipFile(path, "w") as archive:
        content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + b"ab"
        archive.writestr("x.npy", content)
    refused(DamagedDataError, read_npz, path, ["x"], "get it again")


def test_an_index_whose_error_is_not_utf_8_is_made_again(tmp_path):
    write_store(tmp_path, TINY, seeds=1)
    known = list_runs(tmp_path, pytest.fail)
    path = tmp_path / NAME
    content = path.read_bytes()
    assert content.count(b"CREATE TABLE runs") == 1
    path.write_bytes(content.replace(b"CREATE TABLE runs", b"CREATE T\xff\xfeLE runs"))
    with pytest.raises((UnicodeDecodeError, sqlite3.Error)), sqlite3.connect(path) as index:
        index.execute("SELECT * FROM runs")
    index.close()
    assert list_runs(tmp_path, str) == known


@pytest.mark.parametrize("name", [b"a\x85b" * 5, b"x" * 9000])
def test_a_batch_that_asks_for_odd_names(tmp_path, name):
    images, labels, facts = small_cifar()
    (tmp_path / facts.folder).mkdir()
    for each, content in batches(images, labels):
        odd = content.replace(b"_reconstruct", name.decode("latin-1").encode())
        (tmp_path / facts.folder / each).write_bytes(odd)
    assert "it asks for numpy" in refused(
        DamagedDataError, load_entry, cifar_entry(facts), tmp_path
    )


@pytest.mark.parametrize(
    "content",
    [
        f'{{"users": ["a"], "user_data": {{"a": {{"x": [], "y": [{MANY_DIGITS}]}}}}}}',
        '{"users": [0], "user_data": ""}',
        f'{{"users": ["a"], "user_data": {{"a": {{"x": [[1{"0" * 400}]], "y": [1]}}}}}}',
        json.dumps({"users": ["x" * 9000], "user_data": {}}),
        json.dumps({"users": ["a\nb"], "user_data": {"a\nb": {"x": [[0.5]], "y": [1]}}}),
    ],
)
def test_json_that_is_no_output_of_leaf(tmp_path, content):
    (tmp_path / "all_data_0.json").write_text(content)
    refused(DamagedDataError, read_leaf, tmp_path)


def test_whatever_pillow_raises_is_an_unreadable_image(tmp_path, monkeypatch):
    from PIL import Image

    def fail(_path):
        raise struct.error("unpack requires a buffer\nof 4 bytes")

    monkeypatch.setattr(Image, "open", fail)
    assert "unpack requires" in refused(DamagedDataError, read_rgb, tmp_path / "cat.png")


def test_a_count_of_an_export_that_no_array_can_hold(tmp_path):
    path = tmp_path / "export.csv"
    content = to_export(made_results(TINY, seeds=1), is_packed=False).decode()
    head, row = content.split("\n", 1)
    fields = row.rstrip("\n").rsplit(",", 13)
    which = head.split(",")[-13:].index("round")
    assert fields[1 + which] == "1 2"
    fields[1 + which] = f"1 {2**64}"
    path.write_text(f"{head}\n{','.join(fields)}\n")
    refused(DamagedFileError, read_export, path)


@pytest.mark.parametrize("claims", [4_000_000_000, 300_000_000])
def test_a_zip_file_that_claims_gigabytes_of_packed_content(claims, tmp_path):
    """A read allocates what the directory claims, whatever the file holds."""
    entry = small_flights(tmp_path)
    path = tmp_path / "flights.csv.zip"
    content = bytearray(path.read_bytes())
    directory = content.rindex(b"PK\x01\x02")
    content[directory + 20 : directory + 24] = struct.pack("<I", claims)  # The packed size.
    path.write_bytes(bytes(content))
    text = refused(DamagedDataError, load_entry, entry, tmp_path)
    assert f"it holds {claims:,} bytes" in text


def test_labels_that_no_array_can_hold(tmp_path):
    images, labels, facts = small_cifar()
    write_png(tmp_path, images, labels)
    (tmp_path / "test_lables.json").write_text(json.dumps([2**64] * 4))
    refused(DamagedDataError, load_entry, cifar_entry(facts), tmp_path)


def test_a_number_of_runs_that_is_no_float_is_left_out(tmp_path):
    write_store(tmp_path, TINY, seeds=1)
    (path,) = tmp_path.glob("*/*/timings.jsonl")
    first, second = path.read_text().splitlines()
    line = json.loads(first) | {"num_runs": 10**400}
    path.write_text(f"{json.dumps(line)}\n{second}\n")
    found = read_result(RunFolder(path.parent))
    assert found.seconds == json.loads(second)["seconds"] / 4


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("config.toml", "num_clients = 5", f"num_clients = {2**62}"),
        ("metrics.jsonl", '"num_byzantine_used":1', f'"num_byzantine_used":{2**64}'),
    ],
)
def test_a_count_of_a_run_that_no_array_can_hold(tmp_path, name, old, new):
    write_store(tmp_path, TINY, seeds=1)
    (path,) = tmp_path.glob(f"*/*/{name}")
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new))
    refused(DamagedFileError, read_result, RunFolder(path.parent))
