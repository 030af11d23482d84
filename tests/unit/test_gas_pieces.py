"""GAS works in pieces, on several threads, in the caller's modes: the answer is that of a loop."""

import threading

import numpy as np
import pytest
import torch

import outvote as ov
from outvote.ops import order
from outvote.rules import groups, values
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.rule import AffineRule, RoundInfo
from outvote.rules.rule_spec import RULES
from outvote.seeding import RandomStream

WRAPPED = {"gas", "bucketing", "nnm", "clip", "norm-filter"}
BASES = [
    name for name, rule in RULES.items() if name not in WRAPPED and rule().traits.can_be_wrapped
]
MORE = [
    "nnm(median)",
    "nnm(krum)",
    "clip(multi-krum, max_norm=3.0)",
    "rfa(start=zero, smoothing=0.1)",
    "centered-clipping(radius=3.0)",
    "gas(median, num_groups=4)",
]
NUM_GROUPS = 37
WIDTH = 33


class LooksFirst(AffineRule):
    """Looks at the values before it asks for distances."""

    def max_byzantine(self, num_clients):
        return (num_clients - 1) // 2

    def weigh(self, matrix, info):
        variance = matrix.columns.double().var(dim=-2)
        far = matrix.squared_distances.double().sum(dim=-1) + variance
        num_kept = matrix.num_clients - info.num_byzantine
        return ov.Aggregation(weights=order.average_of_smallest(far, num_kept))


@pytest.fixture
def in_small_pieces(monkeypatch):
    """Make chunks and tiles so small that many of each are needed, on two threads."""
    for device in ("cpu", "cuda"):
        monkeypatch.setitem(values.TILE_VALUES, device, 2000)
        monkeypatch.setitem(groups.VALUES_AT_ONCE, device, 2000)
        monkeypatch.setitem(groups.MATRICES_AT_ONCE, device, 3000)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def rule_of(spec):
    return LooksFirst() if spec == "user" else ov.make_rule(spec)


@pytest.mark.parametrize(
    ("num_clients", "dtype"),
    [
        (7, torch.float32),
        (17, torch.float64),
        pytest.param(7, torch.float64, marks=pytest.mark.slow),
        pytest.param(17, torch.float32, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("spec", [*BASES, *MORE, "user"])
def test_gas_in_pieces_scores_as_a_loop_over_the_groups(
    spec, num_clients, dtype, device, in_small_pieces
):
    generator = torch.Generator().manual_seed(5)
    dim = NUM_GROUPS * WIDTH
    X = torch.randn(num_clients, dim, generator=generator, dtype=dtype).to(device)
    groups = torch.randperm(dim, generator=generator).view(NUM_GROUPS, WIDTH)
    rule = rule_of(spec)
    assumed = min(2, rule.max_byzantine(num_clients))
    found = ov.GAS(rule).inspect(X, num_byzantine=2, groups=groups.tolist(), seed=1)
    expected = np.zeros(num_clients)
    if rule.name != "gas":
        for group in groups:
            part = X[:, group.to(device)]
            answer = rule(part, num_byzantine=assumed, seed=1)
            expected += (part.double() - answer.double()).norm(dim=1).cpu().numpy()
        tolerance = 1e-9 if dtype == torch.float64 else 2e-5
        np.testing.assert_allclose(found.scores, expected, rtol=tolerance)
    again = ov.GAS(rule).inspect(X, num_byzantine=2, groups=groups.tolist(), seed=1)
    np.testing.assert_array_equal(found.scores, again.scores)


@pytest.mark.parametrize("num_clients", [5, 20])
@pytest.mark.parametrize(
    "spec",
    ["mean", "nnm(median)", "gas(multi-krum, num_groups=40)", "gas(median, num_groups=40)", "mda"],
)
def test_the_modes_of_the_caller_do_not_matter(spec, num_clients, device):
    rule = ov.make_rule(spec)
    X = torch.randn(num_clients, 40, generator=torch.Generator().manual_seed(0)).to(device)
    assumed = min(1, rule.max_byzantine(num_clients))
    plain = rule(X, num_byzantine=assumed, seed=0)
    with torch.autocast(device.type, torch.bfloat16):
        torch.testing.assert_close(rule(X, num_byzantine=assumed, seed=0), plain)
    with torch.inference_mode():
        torch.testing.assert_close(rule(X.clone(), num_byzantine=assumed, seed=0), plain)
    kept = rule(X.clone().requires_grad_(), num_byzantine=assumed, seed=0)
    assert not kept.requires_grad


def test_a_group_of_groups_can_be_split_again(device):
    X = torch.randn(6, 50, generator=torch.Generator().manual_seed(0)).to(device)
    rule = ov.make_rule("gas(gas(median, num_groups=3), num_groups=4)")
    assert rule(X, num_byzantine=1, seed=0).isfinite().all()


def test_the_number_of_threads_is_put_back_for_every_caller(in_small_pieces):
    X = torch.randn(20, 2000, generator=torch.Generator().manual_seed(0))
    ov.make_rule("gas(median, num_groups=20)")(X, num_byzantine=1)
    seen = []
    everybody_is_done = threading.Barrier(3)

    def call():
        torch.set_num_threads(2)
        for _ in range(5):
            ov.make_rule("gas(median, num_groups=20)")(X, num_byzantine=1)
        everybody_is_done.wait()
        seen.append(torch.get_num_threads())

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert seen == [2, 2, 2]
    assert torch.get_num_threads() == 2


def test_one_narrow_client_does_not_narrow_the_others():
    named = [{"w": np.zeros(3, np.float16)}]
    named += [{"w": np.full(3, 1e5 + k, np.float32)} for k in range(4)]
    found = ov.Median().inspect(named)
    assert found.rejected == []
    np.testing.assert_allclose(found.update["w"], 1e5 + 1)


def test_a_counter_beside_half_floats_is_not_infinite():
    named = [{"w": torch.zeros(2).half(), "n": torch.tensor(70_000 + k)} for k in range(5)]
    found = ov.Median().inspect(named)
    assert found.rejected == []
    assert float(found.update["n"]) == 70_002
    assert found.update["w"].dtype == torch.float16


def test_a_foreign_rule_that_gives_nan_is_named():
    class Breaks(ov.VectorRule):
        def max_byzantine(self, num_clients):
            return 0

        def aggregate(self, rows, num_byzantine):
            return rows.mean(dim=0) * float("nan")

    X = np.ones((3, 4))
    for rule in (Breaks(), ov.GAS(Breaks(), num_groups=2)):
        with pytest.raises(ValueError, match="Breaks gave NaN or infinity"):
            rule(X, num_byzantine=0)


def test_krum_counts_fewer_neighbours_when_clients_are_rejected():
    X = np.random.default_rng(0).normal(size=(7, 3))
    X[:2] = np.nan
    found = ov.Krum(num_neighbours=5).inspect(X, num_byzantine=2)
    assert found.rejected == [0, 1]
    assert "used 4" in found.notes[0]


def test_gas_passes_on_what_the_rule_inside_notes():
    X = np.random.default_rng(0).normal(size=(7, 6))
    X[:2] = np.nan
    found = ov.GAS(ov.Krum(num_neighbours=5), num_groups=3).inspect(X, num_byzantine=2)
    assert [note for note in found.notes if "used 4" in note]


@pytest.mark.parametrize(("dim", "num_calls"), [(groups.MANY_VALUES // 4, 1), (1000, 0)])
def test_threads_of_torch_end_before_long_work_alone(dim, num_calls, monkeypatch):
    calls = []
    monkeypatch.setattr(groups, "free_cores", lambda: calls.append(1))
    ov.GAS(ov.MultiKrum(), num_groups=10)(np.eye(4, dim, dtype=np.float32), num_byzantine=0)
    assert len(calls) == num_calls


def test_what_is_not_added_up_over_the_groups_is_an_error():
    matrix = ClientMatrix.from_rows(torch.randn(1, 5, 60))
    split = matrix.split("balanced", 6, RoundInfo(num_byzantine=1, stream=RandomStream((0,))))
    with pytest.raises(ValueError, match=r"\[1, 5\], got \[1, 6, 5\]; return matrix.total_dist"):
        split.total(lambda group: group.distances_to(ov.Aggregation(weights=torch.ones(1, 6, 5))))
