"""Small files that promise much: they are refused, in little memory and in one line."""

import gzip
import io
import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from made_results import made_results, write_store
from outvote.results.export import to_export

TWO = {"rule": ["mean", "median"], "attack": "lie", "rounds": 2}
# The limit holds from where all modules are loaded: torch alone maps gigabytes.
PROGRAM = """
import resource, sys
import numpy, torch
import outvote.cli.aggregate, outvote.cli.report, outvote.cli.table, outvote.files.aggregate_files
import outvote.report.html_report, outvote.results.export
from outvote.cli import main
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + {megabytes} * 10**6
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
sys.exit(main())
"""

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


def capped(*words, megabytes):
    """Run the program with so much memory more than it has after its start."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(megabytes=megabytes), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_gzip_bomb_is_no_export(tmp_path):
    path = tmp_path / "bomb.csv.gz"
    # Members of one file: the second is packed once and written forty times.
    start = gzip.compress(to_export(made_results(TWO, seeds=1), is_packed=False))
    path.write_bytes(start + 40 * gzip.compress(b"1 " * 5_000_000))
    assert path.stat().st_size < 1_000_000
    done = capped("table", path, megabytes=500)
    assert done.returncode == 1
    assert "is too large: it holds more than the 100,000,000 bytes" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_field_of_an_export_has_a_limit(tmp_path):
    path = tmp_path / "long.csv.gz"
    content = to_export(made_results(TWO, seeds=1), is_packed=False)
    long = content.replace(b"1 2", b"1 2" + b" 3" * 20_000_000, 1)
    path.write_bytes(gzip.compress(long, compresslevel=1))
    done = capped("table", path, megabytes=500)
    assert done.returncode == 1
    assert "field larger than field limit (4000000)" in done.stderr


def safetensors_of(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


@pytest.mark.slow
def test_a_header_of_many_megabytes_is_not_read(tmp_path):
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"{number:07}": entry for number in range(1_450_000)}).encode()
    assert 90_000_000 < len(header) < 100_000_000
    (tmp_path / "bomb.safetensors").write_bytes(safetensors_of(header))
    good = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.safetensors").write_bytes(safetensors_of(good, bytes(4)))
    words = ("aggregate", tmp_path, "--rule", "median", "--num-byzantine", "1")
    done = capped(*words, "-o", tmp_path / "out" / "new.safetensors", megabytes=200)
    assert done.returncode == 2  # There is no such folder.
    done = capped(*words, "-o", tmp_path / "new.bin", megabytes=200)
    assert done.returncode == 0, done.stderr
    assert "has a header of" in done.stdout + done.stderr
    assert "at most 8,000,000 are read" in " ".join((done.stdout + done.stderr).split())


def test_a_tensor_name_of_megabytes_is_not_printed(tmp_path):
    header = json.dumps({"x" * 3_000_000: {"dtype": "F32", "shape": [0]}}).encode()
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.safetensors").write_bytes(safetensors_of(header))
    words = ("aggregate", tmp_path, "--rule", "median", "--num-byzantine", "1")
    done = capped(*words, "-o", tmp_path / "new.bin", megabytes=200)
    assert done.returncode == 2
    assert "tensor name of 3,000,000 characters" in done.stderr
    assert len(done.stderr) < 3000
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_an_audit_that_unpacks_to_gigabytes_is_named(tmp_path):
    first, _ = write_store(tmp_path / "runs", TWO, seeds=1)
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        member, {"descr": "<i8", "fortran_order": False, "shape": (1 << 18, 1 << 10)}
    )
    with (
        zipfile.ZipFile(
            first.folder.path / "audit.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=9
        ) as archive,
        archive.open("label_counts.npy", "w", force_zip64=True) as file,
    ):
        file.write(member.getvalue())
        for _ in range(1 << 7):
            file.write(bytes(1 << 24))
    assert (first.folder.path / "audit.npz").stat().st_size < 4_000_000
    done = capped("report", tmp_path / "runs", "-o", tmp_path / "report.html", megabytes=500)
    assert done.returncode == 0, done.stderr
    assert "audit.npz is damaged: it holds 2,147" in done.stderr
