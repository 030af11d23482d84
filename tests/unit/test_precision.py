"""The precision of a rule's work, whatever modes its caller is in, and its callers in turn."""

import threading
from contextlib import contextmanager

import pytest
import torch

import outvote as ov
from outvote.ops import process
from outvote.ops.process import exact_products, fast_products, plain_torch, products_in

CPU = torch.device("cpu")


@pytest.fixture
def setting(monkeypatch):
    """A setting of matrix products that a test may change, in place of torch's own."""

    class Setting:
        fp32_precision = "tf32"

    layers = Setting()
    settings = process._Settings([Setting(), layers])
    monkeypatch.setattr(process, "_settings", lambda _: settings)
    return settings.backends


def names(backends) -> list[str]:
    return [backend.fp32_precision for backend in backends]


def _modes() -> tuple[bool, bool, bool]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
    )


@pytest.mark.parametrize(
    "mode",
    [torch.enable_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)],
    ids=["gradients", "inference", "autocast"],
)
def test_the_modes_of_a_caller_are_left_behind_and_come_back(mode):
    with mode():
        before = _modes()
        with plain_torch(CPU):
            assert _modes() == (False, False, False)
            with mode(), plain_torch(CPU):
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

    monkeypatch.setattr(process, "on_gpu", on_gpu)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[-1])
    for _ in range(2):
        with plain_torch(torch.device(device)):
            assert current == ([0, 1] if is_changed else [0])
            assert not torch.is_grad_enabled()
    assert current == [0]


def test_products_are_exact_while_anybody_needs_them(setting):
    with fast_products(CPU):
        assert names(setting) == ["tf32", "tf32"]
        for _ in range(2):
            with exact_products(CPU), plain_torch(CPU), exact_products(CPU):
                assert names(setting) == ["ieee", "tf32"]
            assert names(setting) == ["tf32", "tf32"]
    setting[0].fp32_precision = "none"
    with fast_products(CPU):
        assert names(setting) == ["tf32", "tf32"]
    assert names(setting) == ["none", "tf32"]


def test_layers_are_exact_with_the_precision_float32(setting):
    with products_in("float32", CPU):
        assert names(setting) == ["ieee", "ieee"]
    with products_in("tf32", CPU):
        assert names(setting) == ["tf32", "tf32"]
    assert names(setting) == ["tf32", "tf32"]


def test_another_thread_that_wants_speed_waits_with_it(setting):
    seen = []

    def inside():
        with fast_products(CPU):
            seen.append(setting[0].fp32_precision)

    with exact_products(CPU):
        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
    assert seen == ["ieee"]
    assert setting[0].fp32_precision == "tf32"


def test_who_comes_later_is_exact_whatever_code_inside_has_set(setting):
    with exact_products(CPU):
        setting[0].fp32_precision = "bf16"
        with exact_products(CPU):
            assert setting[0].fp32_precision == "ieee"
    assert setting[0].fp32_precision == "tf32"


def test_a_rule_is_exact_whatever_its_caller_has_set(setting):
    seen = []

    class Seeing(ov.VectorRule):
        def max_byzantine(self, num_clients):
            return num_clients - 1

        def aggregate(self, rows, num_byzantine):
            seen.append(setting[0].fp32_precision)
            return rows.mean(dim=0)

    with torch.autocast("cpu", torch.bfloat16):
        Seeing()([[1.0, 2.0], [3.0, 4.0]], num_byzantine=0)
    assert seen == ["ieee"]
    assert setting[0].fp32_precision == "tf32"
