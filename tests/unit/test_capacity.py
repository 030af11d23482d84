"""How many runs train together."""

from functools import partial

import pytest
import torch
from torch import nn

from outvote.experiment import builder
from outvote.experiment.builder import RunBuilder, free_bytes
from outvote.training import gpu_memory
from simulations import tiny

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


def test_memory_that_torch_holds_back_is_free(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 999))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 50)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20)
    assert free_bytes(CUDA) == 130


def test_memory_that_the_system_would_give_back_is_free(monkeypatch, tmp_path):
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:  900 kB\nMemFree:  1 kB\nMemAvailable:   300 kB\n")
    monkeypatch.setattr(builder, "MEMINFO", path)
    assert free_bytes(CPU) == 300 * 1024
    monkeypatch.setattr(builder, "MEMINFO", tmp_path / "nothing")
    assert free_bytes(CPU) > 0


@pytest.mark.parametrize(("momentum", "expected"), [(0.0, 15), (0.5, 5)])
def test_the_momentum_of_clients_takes_memory(monkeypatch, momentum: float, expected: int):
    monkeypatch.setattr(builder, "free_bytes", lambda device: 4 * 10 * 8 * 5 * 25)
    monkeypatch.setattr(RunBuilder, "network", lambda *_: nn.Linear(9, 1))
    (spec,) = tiny(
        federation={"num_clients": 80, "sampled": 5}, training={"client_momentum": momentum}
    ).specs
    assert RunBuilder(CPU).most_runs(spec) == expected


def test_memory_that_is_spared_is_not_used(monkeypatch):
    monkeypatch.setattr(gpu_memory, "free_on_gpu", lambda device: 1000)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20)
    done = []
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 20 + 10 * done[-1])
    fits = partial(gpu_memory.how_many_fit, done.append, CUDA)
    # 0.8 of what is free, 10 bytes each.
    assert fits() == 80
    assert done == [1, 4]
    assert fits(spare=200) == 60
    assert fits(spare=790) == 20
    assert fits(most=150) == 15
    assert gpu_memory.how_many_fit(done.append, CPU) is None


def test_where_several_units_do_not_fit_fewer_are_measured(monkeypatch):
    monkeypatch.setattr(gpu_memory, "free_on_gpu", lambda device: 1000)
    for name in ("synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda device: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    done = []
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 300 + 100 * done[-1])

    def work(number):
        if number > 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        done.append(number)

    assert gpu_memory.how_many_fit(work, CUDA) == 5
    assert done == [1, 2]
