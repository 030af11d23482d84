"""What attackers tell about gradients that were of no use to them."""

from outvote.attacks.context import AttackContext
from outvote.errors import plural, was


def notes_on(context: AttackContext) -> tuple[str, ...]:
    """Tell who diverged, as far as was looked, and what was done about it."""
    notes = []
    checked = context.__dict__.get("checked", context)
    if checked is not context:
        is_lost = context.used_rows & ~checked.used_rows[:, : context.gradients.shape[1]]
        if num_lost := int((is_lost & ~context.own_places).sum()):
            clients = plural(num_lost, "honest client")
            notes.append(f"{clients} sent NaN or infinity and {was(num_lost)} left out")
        if num_lost := int((is_lost & context.own_places).sum()):
            rows = plural(num_lost, "gradient")
            notes.append(f"{rows} of the attackers' own {was(num_lost)} not finite, left out")
    if num_replaced := context.__dict__.get("num_own_replaced", 0):
        rows, dtype = plural(num_replaced, "gradient"), str(context.gradients.dtype)
        notes.append(
            f"{rows} of the attackers' own {was(num_replaced)} not finite in "
            f"{dtype.removeprefix('torch.')}; the honest mean took the place"
        )
    return tuple(notes)
