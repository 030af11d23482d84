"""The calling contract: what is refused and how, f and fractions, state, seeds and settings."""

import re

import numpy as np
import pytest
import torch

import outvote as ov
from outvote.testing.trial import as_array

RNG = np.random.default_rng(0)
X = RNG.normal(size=(5, 4))
NAMED = [{"a": row[:2], "b": row[2:].reshape(2, 1)} for row in X]
GAS = ov.GAS(ov.Median(), num_groups=2)


def refused(error, wanted, call):
    """The call raises the error with this text in it, as one whole sentence."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert re.search(wanted, message), message
    assert message.endswith("."), message


REFUSED_GRADIENTS = {
    "ragged lists": ([[1, 2], [3]], ValueError, "must have rows of one length, got a ragged list"),
    "ragged arrays": ([np.ones(2), np.ones(3)], ValueError, "rows of one length, got a ragged"),
    "ragged tensors": (
        [torch.ones(2), torch.ones(3)],
        ValueError,
        r"client 1 must be a vector of the shape \(2,\) of the first, got \(3,\)",
    ),
    "nothing": ([], ValueError, "must hold at least one client, got an empty list"),
    "empty rows": ([[], []], ValueError, r"one client and one coordinate, got the shape \(2, 0\)"),
    "no clients": (np.ones((0, 3)), ValueError, r"at least one client .* got the shape \(0, 3\)"),
    "no coordinates": (torch.ones(3, 0), ValueError, r"one coordinate, got the shape \(3, 0\)"),
    "empty dicts": ([{}, {}], ValueError, "client 0 must hold at least one array, got an empty"),
    "empty in dicts": ([{"a": np.ones(0)}], ValueError, r"one coordinate, got the shape \(1, 0\)"),
    "a vector": (np.ones(3), ValueError, r"a matrix \[clients, dim\].* got the shape \(3,\); flat"),
    "a cube": (torch.ones(3, 2, 2), ValueError, r"got the shape \(3, 2, 2\); flatten each client"),
    "a number": (3.0, ValueError, r"a matrix \[clients, dim\].* got the shape \(\)"),
    "nothing at all": (None, TypeError, "must be an array of numbers, got NoneType"),
    "a string": ("abc", TypeError, "must be an array of numbers, got str"),
    "bytes": (b"abc", TypeError, "must be an array of numbers, got bytes"),
    "strings": ([["a", "b"], ["c", "d"]], TypeError, "must hold real numbers, got an array of <U1"),
    "objects": (np.array([[1, None]], dtype=object), TypeError, "real numbers, got .* of object"),
    "complex": (np.ones((2, 2), complex), TypeError, "real numbers, got an array of complex128"),
    "complex torch": (torch.ones(2, 2) * 1j, TypeError, "real numbers, got torch.complex64"),
    "dates": (np.zeros((2, 2), "M8[s]"), TypeError, "real numbers, got an array of datetime64"),
    "long doubles": (np.ones((2, 2), np.longdouble), TypeError, "real numbers, got an array of"),
    "sparse": (torch.eye(3).to_sparse(), TypeError, "a dense tensor .* got .*sparse_coo"),
    "float8": (
        torch.ones(2, 2).to(torch.float8_e4m3fn),
        TypeError,
        "must be float16, bfloat16, float32 or float64, got torch.float8_e4m3fn",
    ),
    "one dict": (NAMED[0], TypeError, "must be an array of numbers, got dict"),
    "a generator": ((row for row in X), TypeError, "must hold real numbers, got an array of obj"),
    "a missing key": (
        [NAMED[0], {"a": NAMED[1]["a"]}],
        ValueError,
        r"client 1 must have the same keys as the first; missing: \['b'\], unexpected: none",
    ),
    "a new key": (
        [NAMED[0], {**NAMED[1], "c": np.ones(1)}],
        ValueError,
        r"client 1 must have the same keys .* missing: none, unexpected: \['c'\]",
    ),
    "keys of two kinds": ([{1: np.ones(2), "a": np.ones(1)}, {2: np.ones(2)}], ValueError, "keys"),
    "another shape": (
        [NAMED[0], {**NAMED[1], "a": np.ones(3)}],
        ValueError,
        r"client 1, entry 'a' must have the shape \(2,\) of the first, got \(3,\)",
    ),
    "words in a dict": ([{"a": "x"}], TypeError, "entry 'a' must be an array of numbers, got str"),
    "an array after dicts": ([NAMED[0], X[1]], TypeError, "client 1 must be a dict .* got ndarray"),
    "a dict after arrays": ([X[1], NAMED[0]], TypeError, "client 0 must be a dict .* got ndarray"),
}


@pytest.mark.parametrize("case", REFUSED_GRADIENTS)
@pytest.mark.parametrize("rule", [ov.Median(), GAS], ids=str)
def test_gradients_that_are_no_matrix_are_refused(case, rule):
    gradients, error, wanted = REFUSED_GRADIENTS[case]
    refused(error, wanted, lambda: rule(gradients, num_byzantine=0))


REFUSED_INFO = [
    ({"num_byzantine": -1}, ValueError, "num_byzantine must be 0 or larger, got -1; pass 0 if"),
    ({"num_byzantine": 1.0}, TypeError, "num_byzantine must be an integer, got 1.0; for a share"),
    ({"num_byzantine": True}, TypeError, "num_byzantine must be an integer, got True"),
    ({"num_byzantine": "1"}, TypeError, "num_byzantine must be an integer, got '1'"),
    (
        {"num_byzantine": 1, "byzantine_fraction": 0.1},
        ValueError,
        "must not be given both, got 1 and 0.1; leave one out",
    ),
    (
        {"byzantine_fraction": 0.5},
        ValueError,
        "at least 0 and below 0.5, got 0.5; a Byzantine",
    ),
    ({"byzantine_fraction": -0.1}, ValueError, "at least 0 and below 0.5, got -0.1"),
    ({"byzantine_fraction": float("nan")}, ValueError, "at least 0 and below 0.5, got nan"),
    ({"byzantine_fraction": float("inf")}, ValueError, "at least 0 and below 0.5, got inf"),
    ({"byzantine_fraction": "0.1"}, TypeError, "byzantine_fraction must be a number, got '0.1'"),
    ({"byzantine_fraction": True}, TypeError, "byzantine_fraction must be a number, got True"),
    ({}, ValueError, "needs the number of Byzantine clients; pass num_byzantine=, or byzantine_fr"),
    (
        {"num_byzantine": 1, "when_too_many": "ignore"},
        ValueError,
        "when_too_many must be one of 'raise', 'lower', got 'ignore'",
    ),
    ({"num_byzantine": 1, "seed": -1}, ValueError, "seed must be 0 or larger, got -1"),
    ({"num_byzantine": 1, "seed": 1.5}, TypeError, "seed must be an integer, a numpy or torch gen"),
    ({"num_byzantine": 1, "seed": True}, TypeError, "seed must be an integer, .* got bool"),
    (
        {"num_byzantine": 1, "clients": list("abcd")},
        ValueError,
        "5 different ids, .* got 4 ids, 4",
    ),
    ({"num_byzantine": 1, "clients": list("abcda")}, ValueError, "got 5 ids, 4 different"),
    ({"num_byzantine": 1, "sample_counts": [1, 2]}, ValueError, r"5 finite numbers.* got \[1, 2\]"),
    ({"num_byzantine": 1, "sample_counts": [1, 2, 3, 4, -5]}, ValueError, "none negative, got"),
    ({"num_byzantine": 1, "sample_counts": [1, 2, 3, 4, np.inf]}, ValueError, "5 finite numbers"),
    ({"num_byzantine": 1, "sample_counts": "abcde"}, ValueError, "5 finite numbers.* got 'abcde'"),
    (
        {"num_byzantine": 1, "sample_counts": [0] * 5},
        ValueError,
        "positive for at least one client",
    ),
    ({"num_byzantine": 1, "state": np.ones(4)}, ValueError, "has no state, state must be None"),
]


@pytest.mark.parametrize(("info", "error", "wanted"), REFUSED_INFO)
@pytest.mark.parametrize("rule", [ov.MultiKrum(), GAS, ov.NNM(ov.Krum())], ids=str)
def test_info_that_make_no_sense_are_refused(rule, info, error, wanted):
    refused(error, wanted, lambda: rule(X, **info))


@pytest.mark.parametrize("call", [ov.Median(), ov.Median().inspect, GAS], ids=str)
def test_an_argument_that_does_not_exist_is_refused(call):
    with pytest.raises(TypeError, match="argument 'sed'; did you mean 'seed'"):
        call(X, sed=1)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'f'.*'num_byzantine'"):
        call(X, f=2)


@pytest.mark.parametrize("name", ["f", "num_byzantine", "nb_byz"])
def test_the_number_of_byzantine_clients_is_no_parameter_of_a_rule(name):
    with pytest.raises(TypeError, match=r"Krum\(\)\(X, num_byzantine=2\)"):
        ov.Krum(**{name: 2})


def test_too_many_byzantine_are_refused_with_the_limit_and_the_ways_out():
    with pytest.raises(ov.TooManyByzantine) as caught:
        ov.MultiKrum()(X, num_byzantine=2)
    assert str(caught.value) == (
        "multi-krum tolerates at most 1 Byzantine of 5 clients, got 2; sample more clients, "
        "lower num_byzantine, or pass when_too_many='lower'."
    )
    error = caught.value
    assert (error.limit, error.num_clients, error.got) == (1, 5, 2)
    assert isinstance(error, ValueError)


def test_too_many_byzantine_are_lowered_visibly():
    lowered = ov.MultiKrum().inspect(X, num_byzantine=4, when_too_many="lower")
    assert lowered.num_byzantine == lowered.base_num_byzantine == 1
    np.testing.assert_array_equal(lowered.update, ov.MultiKrum()(X, num_byzantine=1))


def test_numpy_integers_are_integers():
    verdict = ov.MultiKrum().inspect(X, num_byzantine=np.int32(1), seed=np.int64(7))
    assert (verdict.num_byzantine, verdict.seed) == (1, 7)


@pytest.mark.parametrize("text", ["median", "mean", "rfa", "geometric-median", "norm-clipping"])
def test_rules_that_do_not_use_f_need_no_number(text):
    verdict = ov.make_rule(text).inspect(X)
    assert verdict.num_byzantine == 0


@pytest.mark.parametrize(
    ("text", "n", "fraction", "num_bad", "assumed", "used"),
    [
        ("trimmed-mean", 10, 0.25, 0, 3, 3),  # ceil
        ("trimmed-mean", 10, 0.3, 0, 3, 3),  # 0.3 * 10 is 3 up to rounding
        ("trimmed-mean", 100, 0.07, 0, 7, 7),
        ("trimmed-mean", 10, 0, 0, 0, 0),
        ("trimmed-mean", 10, 0.3, 1, 3, 2),  # of the received, less the rejected
        ("trimmed-mean", 10, 0.3, 4, 3, 0),
        ("multi-krum", 5, 0.4, 0, 1, 1),  # the limit
        ("multi-krum", 9, 0.45, 2, 3, 1),  # the limit of the received, then less the rejected
        ("bulyan", 5, 0.3, 0, 0, 0),
        ("mean", 10, 0.3, 0, 0, 0),
        ("gas(multi-krum)", 5, 0.4, 0, 2, 1),  # GAS drops two, its base works with one
        ("gas(multi-krum)", 5, 0.4, 1, 2, 0),
    ],
)
def test_a_fraction_is_rounded_up_limited_and_less_the_rejected(
    text, n, fraction, num_bad, assumed, used
):
    rows = np.random.default_rng(1).normal(size=(n, 3))
    rows[:num_bad] = np.nan
    verdict = ov.make_rule(text).inspect(rows, byzantine_fraction=fraction, seed=0)
    assert (verdict.num_byzantine, verdict.base_num_byzantine) == (assumed, used)
    assert verdict.rejected == list(range(num_bad))


REFUSED_GROUPS = [
    ([[0, 3], [3, 1, 2]], ValueError, "each of the 4 coordinates 0..3 exactly once, got 5 indices"),
    ([[0, 3], [1]], ValueError, "exactly once, got 3 indices, 3 different, from 0 to 3; take the"),
    ([[0, 3], [1, 4]], ValueError, "exactly once, got 4 indices, 4 different, from 0 to 4"),
    ([[0, 3], [1, -2]], ValueError, "exactly once, got 4 indices, 4 different, from -2 to 3"),
    ([], ValueError, "must be non-empty lists of coordinate indices"),
    ([[0, 1, 2, 3], []], ValueError, "must be non-empty lists of coordinate indices"),
    ([[[0, 1], [2, 3]]], ValueError, "must be non-empty lists of coordinate indices"),
    ([0, 1, 2, 3], ValueError, "must be non-empty lists of coordinate indices"),
    ([[0.0, 1.0, 2.0, 3.0]], TypeError, "groups must hold integers"),
    ([[True, False], [2, 3]], TypeError, "groups must hold integers"),
]


@pytest.mark.parametrize(("groups", "error", "wanted"), REFUSED_GROUPS)
def test_groups_that_are_no_partition_are_refused(groups, error, wanted):
    refused(error, wanted, lambda: GAS.inspect(X, num_byzantine=1, groups=groups))


@pytest.mark.parametrize("rule", [ov.Median(), ov.Bucketing(GAS), ov.NNM(GAS)], ids=str)
def test_groups_are_for_gas_alone(rule):
    wanted = "groups= is for gas alone, got it for .*; leave groups out"
    refused(ValueError, wanted, lambda: rule.inspect(X, num_byzantine=1, groups=[[0, 1], [2, 3]]))


@pytest.mark.parametrize(
    "groups",
    [
        [[0, 3], [1, 2]],
        ((0, 3), (1, 2)),
        np.array([[0, 3], [1, 2]]),
        [np.array([0, 3]), torch.tensor([1, 2])],
    ],
)
def test_groups_may_be_lists_tuples_arrays_or_tensors(groups):
    verdict = GAS.inspect(X, num_byzantine=1, groups=groups)
    wanted = GAS.inspect(X, num_byzantine=1, groups=[[2, 1], [3, 0]])
    np.testing.assert_allclose(verdict.scores, wanted.scores, rtol=1e-12)
    assert verdict.num_groups == 2


@pytest.mark.parametrize("num_groups", [0, -3])
def test_fewer_than_one_group_is_refused(num_groups):
    wanted = f"gas: num_groups must be at least 1, got {num_groups}"
    refused(ValueError, wanted, lambda: ov.GAS(ov.Median(), num_groups=num_groups))


def test_more_groups_than_coordinates_are_lowered_with_a_note():
    verdict = ov.GAS(ov.Median(), num_groups=9).inspect(X, num_byzantine=1)
    assert verdict.num_groups == 4
    assert verdict.notes == ("gas: num_groups=9 is more than the 4 coordinates; used 4",)
    assert ov.GAS(ov.Median(), num_groups=4).inspect(X, num_byzantine=1).notes == ()


def test_split_by_layer_makes_one_group_per_named_tensor(device):
    rule = ov.GAS(ov.Median(), split="by-layer")
    named = [
        {name: torch.from_numpy(part.copy()).to(device) for name, part in one.items()}
        for one in NAMED
    ]
    verdict = rule.inspect(named, num_byzantine=1)
    wanted = GAS.inspect(X, num_byzantine=1, groups=[[0, 1], [2, 3]])
    assert verdict.num_groups == 2
    np.testing.assert_allclose(verdict.scores, wanted.scores, rtol=1e-12)
    np.testing.assert_allclose(as_array(verdict.update["b"].flatten()), wanted.update[2:])


def test_split_by_layer_needs_names():
    rule = ov.GAS(ov.Median(), split="by-layer")
    wanted = "needs the sizes of the layers, got none; pass gradients with names"
    refused(ValueError, wanted, lambda: rule(X, num_byzantine=1))


def test_a_contiguous_split_keeps_neighbours_together():
    rows = np.random.default_rng(3).normal(size=(5, 7))
    rule = ov.GAS(ov.MultiKrum(), num_groups=3, split="contiguous")
    verdict = rule.inspect(rows, num_byzantine=1)
    groups = [[0, 1, 2], [3, 4], [5, 6]]
    wanted = ov.GAS(ov.MultiKrum()).inspect(rows, num_byzantine=1, groups=groups)
    np.testing.assert_allclose(verdict.scores, wanted.scores, rtol=1e-12)


def test_a_ceil_split_may_make_fewer_groups():
    rows = np.random.default_rng(3).normal(size=(5, 10))
    rule = ov.GAS(ov.Median(), num_groups=6, split="ceil")
    assert rule.inspect(rows, num_byzantine=1).num_groups == 5


WEIGHED = ["mean", "krum", "multi-krum", "dnc", "mda", "gas(median)"]


@pytest.mark.parametrize("text", WEIGHED)
def test_sample_counts_weigh_the_clients_that_an_average_keeps(text):
    counts = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    rule = ov.make_rule(text)
    info = {"num_byzantine": min(1, rule.max_byzantine(num_clients=5)), "seed": 0}
    plain, weighed = rule.inspect(X, **info), rule.inspect(X, **info, sample_counts=counts)
    wanted = plain.weights * counts / (plain.weights * counts).sum()
    np.testing.assert_allclose(weighed.weights, wanted, rtol=1e-12)
    np.testing.assert_allclose(weighed.update, wanted @ X, rtol=1e-12)
    assert weighed.kept == plain.kept


def test_the_counts_of_rejected_clients_do_not_count():
    rows = X.copy()
    rows[1] = np.nan
    update = ov.Mean()(rows, sample_counts=[1, 1000, 1, 1, 1])
    np.testing.assert_allclose(update, X[[0, 2, 3, 4]].mean(axis=0))
    assert not ov.Mean()(np.full((2, 3), np.nan), sample_counts=[1, 2]).any()


def test_clients_are_named_by_their_ids():
    rows = X.copy()
    rows[2, 0] = np.inf
    verdict = ov.MultiKrum().inspect(rows, num_byzantine=1, clients=["a", "b", 3, ("d",), "e"])
    assert verdict.rejected == [3]
    assert verdict.clients == ("a", "b", 3, ("d",), "e")
    assert set(verdict.kept) == {"a", "b", ("d",), "e"}
    assert verdict.dropped == []


@pytest.mark.parametrize("text", ["mean", "median", "krum", "bulyan", "gas(krum)", "nnm(median)"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_if_everybody_is_rejected_the_update_is_zero(text, bad, device):
    rows = torch.full((3, 2), bad, dtype=torch.float64, device=device)
    verdict = ov.make_rule(text).inspect(rows, num_byzantine=0)
    assert verdict.update.tolist() == [0.0, 0.0]
    assert verdict.update.device == rows.device
    assert verdict.rejected == [0, 1, 2]
    assert verdict.kept == verdict.dropped == []
    assert np.isposinf(verdict.scores).all()


def test_centered_clipping_goes_on_from_its_state():
    rule = ov.CenteredClipping(radius=0.5, num_iterations=1)
    first = rule.inspect(X)
    second = rule.inspect(X, state=first.state)
    by_hand = as_array(first.update)
    away = X - by_hand
    factors = np.minimum(1, 0.5 / np.linalg.norm(away, axis=1, keepdims=True))
    np.testing.assert_allclose(second.update, by_hand + (away * factors).mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(as_array(second.state), second.update, rtol=1e-12)
    np.testing.assert_array_equal(rule(X, state=None), first.update)


def test_a_state_may_come_as_an_array_or_as_dicts():
    rule = ov.CenteredClipping(radius=0.5)
    wanted = rule(X, state=np.arange(4.0))
    np.testing.assert_allclose(rule(X, state=list(range(4))), wanted)
    state = {"a": np.array([0.0, 1.0]), "b": np.array([[2.0], [3.0]])}
    for one in (state, torch.arange(4.0, dtype=torch.float64)):
        update = rule(NAMED, state=one)
        np.testing.assert_allclose(np.concatenate([update["a"], update["b"].ravel()]), wanted)


def test_a_round_of_rejected_clients_keeps_the_state():
    rule = ov.CenteredClipping()
    state = rule.inspect(X).state
    verdict = rule.inspect(np.full((3, 4), np.nan), state=state)
    np.testing.assert_array_equal(as_array(verdict.state), as_array(state))
    np.testing.assert_array_equal(rule(X, state=verdict.state), rule(X, state=state))


def test_foolsgold_remembers_every_client_by_its_id():
    rule = ov.FoolsGold()
    first = rule.inspect(X, clients=list("abcde"))
    second = rule.inspect(X[:2], clients=["b", "z"], state=first.state)
    assert set(second.state) == set("abcdez")
    np.testing.assert_allclose(as_array(second.state["b"]), X[1] + X[0])
    np.testing.assert_allclose(as_array(second.state["a"]), X[0])
    assert set(first.state) == set("abcde"), "an earlier state is not changed"


def test_foolsgold_accepts_its_own_state_of_the_largest_numbers():
    rule = ov.FoolsGold()
    for rows in (
        np.full((3, 2), 1e120),
        np.full((3, 2), 3e38, dtype=np.float32),
        np.full((3, 2), 65504, dtype=np.float16),
        [{"a": np.full(2, 65504, dtype=np.float16)} for _ in range(3)],
    ):
        state = None
        for _ in range(3):
            state = rule.inspect(rows, state=state).state


REFUSED_STATE = [
    ("centered-clipping", {"state": np.ones(3)}, ValueError, "the 4 coordinates .* shape .3,."),
    ("centered-clipping", {"state": "a"}, TypeError, "must be an array of numbers, got str"),
    ("centered-clipping", {"state": [np.nan] * 4}, ValueError, "must be finite, got NaN, infinity"),
    ("foolsgold", {"state": np.ones(4)}, TypeError, "foolsgold: state must be the verdict.state"),
    ("foolsgold", {"state": {0: np.ones(3)}}, ValueError, "must have the 4 coordinates"),
    ("foolsgold", {"state": {0: [np.inf] * 4}}, ValueError, "must be finite, got NaN, infinity"),
    ("fltrust", {}, ValueError, "fltrust needs reference=, the gradient that the server .* None"),
    ("fltrust", {"reference": np.ones(3)}, ValueError, "must have the 4 coordinates"),
    ("fltrust", {"reference": [1, 2, 3, np.nan]}, ValueError, "must be finite, got NaN"),
    ("fltrust", {"reference": [1, 2, 3, 1e300]}, ValueError, "must be finite, .* too large"),
]


@pytest.mark.parametrize(("text", "info", "error", "wanted"), REFUSED_STATE)
def test_a_state_or_reference_that_does_not_fit_is_refused(text, info, error, wanted):
    refused(error, wanted, lambda: ov.make_rule(text)(X, **info))


def test_a_state_that_does_not_fit_named_gradients_is_refused():
    rule = ov.CenteredClipping()
    refused(TypeError, "must be a dict of arrays, got", lambda: rule(NAMED, state=torch.ones(3)))
    refused(ValueError, "the same keys", lambda: rule(NAMED, state={"a": np.ones(2)}))


@pytest.mark.parametrize("wrapper", [ov.GAS, ov.Bucketing, ov.NNM, ov.Clip])
@pytest.mark.parametrize("rule", [ov.FLTrust(), ov.FoolsGold(), ov.SignGuard()], ids=str)
def test_rules_with_state_or_root_data_cannot_be_wrapped(wrapper, rule):
    wanted = f"{rule} cannot be wrapped by {wrapper.name}: it needs .*; use it alone"
    refused(TypeError, wanted, lambda: wrapper(rule))
    refused(TypeError, wanted, lambda: ov.make_rule(f"{wrapper.name}({rule})"))


@pytest.mark.parametrize("wrapper", [ov.GAS, ov.Bucketing, ov.NNM, ov.Clip])
@pytest.mark.parametrize("thing", ["median", ov.Median, None])
def test_a_wrapper_wraps_a_rule(wrapper, thing):
    wanted = rf"{wrapper.name} wraps a rule such as Median\(\), got .*; build one with make_rule"
    refused(TypeError, wanted, lambda: wrapper(thing))


def test_every_seed_gives_its_own_split_and_the_same_one_again(device):
    rows = torch.from_numpy(np.random.default_rng(5).normal(size=(6, 40))).to(device)
    rule = ov.GAS(ov.MultiKrum(), num_groups=8)

    def scores(seed):
        return rule.inspect(rows, num_byzantine=1, seed=seed).scores

    np.testing.assert_array_equal(scores(1), scores(1))
    assert np.abs(scores(1) - scores(2)).max() > 1e-6
    for make in (np.random.default_rng, lambda seed: torch.Generator().manual_seed(seed)):
        np.testing.assert_array_equal(scores(make(3)), scores(make(3)))
        generator = make(3)
        assert np.abs(scores(generator) - scores(generator)).max() > 1e-6, "it moves on"
    seeds = {rule.inspect(rows, num_byzantine=1).seed for _ in range(5)}
    assert len(seeds) == 5, "fresh entropy by default"


def test_a_seed_may_be_as_large_as_one_likes():
    verdict = GAS.inspect(X, num_byzantine=1, seed=2**200)
    assert verdict.seed == 2**200


INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_of_any_width_are_promoted_with_a_note(dtype):
    verdict = ov.Median().inspect(np.array([[1, 0], [0, 1], [1, 1]]).astype(dtype))
    assert verdict.update.dtype == np.float64
    assert verdict.update.tolist() == [1.0, 1.0]
    assert verdict.notes == (f"{dtype} gradients were promoted to float64",)


def test_a_call_warns_of_promoted_integers():
    with pytest.warns(ov.OutvoteWarning, match="int64 gradients were promoted to float64"):
        ov.Median()([[1, 2], [3, 4]])


def test_integers_in_dicts_follow_the_floats():
    named = [{"w": np.float32([k, 2 * k]), "steps": np.int64(k)} for k in (1, 2, 6)]
    verdict = ov.Median().inspect(named)
    assert verdict.update["w"].dtype == np.float32
    assert verdict.update["steps"] == 2.0
    assert verdict.update["steps"].shape == ()
    assert verdict.notes == ("int64 gradients were promoted to float32",)


def test_lists_tuples_and_other_byte_orders_are_read():
    wanted = ov.Mean()(X)
    for rows in (X.tolist(), tuple(map(tuple, X)), list(X), X.astype(">f8")):
        update = ov.Mean()(rows)
        assert isinstance(update, np.ndarray)
        assert update.dtype == np.float64
        np.testing.assert_array_equal(update, wanted)


def test_the_keys_of_dicts_may_come_in_any_order():
    reordered = [dict(reversed(named.items())) for named in NAMED[1:]]
    update = ov.Median()([NAMED[0], *reordered])
    assert list(update) == ["a", "b"]
    np.testing.assert_array_equal(update["a"], np.median(X, axis=0)[:2])


def test_gradients_that_want_gradients_are_detached(device):
    rows = torch.from_numpy(X).to(device).requires_grad_()
    update = ov.MultiKrum()(rows, num_byzantine=1)
    assert not update.requires_grad


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
@pytest.mark.parametrize("text", ["multi-krum", "gas(rfa)", "median", "nnm(bulyan)"])
def test_the_precision_of_matrix_products_is_put_back(precision, text, device):
    before = torch.get_float32_matmul_precision()
    rows = torch.from_numpy(np.random.default_rng(6).normal(size=(9, 20))).float().to(device)
    try:
        torch.set_float32_matmul_precision(precision)
        exact = ov.make_rule(text).inspect(rows, num_byzantine=1, seed=0).update
        assert torch.get_float32_matmul_precision() == precision
        torch.set_float32_matmul_precision("highest")
        again = ov.make_rule(text).inspect(rows, num_byzantine=1, seed=0).update
        torch.testing.assert_close(exact, again)
    finally:
        torch.set_float32_matmul_precision(before)


def test_results_are_clipped_to_the_range_of_the_dtype():
    rows = np.full((3, 2), 60000, dtype=np.float16) * np.array([[1], [0.5], [1]], np.float16)
    update = ov.FoolsGold()(rows * np.array([[1, -1], [-1, 1], [1, 1]], np.float16))
    assert update.dtype == np.float16
    assert np.isfinite(update).all()


def test_a_verdict_counts_the_clients_of_the_round():
    rows = np.vstack([np.random.default_rng(7).normal(size=(6, 8)), np.full((1, 8), 50.0)])
    rows[2, 3] = np.nan
    verdict = ov.GAS(ov.MultiKrum(), num_groups=4).inspect(rows, num_byzantine=2, seed=11)
    assert verdict.rejected == [2]
    assert verdict.dropped == [6]
    assert verdict.kept == [0, 1, 3, 4, 5]
    assert (verdict.num_byzantine, verdict.base_num_byzantine) == (2, 1)
    assert (verdict.num_groups, verdict.seed, verdict.state) == (4, 11, None)
    np.testing.assert_allclose(verdict.weights, [0.2, 0.2, 0, 0.2, 0.2, 0.2, 0])
    assert np.isposinf(verdict.scores[2])
    assert verdict.scores[6] == verdict.scores[[0, 1, 3, 4, 5, 6]].max()
    np.testing.assert_allclose(verdict.update, rows[verdict.kept].mean(axis=0))
