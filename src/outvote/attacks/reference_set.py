"""Whose gradients an attack goes by: those of the honest, or also the attackers' own."""

from outvote.attacks.context import AttackContext
from outvote.attacks.notes import notes_on
from outvote.errors import check_choice

REFERENCE_SETS = ("honest", "all")


def check_reference(name: str, reference_set: str) -> None:
    """Check the parameter."""
    check_choice(f"{name}: reference_set", reference_set, REFERENCE_SETS)


def reference(context: AttackContext, reference_set: str) -> AttackContext:
    """Return the context; with "all", what the attackers would have sent counts as honest too."""
    if reference_set == "honest":
        return context
    if context.own is None:
        raise ValueError(
            "reference_set='all' counts what the attackers would have sent honestly, got none; "
            "pass own=, or leave reference_set at 'honest'."
        )
    # Where nobody is honest, their own is what they go by already.
    is_wanted = (context.honest_counts > 0).unsqueeze(-1)
    return context.and_own(is_wanted.expand(-1, context.own.shape[1]))


def more_notes(seen: AttackContext, context: AttackContext) -> tuple[str, ...]:
    """Tell what came up on looking at more than the context, which tells its own."""
    return () if seen is context else notes_on(seen)
