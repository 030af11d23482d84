"""docs/how-to/simulate-from-python.md is correct: its scripts run, resume, and its recipes work."""

import os
import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from torch import nn

import outvote as ov

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "simulate-from-python.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
TABLE, TEXT, PARTITIONS, TRAINING, TENSORBOARD, WANDB = BLOCKS
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(600, 4)).astype(np.float32), RANDOM.integers(0, 3, 600)
SMALL = {"num_clients": 5, "byzantine": 1, "rounds": 3, "rules": "median", "attacks": "ipm"}


def net():
    return nn.Linear(4, 3)


def start(folder, script):
    """Start a script of the page in a folder, as it stands."""
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(script)
    return subprocess.Popen(
        [sys.executable, "-W", "error", "script.py"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


def num_rounds(folder):
    return sum(path.read_bytes().count(b"\n") for path in folder.rglob("metrics.jsonl"))


def kill_after(process, folder, number):
    """Kill a process once it has recorded some rounds."""
    deadline = time.monotonic() + 120
    while num_rounds(folder) < number and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def numbers(folder):
    """All rounds of all runs, and their weights."""
    names = ("metrics.jsonl", "checkpoint.safetensors")
    files = (path for name in names for path in folder.rglob(name))
    return {path.relative_to(folder): path.read_bytes() for path in files}


def test_an_example_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "script.py"
    path.write_text(TABLE)
    runpy.run_path(str(path), run_name="__main__")
    assert "accuracy" in capsys.readouterr().out
    assert (tmp_path / "table.png").stat().st_size > 1000
    assert num_rounds(tmp_path) == 4 * 15


@pytest.mark.slow  # test_kill.py has a program that is killed and resumes.
@pytest.mark.parametrize(
    ("name", "script", "total"), [("table", TABLE, 4 * 15), ("text", TEXT, 2 * 8)]
)
def test_an_example_that_is_killed_resumes_and_ends_bit_identical(tmp_path, name, script, total):
    pytest.importorskip("pandas")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    shown = finish(start(whole, script))
    assert "accuracy" in shown
    assert (whole / f"{name}.png").stat().st_size > 1000
    assert num_rounds(whole) == total
    kill_after(start(cut, script), cut, total // 3)
    assert total // 3 <= num_rounds(cut) < total, "it was killed in the middle"
    assert finish(start(cut, script)) == shown
    assert numbers(cut) == numbers(whole)
    assert len(numbers(cut)) == 2 * len(ov.read_runs(cut / "runs"))


class Rows:
    """A table as Hugging Face has them: rows by slices, columns by name."""

    def __init__(self, columns):
        self.columns = columns

    def with_format(self, kind):
        assert kind == "numpy"
        return self

    def __getitem__(self, rows):
        return {name: values[rows] for name, values in self.columns.items()}


class FederatedDataset:
    """The interface of flwr_datasets.FederatedDataset that the page uses."""

    def __init__(self, *, dataset, partitioners):
        assert isinstance(dataset, str)
        number = partitioners["train"].num_partitions
        sizes = [3 + k % 4 for k in range(number)]
        self.parts = [self.rows(size, k) for k, size in enumerate(sizes)]

    @staticmethod
    def rows(size, value):
        images = np.full((size, 5, 5), value, dtype=np.uint8)
        return Rows({"image": images, "label": np.arange(size) % 3})

    def load_partition(self, partition_id):
        return self.parts[partition_id]

    def load_split(self, split):
        assert split == "test"
        return self.rows(9, 0)


def test_partitions_of_flower_become_a_partition(monkeypatch):
    package, inside = ModuleType("flwr_datasets"), ModuleType("flwr_datasets.partitioner")
    package.FederatedDataset = FederatedDataset
    inside.DirichletPartitioner = SimpleNamespace
    monkeypatch.setitem(sys.modules, "flwr_datasets", package)
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", inside)
    scope = {}
    exec(PARTITIONS, scope)
    train, test, parts = scope["train"], scope["test"], scope["parts"]
    for number, part in enumerate(parts):
        assert set(train[0][part].flatten()) == {number}, "the samples of one client"
    (call,) = re.findall(r"^# (ov\.simulate\(.*), \.\.\.\)$", PARTITIONS, flags=re.MULTILINE)
    more = "rounds=1, rules='mean', attacks='none', device='cpu')"
    known = {"train": train, "test": test, "parts": parts, "ov": ov}
    known["Net"] = lambda: nn.Sequential(nn.Flatten(), nn.Linear(25, 3))
    runs = eval(f"{call}, {more}", known)
    assert runs[0].setting("federation.num_clients") == 20


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """What the page defines, in a file: its functions have a source."""
    path = tmp_path_factory.mktemp("training") / "mine.py"
    path.write_text(TRAINING)
    scope = {}
    exec(compile(TRAINING, str(path), "exec"), scope)
    return scope


@pytest.mark.parametrize(
    "names",
    [
        {"local": "local"},
        {"local": "falling"},
        {"local": "fedprox"},
        {"local": "history"},
        {"server": "fedadam"},
        {"loss": "focal"},
        {"optimizer": "adamw"},
        {"local": "fedprox", "server": "fedadam", "loss": "focal"},
    ],
    ids=str,
)
def test_every_way_to_train_runs_and_is_another_run(training, names):
    chosen = {name: training[value] for name, value in names.items()}
    (run,) = ov.simulate(net, (X, Y), (X, Y), **SMALL, **chosen, device="cpu")
    (usual,) = ov.simulate(net, (X, Y), (X, Y), **SMALL, device="cpu")
    assert run.status.outcome == "finished"
    assert run.name != usual.name
    assert run.series.loss.tolist() != usual.series.loss.tolist()


def test_tensorboard_gets_every_round(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.chdir(tmp_path)
    scope = {}
    exec(TENSORBOARD, scope)
    (run,) = ov.simulate(
        net, (X, Y), (X, Y), **SMALL, callbacks=scope["to_tensorboard"], device="cpu"
    )
    for writer in scope["writers"].values():
        writer.close()
    written = EventAccumulator(str(tmp_path / "tensorboard" / run.name))
    written.Reload()
    assert written.Tags()["scalars"] == ["accuracy", "loss"]
    values = [event.value for event in written.Scalars("accuracy")]
    assert values == pytest.approx(run.series.accuracy.tolist(), rel=1e-6)
    assert [event.step for event in written.Scalars("loss")] == [1, 2, 3]


def test_weights_and_biases_gets_every_round(monkeypatch):
    begun, logged = [], []

    def init(**settings):
        begun.append(settings)
        return SimpleNamespace(log=lambda values, step: logged.append((step, values)))

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    scope = {}
    exec(WANDB, scope)
    (run,) = ov.simulate(net, (X, Y), (X, Y), **SMALL, callbacks=scope["to_wandb"], device="cpu")
    assert [settings["id"] for settings in begun] == [run.name]
    assert begun[0]["config"] == {"rule": "median", "attack": "ipm", "seed": 0}
    assert [step for step, _ in logged] == [1, 2, 3]
    assert logged[-1][1]["accuracy"] == run.series.accuracy[-1]
