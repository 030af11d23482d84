"""Rules as text: both ways, with errors that name the closest word, and rules from files."""

import os
import textwrap

import numpy as np
import pytest

import outvote as ov
from every_rule import EVERY_RULE
from outvote.rules.rule_spec import ALIASES, RULES


@pytest.mark.parametrize("text", EVERY_RULE)
def test_text_and_rule_are_the_same_thing(text):
    rule = ov.make_rule(text)
    assert ov.make_rule(str(rule)) == rule
    assert str(ov.make_rule(str(rule))) == str(rule)
    assert hash(rule) == hash(ov.make_rule(str(rule)))


def test_text_and_python_make_the_same_rule():
    assert ov.make_rule("gas(multi-krum, num_groups=7)") == ov.GAS(ov.MultiKrum(), num_groups=7)
    nested = ov.GAS(ov.Bucketing(ov.RFA(), size=3))
    assert ov.make_rule("gas(bucketing(rfa, size=3))") == nested
    assert ov.make_rule(nested) is nested


def test_the_text_has_what_differs_from_the_defaults():
    assert str(ov.GAS(ov.Median())) == "gas(median)"
    assert str(ov.GAS(ov.Median(), num_groups=1000)) == "gas(median)"
    assert (
        str(ov.GAS(ov.Median(even="lower"), num_groups=9))
        == "gas(median(even=lower), num_groups=9)"
    )
    assert str(ov.Krum(num_neighbours=3, power=1.5)) == "krum(num_neighbours=3, power=1.5)"
    assert str(ov.FoolsGold(normalise=True)) == "foolsgold(normalise=true)"


@pytest.mark.parametrize("name", RULES)
def test_every_name_is_that_of_its_class(name):
    assert RULES[name].name == name


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_an_alias_is_another_name(alias, name):
    assert ov.make_rule(alias) == ov.make_rule(name)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (" median ", "median"),
        ("MEDIAN", "median"),
        ("Gas(RBTM)", "gas(trimmed-mean)"),
        ("gas(\n  median,\n  num_groups = 5,\n)", "gas(median, num_groups=5)"),
        ("gas(num_groups=5, median)", "gas(median, num_groups=5)"),
        ("clip(median, max_norm='adaptive')", "clip(median, max_norm=adaptive)"),
        ('clip(median, max_norm="adaptive")', "clip(median, max_norm=adaptive)"),
        ("krum(num_neighbours=None)", "krum"),
        ("clip(median, max_norm=3)", "clip(median, max_norm=3)"),
    ],
)
def test_blanks_case_order_quotes_and_commas_do_not_matter(text, same):
    assert str(ov.make_rule(text)) == same


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("meidan", "unknown rule 'meidan'; did you mean 'median'?"),
        ("gas(multikrum)", "unknown rule 'multikrum'; did you mean 'multi-krum'?"),
        ("xyzzy", "unknown rule 'xyzzy'; known: bucketing, bulyan, "),
        (
            "gas(median, num_group=5)",
            "gas has no parameter 'num_group'; did you mean 'num_groups'?",
        ),
        (
            "krum(f=2)",
            "krum has no parameter 'f'; the number of Byzantine clients belongs to a call",
        ),
        ("mean(q=2)", "mean has no parameter 'q'; nothing is known here."),
        ("gas(median, rule=krum)", "gas has no parameter 'rule'; known: num_groups, split."),
        ("", "expected a name, got 'the end'."),
        ("median(", "expected a part or ')', got 'the end'."),
        ("median)", "unexpected ')' after the end."),
        ("median median", "unexpected 'median' after the end."),
        ("gas(median", "expected ',' or ')', got 'the end'."),
        ("median(even=)", "expected a value, got ')'."),
        ("median(even=lower, even=mean)", "even is given twice."),
        ("median(even='lower)", "an unfinished quote; close it."),
        ("gas", "gas wraps one rule, as in gas(mean), got 0 inside."),
        ("median(krum)", "median wraps nothing, got 1 inside."),
        ("krum(power=__import__('os'))", "expected ',' or ')', got '('."),
    ],
)
def test_a_text_that_is_no_rule_is_explained(text, wanted):
    with pytest.raises(ValueError, match=r"^rule ") as caught:
        ov.make_rule(text)
    assert str(caught.value).startswith(f"rule {text!r}: ")
    assert wanted in str(caught.value)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("gas(median, num_groups=many)", "num_groups must be a whole number, got 'many'."),
        ("gas(median, num_groups=1.5)", "num_groups must be a whole number, got 1.5."),
        ("krum(power=high)", "power must be a number, got 'high'."),
        ("median(even=3)", "even must be a word, got 3."),
        ("clip(median, max_norm=none)", "max_norm must be a number or a word, got None."),
    ],
)
def test_a_value_of_the_wrong_kind_is_explained(text, wanted):
    with pytest.raises(TypeError) as caught:
        ov.make_rule(text)
    assert str(caught.value) == f"rule {text!r}: {wanted}"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("gas(median, num_groups=0)", "gas: num_groups must be at least 1, got 0."),
        ("gas(median, split=random)", "gas: split must be one of 'balanced', 'ceil', "),
        ("bucketing(median, size=0)", "bucketing: size must be at least 1, got 0."),
        (
            "clip(median, max_norm=-1)",
            "clip: max_norm must be positive and finite, 'adaptive' or 'honest'",
        ),
        (
            "clip(median, max_norm=nan)",
            "clip: max_norm must be positive and finite, 'adaptive' or 'honest'",
        ),
        ("median(even=upper)", "median: even must be one of 'mean', 'lower', got 'upper'."),
        ("rfa(smoothing=inf)", "rfa: smoothing must be positive and finite, got inf."),
        ("rfa(start=median)", "rfa: start must be one of 'mean', 'zero', got 'median'."),
        ("geometric-median(tolerance=0)", "geometric-median: tolerance must be between 0 and 1"),
        ("dnc(num_iterations=0)", "dnc: num_iterations must be at least 1, got 0."),
        ("dnc(removal_factor=0)", "dnc: removal_factor must be positive and finite, got 0."),
        ("centered-clipping(radius=0)", "centered-clipping: radius must be positive and finite"),
        ("norm-clipping(max_norm=0)", "norm-clipping: max_norm must be positive and finite"),
        ("signguard(lower=3, upper=2)", "signguard: lower must be below upper and not negative"),
        ("signguard(window=0)", "signguard: window must be in (0, 1], got 0."),
    ],
)
def test_a_value_that_makes_no_sense_is_explained(text, wanted):
    with pytest.raises(ValueError, match="must be") as caught:
        ov.make_rule(text)
    assert wanted in str(caught.value)


@pytest.mark.parametrize("thing", [None, 3, ov.Median, b"median", ["median"]])
def test_what_is_neither_text_nor_rule_is_refused(thing):
    with pytest.raises(TypeError, match="a rule is given as text or as an object, got"):
        ov.make_rule(thing)


FILE = """
    from dataclasses import dataclass

    import torch
    import outvote as ov


    class Midrange(ov.VectorRule):
        def max_byzantine(self, num_clients):
            return 0

        def aggregate(self, rows, num_byzantine):
            return rows.double().amin(dim=0) / 2 + rows.double().amax(dim=0) / 2


    @dataclass(frozen=True, kw_only=True)
    class Nearest(ov.AffineRule):
        name = "nearest"
        power: float = 2.0
        note: str = "plain"

        def max_byzantine(self, num_clients):
            return max(0, (num_clients - 1) // 2)

        def weigh(self, matrix, info):
            far = matrix.squared_distances.pow(self.power / 2)
            scores = far.median(dim=-1).values
            best = scores.argmin(dim=-1, keepdim=True)
            return ov.Aggregation(weights=torch.zeros_like(scores).scatter_(-1, best, 1.0))


    @dataclass(frozen=True, kw_only=True)
    class Rank(ov.CoordinatewiseRule):
        rank: int

        def max_byzantine(self, num_clients):
            return 0

        def reduce(self, columns, num_byzantine):
            return columns.sort(dim=-1).values[..., self.rank]


    @dataclass(frozen=True)
    class Twice(ov.Rule):
        rule: ov.Rule
        name = "twice"

        def max_byzantine(self, num_clients):
            return self.rule.max_byzantine(num_clients)

        def compute(self, matrix, info):
            vector = matrix.vector(self.rule.compute(matrix, info))
            return ov.Aggregation(vector=2 * vector)


    NOT_A_CLASS = 3

    class NotARule:
        pass
"""
X = [[1.0, 10.0], [2.0, 30.0], [6.0, 20.0]]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my_rules.py"
    path.write_text(textwrap.dedent(FILE))
    return path


def test_a_vector_rule_is_loaded_from_a_file(file):
    rule = ov.make_rule(f"{file}:Midrange")
    assert rule(X, num_byzantine=0).tolist() == [3.5, 20.0]
    assert str(rule) == f"{file}:Midrange"
    assert type(ov.make_rule(str(rule))) is type(rule)
    assert rule.name == "Midrange"


def test_an_affine_rule_from_a_file_takes_parameters(file):
    rule = ov.make_rule(f"{file}:Nearest(power=1)")
    np.testing.assert_array_equal(rule(X, num_byzantine=0), [2.0, 30.0])
    assert str(rule) == f"{file}:Nearest(power=1)"
    assert ov.make_rule(str(rule)) == rule
    assert repr(rule) == "Nearest(power=1, note='plain')"


def test_a_coordinate_wise_rule_from_a_file_may_need_a_parameter(file):
    assert ov.make_rule(f"{file}:Rank(rank=2)")(X, num_byzantine=0).tolist() == [6.0, 30.0]
    with pytest.raises(ValueError, match="Rank needs rank=, got none"):
        ov.make_rule(f"{file}:Rank")
    with pytest.raises(TypeError, match="rank must be a whole number, got 'last'"):
        ov.make_rule(f"{file}:Rank(rank=last)")
    with pytest.raises(ValueError, match=r"Rank has no parameter 'rnak'; did you mean 'rank'\?"):
        ov.make_rule(f"{file}:Rank(rnak=1)")


@pytest.mark.parametrize("template", ["gas({}, num_groups=2)", "bucketing({}, size=1)", "nnm({})"])
def test_a_rule_from_a_file_can_be_wrapped(template, file):
    rule = ov.make_rule(template.format(f"{file}:Midrange"))
    assert np.isfinite(rule(X, num_byzantine=0, seed=0)).all()
    assert ov.make_rule(str(rule)) == rule or "Midrange" in str(rule)


def test_a_wrapper_from_a_file_wraps_a_rule(file):
    rule = ov.make_rule(f"{file}:Twice(median)")
    assert rule(X, num_byzantine=0).tolist() == [4.0, 40.0]
    assert ov.make_rule(str(rule)) == rule
    with pytest.raises(ValueError, match="wraps one rule"):
        ov.make_rule(f"{file}:Twice")


@pytest.mark.parametrize("note", ["two words", "a,b", "(x)", "it's", "5", "true", "", "a=b"])
def test_words_that_need_quotes_get_them(note, file):
    kind = type(ov.make_rule(f"{file}:Nearest"))
    rule = kind(note=note)
    assert ov.make_rule(str(rule)) == rule


def test_a_path_with_blanks_is_quoted(tmp_path):
    folder = tmp_path / "my rules, all (of them)"
    folder.mkdir()
    (folder / "r.py").write_text(textwrap.dedent(FILE))
    rule = ov.make_rule(f"gas('{folder / 'r.py'}:Midrange', num_groups=2)")
    assert str(ov.make_rule(str(rule))) == str(rule)


def test_annotations_that_cannot_be_resolved_are_not_checked(tmp_path):
    path = tmp_path / "later.py"
    code = """
        from __future__ import annotations
        from dataclasses import dataclass
        import outvote as ov

        @dataclass(frozen=True)
        class Later(ov.VectorRule):
            size: Unknown = 3

            def max_byzantine(self, num_clients):
                return 0

            def aggregate(self, rows, num_byzantine):
                return rows[0] * self.size
    """
    path.write_text(textwrap.dedent(code))
    assert ov.make_rule(f"{path}:Later(size=2)")(X, num_byzantine=0).tolist() == [2.0, 20.0]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("Midrang", "has no class Midrang that is a Rule; write `class Midrang(outvote.Rule)`"),
        ("NotARule", "has no class NotARule that is a Rule"),
        ("NOT_A_CLASS", "has no class NOT_A_CLASS that is a Rule"),
    ],
)
def test_a_file_without_the_rule_is_explained(name, wanted, file):
    with pytest.raises(ValueError, match=r"my_rules\.py") as caught:
        ov.make_rule(f"{file}:{name}")
    assert wanted in str(caught.value)


def test_a_missing_file_is_explained(tmp_path):
    with pytest.raises(ValueError, match=r"there is no file .*gone\.py; check the path"):
        ov.make_rule(f"{tmp_path / 'gone.py'}:Rule")


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("def broken(:\n", "failed to load: SyntaxError"),
        ("import no_such_package_of_mine\n", "failed to load: ModuleNotFoundError"),
        ("1 / 0\n", "failed to load: ZeroDivisionError: division by zero"),
    ],
)
def test_a_file_that_fails_to_load_is_explained(code, wanted, tmp_path):
    path = tmp_path / "broken.py"
    path.write_text(code)
    with pytest.raises(ValueError, match="failed to load") as caught:
        ov.make_rule(f"{path}:Rule")
    assert wanted in str(caught.value)


def test_a_changed_file_is_loaded_again(file):
    before = ov.make_rule(f"{file}:Midrange")
    assert type(ov.make_rule(f"{file}:Midrange")) is type(before)
    file.write_text(file.read_text().replace("amin", "amax"))
    stat = file.stat()
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert ov.make_rule(f"{file}:Midrange")(X, num_byzantine=0).tolist() == [6.0, 30.0]


def test_rules_from_a_file_keep_the_promises_of_all_rules(file):
    ov.check_rule(ov.make_rule(f"{file}:Midrange"), exempt={"mean-without-byzantine": "a midrange"})
