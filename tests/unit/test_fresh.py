"""Memory that is kept between calls: used again, never shared, and never handed out."""

import gc
from dataclasses import replace

import pytest
import torch

import outvote as ov
from outvote.ops import native
from outvote.ops import process as fresh

CPU = torch.device("cpu")
MANY = fresh.SMALLEST_KEPT // 4


@pytest.fixture(autouse=True)
def nothing_kept():
    gc.collect()
    fresh._KEPT.clear()
    yield
    fresh._KEPT.clear()


def memory(num_values, dtype=torch.float32):
    return fresh.scratch((num_values,), dtype, CPU)


def test_scratch_memory_is_used_again_when_nobody_holds_it():
    first = memory(MANY)
    place = first.data_ptr()
    del first
    assert len(fresh._KEPT) == 1
    again = memory(MANY // 2, torch.float64)
    assert again.data_ptr() == place
    assert again.dtype == torch.float64
    assert not fresh._KEPT


def test_scratch_memory_that_is_held_is_not_given_to_another():
    first = memory(MANY).fill_(1)
    view = first.view(-1, 16)[3:]
    del first
    second = memory(MANY).fill_(2)
    assert bool((view == 1).all()), "a view holds the memory, too"
    assert bool((second == 2).all())


def test_no_more_pieces_are_kept_than_a_call_needs():
    held = [memory(MANY) for _ in range(fresh.MOST_KEPT + 1)]
    held.clear()
    assert len(fresh._KEPT) == fresh.MOST_KEPT


@pytest.mark.parametrize(("kept", "asked"), [(MANY, 3 * MANY), (3 * MANY, MANY)])
def test_memory_of_another_size_is_given_back(kept, asked):
    memory(kept).fill_(1)
    assert len(fresh._KEPT) == 1
    other = memory(asked)
    assert not fresh._KEPT
    assert bool((other == 0).all()), "it comes from the system"


def test_little_memory_comes_from_the_allocator():
    memory(MANY - 1)
    assert not fresh._KEPT


@pytest.mark.parametrize(("spec", "num_clients"), [("gas(bulyan)", 10), ("gas(multi-krum)", 14)])
def test_gas_hands_out_nothing_that_it_works_in_again(spec, num_clients):
    # With 3 groups, one is larger: the copies of both widths are long enough to be kept.
    dim = 3 * (MANY // num_clients + 1000) + 1
    rows = torch.randn(num_clients, dim, generator=torch.Generator().manual_seed(0))
    rule = replace(ov.make_rule(spec), num_groups=3)
    first = rule(rows, num_byzantine=1, seed=0)
    before = first.clone()
    # A kernel copies all values at once.
    num_copies = 2 if num_clients == 10 and native.level() is None else 1
    assert len(fresh._KEPT) == num_copies, "copies of all values"
    same = sorted(map(id, fresh._KEPT))
    rule(rows + 1, num_byzantine=1, seed=1)
    assert torch.equal(first, before)
    assert torch.equal(rule(rows, num_byzantine=1, seed=0), before)
    assert sorted(map(id, fresh._KEPT)) == same, "the same memory every time"


def test_memory_that_there_is_not_is_a_memory_error(monkeypatch):
    def refuse(*given, **named):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(fresh.mmap, "mmap", refuse)
    with pytest.raises(MemoryError, match="bytes for copies of gradients"):
        memory(MANY)
