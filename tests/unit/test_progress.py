"""The progress of runs: lines without a terminal, bars on one and in a notebook, or nothing."""

import io
import re
import sys
import types

import pytest
from rich.console import Console
from rich.progress import Progress

import outvote as ov
from command_line import run
from outvote.cli.progress import shown_progress
from outvote.experiment import progress as shown
from outvote.experiment.listener import RoundProgress
from outvote.experiment.progress import Lines, RoundBars, chosen_kind, is_notebook

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


def one_round(number, accuracies=(), num_runs=2, num_rounds=20, num_samples=500):
    return RoundProgress(
        round=number,
        num_rounds=num_rounds,
        num_runs=num_runs,
        accuracies=accuracies,
        num_samples=num_samples,
        seconds=1.0,
    )


class Clock:
    """A clock that a test moves."""

    now = 100.0

    def __call__(self):
        return self.now


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


def test_a_line_every_ten_seconds_has_round_accuracy_speed_and_time_left():
    clock, found = Clock(), []
    lines = Lines(found.append, clock)
    clock.now += 60  # Loading data is no round.
    lines.on_plan(40)
    for number in range(1, 11):
        clock.now += 4
        lines.on_round(one_round(number, accuracies=(0.25, 0.5) if number == 2 else ()))
    # Rounds end after 4, 8, 12, ... seconds: a line after 12, 24 and 36.
    known = "accuracy 0.250 to 0.500, 125 samples/s"
    assert found == [
        f"2 runs: round 3 of 20, {known}, 6 of 40 rounds of all runs, about 1 min 8 s left",
        f"2 runs: round 6 of 20, {known}, 12 of 40 rounds of all runs, about 56 s left",
        f"2 runs: round 9 of 20, {known}, 18 of 40 rounds of all runs, about 44 s left",
    ]


def test_a_line_leaves_out_what_is_not_known():
    clock, found = Clock(), []
    lines = Lines(found.append, clock)
    clock.now += 11
    lines.on_round(one_round(1, num_runs=1))
    assert found == ["1 run: round 1 of 20, 45 samples/s"]


def test_bars_show_the_last_accuracy_between_two_evaluations():
    console = Console(width=150, file=io.StringIO())
    with Progress("{task.description} {task.fields[note]}", console=console) as progress:
        bars = RoundBars(progress)
        bars.on_plan(20)
        bars.on_round(one_round(1, accuracies=(0.5,), num_runs=1))
        bars.on_round(one_round(2, num_runs=1))
        every, now = progress.tasks
    assert (every.completed, every.total, now.completed, now.total) == (2, 20, 2, 20)
    assert now.description == "1 run, round"
    assert now.fields["note"] == "accuracy 0.500, 500 samples/s"


def test_auto_is_a_bar_on_a_terminal_and_lines_elsewhere(monkeypatch):
    terminal(monkeypatch)
    assert chosen_kind("auto") == "bar"
    assert [chosen_kind(kind) for kind in ("bar", "lines", "none")] == ["bar", "lines", "none"]
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert chosen_kind("auto") == "lines"
    assert not is_notebook()


def test_auto_is_a_bar_in_a_notebook(notebook, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert is_notebook()
    assert chosen_kind("auto") == "bar"
    sys.modules["IPython"].get_ipython = types.SimpleNamespace
    assert not is_notebook()  # IPython in a terminal.


def test_a_bar_is_drawn_with_the_time_left(monkeypatch):
    screen = terminal(monkeypatch)
    with shown_progress("auto") as listener:
        listener.on_plan(4)
        listener.on_round(one_round(1, accuracies=(0.5,)))
        listener.on_message("a message\nof two lines")
    text = screen.getvalue()
    assert "all runs" in text
    assert "2/4" in text
    assert ":" in text.split("2/4")[-1]  # 0:00:01, or -:--:-- as long as it is not known.
    assert "a message of two lines" in text


def test_a_notebook_shows_the_bars_in_its_cell(notebook, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with shown_progress("auto") as listener:
        listener.on_plan(4)
        listener.on_round(one_round(1, accuracies=(0.5,)))
        listener.on_message("a message")
    assert "2/4" in notebook[-1]
    assert "accuracy 0.500" in notebook[-1]
    assert sys.stderr.getvalue() == "a message\n"


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
