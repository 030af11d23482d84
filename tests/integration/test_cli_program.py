"""The program as a whole: fast help, one line per failure, exit codes."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from command_line import run
from outvote.cli import app
from outvote.cli.app import VERBS

HELP = "import sys; from outvote.cli import main; code = main(['--help'])\n"


def test_help_answers_well_under_half_a_second():
    # The best of three: a busy machine delays one start, not all.
    times = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", HELP], check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.5


@pytest.mark.parametrize("words", [["--help"], ["aggregate", "--help"], ["--version"], ["shwo"]])
def test_help_and_mistakes_load_neither_torch_nor_rich(words):
    code = f"import sys; from outvote.cli import main; main({words!r})\n"
    code += "print([name for name in ('torch', 'numpy', 'rich') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_names_every_verb(capsys):
    for words in ([], ["--help"], ["-h"]):
        result = run(capsys, *words)
        assert (result.code, result.err) == (0, "")
        for verb in VERBS:
            assert f"\n  {verb} " in result.out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["shwo", "krum"], ["no verb 'shwo'", "'show'"]),
        (["show", "kurm"], ["'kurm'", "'krum'"]),
        (["show"], ["NAME", "outvote show --help"]),
        (["show", "gas(krum, num_gruops=3)"], ["'num_gruops'", "'num_groups'"]),
        (["show", "gas(krum"], ["expected"]),
        (["show", "gas(fltrust)"], ["cannot be wrapped"]),
        (["show", "nowhere.py:Rule"], ["nowhere.py", f"in the folder {Path.cwd()}"]),
        (["stress", "--attack", "label-flip"], ["samples or labels", "no client trains here"]),
        (["show", "krum", "--jsn"], ["--jsn", "--json"]),
        (["list"], ["KIND"]),
        (["list", "rulez"], ["'rulez'", "'rules'"]),
        (["plan", "--clients", "9"], ["--byzantine"]),
        (["plan", "--clients", "9", "--byzantine", "x"], ["'x'", "integer"]),
        (["--no-such-option"], ["--no-such-option"]),
    ],
)
def test_a_mistake_of_the_user_is_one_line_that_names_the_way_out(capsys, words, expected):
    run(capsys, *words).assert_fails(2, *expected)


MISTAKES = {
    "aggregate": ["nowhere", "--rule", "mean", "-o", "out.safetensors"],
    "audit": ["nowhere"],
    "bench": ["nothing"],
    "compare": ["nowhere", "nowhere"],
    "data": ["verify", "nothing"],
    "demo": ["--set", "x=1"],
    "doctor": ["--wrong"],
    "export": ["nowhere", "-o", "x.csv"],
    "list": ["nothing"],
    "new": [__file__],
    "plan": ["--clients", "9"],
    "plot": ["nowhere", "--kind", "curves", "-o", "x.png"],
    "report": ["nowhere"],
    "run": ["nowhere.toml"],
    "show": ["kurm"],
    "stress": ["--rule", "kurm"],
    "table": ["nowhere"],
    "verify": ["nowhere"],
    "watch": ["nowhere"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_with_json_the_failure_of_every_verb_is_one_object_on_stderr(capsys, verb):
    words = [verb, *MISTAKES[verb]]
    plain = run(capsys, *words)
    plain.assert_fails(2)
    found = run(capsys, *words, "--json")
    found.assert_fails(2)
    assert json.loads(found.err) == {
        "error": plain.err.removeprefix("error: ").rstrip("\n"),
        "code": 2,
    }


@pytest.mark.parametrize("words", [["--debug", "show", "kurm"], ["show", "kurm", "--debug"]])
def test_debug_shows_the_traceback_before_the_line(capsys, words):
    result = run(capsys, *words)
    assert result.code == 2
    assert result.err.startswith("Traceback")
    assert result.err.splitlines()[-1].startswith("error: ")


def test_whatever_breaks_inside_is_one_line_and_exit_code_1(capsys, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("a\nb")

    monkeypatch.setattr(app.program, "main", fail)
    run(capsys, "show", "krum").assert_fails(1, "ZeroDivisionError: a b", "--debug")


def test_an_interrupt_is_one_line_and_exit_code_1(capsys, monkeypatch):
    def fail(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(app.program, "main", fail)
    run(capsys, "show", "krum").assert_fails(1, "interrupted")
