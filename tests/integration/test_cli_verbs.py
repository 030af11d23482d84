"""The verbs that print: list, show, plan, doctor."""

from math import comb

import pytest

from command_line import run
from outvote import __version__


def test_list_names_every_rule_with_its_parameters_and_marks_wrappers(capsys):
    from outvote.rules.rule_spec import RULES

    result = run(capsys, "list", "rules")
    assert result.code == 0
    for words in ("gas(...)", "num_groups=1000", "rbtm", "n >= 4f + 3", "smoothing=1e-06"):
        assert words in result.out
    found = run(capsys, "list", "rules", "--json").json
    assert [each["name"] for each in found] == list(RULES)
    assert {each["name"] for each in found if each["is_wrapper"]} == {
        "gas",
        "bucketing",
        "nnm",
        "clip",
        "norm-filter",
    }
    trimmed = next(each for each in found if each["name"] == "trimmed-mean")
    assert trimmed["aliases"] == ["rbtm", "tm", "trmean", "cwtm"]


def test_show_prints_formula_tolerance_reference_and_limits(capsys):
    result = run(capsys, "show", "bulyan")
    assert result.code == 0
    for words in ("n >= 4f + 3", r"\theta", "Guerraoui", "selection=iterative", ">>> Bulyan()"):
        assert words in result.out
    assert "0 of 5, 1 of 10, 4 of 20, 11 of 50" in result.out


def test_show_prints_the_limits_of_the_rules_inside(capsys):
    result = run(capsys, "show", "gas(bulyan)")
    assert "gas(bulyan) tolerates: 4 of 5, 9 of 10, 19 of 20, 49 of 50." in result.out
    assert "bulyan inside tolerates: 0 of 5, 1 of 10, 4 of 20, 11 of 50" in result.out
    found = run(capsys, "show", "gas(bucketing(rfa, size=3))", "--json").json
    assert found["max_byzantine"]["50"] == 49
    assert [*found["max_byzantine_inside"]] == ["bucketing(rfa, size=3)", "rfa"]
    # 50 clients are 17 buckets.
    assert found["max_byzantine_inside"]["rfa"]["50"] == 8
    assert "inside" not in run(capsys, "show", "bulyan").out.splitlines()[-1]


def test_plan_prints_the_figures_of_the_specification(capsys):
    words = ["plan", "--clients", 50, "--byzantine", 10, "--sample", 5, "--rule", "bulyan"]
    result = run(capsys, *words)
    assert result.code == 0
    for figure in ("0.3106", "0.4313", "0.2098", "0.04418", "0.003965", "0.0001189", "0.04826"):
        assert figure in result.out
    found = run(capsys, *words, "--rounds", 400, "--json").json
    assert found["max_byzantine"] == 0
    assert sum(row["probability"] for row in found["distribution"]) == pytest.approx(1)
    nobody, too_many, majority = found["events"]
    assert nobody["probability"] + too_many["probability"] == pytest.approx(1)
    assert majority["expected_rounds"] == pytest.approx(400 * 0.04826, rel=1e-3)


def test_doctor_finds_what_is_installed_and_prints_how_to_get_the_rest(capsys):
    import torch

    result = run(capsys, "doctor")
    assert result.code == 0
    assert torch.__version__ in result.out
    found = run(capsys, "doctor", "--json").json
    packages = {each["what"]: each for each in found["packages"]}
    assert packages["outvote"]["found"] == __version__
    assert packages["matplotlib"]["get"] == "pip install 'outvote[plots]'"
    assert packages["flwr"]["get"] == "pip install 'outvote[flower]'"
    assert len(packages) == len(found["packages"])
    assert "pytest" not in packages
    assert found["devices"]["torch_threads"] == torch.get_num_threads()
    assert len(found["devices"]["cuda"]) == torch.cuda.device_count()
    assert found["datasets"][0]["found"] == "part of outvote"


@pytest.mark.parametrize("kind", ["rules", "attacks"])
def test_everything_that_is_listed_is_documented(capsys, kind):
    for about in run(capsys, "list", kind, "--json").json:
        texts = {key: value for key, value in about.items() if isinstance(value, str)}
        assert [key for key, value in texts.items() if not value and key != "notes"] == []
        assert [each["name"] for each in about["parameters"] if not each["doc"]] == []


@pytest.mark.parametrize(
    ("num_clients", "num_byzantine", "num_sampled"),
    [(50, 10, 5), (3597, 720, 18), (10, 10, 4), (10, 0, 4), (7, 5, 6), (1, 1, 1), (9, 4, 9)],
)
def test_every_probability_of_plan_is_the_exact_fraction(
    capsys, num_clients, num_byzantine, num_sampled
):
    words = ("--clients", num_clients, "--byzantine", num_byzantine, "--sample", num_sampled)
    found = run(capsys, "plan", *words, "--rule", "median", "--rounds", 7, "--json").json
    probabilities = {row["num_byzantine"]: row["probability"] for row in found["distribution"]}
    ways = {
        k: comb(num_byzantine, k) * comb(num_clients - num_byzantine, num_sampled - k)
        for k in range(num_sampled + 1)
    }
    total = comb(num_clients, num_sampled)
    assert probabilities == {k: way / total for k, way in ways.items() if way}
    majority = sum(way for k, way in ways.items() if 2 * k > num_sampled) / total
    assert found["events"][2]["probability"] == pytest.approx(majority)
    assert found["events"][2]["at_least_once"] == pytest.approx(1 - (1 - majority) ** 7)
