"""Some rules, attacks, parts and seeds of a suite; and rules and attacks of the user."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from outvote.attacks.attack_spec import make_attack
from outvote.errors import closest
from outvote.experiment.plan import parse_override
from outvote.grids import merged
from outvote.results.labels import label
from outvote.rules.rule_spec import make_rule
from outvote.suites.suite import Axis, Part, Suite

MAKERS: dict[Axis, Callable[[str], object]] = {"rule": make_rule, "attack": make_attack}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The parts of a suite to run; nothing given: all."""

    settings: Sequence[str] = ()
    """Overrides such as "rounds=10", for all parts."""
    parts: Sequence[str] = ()
    rules: Sequence[str] = ()
    """Names as "gas(median)" or full texts; a rule that the suite lacks is added to it."""
    attacks: Sequence[str] = ()
    num_seeds: int | None = None
    """Seeds 0, 1, ...; None: those of the suite."""


def choose(suite: Suite, choice: Choice) -> Suite:
    """Return the chosen part of a suite; a choice that nothing fits is a ValueError."""
    parts = _named(suite, choice.parts)
    overrides = [parse_override(text) for text in choice.settings]
    if choice.num_seeds is not None:
        overrides.append({"seed": list(range(choice.num_seeds))})
    for each in overrides:
        parts = [_with(part, each) for part in parts]
    parts = _filtered(suite.name, parts, "rule", choice.rules)
    parts = _filtered(suite.name, parts, "attack", choice.attacks)
    return replace(suite, parts=tuple(parts))


def _named(suite: Suite, names: Sequence[str]) -> list[Part]:
    known = [part.name for part in suite.parts]
    for name in names:
        if name not in known:
            raise ValueError(f"suite {suite.name} has no part {name!r}; {closest(name, known)}")
    return [part for part in suite.parts if not names or part.name in names]


def _with(part: Part, settings: Mapping[str, Any]) -> Part:
    return replace(part, settings=merged(part.settings, settings))


def _filtered(suite: str, parts: list[Part], axis: Axis, texts: Sequence[str]) -> list[Part]:
    """Keep what fits a text; a text that fits nothing is added to the parts that can show it."""
    if not texts:
        return parts
    kept: list[list[str]] = [[] for _ in parts]
    for text in texts:
        canonical = str(MAKERS[axis](text))  # Raises if there is no such thing.
        found = [[each for each in part.texts(axis) if _fits(text, each, axis)] for part in parts]
        if not any(found):
            found = [[canonical] if part.can_show(axis, canonical) else [] for part in parts]
        if not any(found):
            known = sorted({label(each) for part in parts for each in part.texts(axis)})
            raise ValueError(
                f"no part of {suite} can show the {axis} {text!r}: its columns are "
                f"{' and '.join(sorted({part.columns for part in parts}))}; take one of "
                f"{', '.join(known)}, or --set '{axis}={text}'."
            )
        for had, more in zip(kept, found, strict=True):
            had += [each for each in more if each not in had]
    return [_with(part, {axis: values}) for part, values in zip(parts, kept, strict=True) if values]


def _fits(text: str, each: str, axis: Axis) -> bool:
    """Return whether a name fits, with any parameters, or a text with parameters exactly."""
    if "=" in text:
        return str(MAKERS[axis](text)) == str(MAKERS[axis](each))
    return label(text) == label(each)
