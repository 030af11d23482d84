"""Packages that add rules, attacks, models and datasets: the example, and broken ones."""

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import outvote as ov
from command_line import run
from outvote.attacks.attack_spec import ATTACKS
from outvote.data.loader import is_own_dataset
from outvote.experiment.plan import make_plan
from outvote.models.model_spec import MODELS, is_own_model
from outvote.rules.rule_spec import RULES
from outvote.user_objects import find_own

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plugin"
SMALL = """
suite = "mine"
rule = "gas(smallest-ball, num_groups=5)"
attack = "reversed-mean(scale=0.5)"
rounds = 1
[data]
name = "few-clothes"
partition = "iid"
[model]
name = "two-layers"
[federation]
num_clients = 5
byzantine = 1
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder that the example is installed in; its source is copied, since builds write."""
    pytest.importorskip("setuptools")
    source, target = tmp_path_factory.mktemp("source") / "plugin", tmp_path_factory.mktemp("site")
    shutil.copytree(EXAMPLE, source)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", target, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def plugin(installed, monkeypatch):
    monkeypatch.syspath_prepend(installed)
    yield installed
    for name in [name for name in sys.modules if name.startswith("outvote_example")]:
        del sys.modules[name]


def package(folder, name, entries, code="", version="0.1"):
    """Install a made-up package: its module and the metadata of its entry points."""
    (folder / f"{name}.py").write_text(code)
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = "".join(f"[{group}]\n{text}\n" for group, text in entries.items())
    (about / "entry_points.txt").write_text(groups)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """An empty folder for made-up packages."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in [name for name in sys.modules if name.startswith("bad_")]:
        del sys.modules[name]


def test_the_lists_show_names_with_their_packages(plugin, capsys):
    for kind, name in (
        ("rules", "smallest-ball"),
        ("attacks", "reversed-mean"),
        ("models", "two-layers"),
        ("datasets", "few-clothes"),
    ):
        done = run(capsys, "list", kind)
        assert (done.code, done.err) == (0, "")
        assert name in done.out
        assert "outvote-example 1.0.0" in done.out
        found = {each["name"]: each for each in run(capsys, "list", kind, "--json").json}
        assert found[name]["package"] == "outvote-example 1.0.0"
        assert {each.get("package") for key, each in found.items() if key != name} == {None}


def test_nothing_is_imported_before_a_name_is_used(plugin):
    ov.make_rule("gas(median)")
    assert not any(name.startswith("outvote_example") for name in sys.modules)
    rule = ov.make_rule("gas(smallest-ball)")
    assert "outvote_example.rules" in sys.modules
    assert "outvote_example.attacks" not in sys.modules
    assert str(rule) == "gas(smallest-ball)"
    assert ov.make_rule(str(rule)) == rule


def test_the_example_passes_its_own_tests(plugin):
    """The conformance checks, by the names of the entry points."""
    checks = runpy.run_path(str(EXAMPLE / "tests" / "test_checks.py"))
    tests = [each for name, each in checks.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


def test_the_check_of_texts_covers_plugins(plugin, monkeypatch):
    rule = ov.make_rule("smallest-ball")
    monkeypatch.setattr(type(rule), "name", "another-name")
    with pytest.raises(ov.ConformanceError, match="text-round-trip"):
        ov.check_rule(rule)


def test_a_run_takes_all_four_and_records_package_and_version(plugin, capsys, tmp_path):
    (tmp_path / "own.toml").write_text(SMALL)
    words = ["--output", tmp_path / "runs", "--device", "cpu"]
    done = run(capsys, "run", tmp_path / "own.toml", *words)
    assert done.code == 0, done.err
    (path,) = (tmp_path / "runs").glob("mine/*/env.json")
    packages = json.loads(path.read_text())["packages"]
    assert {(each["kind"], each["name"]) for each in packages} == {
        ("rule", "smallest-ball"),
        ("attack", "reversed-mean"),
        ("model", "two-layers"),
        ("dataset", "few-clothes"),
    }
    assert {(each["package"], each["version"]) for each in packages} == {
        ("outvote-example", "1.0.0")
    }
    (result,) = ov.read_runs(tmp_path / "runs")
    assert result.code_of("rule") == {"outvote-example": "1.0.0"}
    exported = tmp_path / "all.csv.gz"
    assert run(capsys, "export", tmp_path / "runs", "-o", exported).code == 0
    (again,) = ov.read_runs(exported)
    assert again.code_of("attack") == {"outvote-example": "1.0.0"}


def test_verbs_and_functions_know_the_names(plugin, capsys):
    assert "smallest ball" in run(capsys, "show", "smallest-ball").out
    assert "reversed" in run(capsys, "show", "reversed-mean(scale=2)").out
    words = ["--attack", "reversed-mean", "--clients", "8", "--byzantine", "2", "--dim", "50"]
    done = run(capsys, "stress", "--rule", "smallest-ball", *words)
    assert done.code == 0, done.err
    assert ov.make_model("two-layers", num_classes=3, seed=1).layers[-1].out_features == 3
    with pytest.raises(ValueError, match="takes no input_shape"):
        ov.make_model("two-layers", num_classes=3, input_shape=(28, 28, 1))
    with pytest.raises(ValueError, match="did you mean 'two-layers'"):
        ov.make_model("two-layer", num_classes=3)
    with pytest.raises(ValueError, match="did you mean 'smallest-ball'"):
        ov.make_rule("smalest-ball")
    assert len(find_own("dataset", "few-clothes")()[0][1]) == 600


def test_the_version_is_part_of_the_hash(tmp_path, monkeypatch):
    found = []
    for version in ("0.1", "0.2"):
        folder = tmp_path / version
        folder.mkdir()
        package(folder, "bad_model", {"outvote.models": "mine = bad_model:Net"}, version=version)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            found.append(make_spec("mine").hash)
    assert len(set(found)) == 2


def make_spec(model):
    (spec,) = make_plan({"model": {"name": model}}, suite="own").specs
    return spec


BROKEN = {
    "bad_import": ("thing = bad_import:Thing", "import nothing_like_this", "ModuleNotFoundError"),
    "bad_name": ("thing = bad_name:Missing", "", "AttributeError"),
    "bad_exit": ("thing = bad_exit:Thing", "raise SystemExit(3)", "SystemExit"),
    "bad_class": ("thing = bad_class:Thing", "Thing = 3", "must be a class that is a Rule"),
    "bad_title": (
        "thing = bad_title:Thing",
        "import outvote\nclass Thing(outvote.VectorRule):\n    name = 'other'\n",
        "its class is called 'other'",
    ),
    "bad_own": ("thing = outvote.rules.median:Median", "", "its class is called 'median'"),
    "bad_words": ("Two Words = bad_words:Thing", "", "lower-case words"),
    "bad_shadow": ("median = bad_shadow:Thing", "raise RuntimeError", "has a name that is built"),
    "bad_alias": ("rbtm = bad_alias:Thing", "raise RuntimeError", "has a name that is built in"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_package_is_one_line_and_the_rest_stays(site, capsys, name):
    entry, code, message = BROKEN[name]
    package(site, name, {"outvote.rules": entry}, code)
    done = run(capsys, "list", "rules", "--json")
    assert done.code == 0
    assert done.err.count("\n") == 1
    assert message in done.err
    assert name in done.err
    assert [each["name"] for each in done.json] == list(RULES)


@pytest.mark.parametrize("name", ["bad_import", "bad_class", "bad_title", "bad_exit"])
def test_the_use_of_a_broken_name_is_one_line(site, capsys, name):
    entry, code, message = BROKEN[name]
    package(site, name, {"outvote.rules": entry}, code)
    run(capsys, "show", "thing").assert_fails(2, message, name)
    assert ov.make_rule("median").name == "median"


def test_names_that_are_built_in_stay_what_they_are(site):
    entries = {
        "outvote.rules": "median = bad_all:Thing",
        "outvote.attacks": "lie = bad_all:Thing",
        "outvote.models": "alexnet = bad_all:Thing",
        "outvote.datasets": "cifar10 = bad_all:Thing",
    }
    package(site, "bad_all", entries, "raise RuntimeError('imported')")
    assert type(ov.make_rule("median")) is RULES["median"]
    assert type(ov.make_attack("lie")) is ATTACKS["lie"]
    assert not is_own_model("alexnet")
    assert not is_own_dataset("cifar10")
    assert ov.make_model("mlp", num_classes=10) is not None
    assert make_spec("alexnet").plugins == ()
    assert "alexnet" in MODELS


def test_a_name_of_two_packages_is_an_error(site, capsys):
    for name in ("bad_one", "bad_two"):
        package(site, name, {"outvote.attacks": f"thing = {name}:Thing"})
    done = run(capsys, "list", "attacks", "--json")
    assert done.err.count("\n") == 1
    assert "bad_one 0.1 and bad_two 0.1; uninstall one" in done.err
    run(capsys, "stress", "--attack", "thing").assert_fails(2, "bad_one 0.1 and bad_two 0.1")


def test_simulate_takes_names_and_objects_of_packages(plugin):
    rules = ["smallest-ball", ov.make_rule("gas(smallest-ball, num_groups=3)")]
    runs = ov.simulate(
        "two-layers",
        "few-clothes",
        partition="iid",
        num_clients=5,
        byzantine=1,
        rules=rules,
        attacks=[ov.make_attack("reversed-mean")],
        rounds=1,
        device="cpu",
        progress=False,
    )
    found = {each.config["rule"]: each for each in runs}
    assert [*found] == ["smallest-ball", "gas(smallest-ball, num_groups=3)"]
    assert {each.status.outcome for each in runs} == {"finished"}
    for each in runs:
        assert each.code_of("rule") == {"outvote-example": "1.0.0"}
