"""The precision of a rule's work, whatever modes its caller is in, and its callers in turn."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from outvote.ops import precision
from outvote.ops.precision import (
    _get_precision,
    _set_precision,
    exact_products,
    fast_products,
    plain_torch,
)
from outvote.rules.split import draw_orders
from outvote.seeding import RandomStream

CPU = torch.device("cpu")


def _modes() -> tuple[bool, bool, bool]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
    )


def test_the_modes_of_a_caller_are_left_behind_and_come_back():
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        before = _modes()
        with plain_torch(CPU):
            assert _modes() == (False, False, False)
            assert set(_get_precision()) <= {"ieee", "highest"}
        assert _modes() == before


def test_modes_that_are_entered_inside_are_left_behind_too():
    for mode in (
        torch.enable_grad(),
        torch.inference_mode(),
        torch.autocast("cpu", torch.bfloat16),
    ):
        with plain_torch(CPU), mode:
            before = _modes()
            with plain_torch(CPU):
                assert _modes() == (False, False, False)
            assert _modes() == before


@pytest.mark.parametrize(("device", "is_changed"), [("cuda:1", True), ("cuda:0", False)])
def test_kernels_start_on_the_gpu_that_has_the_values(device, is_changed, monkeypatch):
    current = [0]

    @contextmanager
    def on_gpu(device):
        current.append(device.index)
        yield
        current.pop()

    monkeypatch.setattr(precision, "on_gpu", on_gpu)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[-1])
    with plain_torch(torch.device(device)):
        assert current == ([0, 1] if is_changed else [0])
        with plain_torch(torch.device(device)):
            assert current == ([0, 1] if is_changed else [0])
        assert not torch.is_grad_enabled()
    assert current == [0]


def test_the_first_one_in_sets_the_precision_and_the_last_one_out_restores_it():
    before = _get_precision()
    with fast_products():
        fast = _get_precision()
        assert fast != before
        for _ in range(2):
            with exact_products(), plain_torch(CPU), plain_torch(CPU):
                assert set(_get_precision()) <= {"ieee", "highest"}
            assert _get_precision() == fast
    assert _get_precision() == before


def test_runs_of_one_seed_draw_one_order():
    first, other, again = draw_orders(20_000, RandomStream((3, 4, 3)))
    assert again is first
    assert not torch.equal(first.index(), other.index())
    assert draw_orders(20_000, RandomStream((3,)))[0] is first
    assert draw_orders(20_001, RandomStream((3,)))[0] is not first


def test_what_code_inside_sets_is_undone_at_the_end():
    before = _get_precision()
    _set_precision(["ieee"] * len(before))
    try:
        exact = _get_precision()
        with plain_torch(CPU):
            _set_precision(["tf32"] * len(before))
        assert _get_precision() == exact
    finally:
        _set_precision(before)


def test_another_thread_is_exact_whatever_code_inside_has_set():
    before = _get_precision()
    with exact_products():
        exact = _get_precision()
        _set_precision(["tf32"] * len(before))
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(_inside).result() == exact
    assert _get_precision() == before


def _inside() -> list[str]:
    with exact_products():
        return _get_precision()
