"""Rules written for 0.1: their attributes and `answer` work for one version, with a warning."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from inspect import isfunction
from typing import Any

from torch import Tensor

from outvote.errors import OutvoteWarning, renamed

# What 0.1 declared as class attributes -> the name in Traits.
ATTRIBUTES = {
    "has_memory": "has_state",
    "uses_num_byzantine": "uses_num_byzantine",
    "can_be_wrapped": "can_be_wrapped",
    "is_batched": "is_batched",
    "needs_reference": "needs_reference",
    "needs": "needs",
    "tolerates": "tolerates",
    "reference": "reference",
}
# Methods of 0.1 that a rule could override -> the name in Traits.
METHODS = {
    "must_be_told": "uses_num_byzantine",
    "is_selecting": "selects_clients",
    "needs_values": "needs_values",
}
# What has no meaning now.
IGNORED = ("hides_shares",)


def adopt(cls: Any, traits: Callable[..., Any]) -> None:
    """Give a class written for 0.1 traits and `compute`, and warn once."""
    own = dict(vars(cls))
    named = [name for name in ATTRIBUTES if isinstance(own.get(name), bool | str)]
    named = [name for name in named if _is_attribute(own, name)]
    ignored = [name for name in IGNORED if name in own]
    methods = {name: own[name] for name in METHODS if isfunction(own.get(name))}
    is_old = callable(own.get("answer")) and "compute" not in own
    if not (named or ignored or methods or is_old) or "_adopted" in own:
        return
    cls._adopted = True  # A dataclass with slots is made twice; one warning is enough.
    if "traits" not in own:
        declared = traits(**{ATTRIBUTES[name]: own[name] for name in named})
        cls.traits = _traits(cls, declared, methods) if methods else declared
    if is_old:
        cls.compute = _compute(own["answer"])
    ways = [f"traits = outvote.Traits({ATTRIBUTES[name]}=...)" for name in named[:1]]
    ways = ways or [f"traits = outvote.Traits({METHODS[name]}=...)" for name in methods][:1]
    ways += ["compute(self, matrix, info)"] if is_old else []
    ways = ways or [f"no {ignored[0]}"]
    old = [*named, *ignored, *(f"{name}()" for name in methods), *(["answer()"] if is_old else [])]
    warnings.warn(
        f"{cls.__name__} is a rule for outvote 0.1 ({', '.join(old)}), which 0.3 no longer "
        f"reads; write {' and '.join(ways)}.",
        OutvoteWarning,
        stacklevel=4,
    )


def attribute(rule: Any, name: str) -> Any:
    """Return an attribute or method that rules had in 0.1; `rule` may be a class."""
    kind = rule if isinstance(rule, type) else type(rule)
    # A dataclass asks its class for the default of a field.
    is_field = kind is rule and name in vars(kind).get("__annotations__", {})
    declared = None if name.startswith("_") or is_field else getattr(rule, "traits", None)
    if is_field or (kind is rule and isinstance(declared, property)):
        raise AttributeError(f"type object {kind.__name__!r} has no attribute {name!r}")
    if name == "answer":
        new, value = "compute", rule.compute
    elif name in ATTRIBUTES:
        new, value = f"traits.{ATTRIBUTES[name]}", getattr(rule.traits, ATTRIBUTES[name])
    elif name in METHODS and kind is not rule:
        found = getattr(rule.traits, METHODS[name])
        new, value = f"traits.{METHODS[name]}", lambda: found
    else:
        raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
    renamed(f"{kind.__name__}.{name}", new, stacklevel=4)
    return value


def _traits(cls: Any, declared: Any, methods: dict[str, Callable[..., bool]]) -> property:
    """Return traits that ask the methods of a rule of 0.1."""
    found = (vars(base).get("traits") for base in cls.__mro__[1:])
    parent = next(traits for traits in found if isinstance(traits, type(declared)))
    complete = declared.inheriting(parent)

    def traits(self: Any) -> Any:
        values = {METHODS[name]: bool(method(self)) for name, method in methods.items()}
        return replace(complete, **values)

    return property(traits)


def _is_attribute(own: dict[str, Any], name: str) -> bool:
    """Return whether a name is a class attribute, not a field of a dataclass."""
    hint = own.get("__annotations__", {}).get(name)
    return hint is None or "ClassVar" in str(hint)


def _compute(answer: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(answer)
    def compute(self: Any, matrix: Any, info: Any) -> Any:
        found = answer(self, matrix, info)
        # In 0.1 a tensor had an axis for the run.
        if isinstance(found.state, Tensor) and found.state.dim() > 1 and len(found.state) == 1:
            return replace(found, state=found.state[0])
        return found

    return compute
