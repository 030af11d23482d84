"""Rules that hold a rule."""

from dataclasses import dataclass

from outvote.rules.base import Rule


@dataclass(frozen=True, slots=True)
class Wrapper(Rule):
    """A rule around a rule."""

    rule: Rule
    """The rule inside."""

    def __post_init__(self) -> None:
        """Check that the inside is a rule that can be wrapped."""
        if not isinstance(self.rule, Rule):
            raise TypeError(
                f"{self.name} wraps a rule such as Median(), got {type(self.rule).__name__}; "
                "build one with make_rule('median')."
            )
        if not self.rule.can_be_wrapped:
            raise TypeError(
                f"{self.rule.name} cannot be wrapped by {self.name}: it needs whole gradients and "
                "its own memory or root data; use it alone."
            )

    def is_selecting(self) -> bool:
        """Tell what the rule inside does."""
        return self.rule.is_selecting()

    def base_num_byzantine(self, num_byzantine: int, num_clients: int) -> int:
        """Return the number that the innermost rule works with."""
        inside = self.inside_num_byzantine(num_byzantine, num_clients)
        return self.rule.base_num_byzantine(inside, self.inside_num_clients(num_clients))

    def inside_num_byzantine(self, num_byzantine: int, num_clients: int) -> int:
        """Return the number of Byzantine clients that the rule inside is told, within its limit."""
        limit = self.rule.max_byzantine(self.inside_num_clients(num_clients))
        return min(num_byzantine, limit)
