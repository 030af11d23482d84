"""How many runs are played side by side."""

import pytest
import torch
from torch import nn

from outvote.experiment import capacity

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


def test_memory_that_torch_holds_back_is_free(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 999))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 50)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20)
    assert capacity.free_bytes(CUDA) == 130


def test_memory_that_the_system_would_give_back_is_free(monkeypatch, tmp_path):
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:  900 kB\nMemFree:  1 kB\nMemAvailable:   300 kB\n")
    monkeypatch.setattr(capacity, "MEMINFO", path)
    assert capacity.free_bytes(CPU) == 300 * 1024
    monkeypatch.setattr(capacity, "MEMINFO", tmp_path / "nothing")
    assert capacity.free_bytes(CPU) > 0


@pytest.mark.parametrize(("num_kept", "expected"), [(0, 15), (80, 5)])
def test_what_clients_remember_takes_room(monkeypatch, num_kept: int, expected: int):
    monkeypatch.setattr(capacity, "free_bytes", lambda device: 4 * 10 * 8 * 5 * 25)
    network = nn.Linear(9, 1)
    assert capacity.most_runs(network, 5, CPU, num_kept) == expected
