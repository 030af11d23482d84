"""Settings, suites, stores and logs of others: reading them executes none of their code."""

import json

import pytest

from benches import SUITE
from command_line import run
from made_results import write_store

CODE = """
from pathlib import Path
Path(__file__).with_suffix(".executed").touch()
import outvote
class Mine(outvote.VectorRule):
    def max_byzantine(self, num_clients):
        return num_clients - 1
    def aggregate(self, rows, num_byzantine):
        return rows.mean(dim=0)
class Harm(outvote.Attack):
    def craft(self, context):
        return context.honest_mean
def data():
    raise ValueError("executed")
"""
CONFIG = """
rule = "mean"
attack = "lie"
rounds = 1
federation = { num_clients = 10, sampled = 5 }
training = { num_steps = 1, batch_size = 16 }
"""
SETTINGS = {
    "rule": "{path}:Mine",
    "rule in a wrapper": "gas({path}:Mine)",
    "attack": "{path}:Harm",
    "data.name": "{path}:data",
    "data.partition": "{path}:data",
    "model.name": "{path}:data",
    "loss": "{path}:data",
    "optimizer": "{path}:data",
}


@pytest.fixture(autouse=True)
def _no_consent(monkeypatch):
    monkeypatch.delenv("OUTVOTE_ALLOW_CODE")


@pytest.fixture
def code(tmp_path):
    path = tmp_path / "evil.py"
    path.write_text(CODE)
    return path


def was_executed(code):
    return code.with_suffix(".executed").exists()


def suite_of(folder, rule):
    path = folder / "suite.toml"
    path.write_text(SUITE.format(rules=json.dumps([rule, "mean"]), rounds=1))
    return path


@pytest.mark.parametrize("where", SETTINGS)
def test_run_asks_before_it_executes_code(capsys, tmp_path, code, where):
    value = SETTINGS[where].format(path=code)
    key = where.partition(" ")[0]
    old = [line for line in CONFIG.splitlines() if not line.startswith(f"{key} ")]
    path = tmp_path / "config.toml"
    path.write_text("\n".join([f'{key} = "{value}"', *old]))
    done = run(capsys, "run", path, "--device", "cpu", "-o", tmp_path / "runs")
    done.assert_fails(2, "evil.py", "--allow-code")
    assert not was_executed(code)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("words", [(), ("--dry-run",), ("--dry-run", "--rule", "gas(x=1)")])
def test_bench_asks_before_it_executes_code_even_for_a_dry_run(capsys, tmp_path, code, words):
    suite = suite_of(tmp_path, f"gas({code}:Mine, num_groups=2)")
    done = run(capsys, "bench", suite, *words, "--device", "cpu", "-o", tmp_path / "runs")
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert not was_executed(code)


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_show_asks_before_it_executes_the_code_of_a_suite(capsys, tmp_path, code, words):
    suite = suite_of(tmp_path, f"{code}:Mine")
    run(capsys, "show", suite, *words).assert_fails(2, "evil.py", "--allow-code")
    assert not was_executed(code)
    assert run(capsys, "show", suite, *words, "--allow-code").code == 0
    assert was_executed(code)


def test_code_runs_with_consent(capsys, tmp_path, code):
    suite = suite_of(tmp_path, f"{code}:Mine")
    words = ("bench", suite, "--device", "cpu", "-o", tmp_path / "runs")
    assert run(capsys, *words, "--allow-code", "--dry-run").code == 0
    assert was_executed(code)


def test_a_rule_on_the_command_line_is_consent(capsys, tmp_path, code):
    suite = suite_of(tmp_path, "median")
    words = ("--device", "cpu", "-o", tmp_path / "runs", "--dry-run")
    done = run(capsys, "bench", suite, "--rule", f"{code}:Mine", *words)
    assert done.code == 0, done.err
    assert was_executed(code)


def test_consent_to_one_file_is_not_consent_to_another(capsys, tmp_path, code):
    (tmp_path / "other.py").write_text(CODE)
    suite = suite_of(tmp_path, f"{tmp_path / 'other.py'}:Mine")
    words = ("--device", "cpu", "-o", tmp_path / "runs", "--dry-run")
    done = run(capsys, "bench", suite, "--attack", f"{code}:Harm", *words)
    done.assert_fails(2, "other.py", "--allow-code")
    assert not was_executed(tmp_path / "other.py")


def test_a_file_beside_the_settings_does_not_stand_in_for_the_one_that_was_named(
    capsys, tmp_path, code, monkeypatch
):
    """`--set rule=evil.py:Mine` means the file of the working directory."""
    monkeypatch.delenv("OUTVOTE_PROJECT", raising=False)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "evil.py").write_text(CODE)
    monkeypatch.chdir(tmp_path / "work")
    (tmp_path / "config.toml").write_text(CONFIG)
    words = ("--device", "cpu", "-o", tmp_path / "runs")
    done = run(capsys, "run", tmp_path / "config.toml", *words, "--set", "rule=evil.py:Mine")
    done.assert_fails(2, "evil.py", "--allow-code")
    assert not was_executed(code)


@pytest.mark.parametrize("verb", ["table", "report", "list", "audit", "verify", "export", "bench"])
def test_reading_a_store_executes_nothing(capsys, tmp_path, code, verb):
    first, _ = write_store(tmp_path / "runs", {"rule": ["mean", "median"], "rounds": 2}, seeds=1)
    path = first.folder.path / "config.toml"
    path.write_text(path.read_text().replace('rule = "mean"', f'rule = "{code}:Mine"'))
    words = {
        "report": ["report", tmp_path / "runs", "-o", tmp_path / "report.html"],
        "export": ["export", tmp_path / "runs", "-o", tmp_path / "all.csv.gz"],
        "list": ["list", "runs", "--store", tmp_path / "runs"],
        "bench": ["bench", "smoke", "--dry-run", "--device", "cpu", "-o", tmp_path / "runs"],
    }.get(verb, [verb, tmp_path / "runs"])
    # Its checksums say that the file was changed.
    assert run(capsys, *words).code == (verb == "verify")
    assert not was_executed(code)


def test_a_log_does_not_choose_the_code_of_a_server(tmp_path, code):
    pytest.importorskip("flwr")
    from outvote.flower import RobustStrategy

    manifest = {
        "format": "outvote-audit",
        "version": 1,
        "rule": f"{code}:Mine",
        "num_byzantine": 1,
        "outvote": "0",
        "started": "2026-01-01T00:00:00Z",
        "settings": {},
    }
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=r"names Python code, rule=.*pass rule= yourself"):
        RobustStrategy.resume(tmp_path / "log")
    assert not was_executed(code)
    found = RobustStrategy.resume(tmp_path / "log", rule=f"{code}:Mine")
    assert found.settings.num_byzantine == 1
    assert was_executed(code)
