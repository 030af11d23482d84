"""Every rule, split, fraction and GAS case of golden.json, to 1e-9; the attacks are next door.

Each case is run twice: through the public API and through the plain-loop oracle, so that a
disagreement shows which of the two is wrong.
"""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

import oracles
import outvote as ov
from calling import aggregate, inspect, update_of
from outvote.rules.aggregate import num_from_fraction
from outvote.rules.bucketing import bucket_matrix
from outvote.rules.groups import balanced_sizes, ceil_sizes
from outvote.rules.nnm import neighbour_matrix
from outvote.rules.signguard import filter_rows

ATTACK_NAMES = runpy.run_path(str(Path(__file__).with_name("test_golden_attacks.py")))["ALL"]

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())
INPUTS = {name: np.array(rows) for name, rows in GOLDEN["meta"]["inputs"].items()}
CASES = {case["id"]: case for case in GOLDEN["cases"]}

# Golden name of a rule -> (our rule, the oracle), both from the parameters of the case.
PLAIN = {
    "mean": lambda p: (ov.Mean(), oracles.mean),
    "coordinate_median": lambda p: (ov.Median(), oracles.median),
    "trimmed_mean (= RBTM)": lambda p: (ov.TrimmedMean(), oracles.trimmed_mean),
    "meamed": lambda p: (ov.MeaMed(), oracles.meamed),
    "mda": lambda p: (ov.MDA(), oracles.mda),
    "geometric_median": lambda p: (ov.GeometricMedian(), oracles.geometric_median),
    "krum": lambda p: (
        ov.Krum(num_neighbours=p["neighbours"], power=p["power"]),
        lambda X, f: oracles.krum(X, f, p["neighbours"], p["power"]),
    ),
    "multi_krum": lambda p: (
        ov.MultiKrum(num_selected=p["m"], num_neighbours=p["neighbours"], power=p["power"]),
        lambda X, f: oracles.multi_krum(X, f, p["m"], p["neighbours"], p["power"]),
    ),
    "bulyan": lambda p: (
        ov.Bulyan(selection=p["selection"], even="mean"),
        lambda X, f: oracles.bulyan(X, f, p["selection"]),
    ),
    "rfa": lambda p: (
        ov.RFA(num_iterations=p["T"], smoothing=p["nu"], start=p["init"]),
        lambda X, f: oracles.rfa(X, f, p["T"], p["nu"], p["init"]),
    ),
    "dnc": lambda p: (
        ov.DnC(num_iterations=p["niters"], removal_factor=p["c"]),
        lambda X, f: oracles.dnc(X, f, removal_factor=p["c"]),
    ),
    "centered_clipping": lambda p: (
        ov.CenteredClipping(radius=p["tau"], num_iterations=p["iters"]),
        lambda X, f: oracles.centered_clipping(X, f, p["tau"], p["iters"]),
    ),
    "norm_clipping_mean": lambda p: (
        ov.NormClipping(max_norm=p["c"]),
        lambda X, f: oracles.norm_clipping(X, f, p["c"]),
    ),
}

GAS_BASES = {
    "multi_krum": (ov.MultiKrum(), oracles.multi_krum),
    "median": (ov.Median(), oracles.median),
    "trimmed_mean": (ov.TrimmedMean(), oracles.trimmed_mean),
    "rfa": (ov.RFA(), oracles.rfa),
    "bulyan": (ov.Bulyan(), oracles.bulyan),
}

# The golden case that a rule without parameters must meet: the defaults are SPEC section 9's.
DEFAULTS = {
    "krum_X7": "krum",
    "multi_krum_X7": "multi-krum",
    "trimmed_mean_X7": "rbtm",
    "bulyan_X7": "bulyan",
    "rfa_X7": "rfa",
    "dnc_c1_X7": "dnc",
    "median_X7": "median",
}


def ids_of(*rules):
    return [case["id"] for case in GOLDEN["cases"] if case["rule"] in rules]


def facts_of(case):
    return INPUTS[case["input"]], case["params"].get("f", 0)


def assert_close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-9)


RUN = {
    "plain": ids_of(*PLAIN),
    "nnm": ids_of("nnm"),
    "bucketing": ids_of("bucketing"),
    "signguard": ids_of("signguard"),
    "gas": ids_of("gas"),
    "split": ids_of("split_sizes"),
    "fraction": ids_of("removed_from_delta"),
}


def test_every_golden_case_is_run_here_or_among_the_attacks():
    run = [case for cases in RUN.values() for case in cases]
    assert len(run) == len(set(run))
    assert set(run).isdisjoint(ATTACK_NAMES)
    assert set(run) | set(ATTACK_NAMES) == set(CASES)
    assert all(RUN.values()), "an empty group means that a golden name has changed"


@pytest.mark.parametrize("name", RUN["plain"])
def test_rule(name, device):
    case = CASES[name]
    X, f = facts_of(case)
    rule, _ = PLAIN[case["rule"]](case["params"])
    verdict = inspect(rule, X, device, num_byzantine=f)
    assert_close(update_of(verdict), case["expected"])
    if "scores" in case:
        assert_close(verdict.scores, case["scores"])
    if "weights" in case:
        assert_close(verdict.weights, case["weights"])
    if case["rule"] == "bulyan":
        # The tail may use a selected row in no coordinate, so kept is only a part of it.
        assert set(verdict.kept) <= set(case["selected"])
    elif "selected" in case or "kept" in case:
        assert verdict.kept == case.get("selected", case.get("kept"))
    if "objective" in case:
        value = oracles.sum_of_distances(X, update_of(verdict))
        assert value == pytest.approx(case["objective"], abs=1e-9)


@pytest.mark.parametrize("name", RUN["plain"])
def test_oracle_of_rule(name):
    case = CASES[name]
    X, f = facts_of(case)
    _, oracle = PLAIN[case["rule"]](case["params"])
    assert_close(oracle(X, f), case["expected"])


@pytest.mark.parametrize(("name", "text"), DEFAULTS.items())
def test_the_defaults_are_those_of_the_golden_case(name, text, device):
    X, f = facts_of(CASES[name])
    assert_close(aggregate(ov.make_rule(text), X, device, num_byzantine=f), CASES[name]["expected"])


@pytest.mark.parametrize("name", RUN["nnm"])
def test_nnm_replaces_each_row_by_the_mean_of_its_neighbours(name, device):
    case = CASES[name]
    X, f = facts_of(case)
    squared_distances = ((X[:, None, :] - X[None, :, :]) ** 2).sum(-1)
    mixing = neighbour_matrix(torch.from_numpy(squared_distances), f)
    assert_close(mixing.numpy() @ X, case["expected"])
    assert_close(oracles.nnm_rows(X, f), case["expected"])
    update = aggregate(ov.NNM(ov.Median()), X, device, num_byzantine=f)
    assert_close(update, np.median(case["expected"], axis=0))


@pytest.mark.parametrize("name", RUN["bucketing"])
def test_bucketing_averages_consecutive_clients_of_the_permutation(name):
    case = CASES[name]
    X, _ = facts_of(case)
    order, size = case["params"]["permutation"], case["params"]["s"]
    mixing = bucket_matrix(torch.tensor(order), size)
    assert mixing.dtype == torch.float64
    assert_close(mixing.numpy() @ X, case["expected"])
    assert_close(oracles.bucket_means(X, order, size), case["expected"])


@pytest.mark.parametrize("name", RUN["signguard"])
def test_signguard(name):
    case = CASES[name]
    X, _ = facts_of(case)
    p = case["params"]
    window = int(p["fraction"] * X.shape[1])
    update, is_kept = filter_rows(torch.from_numpy(X), p["start"], window, p["lower"], p["upper"])
    assert_close(update.numpy(), case["expected"])
    assert is_kept.nonzero().flatten().tolist() == case["kept"]
    update, kept = oracles.signguard(X, p["start"], window, p["lower"], p["upper"])
    assert_close(update, case["expected"])
    assert kept == case["kept"]
    assert_close(oracles.sign_features(X, p["start"], window), case["features"])


@pytest.mark.parametrize("name", RUN["gas"])
def test_gas(name, device):
    case = CASES[name]
    X, f = facts_of(case)
    base, oracle = GAS_BASES[case["params"]["base"]]
    groups = case["params"]["partition"]
    rule = ov.GAS(base, num_groups=case["params"]["p"])
    verdict = inspect(rule, X, device, num_byzantine=f, groups=groups)
    assert_close(update_of(verdict), case["expected"])
    assert_close(verdict.scores, case["scores"])
    assert verdict.kept == case["selected"]
    assert verdict.num_groups == case["params"]["p"]
    update, scores, kept = oracles.gas(oracle, X, groups, f, f)
    assert_close(update, case["expected"])
    assert_close(scores, case["scores"])
    assert kept == case["selected"]


@pytest.mark.parametrize("name", RUN["gas"])
def test_base_rule_of_gas_on_each_group(name, device):
    case = CASES[name]
    X, f = facts_of(case)
    base, oracle = GAS_BASES[case["params"]["base"]]
    for group, expected in zip(case["params"]["partition"], case["group_aggregates"], strict=True):
        assert_close(aggregate(base, X[:, group], device, num_byzantine=f), expected)
        assert_close(oracle(X[:, group], f), expected)


@pytest.mark.parametrize("name", RUN["split"])
def test_split_sizes(name):
    case = CASES[name]
    d, p = case["params"]["d"], case["params"]["p"]
    num_large, large, num_small, small = balanced_sizes(d, p)
    expected = case["expected"]
    if isinstance(expected, dict):
        assert (num_large, large, small) == tuple(
            expected[k] for k in ("n_large", "large", "small")
        )
        assert num_large + num_small == expected["groups"]
    else:
        assert [large] * num_large + [small] * num_small == expected
    num_full, full, num_short, short = ceil_sizes(d, p)
    assert num_full + num_short == case["ceil_chunk_groups"]
    assert num_full * full + num_short * short == d
    assert len(oracles.ceil_sizes(d, p)) == case["ceil_chunk_groups"]


@pytest.mark.parametrize("name", RUN["fraction"])
def test_number_removed_for_a_fraction(name, device):
    case = CASES[name]
    n, delta = case["params"]["n"], case["params"]["delta"]
    assert num_from_fraction(delta, n) == case["expected"]
    assert oracles.num_from_fraction(delta, n) == case["expected"]
    rows = np.random.default_rng(0).normal(size=(n, 3))
    verdict = inspect(ov.GAS(ov.Median(), num_groups=2), rows, device, byzantine_fraction=delta)
    assert verdict.num_byzantine == case["expected"]
    assert len(verdict.kept) == n - case["expected"]
