"""Attacks without a parameter: none, bit flip (sign flip), zero, NaN, infinity."""

from dataclasses import dataclass
from math import inf, nan
from typing import ClassVar, final

from outvote.attacks.attack import Attack, AttackOutput
from outvote.attacks.context import AttackContext


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NoAttack(Attack):
    r"""What the clients would have sent anyway.

    $$ b_i = g_i $$

    Needs: own (default: the honest mean). Differs from the paper: nothing.
    Reference: the control that every attack is compared with.

    >>> NoAttack()([[1.0, 2.0], [3.0, 2.0]], num_byzantine=1, own=[[5.0, 0.0]])
    array([[5., 0.]])
    """

    name: ClassVar[str] = "none"
    is_colluding: ClassVar[bool] = False

    def craft(self, context: AttackContext) -> AttackOutput:
        """Send the own gradients."""
        return AttackOutput(rows=context.own_rows)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BitFlip(Attack):
    r"""The opposite of what the client would have sent.

    $$ b_i = -g_i $$

    Needs: own (default: the honest mean). Differs from the paper: nothing.
    Reference: Karimireddy et al., ICLR 2022; the source that the GAS paper cites calls it sign
    flip.

    >>> BitFlip()([[1.0, 2.0], [3.0, 2.0]], num_byzantine=1, own=[[5.0, -1.0]])
    array([[-5.,  1.]])
    """

    name: ClassVar[str] = "bit-flip"
    is_colluding: ClassVar[bool] = False

    def craft(self, context: AttackContext) -> AttackOutput:
        """Negate every attacker's own gradient."""
        return AttackOutput(rows=-context.own_rows)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Zero(Attack):
    r"""All zeros.

    $$ b = 0 $$

    Needs: nothing. Differs from the paper: nothing. Reference: a free rider.

    >>> Zero()([[1.0, 2.0]], num_byzantine=1)
    array([[0., 0.]])
    """

    name: ClassVar[str] = "zero"
    sees_own: ClassVar[bool] = False

    def craft(self, context: AttackContext) -> AttackOutput:
        """Send zeros."""
        return _constant(context, 0.0)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NaNs(Attack):
    r"""NaN in every coordinate: one NaN in a sum makes the update NaN.

    $$ b = \text{NaN} $$

    Needs: nothing. Differs from the paper: nothing. Reference: every server that was not tested.

    >>> NaNs()([[1.0, 2.0]], num_byzantine=1)
    array([[nan, nan]])
    """

    name: ClassVar[str] = "nan"
    sees_own: ClassVar[bool] = False
    sends_nonfinite: ClassVar[bool] = True

    def craft(self, context: AttackContext) -> AttackOutput:
        """Send NaN."""
        return _constant(context, nan)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Infs(Attack):
    r"""Infinity in every coordinate.

    $$ b = \infty $$

    Needs: nothing. Differs from the paper: nothing. Reference: every server that was not tested.

    >>> Infs()([[1.0, 2.0]], num_byzantine=1)
    array([[inf, inf]])
    """

    name: ClassVar[str] = "inf"
    sees_own: ClassVar[bool] = False
    sends_nonfinite: ClassVar[bool] = True

    def craft(self, context: AttackContext) -> AttackOutput:
        """Send infinity."""
        return _constant(context, inf)


def _constant(context: AttackContext, value: float) -> AttackOutput:
    return AttackOutput(rows=context.gradients.new_full((context.num_runs, 1, context.dim), value))
