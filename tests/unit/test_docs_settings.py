"""docs/reference/settings.md is correct: every key of a file, its default, and what is allowed."""

import re
import tomllib
from dataclasses import dataclass

import msgspec
import pytest

import settings_page
from outvote.experiment.plan import OutsideSpec, make_plan
from outvote.experiment.run_spec import RunSpec
from outvote.grids import flat

PAGE = settings_page.PAGE.read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([\w.]+)` \| (.*?) \| (.*?) \| (.*?) \|$", flags=re.MULTILINE)
RUN, _, SUITE = PAGE.partition("\n## Suites\n")
ROWS = ROW.findall(RUN.partition("\n## Presets\n")[0])
OF_RUNS = [row for row in ROWS if row[0] not in OutsideSpec.__struct_fields__]
DEFAULTS = {key: default.strip("`") for key, default, _, _ in OF_RUNS}
BOUNDS = {
    key: re.findall(r"at least \d+$|above 0$|from 0 to below 1$", each) for key, _, each, _ in ROWS
}
NUMBERS = [(key, found[0]) for key, found in BOUNDS.items() if found]
NEEDED = {
    "server.beta1": ["server.optimizer=adam"],
    "server.beta2": ["server.optimizer=adam"],
    "server.epsilon": ["server.optimizer=adam"],
    "data.shards_per_client": ["data.partition=shards"],
    "data.image_size": ["data.name=imagenet12"],
    "federation.num_clients": ["federation.byzantine=0"],
}
"""Settings without which a key has no effect."""


def test_the_page_is_made_of_the_docstrings():
    assert settings_page.page() == PAGE, "run python tools/settings_page.py"


def test_the_page_has_every_setting_of_a_run_with_its_default():
    usual = flat(msgspec.to_builtins(RunSpec()))
    usual = {key: "none" if value is None else value for key, value in usual.items()}
    written = {key: tomllib.loads(f"value = {value}")["value"] for key, value in DEFAULTS.items()}
    assert written == {
        key: list(value) if isinstance(value, tuple) else value for key, value in usual.items()
    }
    assert make_plan({}, [f"{key}={value}" for key, value in DEFAULTS.items()]).specs == (
        RunSpec(),
    )


@pytest.mark.parametrize(("key", "bound"), NUMBERS)
def test_the_least_number_is_allowed_and_a_smaller_one_is_not(key, bound):
    usual = float if "." in DEFAULTS[key] or "max_norm" in key else int
    least = usual(re.search(r"\d+", bound)[0])
    allowed, refused = least, least - 1
    if bound == "above 0":
        allowed, refused = 1e-6, 0.0
    make_plan({}, [*NEEDED.get(key, []), f"{key}={allowed}"])
    with pytest.raises(ValueError, match=key.rpartition(".")[2]):
        make_plan({}, [*NEEDED.get(key, []), f"{key}={refused}"])
    if "below" in bound:
        with pytest.raises(ValueError, match="below 1"):
            make_plan({}, [*NEEDED.get(key, []), f"{key}=1.0"])


def test_every_number_of_a_run_has_its_least_value():
    kinds = {key: allowed for key, _, allowed, _ in OF_RUNS}
    open_ = {key for key, allowed in kinds.items() if re.match(r"(?:integer|float)\b", allowed)}
    shares = {f"federation.{name}" for name in ("byzantine", "sampled", "assumed_byzantine")}
    assert open_ - shares == {key for key, _ in NUMBERS}


def test_a_setting_without_an_explanation_is_an_error():
    @dataclass
    class Unexplained:
        number: int = 1

    @dataclass
    class WithoutValues:
        number: int = 1
        """How many there are."""

    @dataclass
    class Explained:
        number: int = 1
        """How many there are. Allowed: at least 1."""

    for kind in (Unexplained, WithoutValues):
        with pytest.raises(ValueError, match=rf"{kind.__name__}\.number needs a docstring"):
            settings_page.settings_of(kind)
    (found,) = settings_page.settings_of(Explained, "some.")
    assert found == settings_page.Setting(
        key="some.number",
        default="`1`",
        allowed="integer: at least 1",
        meaning="How many there are.",
    )
