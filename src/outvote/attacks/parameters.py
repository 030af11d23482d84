"""Checks of the parameters of attacks: what, allowed, got."""

from math import inf, isfinite

from outvote.errors import check_choice, check_kind


def check_number(
    what: str, value: object, *, low: float = -inf, high: float = inf, above: bool = False
) -> None:
    """Raise unless `value` is a finite number from `low` (or above it) to `high`."""
    check_kind(what, value, float)
    number = float(value)  # type: ignore[arg-type]
    is_allowed = isfinite(number) and (number > low if above else number >= low) and number <= high
    if not is_allowed:
        raise ValueError(f"{what} must be {_range(low, high, above)}, got {value}.")


def check_count(what: str, value: object, *, low: int = 1) -> None:
    """Raise unless `value` is a whole number of at least `low`."""
    check_kind(what, value, int)
    if int(value) < low:  # type: ignore[call-overload]
        raise ValueError(f"{what} must be at least {low}, got {value}.")


def check_reference_set(name: str, value: object) -> None:
    """Raise unless the reference is "honest" clients or "all"."""
    check_choice(f"{name}: reference_set", value, ("honest", "all"))


def check_sign(name: str, value: object) -> None:
    """Raise unless the sign of an attack's shift is -1 or 1."""
    check_kind(f"{name}: sign", value, int)
    check_choice(f"{name}: sign", value, (-1, 1))


def _range(low: float, high: float, above: bool) -> str:
    bounds = []
    if low > -inf:
        bounds.append(f"{'above' if above else 'at least'} {low:g}")
    if high < inf:
        bounds.append(f"at most {high:g}")
    return " and ".join(["finite", *bounds])
