"""What attackers tell about gradients that were of no use to them."""

from outvote.attacks.scene import Scene
from outvote.errors import plural, was


def notes_on(scene: Scene) -> tuple[str, ...]:
    """Tell who diverged, as far as was looked, and what was done about it."""
    notes = []
    checked = scene.__dict__.get("checked", scene)
    if checked is not scene:
        is_lost = scene.used_rows & ~checked.used_rows[:, : scene.gradients.shape[1]]
        if num_lost := int((is_lost & ~scene.own_places).sum()):
            clients = plural(num_lost, "honest client")
            notes.append(f"{clients} sent NaN or infinity and {was(num_lost)} left out")
        if num_lost := int((is_lost & scene.own_places).sum()):
            rows = plural(num_lost, "gradient")
            notes.append(f"{rows} of the attackers' own {was(num_lost)} not finite, left out")
    if num_replaced := scene.__dict__.get("num_own_replaced", 0):
        rows, dtype = plural(num_replaced, "gradient"), str(scene.gradients.dtype)
        notes.append(
            f"{rows} of the attackers' own {was(num_replaced)} not finite in "
            f"{dtype.removeprefix('torch.')}; the honest mean took the place"
        )
    return tuple(notes)
