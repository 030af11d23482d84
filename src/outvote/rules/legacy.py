"""Rules written for 0.1: their attributes and `answer` work for one version, with a warning."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from torch import Tensor

from outvote.errors import OutvoteWarning

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


def adopt(cls: Any, traits: Callable[..., Any]) -> None:
    """Give a class written for 0.1 traits and `compute`, and warn once."""
    own = dict(vars(cls))
    named = [name for name in ATTRIBUTES if isinstance(own.get(name), bool | str)]
    named = [name for name in named if _is_attribute(own, name)]
    is_old = callable(own.get("answer")) and "compute" not in own
    if not (named or is_old) or "_adopted" in own:
        return
    cls._adopted = True  # A dataclass with slots is made twice; one warning is enough.
    if "traits" not in own:
        cls.traits = traits(**{ATTRIBUTES[name]: own[name] for name in named})
    if is_old:
        cls.compute = _compute(own["answer"])
    ways = [f"traits = outvote.Traits({ATTRIBUTES[name]}=...)" for name in named[:1]]
    ways += ["compute(self, matrix, info)"] if is_old else []
    old = [*named, *(["answer()"] if is_old else [])]
    warnings.warn(
        f"{cls.__name__} is a rule for outvote 0.1 ({', '.join(old)}), which the next version no "
        f"longer reads; write {' and '.join(ways)}.",
        OutvoteWarning,
        stacklevel=4,
    )


def attribute(rule: Any, name: str) -> Any:
    """Return an attribute or method that rules had in 0.1."""
    if name == "answer":
        new, value = "compute", rule.compute
    elif name in ATTRIBUTES:
        new, value = f"traits.{ATTRIBUTES[name]}", getattr(rule.traits, ATTRIBUTES[name])
    else:
        raise AttributeError(f"{type(rule).__name__!r} object has no attribute {name!r}")
    warnings.warn(
        f"{type(rule).__name__}.{name} is now {new}; the old name goes with the next version.",
        OutvoteWarning,
        stacklevel=3,
    )
    return value


def _is_attribute(own: dict[str, Any], name: str) -> bool:
    """Return whether a name is a class attribute, not a field of a dataclass."""
    hint = own.get("__annotations__", {}).get(name)
    return hint is None or "ClassVar" in str(hint)


def _compute(answer: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(answer)
    def compute(self: Any, matrix: Any, info: Any) -> Any:
        found = answer(self, matrix, info)
        # In 0.1 a tensor that was remembered had an axis for the run.
        if isinstance(found.state, Tensor) and found.state.dim() > 1 and len(found.state) == 1:
            return replace(found, state=found.state[0])
        return found

    return compute
