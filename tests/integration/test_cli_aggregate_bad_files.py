"""`outvote aggregate` on bad files and with mistakes: named and left out, or nothing is written."""

import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from command_line import run
from outvote.files import streaming
from update_files import fill, floats_of, status_of, updates_of


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "updates"
    path.mkdir()
    return path


def reason_of(result, client):
    return next(row["reason"] for row in result.json["clients"] if row["client"] == client)


def damage(folder):
    """Files that no rule should see; returns the reason for each."""
    good = updates_of(1, seed=9)[0]
    whole = (folder / "client-0.safetensors").read_bytes()
    (folder / "cut.safetensors").write_bytes(whole[:-10])
    (folder / "empty.safetensors").touch()
    (folder / "folder.safetensors").mkdir()
    (folder / "text.safetensors").write_text("I am not a model, I am a sentence.")
    (folder / "forged.safetensors").write_bytes(b"\xff" * 8 + whole[8:])
    (folder / "lost.safetensors").symlink_to(folder / "nowhere")
    os.mkfifo(folder / "pipe.safetensors")
    save_file(good | {"extra": torch.ones(1)}, folder / "extra.safetensors")
    save_file(floats_of(good), folder / "missing.safetensors")
    save_file(good | {"layer.bias": torch.ones(6)}, folder / "shape.safetensors")
    save_file(good | {"layer.bias": torch.ones(5).double()}, folder / "dtype.safetensors")
    for name, value in (("nan", float("nan")), ("inf", float("inf")), ("minus", -float("inf"))):
        bias = good["layer.bias"].clone()
        bias[-1] = value
        save_file(good | {"layer.bias": bias}, folder / f"{name}.safetensors")
    return {
        "cut": "cut off",
        "empty": "is empty",
        "folder": "is a folder",
        "text": "not a safetensors file",
        "forged": "not a safetensors file",
        "lost": "cannot be read",
        "pipe": "not a regular file",
        "extra": "unexpected tensor 'extra'",
        "missing": "'steps' is missing",
        "shape": "'layer.bias' is float32[6] instead of float32[5]",
        "dtype": "'layer.bias' is float64[5] instead of float32[5]",
        "nan": "'layer.bias'",
        "inf": "'layer.bias'",
        "minus": "'layer.bias'",
    }


@pytest.mark.parametrize("has_base", [False, True])
def test_bad_files_are_named_and_left_out(capsys, folder, has_base):
    updates = updates_of(8)
    updates[3]["layer.weight"] += 50
    fill(folder, updates)
    reasons = damage(folder)
    output, start = folder.parent / "out.safetensors", folder.parent / "base.safetensors"
    words = ["aggregate", folder, "--rule", "gas(median)", "--num-byzantine", 1]
    if has_base:
        save_file({name: torch.zeros_like(t) for name, t in updates[0].items()}, start)
        words += ["--base", start]
    result = run(capsys, *words, "-o", output, "--json")
    assert (result.code, result.err) == (0, "")
    for client, reason in reasons.items():
        assert status_of(result)[client] == "rejected"
        assert reason in reason_of(result, client)
    assert status_of(result)["client-3"] == "dropped"
    assert result.json["num_rejected"] == len(reasons)
    assert result.json["num_byzantine"] == 1
    kept = [update for k, update in enumerate(updates) if k != 3]
    wanted = torch.stack([update["layer.bias"] for update in kept]).mean(dim=0)
    assert torch.allclose(load_file(output)["layer.bias"], wanted, rtol=1e-6)


def test_too_few_files_that_are_left_are_refused_unless_the_user_lowers(capsys, folder):
    fill(folder, updates_of(5))
    reasons = damage(folder)
    output = folder.parent / "out.safetensors"
    words = ["aggregate", folder, "--rule", "multi-krum", "--num-byzantine", 2, "-o", output]
    refused = run(capsys, *words)
    refused.assert_fails(2, "14 of 19 files are bad", "nothing was written")
    assert not output.exists()
    result = run(capsys, *words, "--when-too-many", "lower", "--json")
    assert result.json["num_byzantine"] == 1
    assert result.json["num_rejected"] == len(reasons)
    assert sum(status == "kept" for status in status_of(result).values()) == 4


@pytest.mark.parametrize("kind", ["unreadable", "not finite", "unlike the base", "integers"])
def test_nothing_usable_is_exit_code_2_and_the_old_output_stays(capsys, folder, kind):
    output, start = folder.parent / "out.safetensors", folder.parent / "base.safetensors"
    output.write_bytes(b"old")
    words = ["aggregate", folder, "--rule", "median", "-o", output]
    if kind == "unreadable":
        for k in range(5):
            (folder / f"{k}.safetensors").write_bytes(b"?" * k)
        expected = ["none of the 5 files", "is empty", "2 more"]
    elif kind == "not finite":
        fill(folder, [{"w": torch.full((3,), float("nan"))}] * 2)
        expected = ["none of the 2 files", "'w'"]
    elif kind == "unlike the base":
        fill(folder, updates_of(2))
        save_file({"w": torch.ones(3)}, start)
        words += ["--base", start]
        expected = ["none of the 2 files", "'w' is missing"]
    else:
        fill(folder, [{"n": torch.tensor(3)}] * 2)
        expected = ["no floating-point tensor"]
    run(capsys, *words).assert_fails(2, *expected)
    assert output.read_bytes() == b"old"


def test_files_that_disagree_without_a_majority_are_not_guessed_about(capsys, folder):
    fill(folder, [{"w": torch.ones(3)}, {"w": torch.ones(4)}])
    output = folder.parent / "out.safetensors"
    result = run(capsys, "aggregate", folder, "--rule", "median", "-o", output)
    result.assert_fails(2, "disagree", "'w'")


def test_a_file_name_cannot_command_the_terminal(capsys, folder):
    fill(folder, updates_of(3))
    (folder / "\x1b[2Jgone [bold].safetensors").touch()
    output = folder.parent / "out.safetensors"
    result = run(capsys, "aggregate", folder, "--rule", "median", "-o", output)
    assert result.code == 0
    assert "\x1b" not in result.out
    assert r"\x1b[2Jgone [bold]" in result.out


def test_too_many_byzantine_clients_are_refused_or_lowered_visibly(capsys, folder):
    fill(folder, updates_of(7))
    output = folder.parent / "out.safetensors"
    words = ["aggregate", folder, "--rule", "bulyan", "--num-byzantine", 3, "-o", output]
    run(capsys, *words).assert_fails(2, "at most 1", "of 7", "got 3", "--when-too-many lower")
    assert not output.exists()
    result = run(capsys, *words, "--when-too-many", "lower")
    assert "assumed 1 Byzantine of 7 clients" in result.out
    assert output.exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--rule", "bulyan"], ["--num-byzantine", "--byzantine-fraction"]),
        (["--rule", "bulyn", "--num-byzantine", 1], ["'bulyn'", "'bulyan'"]),
        (["--rule", "bulyan", "--num-byzantine", -1], ["-1"]),
        (["--rule", "bulyan", "--byzantine-fraction", 0.5], ["below 0.5", "0.5"]),
        (["--rule", "bulyan", "--byzantine-fraction", "nan"], ["below 0.5"]),
        (
            ["--rule", "krum", "--num-byzantine", 1, "--byzantine-fraction", 0.1],
            ["not be given both"],
        ),
        (["--rule", "krum", "--num-byzantine", 1, "--base", "no.safetensors"], ["no.safetensors"]),
        (["--rule", "multi-krum(num_selected=99)", "--num-byzantine", 1], ["num_selected", "99"]),
        (["--rule", "fltrust"], ["fltrust", "reference"]),
        (["--num-byzantine", 1], ["--rule"]),
        (["--rule", "mean", "--max-memory", "1MB"], ["--max-memory"]),
    ],
)
def test_a_mistake_of_the_user_writes_nothing(capsys, folder, words, expected):
    fill(folder, updates_of(7))
    output = folder.parent / "out.safetensors"
    run(capsys, "aggregate", folder, *words, "-o", output).assert_fails(2, *expected)
    assert not output.exists()


@pytest.mark.parametrize("kind", ["input", "link", "base", "folder", "nowhere", "pipe"])
def test_a_bad_path_of_the_output_is_refused_before_any_work(capsys, folder, kind):
    fill(folder, updates_of(3))
    start = folder.parent / "base.safetensors"
    save_file(updates_of(1)[0], start)
    (folder.parent / "link").symlink_to(folder / "client-1.safetensors")
    os.mkfifo(folder.parent / "pipe")
    output = {
        "input": folder / "client-1.safetensors",
        "link": folder.parent / "link",
        "base": start,
        "folder": folder,
        "nowhere": folder / "deeper" / "out.safetensors",
        "pipe": folder.parent / "pipe",
    }[kind]
    before = (folder / "client-1.safetensors").read_bytes(), start.read_bytes()
    words = ["aggregate", folder, "--rule", "median", "--base", start, "-o", output]
    run(capsys, *words).assert_fails(2, "--output", str(output))
    assert ((folder / "client-1.safetensors").read_bytes(), start.read_bytes()) == before


@pytest.mark.parametrize("option", ["UPDATES", "--base", "-o"])
def test_a_path_that_is_too_long_is_a_mistake_of_the_user(capsys, folder, option):
    fill(folder, updates_of(3))
    given = {"-o": folder.parent / "out.safetensors", "--rule": "median"}
    given[option] = folder / ("x" * 300)
    updates = given.pop("UPDATES", folder)
    words = [word for pair in given.items() for word in pair]
    run(capsys, "aggregate", updates, *words).assert_fails(2, "File name too long; choose another")


def test_a_base_that_is_not_a_model_or_is_an_update_is_refused(capsys, folder):
    fill(folder, updates_of(3))
    output = folder.parent / "out.safetensors"
    words = ["aggregate", folder, "--rule", "median", "-o", output, "--base"]
    bad, odd = folder.parent / "bad.safetensors", folder.parent / "odd.safetensors"
    bad.write_bytes(b"not a model")
    save_file({"w": torch.tensor([1.0, float("nan")])}, odd)
    run(capsys, *words, bad).assert_fails(2, "bad.safetensors", "not a safetensors file")
    run(capsys, *words, odd).assert_fails(2, "odd.safetensors", "NaN", "'w'")
    run(capsys, *words, folder / "client-0.safetensors").assert_fails(
        2, "is also one of the updates"
    )


def test_a_rule_of_the_user_that_breaks_or_is_too_large_is_one_line(capsys, folder, monkeypatch):
    fill(folder, updates_of(3))
    mine = folder.parent / "mine.py"
    mine.write_text(
        "import outvote\n"
        "class Broken(outvote.VectorRule):\n"
        "    def max_byzantine(self, num_clients): return num_clients - 1\n"
        "    def aggregate(self, rows, num_byzantine): raise RuntimeError('one\\ntwo')\n"
    )
    output = folder.parent / "out.safetensors"
    words = ["aggregate", folder, "--rule", f"{mine}:Broken", "--num-byzantine", 1, "-o", output]
    run(capsys, *words).assert_fails(1, "RuntimeError: one two", "--debug")
    monkeypatch.setattr(streaming, "PROGRAM_BYTES", 3_000_000_000)
    run(capsys, *words).assert_fails(2, "cannot be streamed")
    assert not output.exists()


def test_the_installed_program_reports_by_exit_code(folder):
    (folder / "a.safetensors").touch()
    code = "import sys; from outvote.cli import main; sys.exit(main())"
    words = ["aggregate", str(folder), "--rule", "median", "-o", str(folder.parent / "out")]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
