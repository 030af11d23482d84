"""`outvote aggregate` reads files some numbers at a time: memory, audit log, files that change."""

import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from command_line import run
from outvote.files import sources, streaming
from outvote.results.audit_log import read_audit, read_manifest
from update_files import fill, status_of

RULE = "gas(multi-krum, num_groups=50)"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "LARGEST_CHUNK", 700)
    monkeypatch.setattr(streaming, "SMALLEST_CHUNK", 700)
    path = tmp_path / "updates"
    path.mkdir()
    return path


def models(num_clients=9, dtype=torch.float32):
    generator = torch.Generator().manual_seed(4)
    shapes = {"a": (30, 50), "b": (1201,), "c": (2, 2, 3)}
    rows = [
        {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
        for _ in range(num_clients)
    ]
    for name in shapes:
        rows[-1][name] += 2
    return [{name: value.to(dtype) for name, value in row.items()} for row in rows]


def test_eight_bit_floats_become_an_update_of_32_bits_or_a_model_of_8(capsys, folder):
    rows = models(dtype=torch.float8_e4m3fn)
    fill(folder, rows)
    start, output = folder.parent / "base.safetensors", folder.parent / "out.safetensors"
    words = ["aggregate", folder, "--rule", "median", "--num-byzantine", 1, "-o", output]
    assert run(capsys, *words).code == 0
    wanted = torch.stack([row["b"].float() for row in rows]).median(dim=0).values
    assert torch.equal(load_file(output)["b"], wanted)
    save_file({name: torch.zeros_like(value) for name, value in rows[0].items()}, start)
    assert run(capsys, *words, "--base", start).code == 0
    found = load_file(output)["b"]
    assert found.dtype == torch.float8_e4m3fn
    assert torch.equal(found.float(), wanted)


def test_the_audit_log_gets_a_round_for_every_call(capsys, folder):
    fill(folder, models())
    (folder / "zero.safetensors").touch()
    output, log = folder.parent / "out.safetensors", folder.parent / "log"
    words = ["aggregate", folder, "--rule", RULE, "--num-byzantine", 2, "-o", output]
    for _ in range(2):
        assert run(capsys, *words, "--audit", log).code == 0
    rounds = read_audit(log)
    assert [each.round for each in rounds] == [1, 2]
    assert read_manifest(log).rule == RULE
    last = {each.client: each for each in rounds[-1].clients}
    assert last["zero"].standing == "malformed"
    assert (last["client-8"].kept, last["client-0"].kept) == (False, True)
    assert run(capsys, "audit", log).code == 0


def test_a_file_name_that_is_no_text_is_in_the_audit_log(capsys, folder):
    fill(folder, models(5))
    whole = (folder / "client-0.safetensors").read_bytes()
    (folder / os.fsdecode(b"\xff.safetensors")).write_bytes(whole)
    output, log = folder.parent / "out.safetensors", folder.parent / "log"
    words = ["aggregate", folder, "--rule", "median", "--num-byzantine", 2, "-o", output]
    assert run(capsys, *words, "--audit", log).code == 0
    assert read_audit(log)[0].clients[-1].client == "\\udcff"


def test_a_file_that_changes_while_it_is_read_is_left_out(capsys, folder, monkeypatch):
    fill(folder, models())
    output = folder.parent / "out.safetensors"
    read = sources.SafetensorsSource.read
    seen = []

    def change(self, start, out):
        read(self, start, out)
        seen.append(start)
        if len(seen) == 60:
            (folder / "client-2.safetensors").write_bytes(b"now something else")

    monkeypatch.setattr(sources.SafetensorsSource, "read", change)
    words = ["aggregate", folder, "--rule", RULE, "--num-byzantine", 1, "-o", output, "--json"]
    result = run(capsys, *words)
    assert status_of(result)["client-2"] == "rejected"
    assert "changed while it was read" in result.json["clients"][2]["reason"]
    kept = [row for k, row in enumerate(models()) if k not in (2, 8)]
    mean = torch.stack([row["b"] for row in kept]).mean(dim=0)
    assert torch.allclose(load_file(output)["b"], mean, atol=1e-6)


def test_copies_are_named(capsys, folder):
    rows = models()
    rows[4] = rows[1]
    fill(folder, rows)
    output = folder.parent / "out.safetensors"
    words = ["aggregate", folder, "--rule", RULE, "--num-byzantine", 1, "-o", output, "--json"]
    reasons = {row["client"]: row["reason"] for row in run(capsys, *words).json["clients"]}
    assert reasons["client-4"] == "the same update as client-1"
    assert sum(map(bool, reasons.values())) == 1
