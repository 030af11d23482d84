"""The progress of runs: lines without a terminal, bars on one and in a notebook, or nothing."""

import io
import re
import sys
import types

import pytest

import outvote as ov
from command_line import run
from outvote.experiment import progress as shown

CONFIG = """
rule = ["mean", "median"]
rounds = 3
data.partition = "iid"
federation = { num_clients = 5, byzantine = 1 }
model.name = "mlp"
training = { num_steps = 1, batch_size = 16 }
"""
LINE = re.compile(
    r"2 runs: round \d of 3, accuracy 0\.\d{3} to 0\.\d{3}, [\d,]+ samples/s, "
    r"\d of 6 rounds of all runs, about \d+ s left"
)


def terminal(monkeypatch):
    """Make stderr a terminal; in a fixture, pytest would put its own there again."""
    stream = io.StringIO()
    stream.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


@pytest.fixture
def notebook(monkeypatch):
    """The kernel of a notebook, and what it displays."""
    outputs = []

    class Handle:
        def update(self, thing):
            outputs.append(thing._repr_mimebundle_([], [])["text/plain"])

    def display(thing, display_id):
        assert display_id
        Handle().update(thing)
        return Handle()

    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    return outputs


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A small file of settings; every round is late enough for a line."""
    monkeypatch.setattr(shown, "LINES_EVERY", 0.0)
    path = tmp_path / "small.toml"
    path.write_text(CONFIG)
    return path


@pytest.mark.parametrize("words", [(), ("--progress", "auto"), ("--progress", "lines")])
def test_run_prints_lines_where_there_is_no_terminal(config, capsys, tmp_path, words):
    done = run(capsys, "run", config, "-o", tmp_path / "runs", "--device", "cpu", *words)
    assert done.code == 0, done.err
    lines = done.err.splitlines()
    assert len(lines) == 3
    assert all(LINE.fullmatch(line) for line in lines), lines
    assert "round 3 of 3" in lines[-1]
    assert "6 of 6 rounds of all runs, about 0 s left" in lines[-1]


def test_run_draws_bars_on_request_also_into_a_file(config, capsys, tmp_path):
    words = ["-o", tmp_path / "runs", "--device", "cpu", "--progress", "bar"]
    done = run(capsys, "run", config, *words)
    assert done.code == 0
    assert "6/6" in done.err


SMALL = {"num_clients": 5, "byzantine": 1, "rounds": 2, "device": "cpu", "rules": ["mean"]}


@pytest.mark.parametrize(
    ("progress", "num_lines"),
    [("auto", 2), ("lines", 2), (True, 2), ("none", 0), (False, 0)],
)
def test_simulate_prints_lines(monkeypatch, capsys, progress, num_lines):
    monkeypatch.setattr(shown, "LINES_EVERY", 0.0)
    local = ov.LocalSGD(num_steps=1, batch_size=16)
    ov.simulate(
        "mlp", "fashion-mnist-small", attacks=["none"], local=local, progress=progress, **SMALL
    )
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == num_lines
    assert all(line.startswith("1 run: round ") for line in lines)
