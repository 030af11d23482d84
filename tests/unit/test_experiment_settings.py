"""Settings: grids, hashes, overrides, and mistakes in one line."""

import subprocess
import sys
import tomllib

import msgspec
import pytest

from outvote.experiment.plan import make_plan, plan_suite, read_plan, stack_key
from outvote.experiment.run_spec import RunSpec, checked, to_toml
from outvote.grids import flat
from outvote.results.later import LATER
from outvote.suites.presets import PRESETS
from outvote.suites.suite import read_suite
from outvote.training.local_sgd import LocalSGD
from simulations import tiny

HASH = "from outvote.experiment.plan import make_plan; print(make_plan({}).specs[0].hash)"
SMALLER = {"image_size": 64}


def test_every_list_multiplies_and_the_last_varies_fastest():
    plan = make_plan({"rule": ["mean", "median"], "seed": [0, 1], "data": {"beta": [0.1, 0.5]}})
    found = [(spec.rule, spec.seed, spec.data.beta) for spec in plan.specs]
    assert found[:3] == [("mean", 0, 0.1), ("mean", 0, 0.5), ("mean", 1, 0.1)]
    assert len(set(found)) == 8


def test_a_schedule_is_one_value():
    plan = make_plan({"training": {"schedule": [[10, 0.01], [20, 0.001]]}})
    assert [spec.training.schedule for spec in plan.specs] == [((10, 0.01), (20, 0.001))]


def test_overrides_are_toml_or_words():
    settings = ["data.beta=0.1", "rule=gas(median)", "seed=[1, 2]", "training.max_norm=none"]
    plan = make_plan({"rule": "mean"}, settings)
    assert [(s.data.beta, s.rule, s.seed) for s in plan.specs] == [
        (0.1, "gas(median)", 1),
        (0.1, "gas(median)", 2),
    ]
    assert plan.specs[0].training.max_norm is None


def test_the_hash_is_the_same_in_another_process():
    done = subprocess.run([sys.executable, "-c", HASH], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == make_plan({}).specs[0].hash


@pytest.mark.parametrize(
    "setting",
    [
        "seed=1",
        "data.beta=0.4",
        "rule=mean",
        "attack=ipm",
        "precision=tf32",
        "rounds=9",
        "training.momentum=0.1",
        "federation.assumed_byzantine=3",
        "server.momentum=0.5",
        "server.optimizer=adam",
        "training.proximal=0.1",
        "model.name=mlp",
    ],
)
def test_whatever_changes_a_result_changes_the_hash(setting):
    assert make_plan({}, [setting]).specs[0].hash != make_plan({}).specs[0].hash


def test_runs_keep_the_names_that_they_had_when_the_hash_was_fixed():
    assert RunSpec().hash == "23f6770144e9"
    assert make_plan({"preset": "paper"}).hashes == ("d693f8adaf06",)
    for name, ends in {
        "demo": ("033c1496926e", "0b779ce51f51"),
        "table1-cifar10": ("ddcf9163e518", "e4824ad069aa"),
        "table1-imagenet12": ("d3e7c7450476", "6dbca47dd1d2"),
    }.items():
        hashes = plan_suite(read_suite(name)).hashes
        assert (hashes[0], hashes[-1]) == ends


def test_a_setting_that_came_later_counts_only_where_it_is_not_the_default():
    folder = {"name": "imagenet12"}
    plain, given = (make_plan({"data": {**folder, **more}}).specs[0] for more in ({}, SMALLER))
    assert plain.hash != given.hash
    assert "image_size" not in to_toml(plain, "a")
    assert tomllib.loads(to_toml(given, "a"))["data"]["image_size"] == 64
    assert make_plan({"data": {**folder, "image_size": 224}}).specs == (plain,)
    usual = flat(msgspec.to_builtins(RunSpec()))
    assert {key: usual[key] for key in LATER} == LATER


@pytest.mark.parametrize(
    ("section", "given"),
    [("server", {"optimizer": "yogi", "beta2": 0.9}), ("training", {"proximal": 0.1})],
)
def test_only_later_settings_with_another_value_are_written(section, given, tmp_path):
    (plain,) = make_plan({}).specs
    written = tomllib.loads(to_toml(plain, "a"))[section]
    assert not set(given) & set(written)
    (spec,) = make_plan({section: given}).specs
    path = tmp_path / "config.toml"
    path.write_text(to_toml(spec, "a"))
    assert tomllib.loads(path.read_text())[section] == {**written, **given}
    assert read_plan(path).specs == (spec,)


def test_what_plain_steps_of_the_server_do_not_use_makes_no_other_run():
    (plain,) = make_plan({}, ["server.beta1=0.5", "server.epsilon=0.1"]).specs
    assert plain == RunSpec()
    hashes = make_plan({"server": {"optimizer": "adam", "beta1": [0.5, 0.9]}}).hashes
    assert len(set(hashes)) == 2


@pytest.mark.parametrize("rates", [[0.1, 0.1, 0.05], lambda number: 0.1 if number < 3 else 0.05])
def test_rates_from_python_are_the_run_with_that_schedule(rates, tmp_path):
    spec = checked(RunSpec(rounds=4, training=LocalSGD(learning_rate=rates)))
    (same,) = make_plan({"rounds": 4, "training": {"schedule": [[3, 0.05]]}}).specs
    assert (spec, spec.hash) == (same, same.hash)
    path = tmp_path / "config.toml"
    path.write_text(to_toml(spec, "a"))
    assert read_plan(path).specs == (spec,)


def test_the_size_that_may_be_left_out_is_that_of_the_data():
    sizes = {
        (name, size): make_plan({"data": {"name": name, "image_size": size}}).specs[0].data
        for name in ("imagenet12", "tiny-imagenet12")
        for size in (224, 64)
    }
    found = {key: data.image_size for key, data in sizes.items()}
    assert found == {
        ("imagenet12", 224): None,
        ("imagenet12", 64): 64,
        ("tiny-imagenet12", 224): 224,
        ("tiny-imagenet12", 64): None,
    }


def test_another_spelling_is_the_same_run():
    one = make_plan({"rule": "rbtm", "attack": "lie(z=1.5)", "suite": "a"})
    other = make_plan({"rule": "trimmed-mean", "attack": "lie"})
    assert one.specs == other.specs
    iid = {"partition": "iid"}
    assert make_plan({"data": {**iid, "beta": [0.1, 0.5]}}).specs == make_plan({"data": iid}).specs


def test_the_hash_knows_the_content_of_ones_own_rules(tmp_path):
    path = tmp_path / "mine.py"
    text = "import outvote\nclass Mine(outvote.VectorRule):\n    def max_byzantine(self, n):\n"
    text += (
        "        return 0\n    def aggregate(self, rows, num_byzantine):\n        return rows[0]\n"
    )
    path.write_text(text)
    table = {"rule": f"gas('{path}:Mine')"}
    before = make_plan(table).specs[0].hash
    path.write_text(text.replace("rows[0]", "rows[1]"))
    assert make_plan(table).specs[0].hash != before


@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_the_file_in_a_folder_is_the_same_run(preset, tmp_path):
    plan = make_plan({"preset": preset} if preset else {"training": {"max_norm": "none"}})
    path = tmp_path / "config.toml"
    path.write_text(to_toml(plan.specs[0], "demo"))
    again = read_plan(path)
    assert (again.suite, again.specs) == ("demo", plan.specs)
    assert tomllib.loads(path.read_text())["suite"] == "demo"


def test_the_presets_are_what_the_paper_printed():
    found = {name: make_plan({"preset": name}).specs[0] for name in PRESETS}
    del found["theory"]
    assert found.pop("paper") == found["paper-cifar10"]
    settings = {
        name.removeprefix("paper-"): (
            spec.model.name,
            spec.federation.sampled,
            spec.rounds,
            spec.training.num_epochs,
            spec.training.batch_size,
            spec.training.learning_rate,
            spec.training.momentum,
        )
        for name, spec in found.items()
    }
    assert settings == {
        "cifar10": ("alexnet", 5, 200, 5, 64, 0.1, 0.5),
        "cifar100": ("squeezenet", 5, 400, 1, 64, 0.1, 0.5),
        "femnist": ("leaf-cnn", 0.005, 1000, 1, 64, 0.5, 0.5),
        "imagenet12": ("resnet18", 5, 200, 1, 128, 0.1, 0.9),
    }
    assert found["paper-imagenet12"].training.learning_rate_at(101) == 0.01
    for spec in found.values():
        assert (spec.data.beta, spec.federation.byzantine) == (0.5, 0.2)
        assert (spec.training.weight_decay, spec.training.max_norm) == (1e-4, 2.0)


def test_runs_that_differ_in_rule_attack_seed_or_partition_are_stacked():
    plan = tiny(
        rule=["mean", "median"],
        attack=["lie", "ipm"],
        seed=[0, 1],
        data={"partition": ["iid", "dirichlet"]},
        federation={"byzantine": [0.1, 0.2], "assumed_byzantine": ["oracle", 2]},
    )
    assert len({stack_key(spec) for spec in plan.specs}) == 1
    assert len({stack_key(spec) for spec in tiny(rounds=[1, 2]).specs}) == 2


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("rulez=mean", "unknown key 'rulez'; did you mean 'rule'?"),
        ("data.betta=1", "unknown key 'data.betta'; did you mean 'beta'?"),
        ("data.name=cifar11", "unknown dataset 'cifar11'; did you mean 'cifar10'?"),
        ("data.image_size=64", "is for folders of images such as imagenet12, got 64 for fashion"),
        ("data.beta=0", "data.beta must be larger than 0"),
        ("model.name=alexnett", "unknown model 'alexnett'; did you mean 'alexnet'?"),
        ("rule=gas(krumm)", "unknown rule 'krumm'; did you mean 'krum'?"),
        ("rounds=many", "rounds: expected int, got str."),
        ("rounds=0", "rounds must be at least 1, got 0."),
        ("seed=-1", "seed must be at least 0"),
        ("precision=float16", "precision: unknown value 'float16'"),
        ("preset=paper-cifar", "unknown preset 'paper-cifar'; did you mean 'paper-cifar10'?"),
        ("suite=../x", "suite must be the name of a folder"),
        ("federation.byzantine=51", "at most the 50 clients there are, got 51"),
        ("federation.byzantine=1.5", "a fraction from 0 to 1, got 1.5"),
        ("federation.sampled=0", "from 1 to 50 clients can be sampled in a round, got 0"),
        ("federation.selection=by-score", "has no effect where all 50 clients take part in every"),
        ('federation.selection="by-score(floor=0)"', "floor must be above 0 and at most 1"),
        ('federation.selection="by-score(floor=much)"', "floor must be a number, got 'much'"),
        ("federation.selection=mine.py:Mine", "unknown selection 'mine.py:Mine'"),
        ("federation.num_clients=all", "is for data.partition = 'by-group'"),
        ("training.batch_size=0", "batch_size must be at least 1, got 0"),
        ("training.learning_rate=fast", "training.learning_rate: expected float, got str."),
        (
            "training.learning_rate=[[0.1, 0.05]]",
            "expected a number, got [0.1, 0.05]; a list of numbers is a grid, and the rates",
        ),
        ("training.proximal=-1", "proximal must be finite and at least 0, got -1"),
        ("server.optimizer=adm", "server.optimizer: unknown value 'adm'; did you mean 'adam'?"),
        ("server.beta2=1", "beta2 must be from 0 to below 1, got 1"),
        ("server={optimizer='yogi', momentum=0.9}", "set beta1 instead."),
        ("beta", "a setting is written key=value"),
    ],
)
def test_a_mistake_is_reported_in_one_line(setting, message):
    with pytest.raises((ValueError, TypeError)) as error:
        make_plan({}, [setting])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read_is_reported(tmp_path):
    path = tmp_path / "a.toml"
    with pytest.raises(ValueError, match="there is no file"):
        read_plan(path)
    path.write_text("rule = [")
    with pytest.raises(ValueError, match="is not valid TOML"):
        read_plan(path)


@pytest.mark.parametrize(
    ("assumed", "num_noted"), [(0.5, 1), (0.7, 1), (5, 1), (0.49, 0), (4, 0), ("oracle", 0)]
)
def test_runs_that_assume_a_byzantine_majority_are_noted_once(assumed, num_noted):
    federation = {"num_clients": 20, "sampled": 10, "assumed_byzantine": ["oracle", assumed]}
    plan = make_plan({"seed": [0, 1], "federation": federation})
    assert len(plan.notes) == num_noted
    if num_noted:
        assert plan.notes[0].startswith("2 of 4 runs assume that half")
        assert f"federation.assumed_byzantine = {assumed})" in plan.notes[0]
