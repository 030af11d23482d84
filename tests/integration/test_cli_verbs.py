"""The verbs that print: list, show, plan, doctor."""

import pytest

from command_line import run
from outvote import __version__

MY_RULE = '''
import outvote
class {name}(outvote.VectorRule):
    """The first client is right."""
    def max_byzantine(self, num_clients):
        return {limit}
    def aggregate(self, rows, num_byzantine):
        return rows[0]
'''


@pytest.fixture
def my_rule(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MY_RULE.format(name="First", limit="num_clients - 1"))
    return f"{path}:First"


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


def test_show_accepts_aliases_and_wrappers_alone(capsys):
    assert "trimmed-mean" in run(capsys, "show", "rbtm").out
    gas = run(capsys, "show", "gas", "--json").json
    assert [layer["name"] for layer in gas["layers"]] == ["gas"]
    assert gas["max_byzantine"] == {"5": 4, "10": 9, "20": 19, "50": 49}


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


def test_show_describes_a_rule_of_the_user(capsys, my_rule):
    result = run(capsys, "show", my_rule)
    assert result.code == 0
    assert "The first client is right" in result.out
    assert "4 of 5, 9 of 10" in result.out


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


def test_plan_prints_where_the_rule_inside_gives_up_before_the_wrapper(capsys):
    words = ["plan", "--clients", 50, "--byzantine", 10, "--sample", 5, "--rule", "gas(bulyan)"]
    assert "The rule inside tolerates 0" in run(capsys, *words).out


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
