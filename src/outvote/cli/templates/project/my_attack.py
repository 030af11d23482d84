"""An attack of your own: `attack = "my_attack.py:MyAttack"` in outvote.toml."""

from dataclasses import dataclass

import outvote as ov


@dataclass(frozen=True)
class MyAttack(ov.Attack):
    """The honest mean, moved against its own sign by some standard deviations.

    All Byzantine clients send the same row. It stays near the honest rows, which hides
    it, and points the wrong way where the honest clients disagree.
    """

    step: float = 1.0
    """How far to move, in standard deviations: "my_attack.py:MyAttack(step=2.0)"."""

    def craft(self, context: ov.AttackContext) -> ov.AttackOutput:
        """Return what the Byzantine clients send, [runs, attackers, dim].

        Several runs are attacked at once, so the first axis is the runs. `context.mean`
        and `context.spread` are those of the honest clients, [runs, dim].
        """
        shift = self.step * context.mean.sign() * context.spread("population")
        # An axis of length 1: the row is the same for all attackers of a run.
        return ov.AttackOutput(rows=(context.mean - shift).unsqueeze(1))
