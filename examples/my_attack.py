"""Your own attack in ten lines, for `outvote stress --attack examples/my_attack.py:MyAttack`."""

from dataclasses import dataclass

import outvote as ov


@dataclass(frozen=True)
class MyAttack(ov.Attack):
    """The honest mean with its largest coordinates turned around: what matters most goes wrong.

    Needs: the honest gradients.
    """

    share: float = 0.1
    """The share of the coordinates that is turned around."""

    def craft(self, scene: ov.AttackContext) -> ov.AttackOutput:
        """Turn the largest coordinates around; dimensions before the last are runs of a batch."""
        num_largest = max(1, int(self.share * scene.dim))
        largest = scene.mean.abs().topk(num_largest, dim=-1).indices
        rows = scene.mean.scatter(-1, largest, -scene.mean.gather(-1, largest))
        return ov.AttackOutput(rows=rows.unsqueeze(1))


if __name__ == "__main__":
    ov.check_attack(MyAttack())
    print("MyAttack keeps what every attack promises.")
