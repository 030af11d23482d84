"""The tables of the docs agree with the code, links exist, decision notes are short."""

import re
from dataclasses import fields
from math import ceil

import numpy as np
import pytest

import outvote as ov
from doc_pages import DOCS, IN_ORDER, PAGES, ROOT
from outvote.rules.rule import Wrapper
from outvote.rules.rule_spec import RULES

REFERENCE = (DOCS / "reference" / "rules.md").read_text()


def table(heading):
    """The rows of the table under a heading, as dicts; `code` marks are removed."""
    section = REFERENCE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip().strip("`") for cell in line] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


PARAMETERS, LIMITS, KINDS = table("Parameters"), table("What they tolerate"), table("Kinds")


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


def test_every_parameter_is_listed_with_its_default():
    shown = [(row["rule"], row["parameter"], row["default"]) for row in PARAMETERS]
    true = [
        (name, field.name, text_of(field.default))
        for name, rule in RULES.items()
        for field in fields(rule)
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
    words = {True: "yes", False: "no"}

    def needs_of(name):
        if not issubclass(RULES[name], Wrapper):
            return words[RULES[name]().traits.uses_num_byzantine]
        wrapped = [RULES[name](inside).traits for inside in (ov.Median(), ov.Krum())]
        around = {traits.uses_num_byzantine for traits in wrapped}
        return words[around.pop()] if len(around) == 1 else "as inside"

    true = [
        (
            name,
            rule.__name__,
            kind_of(rule),
            needs_of(name),
            words[some_rule(name).traits.can_be_wrapped],
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_exist(page):
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text())
    missing = {link for link in links if not (page.parent / link).exists()}
    assert missing == set()


OTHERS = ("compare", "nvflare", "read-results", "simulate-from-python")
"""Pages whose code is executed by a test of their own."""
RUNNABLE = sorted(
    page
    for page in PAGES
    if page.name != "CHANGELOG.md"
    and page.stem not in OTHERS
    and page.relative_to(ROOT).as_posix() not in IN_ORDER
)


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.stem)
def test_code_on_the_pages_runs(page):
    for text in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        exec(compile(text, str(page), "exec"), {})


@pytest.mark.parametrize("page", sorted(DOCS.glob("decisions/*.md")), ids=lambda page: page.stem)
def test_decision_notes_are_numbered_and_fit_one_page(page):
    text = page.read_text()
    assert re.fullmatch(r"\d{4}-[a-z0-9-]+", page.stem)
    assert len(text.splitlines()) <= 40
    for heading in ("## Context", "## Decision", "## Consequences"):
        assert heading in text
