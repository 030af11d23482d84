"""Tables of the reference agree with the code: parameters, limits, kinds, settings, columns."""

import csv
import inspect
import io
import re
from dataclasses import fields
from math import ceil

import numpy as np
import pytest

import outvote as ov
import site_pages
from doc_pages import DOCS, ROOT, blocks, paths_of_tree
from made_results import made_results
from outvote.attacks.attack_spec import ATTACKS
from outvote.flower import RobustStrategy
from outvote.results.export import BY_CLIENT, to_export
from outvote.results.round import Round
from outvote.results.series import DIAGNOSTICS, OF_CLIENTS, THEORY
from outvote.rules.rule import Wrapper
from outvote.rules.rule_spec import RULES
from outvote.testing import ATTACK_CHECKS, CHECKS

EXTEND = (DOCS / "how-to" / "extend.md").read_text()


def table(page, heading):
    """The rows of the first table under a heading, as dicts; `code` marks are removed."""
    rows = site_pages.table_rows(DOCS / page, heading)
    return [{key: cell.strip("`") for key, cell in row.items()} for row in rows]


RULE_PAGE, ATTACK_PAGE = "reference/rules.md", "reference/attacks.md"
PARAMETERS, LIMITS, KINDS = (
    table(RULE_PAGE, heading) for heading in ("Parameters", "What they tolerate", "Kinds")
)
WORDS = {True: "yes", False: "no"}


def text_of(value):
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def kind_of(rule):
    if issubclass(rule, Wrapper):
        return "wrapper"
    if issubclass(rule, ov.AffineRule):
        return "affine"
    if issubclass(rule, ov.CoordinatewiseRule):
        return "coordinate-wise"
    return "hybrid" if rule().traits.can_be_wrapped else "whole gradients"


def some_rule(name):
    return ov.make_rule(f"{name}(median)" if issubclass(RULES[name], Wrapper) else name)


@pytest.mark.parametrize(
    ("page", "kind", "known"), [(RULE_PAGE, "rule", RULES), (ATTACK_PAGE, "attack", ATTACKS)]
)
def test_every_parameter_is_listed_with_its_default(page, kind, known):
    shown = [(row[kind], row["parameter"], row["default"]) for row in table(page, "Parameters")]
    true = [
        (name, field.name, text_of(field.default))
        for name, own in known.items()
        for field in fields(own)
        if field.name != "rule"
    ]
    assert shown == true


def test_every_rule_and_wrapper_has_a_limit():
    assert {row["rule"].split("(")[0] for row in LIMITS} == set(RULES)


@pytest.mark.parametrize("row", LIMITS, ids=lambda row: row["rule"])
def test_the_limits_are_those_of_the_code(row):
    rule = ov.make_rule(row["rule"])
    for size in (5, 10, 20, 50):
        assert int(row[f"n = {size}"]) == rule.max_byzantine(num_clients=size)
    for n in range(1, 101):
        assert eval(row["limit"], {"n": n, "ceil": ceil, "max": max, "min": min}) == (
            rule.max_byzantine(num_clients=n)
        )


def test_kinds_needs_and_wrapping_are_those_of_the_code():
    shown = [
        (row["rule"], row["class"], row["kind"], row["needs f"], row["can be wrapped"])
        for row in KINDS
    ]

    def needs_of(name):
        if not issubclass(RULES[name], Wrapper):
            return WORDS[RULES[name]().traits.uses_num_byzantine]
        wrapped = [RULES[name](inside).traits for inside in (ov.Median(), ov.Krum())]
        around = {traits.uses_num_byzantine for traits in wrapped}
        return WORDS[around.pop()] if len(around) == 1 else "as inside"

    true = [
        (
            name,
            rule.__name__,
            kind_of(rule),
            needs_of(name),
            WORDS[some_rule(name).traits.can_be_wrapped],
        )
        for name, rule in RULES.items()
    ]
    assert shown == true


@pytest.mark.parametrize("row", KINDS, ids=lambda row: row["rule"])
def test_what_is_not_random_does_not_depend_on_the_seed_and_the_rest_does(row):
    rule = some_rule(row["rule"])
    gradients = np.random.default_rng(0).normal(size=(9, 10_050))
    options = {"num_byzantine": 2, "reference": gradients[0], "when_too_many": "lower"}
    verdicts = [rule.inspect(gradients, seed=seed, **options) for seed in range(3)]
    same = [np.array_equal(verdicts[0].scores, verdict.scores) for verdict in verdicts]
    assert all(same) == (row["random"] == "no")


@pytest.mark.parametrize("row", KINDS, ids=lambda row: row["rule"])
def test_state_is_returned_by_the_rules_that_have_it(row):
    gradients = np.random.default_rng(0).normal(size=(11, 20))
    options = {"num_byzantine": 2, "reference": gradients[0], "when_too_many": "lower"}
    state = some_rule(row["rule"]).inspect(gradients, **options).state
    assert (state is not None) == (row["state"] == "yes")


"""Pages whose code is executed by a test of their own."""


def test_the_kinds_of_attacks_are_those_of_the_code():
    true = [
        {
            "attack": name,
            "class": attack.__name__,
            "calls the rule": WORDS[attack().needs_rule()],
            "random": WORDS[attack().is_random],
            "all send one row": WORDS[attack().is_colluding],
            "state": WORDS[attack().has_state],
            "not finite": WORDS[attack().sends_nonfinite],
        }
        for name, attack in ATTACKS.items()
    ]
    assert table(ATTACK_PAGE, "Kinds") == true


@pytest.mark.parametrize("name", ["lie", "alie", "min-max", "min-sum", "mimic", "optimal-lie"])
@pytest.mark.parametrize("num_honest", [1, 5])
def test_clients_that_agree_are_copied_where_the_page_states_it(name, num_honest):
    honest = np.repeat([[1.0, 2.0, -3.0]], num_honest, axis=0)
    rows = ov.make_attack(name)(honest, num_byzantine=2, rule=ov.Median(), seed=0)
    assert np.allclose(rows, honest[0])


def names_in(heading, header):
    """The names in the first column of the table with this header, on the page on own rules."""
    section = EXTEND.split(f"\n## {heading}")[1].split(f"\n| {header}")[1].split("\n\n")[0]
    first = [line.split("|")[1] for line in section.splitlines()[2:]]
    return [name for cell in first for name in re.findall(r"`(\w+)", cell)]


def test_every_trait_is_listed_with_its_default():
    assert names_in("Traits", "trait") == [field.name for field in fields(ov.Traits)]
    rows = re.findall(r"^\| `(\w+)` \| `(True|False)` \|", EXTEND, flags=re.MULTILINE)
    by_name = {**vars(ov.Attack), **{field.name: field.default for field in fields(ov.Traits)}}
    assert rows
    assert all(str(by_name[name]) == default for name, default in rows)


def test_the_attributes_of_round_and_context_exist():
    for name in names_in("Batched rules", "attribute"):
        assert name in {field.name for field in fields(ov.RoundInfo)}
    known = {field.name for field in fields(ov.AttackContext)} | set(dir(ov.AttackContext))
    assert set(names_in("An attack", "`context` attribute")) <= known
    assert set(names_in("An attack", "attribute")) <= set(dir(ov.Attack))


@pytest.mark.parametrize(("heading", "checks"), [("rule", CHECKS), ("attack", ATTACK_CHECKS)])
def test_every_check_is_listed_with_the_fact_that_it_states(heading, checks):
    rows = table("reference/checks.md", f"check_{heading}")
    listed = [tuple(row.values()) for row in rows]
    assert listed == [(name, check.__doc__.splitlines()[0]) for name, check in checks.items()]


def names_of(page, header):
    """The names in the first column of the table that begins so."""
    rows = (DOCS / page).read_text().split(f"\n| {header} | what |")[1].split("\n\n")[0]
    first = [line[: line.find(" | ")] for line in rows.splitlines()[2:]]
    return re.findall(r"`(.+?)`", " ".join(first))


def test_every_key_of_a_round_is_listed():
    assert names_of("how-to/results.md", "key") == [*Round.__slots__]


def test_every_column_of_an_export_is_listed_in_order():
    text = to_export(made_results(seeds=1, rounds=1), is_packed=False).decode()
    header = next(csv.reader(io.StringIO(text)))
    later = ["test_loss", *OF_CLIENTS, *DIAGNOSTICS, *THEORY, *BY_CLIENT]
    assert names_of("how-to/results.md", "column") == [*header, *later]


def test_the_settings_of_the_flower_strategy_are_listed_with_their_defaults():
    rows = table("reference/flower.md", "Settings")
    written = [list(row.values())[:2] for row in rows]
    parameters = inspect.signature(RobustStrategy).parameters.values()
    named = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
    assert written == [[each.name, repr(each.default)] for each in named]


def test_the_tree_has_every_package_and_nothing_else():
    text = (DOCS / "reference" / "tree.md").read_text(encoding="utf-8")
    tree = paths_of_tree(next(t for _, t in blocks(text) if t.startswith("src/outvote/")))
    assert [path for path in tree if not (ROOT / path).exists()] == []
    packages = {f"src/outvote/{path.parent.name}/" for path in ROOT.glob("src/outvote/*/*.py")}
    assert sorted(packages - set(tree)) == []
