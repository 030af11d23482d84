"""Every attack case of golden.json, to 1e-9 unless the case states otherwise.

As with the rules, what has an oracle is run through it too.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import attack_oracles as oracles
import outvote as ov
from attacking import inspect, rows_of
from outvote.attacks.fang import HonestRows, beyond, first_neighbours
from outvote.attacks.lie import hiding_z
from outvote.attacks.line_search import LineSearch, line_maximize
from outvote.attacks.mimic import MimicState
from outvote.ops.moments import Request, measure

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())
INPUTS = {name: np.array(rows) for name, rows in GOLDEN["meta"]["inputs"].items()}
CASES = {case["id"]: case for case in GOLDEN["cases"]}
INPUTS["X9[:7]"] = INPUTS["X9"][:7]
SPREADS = {0: "population", 1: "sample"}
DEFENCES = {
    "mean": ov.Mean(),
    "median": ov.Median(),
    "trimmed_mean": ov.TrimmedMean(),
    "multi_krum": ov.MultiKrum(),
    "gas_mk_p2": ov.GAS(ov.MultiKrum(), num_groups=2, split="contiguous"),
}


def ids_of(*names):
    return [case["id"] for case in GOLDEN["cases"] if case["rule"] in names]


RUN = {
    "bit-flip": ids_of("bitflip"),
    "lie": ids_of("lie"),
    "alie": ids_of("alie_z"),
    "ipm": ids_of("ipm"),
    "stealth": ids_of("min_max", "min_sum"),
    "ipm search": ids_of("ipm_line_search"),
    "optimal": ids_of("optimal_alie", "optimal_ipm"),
    "fang trimmed-mean": ids_of("fang_trmean"),
    "fang krum": ids_of("fang_krum"),
    "fang krum of others": ids_of("fang_krum_ndss_variant"),
    "mimic": ids_of("mimic_variant"),
    "line search": ids_of("line_maximize"),
}
ALL = [case for cases in RUN.values() for case in cases]


def assert_close(got, expected, atol=1e-9):
    np.testing.assert_allclose(got, expected, rtol=0, atol=atol)


def test_there_are_as_many_attack_cases_as_the_file_has():
    assert all(RUN.values())
    assert len(ALL) == len(set(ALL)) == 41


@pytest.mark.parametrize("name", RUN["bit-flip"])
def test_bit_flip(name, device):
    case = CASES[name]
    H = INPUTS[case["input"]]
    own = H[[case["params"]["row"]]]
    output = inspect(ov.BitFlip(), H, device, num_byzantine=1, own=own)
    assert_close(rows_of(output), [case["expected"]])


@pytest.mark.parametrize("name", RUN["lie"])
def test_lie(name, device):
    case = CASES[name]
    p, H = case["params"], INPUTS[case["input"]]
    attack = ov.LIE(z=p["z"], spread=SPREADS[p["ddof"]], sign=p["sign"])
    output = inspect(attack, H, device, num_byzantine=2)
    assert_close(rows_of(output), [case["expected"]] * 2)
    assert_close(oracles.lie(H, p["z"], p["ddof"], p["sign"]), case["expected"])


def test_lie_without_parameters_is_that_of_the_paper(device):
    case = CASES["lie_H8"]
    output = inspect(ov.LIE(), INPUTS["H8"], device, num_byzantine=1)
    assert_close(rows_of(output), [case["expected"]])


@pytest.mark.parametrize("name", RUN["alie"])
def test_z_of_alie(name):
    case = CASES[name]
    assert hiding_z(case["params"]["n"], case["params"]["f"]) == pytest.approx(
        case["expected"], abs=1e-9
    )


@pytest.mark.parametrize("name", RUN["ipm"])
def test_ipm(name, device):
    case = CASES[name]
    attack = ov.IPM(epsilon=case["params"]["epsilon"])
    output = inspect(attack, INPUTS[case["input"]], device, num_byzantine=2)
    assert_close(rows_of(output), [case["expected"]] * 2)


@pytest.mark.parametrize("name", RUN["stealth"])
def test_min_max_and_min_sum(name, device):
    case = CASES[name]
    p, H = case["params"], INPUTS[case["input"]]
    kind = ov.MinMax if case["rule"] == "min_max" else ov.MinSum
    info = {"spread": SPREADS[p["ddof"]]}
    if "bound" in p:
        info["limit"] = p["bound"]
    atol = 1e-4 if "1e-4" in case["note"] else 1e-9
    found = inspect(kind(**info, method="search"), H, device, num_byzantine=2)
    assert_close(rows_of(found), [case["expected"]] * 2, atol)
    closed = inspect(kind(**info), H, device, num_byzantine=2)
    if "gamma" in case:
        assert found.factor == pytest.approx(case["gamma"], abs=1e-9)
        assert closed.factor == pytest.approx(case["gamma_closed_form"], abs=1e-9)
        limit = oracles.stealth_gamma(H, p["ddof"], p.get("bound"))
        assert limit == pytest.approx(case["gamma"], abs=1e-9)
    spread = H.std(axis=0, ddof=p["ddof"])
    assert_close(rows_of(closed), [H.mean(axis=0) - closed.factor * spread] * 2)


@pytest.mark.parametrize("name", RUN["ipm search"])
def test_ipm_by_search(name, device):
    case = CASES[name]
    p, H = case["params"], INPUTS[case["input"]]
    rule = DEFENCES[p["defence"]]
    output = inspect(ov.IPM(evals=p["evals"]), H, device, num_byzantine=p["f"], rule=rule, seed=0)
    assert output.factor == pytest.approx(case["epsilon"], abs=1e-9)
    assert_close(rows_of(output), [case["expected"]] * p["f"])
    assert output.num_evaluations == p["evals"]
    for epsilon, key in ((0.0, "objective_at_0"), (1.0, "objective_at_1")):
        rows = np.concatenate([H, np.repeat([-epsilon * H.mean(axis=0)], p["f"], axis=0)])
        away = rule(rows, num_byzantine=p["f"], when_too_many="lower", seed=0) - H.mean(axis=0)
        assert (away**2).sum() == pytest.approx(case[key], abs=1e-9)


@pytest.mark.parametrize("name", RUN["optimal"])
def test_optimal_lie_and_ipm(name, device):
    case = CASES[name]
    p, H = case["params"], INPUTS[case["input"]]
    n = len(H) + p["f"]
    byzfl = ov.MultiKrum(num_neighbours=n - p["f"] - 1)
    rule = byzfl if p["defence"] == "multi_krum_byzfl" else DEFENCES[p["defence"]]
    attack = ov.OptimalIPM(evals=p["evals"])
    if case["rule"] == "optimal_alie":
        attack = ov.OptimalLIE(evals=p["evals"], spread=SPREADS[p["ddof"]], sign=p["sign"])
    output = inspect(attack, H, device, num_byzantine=p["f"], rule=rule, seed=0)
    assert_close(rows_of(output), [case["expected"]] * p["f"])


@pytest.mark.parametrize("name", RUN["fang trimmed-mean"])
def test_fang_on_the_trimmed_mean(name, device):
    case = CASES[name]
    H, p = INPUTS[case["input"]], case["params"]
    rows = torch.from_numpy(H).to(device).unsqueeze(0)
    found = measure(rows, None, torch.float64, Request(extremes=True))
    low, high = (end[0].cpu().numpy() for end in beyond(found, p["b"], torch.float64))
    for uniform, expected in zip(p["uniforms"], case["expected"], strict=True):
        assert_close(low + np.array(uniform) * (high - low), expected)
        assert_close(oracles.fang_trimmed_mean(H, p["b"], uniform), expected)


@pytest.mark.parametrize("name", RUN["fang krum"])
def test_fang_on_krum(name, device):
    case = CASES[name]
    H, p = INPUTS[case["input"]], case["params"]
    attack = ov.Fang(target="krum", threshold=p["threshold"])
    output = inspect(attack, H, device, num_byzantine=p["f"])
    assert output.factor == pytest.approx(case["lambda_"], abs=1e-9)
    assert_close(rows_of(output), [case["expected"]] * p["f"])
    pairs = ((H[:, None] - H[None]) ** 2).sum(-1)
    signs = np.sign(H.mean(axis=0))
    honest = HonestRows(
        squared_distances=pairs,
        norms=np.linalg.norm(H, axis=1),
        along_signs=H @ signs,
        num_nonzero=float(np.abs(signs).sum()),
        dim=H.shape[1],
    )
    start = honest.first_lambda(p["f"], first_neighbours(len(H), p["f"], "code"))
    assert start == pytest.approx(case["trace"][0][0], abs=1e-9)
    for step, selected in case["trace"]:
        far = ((H + step * signs) ** 2).sum(-1)
        assert honest.selects_attackers(far, p["f"]) == (selected < p["f"])


@pytest.mark.parametrize("name", RUN["fang krum of others"])
def test_fang_on_krum_differs_from_the_reimplementation_by_the_start_only(name, device):
    """Informational: another bound to start from and another Krum; both end below 2e-5."""
    case = CASES[name]
    H, f = INPUTS[case["input"]], case["params"]["f"]
    row = rows_of(inspect(ov.Fang(target="krum"), H, device, num_byzantine=f))[0]
    np.testing.assert_array_equal(np.sign(row), np.sign(case["expected"]))
    assert_close(row, case["expected"], atol=2e-5)


@pytest.mark.parametrize("name", RUN["mimic"])
def test_mimic(name, device):
    case = CASES[name]
    p = case["params"]
    H = INPUTS["H8"] if p["t"] == 0 else 1.1 * INPUTS["H8"][::-1]
    state = MimicState(
        direction=torch.tensor([p.get("z0") or p["z_prev"]], dtype=torch.float64),
        mean=torch.tensor([p.get("mu_prev", [0.0] * 4)], dtype=torch.float64),
        num_rounds=torch.tensor([p["t"]]),
        target=torch.tensor([-1]),
    )
    output = inspect(ov.Mimic(client=None), H, device, num_byzantine=2, state=state)
    assert_close(rows_of(output), [case["expected"]] * 2)
    assert output.state.target.tolist() == [case["target"]]
    assert_close(output.state.direction[0].cpu(), case["z"])
    assert output.state.num_rounds.tolist() == [p["t"] + 1]
    if "mu" in case:
        assert_close(output.state.mean[0].cpu(), case["mu"])


@pytest.mark.parametrize("name", RUN["line search"])
def test_line_search(name, device):
    case = CASES[name]
    p = case["params"]
    tried = []

    def objective(x):
        tried.append(float(x[0]))
        return -((x - 2.7) ** 2)

    search = LineSearch(evals=p["evals"], delta=p["delta"], ratio=p["ratio"], highest=1e9)
    start = torch.tensor([float(p["start"])], dtype=torch.float64, device=device)
    assert float(line_maximize(objective, start, search, 0.0)) == pytest.approx(case["expected"])
    assert_close(tried, case["evaluated"])
