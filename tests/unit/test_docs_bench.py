"""docs/how-to/bench.md is correct: its suite is valid, its code runs, all options are named."""

import re
import tomllib
from pathlib import Path

from outvote.cli.bench import command
from outvote.experiment.plan import plan_suite
from outvote.suites.suite import make_suite, read_suite

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "bench.md").read_text()


def block(kind: str) -> str:
    return re.search(rf"^```{kind}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)[1]


def test_the_suite_has_a_run_for_each_rule_beta_and_seed():
    suite = make_suite("mine", tomllib.loads(block("toml")))
    assert len(plan_suite(suite).specs) == 2 * 3 * 3
    assert (suite.parts[0].rows, suite.parts[0].values) == (
        ["median", "gas(median)"],
        [0.1, 0.5, 5.0],
    )


def test_the_code_prints_what_is_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = block("python")
    exec(compile(code, "bench.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out.strip() == code.rpartition("# ")[2].strip()


def test_every_option_of_its_own_is_named():
    shared = {"--help", "--debug", "--device", "--checkpoint-every", "--no-weights"}
    options = {option for each in command.params for option in each.opts if option[0] == "-"}
    for option in options - shared - {"-o"}:
        assert f"`{option}" in PAGE or f" {option} " in PAGE, option


def test_the_suites_that_share_runs_do():
    hashes = {
        name: set(plan_suite(read_suite(name)).hashes)
        for name in (
            "table1-cifar10",
            "table2-bucketing",
            "table3-num-groups",
            "table4-unknown-f",
            "figure2-deviation",
        )
    }
    first = hashes.pop("table1-cifar10")
    assert {name: len(first & each) for name, each in hashes.items()} == {
        "table2-bucketing": 450,
        "table3-num-groups": 50,
        "table4-unknown-f": 90,
        "figure2-deviation": 180,
    }
