"""`outvote aggregate` with a mistake: one line, and nothing is written."""

import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from command_line import run
from update_files import fill, updates_of


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "updates"
    path.mkdir()
    return path


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


def test_a_rule_of_the_user_that_breaks_is_one_line_and_writes_nothing(capsys, folder):
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
