"""The description of a rule or an attack, read from its docstring and fields."""

import ast
import inspect
import re
import textwrap
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from itertools import pairwise
from typing import Any

from outvote.attacks.attack import Attack
from outvote.rules.rule import Rule, Wrapper

LABELS = ("Needs", "Tolerates", "Differs from the paper", "Differs from ByzFL", "Reference")
TRAITS = {
    "needs_rule": "asks the rule",
    "is_random": "random",
    "is_colluding": "all send one row",
    "poisons_data": "changes the training data",
    "has_state": "has state",
    "sends_nonfinite": "not finite",
}
_LABEL = re.compile(rf"(?:^|\s)({'|'.join(LABELS)}):\s")
_FORMULA = re.compile(r"\$\$(.*?)\$\$", re.DOTALL)
_SENTENCE_END = re.compile(r"\.\s+(?=[A-Z])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A field of a rule or an attack that a text spec may set."""

    name: str
    default: Any
    doc: str

    @property
    def text(self) -> str:
        """The parameter as a text spec writes it."""
        return f"{self.name}={value_text(self.default)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The parts of a docstring and the parameters; attacks tolerate nothing and wrap nothing."""

    name: str
    summary: str
    formula: str
    needs: str
    tolerates: str
    differs: str
    reference: str
    notes: str
    example: str
    parameters: tuple[Parameter, ...]
    is_wrapper: bool

    @property
    def tolerates_in_short(self) -> str:
        """The condition alone, without its notes."""
        return re.split(r"; | \(", self.tolerates)[0]

    def of_attack(self) -> dict[str, Any]:
        """Return plain values, without those that only rules have."""
        for_rules = ("tolerates", "is_wrapper")
        return {key: value for key, value in asdict(self).items() if key not in for_rules}


def describe(thing: type[Rule] | type[Attack]) -> Description:
    """Read the docstring of a rule or an attack, and the docs of its parameters."""
    doc = _docstring(thing)
    before, _, example = doc.partition("\n>>> ")
    formulas = [" ".join(formula.split()) for formula in _FORMULA.findall(before)]
    summary, _, body = _FORMULA.sub("", before).partition("\n\n")
    parts, notes = _split(" ".join(body.split()))
    declared = getattr(thing, "traits", None)
    return Description(
        name=thing.name or thing.__name__,
        summary=" ".join(summary.split()).rstrip("."),
        formula=" ".join(formulas),
        needs=parts.get("Needs", getattr(declared, "needs", "")),
        tolerates=parts.get("Tolerates", getattr(declared, "tolerates", "")),
        differs=parts.get("Differs from the paper", parts.get("Differs from ByzFL", "")),
        reference=parts.get("Reference", getattr(declared, "reference", "")),
        notes=notes,
        example=f">>> {example.strip()}" if example else "",
        parameters=tuple(_parameters(thing)),
        is_wrapper=issubclass(thing, Wrapper),
    )


def traits(attack: Attack) -> dict[str, bool]:
    """Return the declarations of an attack."""
    found = {key: getattr(attack, key) for key in TRAITS}
    return {**found, "needs_rule": attack.needs_rule()}


def kind_of(attack: Attack) -> str:
    """Return the declarations of an attack in words."""
    found = traits(attack)
    return ", ".join(word for key, word in TRAITS.items() if found[key])


def value_text(value: object) -> str:
    """Return a value as a text spec writes it."""
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _docstring(thing: type) -> str:
    doc = thing.__doc__ or ""
    # A dataclass without a docstring gets its signature for one.
    return "" if doc.startswith(f"{thing.__name__}(") else inspect.cleandoc(doc)


def _split(body: str) -> tuple[dict[str, str], str]:
    """Cut a docstring's body at its labels; a label owns a sentence, the rest are notes."""
    first, *labelled = _LABEL.split(body)
    parts: dict[str, str] = {}
    notes = [first.strip()]
    for label, text in zip(labelled[::2], labelled[1::2], strict=True):
        sentence, *rest = _SENTENCE_END.split(text.strip(), maxsplit=1)
        parts[label] = sentence.removesuffix(".")
        notes += rest
    return parts, " ".join(note for note in notes if note)


def _parameters(rule: type) -> list[Parameter]:
    if not is_dataclass(rule):
        return []
    docs = field_docs(rule)
    return [
        Parameter(name=field.name, default=field.default, doc=docs.get(field.name, ""))
        for field in fields(rule)
        if field.default is not MISSING
    ]


def field_docs(kind: type) -> dict[str, str]:
    """Read the strings that follow the fields in the source, also those of the parents."""
    docs: dict[str, str] = {}
    for parent in reversed(kind.__mro__):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(parent)))
        except (OSError, TypeError, SyntaxError):
            continue
        if isinstance(tree.body[0], ast.ClassDef):
            docs |= _strings_after_fields(tree.body[0].body)
    return docs


def _strings_after_fields(body: list[ast.stmt]) -> dict[str, str]:
    found = {}
    for field, after in pairwise(body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found[field.target.id] = " ".join(str(after.value.value).split())
    return found
