"""Make docs/reference/settings.md, every setting of a file: python tools/settings_page.py."""

import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from outvote.cli.describe import field_docs
from outvote.experiment.plan import OutsideSpec
from outvote.experiment.run_spec import RunSpec
from outvote.grids import flat
from outvote.suites.paper import Wanted
from outvote.suites.presets import ABOUT, PRESETS
from outvote.suites.suite import PartTable, SuiteTable

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "settings.md"
HEAD = """\
# Settings

Every key of a file for `outvote run` and of a suite for `outvote bench`, from the docstrings of the
code (`python tools/settings_page.py`). Guides: [simulate from a file](../how-to/simulate.md),
[suites](../how-to/bench.md); from Python: [`simulate`](python-simulation.md).

- `--set data.beta=0.1` overrides a key; its value is TOML, or a word.
- A list in place of a value is a grid: every list multiplies the runs. `training.schedule` is a
  list itself, and one value.
- `"none"` stands for no value. Where both an integer and a float are allowed, an integer is a
  count, and a float is a fraction that is rounded up; elsewhere an integer may stand for a float.
- An unknown key is an error that names the closest known one.
- Every setting of a run is part of its hash: another value is another run, in another folder.
"""
SUITES = """\
A suite is a file of its own, with the keys below. Its settings are those above, as
`[settings.data]` and `[part.settings.data]`. A setting that one part has, all parts must have."""
WORDS: dict[Any, str] = {bool: "boolean", int: "integer", float: "float", str: "string"}
IN_RUNS = '`"none"`'
"""How a setting of a run has no value."""
ELSEWHERE = "left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key of a file."""

    key: str
    default: str
    allowed: str
    meaning: str


def page() -> str:
    """Return the whole page."""
    run = get_type_hints(RunSpec)
    tables = {
        key: hint for key, hint in run.items() if isinstance(hint, type) and get_type_hints(hint)
    }
    own = settings_of(RunSpec, without=tables)
    inside = {key: settings_of(kind, f"{key}.") for key, kind in tables.items()}
    parts = [HEAD, "## The run\n", _table(own)]
    parts += ["\nTwo keys are not settings of the run, and not part of its hash:\n"]
    parts += [_table(settings_of(OutsideSpec, none=ELSEWHERE))]
    for key, kind in tables.items():
        parts += [f"\n## {key}\n", _first_line(kind), "", _table(inside[key])]
    order = [each.key for each in (*own, *(each for table in inside.values() for each in table))]
    parts += ["\n## Presets\n", _presets(order)]
    parts += ["\n## Suites\n", SUITES, "", _table(settings_of(SuiteTable, none=ELSEWHERE))]
    parts += ["\n### part\n", "Each `[[part]]` has these.\n"]
    parts += [_table(settings_of(PartTable, none=ELSEWHERE))]
    parts += ["\n### part.paper\n", _first_line(Wanted), "", _table(settings_of(Wanted))]
    return "\n".join(parts) + "\n"


def settings_of(
    kind: type, above: str = "", *, without: Collection[str] = (), none: str = IN_RUNS
) -> list[Setting]:
    """Return the fields of a class; each must be explained, with what is allowed."""
    docs, hints = field_docs(kind), get_type_hints(kind)
    found = []
    for name, default in _defaults(kind):
        if name in without:
            continue
        hint = hints[name]
        meaning, _, allowed = docs.get(name, "").partition("Allowed: ")
        is_closed = hint is bool or get_origin(hint) is Literal
        if not meaning.strip() or bool(allowed) == is_closed:
            raise ValueError(
                f"{kind.__name__}.{name} needs a docstring of one sentence that explains it, and "
                'one that begins with "Allowed:" unless its type has all values.'
            )
        found.append(
            Setting(
                key=f"{above}{name}",
                default=none if default is None else _value(default),
                allowed=": ".join(filter(None, (_kind(hint, none), _linked(allowed.rstrip(". "))))),
                meaning=_linked(meaning.strip()),
            )
        )
    return found


def _defaults(kind: type) -> Iterator[tuple[str, Any]]:
    if is_dataclass(kind):
        for field in fields(kind):
            made = None if field.default_factory is MISSING else field.default_factory()
            yield field.name, field.default if made is None else made
        return
    for each in msgspec.structs.fields(kind):
        yield each.name, each.default


def _kind(hint: Any, none: str) -> str:
    """Return a type in the words of TOML."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        words = [none if each is NoneType else _kind(each, none) for each in inside]
        return _either([word for word in words if word != ELSEWHERE])
    if origin is Literal:
        return _either([f"`{_toml(word)}`" for word in inside])
    if hint in WORDS:
        return WORDS[hint]
    if origin is not None and issubclass(origin, Mapping):
        return "table"
    return "array of tables" if "Mapping" in str(hint) else "array"


def _either(words: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _value(value: Any) -> str:
    return "needed" if value is MISSING else f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    return json.dumps("none" if value is None else value)


def _linked(text: str) -> str:
    """Return a docstring with links to the pages it names; a bar would end the cell."""
    text = re.sub(r"docs/((?:[\w-]+/)*)([\w-]+)\.md", r"[\2](../\1\2.md)", text)
    return text.replace("||", "‖").replace("|", "\\|")


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").split("\n", maxsplit=1)[0]


def _table(settings: list[Setting]) -> str:
    rows = [(f"`{each.key}`", each.default, each.allowed, each.meaning) for each in settings]
    return _rows(("key", "default", "allowed", "meaning"), rows)


def _presets(order: list[str]) -> str:
    """Return what each preset is, and the values that it gives, in an order of keys."""
    same = {name: next(key for key in PRESETS if PRESETS[key] == PRESETS[name]) for name in PRESETS}
    names = [name for name in PRESETS if same[name] == name]
    about = _rows(("preset", "what"), [(f"`{name}`", ABOUT[name]) for name in PRESETS])
    given = {name: flat(PRESETS[name]) for name in names}
    keys = sorted({key for table in given.values() for key in table}, key=order.index)
    rows = [
        (f"`{key}`", *(_value(given[name][key]) if key in given[name] else "" for name in names))
        for key in keys
    ]
    values = _rows(("key", *(f"`{name}`" for name in names)), rows)
    return f"{about}\n\nThe values that they give; an empty cell is the default above.\n\n{values}"


def _rows(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
