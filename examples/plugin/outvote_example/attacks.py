"""The attack `reversed-mean`."""

from dataclasses import dataclass

import outvote as ov


@dataclass(frozen=True)
class ReversedMean(ov.Attack):
    """The honest mean, reversed.

    Needs: the honest gradients.
    """

    name = "reversed-mean"
    scale: float = 1.0
    """The length of what is sent, in lengths of the honest mean."""

    def craft(self, context: ov.AttackContext) -> ov.AttackOutput:
        """Send the same row for every attacker; the first axis is the runs of a batch."""
        return ov.AttackOutput(rows=-self.scale * context.mean.unsqueeze(1))
