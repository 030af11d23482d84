"""A project of a user's own: model, data, partition, loss and optimiser from a file, by TOML."""

import pytest

import outvote as ov
from command_line import run

MINE = """
import numpy as np
import torch
from torch import nn


def data():
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 6)).astype(np.float32)
    y = (x @ random.normal(size=(6, 3))).argmax(axis=1)
    return (x[:240], y[:240]), (x[240:], y[240:]), [f"g{k % 6}" for k in range(240)]


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, num_classes))

    def forward(self, x):
        return self.layers(x)


def halves(targets, num_clients, seed):
    return np.array_split(np.random.default_rng(seed).permutation(len(targets)), num_clients)


def smooth(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)
"""
SETTINGS = """
rule = ["median", "gas(multi-krum, num_groups=5)"]
attack = "ipm"
rounds = 3
loss = "mine.py:smooth"
optimizer = "mine.py:adam"
model.name = "mine.py:Net"

[data]
name = "mine.py:data"
partition = "mine.py:halves"

[federation]
num_clients = 6
byzantine = 1
"""


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "mine.py").write_text(MINE)
    (folder / "outvote.toml").write_text(SETTINGS)
    return folder


def test_a_file_names_everything_and_runs_from_any_folder(project, tmp_path, monkeypatch, capsys):
    names = set()
    for folder in (project, tmp_path):
        monkeypatch.chdir(folder)
        store = tmp_path / f"runs-{len(names)}"
        done = run(capsys, "run", project / "outvote.toml", "-o", store, "--device", "cpu")
        assert done.code == 0, done.err
        runs = ov.read_runs(store)
        names.add(tuple(run.name for run in runs))
        assert [run.status.outcome for run in runs] == ["finished", "finished"]
        code = {each.path for run in runs for each in run.environment.code}
        assert code == {"mine.py"}
    assert len(names) == 1, "the folder is no part of a run"


def test_changed_code_is_another_run(project, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(project)
    words = ("run", "outvote.toml", "-o", tmp_path / "runs", "--set", "rule=median")
    assert run(capsys, *words).code == 0
    path = project / "mine.py"
    path.write_text(path.read_text().replace("lr=0.01", "lr=0.02"))
    assert run(capsys, *words).code == 0
    assert len(ov.read_runs(tmp_path / "runs")) == 2


@pytest.mark.parametrize(
    ("setting", "fault"),
    [
        ("model.name=mine.py:Nett", "mine.py has no Nett"),
        ("data.name=other.py:data", "there is no file other.py"),
        ("loss=mse", "loss: unknown value 'mse'"),
        ("optimizer=adam", "optimizer: unknown value 'adam'"),
        ("data.partition=diriclet", "data.partition: unknown value 'diriclet'"),
        ("data.partition=dirichlet", None),
        ("data.partition=by-group", None),
    ],
)
def test_mistakes_are_one_line(project, tmp_path, monkeypatch, capsys, setting, fault):
    monkeypatch.chdir(project)
    words = ("run", "outvote.toml", "-o", tmp_path / "runs", "--set", setting, "--set", "rounds=1")
    done = run(capsys, *words, "--set", "rule=median")
    if fault is None:
        assert done.code == 0, done.err
        return
    done.assert_fails(2, fault)
