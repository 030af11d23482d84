"""Your own attack in ten lines, for `outvote stress --attack examples/my_attack.py:MyAttack`."""

from dataclasses import dataclass

import outvote as ov


@dataclass(frozen=True)
class MyAttack(ov.Attack):
    """The honest mean with the sign of its largest coordinates flipped.

    Needs: the honest gradients.
    """

    share: float = 0.1
    """The share of the coordinates whose sign is flipped."""

    def craft(self, context: ov.AttackContext) -> ov.AttackOutput:
        """Flip the signs of the largest coordinates; the first axis is the runs of a batch."""
        num_largest = max(1, int(self.share * context.dim))
        largest = context.mean.abs().topk(num_largest, dim=-1).indices
        rows = context.mean.scatter(-1, largest, -context.mean.gather(-1, largest))
        return ov.AttackOutput(rows=rows.unsqueeze(1))


if __name__ == "__main__":
    ov.check_attack(MyAttack())
    print("MyAttack passes all checks.")
