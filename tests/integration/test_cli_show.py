"""`outvote show` of models, datasets and suites; other names of rules."""

from command_line import run
from outvote.aliases import ATTACK_ALIASES, RULE_ALIASES
from outvote.attacks.attack_spec import ATTACKS
from outvote.data.catalog import DATASETS
from outvote.models.model_spec import MODELS
from outvote.rules.rule_spec import RULES
from outvote.suites.suite import suite_names


def test_no_two_things_have_the_same_name():
    kinds = (RULES, RULE_ALIASES, ATTACKS, ATTACK_ALIASES, MODELS, DATASETS, suite_names())
    names = [name for kind in kinds for name in kind]
    assert len(names) == len(set(names))


def test_a_model_has_its_layers_and_the_sum_of_their_parameters(capsys):
    found = run(capsys, "show", "alexnet", "--json").json
    assert found["num_parameters"] == found["num_trained"] == 2_472_266
    assert sum(each["num_parameters"] for each in found["layers"]) == found["num_parameters"]
    assert found["input_shape"] == [32, 32, 3]
    assert found["layers"][0]["layer"].startswith("Conv2d(3, 64")
    shown = run(capsys, "show", "alexnet").out
    for words in (
        "2,472,266 parameters",
        "32 x 32 x 3",
        "Conv2d(3, 64",
        "(height, width, channels)",
    ):
        assert words in shown


def test_a_dataset_has_its_size_source_and_place(capsys):
    found = run(capsys, "show", "fashion-mnist-small", "--json").json
    assert (found["num_train"], found["num_test"], found["shape"]) == (6000, 2000, [28, 28, 1])
    assert found["found"] == "part of outvote"
    shown = run(capsys, "show", "fashion-mnist-small").out
    for words in ("6,000 to train, 2,000 to test", "28 x 28 x 1", "part of outvote"):
        assert words in shown


def test_a_suite_has_its_parts_runs_and_what_they_reproduce(capsys):
    found = run(capsys, "show", "table1-cifar10", "--json").json
    main = found["parts"][0]
    assert (main["num_rules"], len(main["values"]), main["num_seeds"]) == (12, 6, 5)
    assert main["num_runs"] == 360
    assert main["reproduces"] == "Table 1 of the paper"
    assert found["num_runs"] <= sum(part["num_runs"] for part in found["parts"])
    shown = run(capsys, "show", "table1-cifar10").out
    for words in (
        "CIFAR-10, p = 1000",
        "360",
        "Table 1 of the paper",
        "outvote bench table1-cifar10",
    ):
        assert words in shown


def test_a_suite_of_ones_own_is_shown_from_its_file(capsys, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'title = "Mine"\n[[part]]\nname = "main"\ntitle = "One"\ncolumns = "attack"\n'
        'settings.rule = ["mean", "rfa"]\nsettings.attack = "lie"\n'
    )
    found = run(capsys, "show", path, "--json").json
    assert (found["title"], found["num_runs"]) == ("Mine", 2)
    run(capsys, "show", tmp_path / "gone.toml").assert_fails(2, "there is no file")


def test_fedavg_is_the_mean_and_a_far_name_gets_no_suggestion(capsys):
    assert run(capsys, "show", "fedavg", "--json").json["rule"] == "mean"
    assert run(capsys, "show", "gas(cwmed)", "--json").json["rule"] == "gas(median)"
    run(capsys, "show", "squezenet").assert_fails(2, "did you mean 'squeezenet'?")
    far = run(capsys, "show", "zzzz")
    far.assert_fails(2, "nothing is called 'zzzz'", "outvote list rules")
    assert "did you mean" not in far.err
