"""The shipped suites, against numbers that are written out here a second time from the paper."""

from functools import cache
from itertools import product

import pytest

from made_results import made_results
from outvote.attacks.attack_spec import make_attack
from outvote.experiment.choosing import Choice, choose
from outvote.experiment.plan import plan_part, plan_suite
from outvote.experiment.run_spec import as_table
from outvote.grids import flat
from outvote.results.labels import label, value_of
from outvote.rules.rule_spec import make_rule
from outvote.suites.suite import read_suite, suite_names

DNC = "dnc(removal_factor=4.0, num_iterations=1, num_coordinates=10000)"
BASES = ["multi-krum", "bulyan", "median", "rfa(num_iterations=3)", DNC, "trimmed-mean"]
OTHER_SIDE = [
    "lie(z=1.5)",
    "min-max(direction=std, method=search, gamma_init=10.0, tolerance=1e-05)",
    "min-sum(direction=std, method=search, gamma_init=10.0, tolerance=1e-05)",
]
ATTACKS = [
    "bit-flip",
    "label-flip",
    "lie(z=1.5, sign=1)",
    "min-max(direction=std, method=search, gamma_init=10.0, tolerance=1e-05, sign=1)",
    "min-sum(direction=std, method=search, gamma_init=10.0, tolerance=1e-05, sign=1)",
    "ipm(evals=2)",
]
LIE = ["lie(z=1.5, sign=1)"]
OTHERS = {id(ATTACKS): OTHER_SIDE, id(LIE): ["lie(z=1.5)"]}
SEEDS = [0, 1, 2, 3, 4]
TABLES = [f"table1-{name}" for name in ("cifar10", "cifar100", "femnist", "imagenet12")] + [
    "table2-bucketing",
    "table3-num-groups",
    "table4-unknown-f",
    "table5-heterogeneity",
    "table6-num-byzantine",
    "table7-num-clients",
    "figure1-motivation",
    "figure2-deviation",
]


def gas(num_groups):
    return [f"gas({base}, num_groups={num_groups})" for base in BASES]


BOTH = BASES + gas(1000)
BUCKETS = [f"bucketing({base}, size=2)" for base in BASES]
GROUPS = [100, 1000, 10_000, 100_000, 1_000_000, 2_472_266]
SPLIT = [f"gas({base}, num_groups={p})" for base in ("multi-krum", "bulyan") for p in GROUPS]

# Of each part: rules, attacks, and the setting that the columns differ in with its values.
MAIN = {
    **{name: (BOTH, ATTACKS, {}) for name in TABLES[:4]},
    "table2-bucketing": (BUCKETS + gas(1000), ATTACKS, {}),
    "table3-num-groups": (SPLIT, LIE, {}),
    "table4-unknown-f": (gas(1000), LIE, {"federation.assumed_byzantine": ["oracle", 0.1, 0.3]}),
    "table5-heterogeneity": (BOTH, LIE, {"data.beta": [0.3, 0.7]}),
    "table6-num-byzantine": (BOTH, LIE, {"federation.byzantine": [5, 15]}),
    "table7-num-clients": (BOTH, LIE, {"federation.num_clients": [75, 100]}),
    "figure2-deviation": (BOTH, LIE, {}),
}
AS_PRINTED = {
    **{(name, "main"): grid for name, grid in MAIN.items()},
    **{(name, "lie-p100"): (gas(100), LIE, {}) for name in TABLES[:4]},
    ("figure1-motivation", "iid"): (BASES, LIE, {}),
    ("figure1-motivation", "non-iid"): (BASES, LIE, {}),
}


def other_side(part):
    return "other-side" if part == "main" else f"{part}-other-side"


GRIDS = {
    **AS_PRINTED,
    **{
        (name, other_side(part)): (rules, OTHERS[id(attacks)], columns)
        for (name, part), (rules, attacks, columns) in AS_PRINTED.items()
    },
    **{(name, "all-clients"): grid for name, grid in MAIN.items()},
}
# SPEC 5.1, column by column.
CIFAR10 = {
    "data.name": "cifar10",
    "model.name": "alexnet",
    "rounds": 200,
    "evaluate_every": 1,
    "aggregate": "parameters",
    "precision": "float32",
    "data.partition": "dirichlet",
    "data.beta": 0.5,
    "data.balance": True,
    "data.min_size": 10,
    "federation.num_clients": 50,
    "federation.byzantine": 0.2,
    "federation.sampled": 5,
    "federation.assumed_byzantine": "oracle",
    "training.num_epochs": 5,
    "training.num_steps": None,
    "training.batch_size": 64,
    "training.learning_rate": 0.1,
    "training.momentum": 0.5,
    "training.weight_decay": 1e-4,
    "training.max_norm": 2.0,
    "training.schedule": [],
    "training.client_momentum": 0.0,
    "training.augment": False,
    "server.learning_rate": 1.0,
    "server.momentum": 0.0,
}
SPECIAL = {
    "table1-cifar100": {
        "data.name": "cifar100",
        "model.name": "squeezenet",
        "rounds": 400,
        "training.num_epochs": 1,
    },
    "table1-femnist": {
        "data.name": "femnist",
        "data.partition": "by-group",
        "model.name": "leaf-cnn",
        "rounds": 1000,
        "federation.num_clients": "all",
        "federation.sampled": 18,  # 0.5 % of 3,597
        "training.num_epochs": 1,
        "training.learning_rate": 0.5,
    },
    "table1-imagenet12": {
        "data.name": "imagenet12",
        "model.name": "resnet18",
        "training.num_epochs": 1,
        "training.batch_size": 128,
        "training.momentum": 0.9,
        "training.schedule": [[101, 0.01]],
    },
    "table7-num-clients": {"federation.sampled": 0.1},
    "figure1-motivation": {
        "rounds": 500,
        "federation.byzantine": 10,
        "federation.sampled": 50,
        "training.num_epochs": 1,
    },
}


OTHER_DATA = ("table1-cifar100", "table1-femnist", "table1-imagenet12")


@cache
def specs_of(name, part):
    """The runs of a part of a suite."""
    suite = read_suite(name)
    (found,) = [each for each in suite.parts if each.name == part]
    return plan_part(suite, found).specs


def settings_of(spec):
    """All settings by their names, lists as they are written."""
    return {
        key: list(map(list, value)) if isinstance(value, tuple) else value
        for key, value in flat(as_table(spec)).items()
    }


def test_there_are_the_twelve_suites_of_the_paper_and_four_small_ones():
    assert sorted(suite_names()) == sorted([*TABLES, "demo", "smoke", "splits", "tabular", "text"])
    parts = {(name, part.name) for name in TABLES for part in read_suite(name).parts}
    assert parts == set(GRIDS)


@pytest.mark.parametrize(("name", "part"), GRIDS)
def test_a_part_has_the_papers_grid(name, part):
    rules, attacks, columns = GRIDS[name, part]
    rules, attacks = map(make_rule, rules), map(make_attack, attacks)
    key, values = next(iter(columns.items()), ("", [None]))
    cells = [
        (make_rule(spec.rule), make_attack(spec.attack), settings_of(spec).get(key), spec.seed)
        for spec in specs_of(name, part)
    ]
    assert len(cells) == len(set(cells))
    assert set(cells) == set(product(rules, attacks, values, SEEDS))


@pytest.mark.parametrize(("name", "part"), GRIDS)
def test_all_other_settings_are_those_that_the_paper_printed(name, part):
    expected = CIFAR10 | SPECIAL.get(name, {})
    if part in ("iid", "iid-other-side"):
        expected = expected | {"data.partition": "iid"}
    if part == "all-clients":
        everybody = 1.0 if name in ("table1-femnist", "table7-num-clients") else 50
        expected = expected | {"federation.sampled": everybody}
    for key in GRIDS[name, part][2]:
        del expected[key]
    for spec in specs_of(name, part):
        found = settings_of(spec)
        assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize(
    "name",
    [
        # The same parts as those of CIFAR-10, of other data.
        pytest.param(name, marks=[pytest.mark.slow] * (name in OTHER_DATA))
        for name in suite_names()
    ],
)
def test_a_run_belongs_to_the_parts_that_ask_for_it_and_to_no_other(name):
    suite = choose(read_suite(name), Choice(num_seeds=1))
    asked = {part.name: set(plan_part(suite, part).hashes) for part in suite.parts}
    results = made_results(name, seeds=1, rounds=1)
    assert {each.hash for each in results} == set(plan_suite(suite).hashes)
    for each in results:
        for part in suite.parts:
            assert part.holds(each) == (each.hash in asked[part.name]), (each.name, part.name)


@pytest.mark.parametrize("name", suite_names())
def test_every_cell_of_a_part_has_a_run_for_each_seed(name):
    for part in read_suite(name).parts:
        found = {
            (label(spec.rule), value_of(as_table(spec), part.columns), spec.seed)
            for spec in specs_of(name, part.name)
        }
        assert found == set(product(part.rows, part.values, part.seeds))


@pytest.mark.parametrize("name", [name for name in TABLES if name.startswith("table")])
def test_the_paper_has_a_number_for_every_cell(name):
    for part in read_suite(name).parts:
        assert set(product(part.rows, part.values)) <= set(part.printed())


def test_table_1_is_360_runs_of_12_rules_under_6_attacks():
    suite = read_suite("table1-cifar10")
    main = suite.parts[0]
    assert (len(main.rows), len(main.values), len(main.seeds)) == (12, 6, 5)
    assert [len(plan_part(suite, part).specs) for part in suite.parts] == [360, 30, 180, 30, 360]
    assert len(plan_suite(suite).specs) == 960
