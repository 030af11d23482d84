"""Attacks as text: "lie(z=1.5)" <-> LIE(z=1.5)."""

from outvote.aliases import ATTACK_ALIASES
from outvote.attacks.attack import Attack
from outvote.attacks.fang import Fang
from outvote.attacks.gas_aware import GASAware
from outvote.attacks.gaussian import Gaussian, Noise
from outvote.attacks.ipm import IPM, OptimalIPM
from outvote.attacks.label_flip import LabelFlip
from outvote.attacks.lie import ALIE, LIE, OptimalLIE
from outvote.attacks.mimic import Mimic
from outvote.attacks.min_max import MinMax, MinSum
from outvote.attacks.simple import BitFlip, Infs, NaNs, NoAttack, Zero
from outvote.text import build, to_text

ATTACKS: dict[str, type[Attack]] = {
    "none": NoAttack,
    "bit-flip": BitFlip,
    "label-flip": LabelFlip,
    "lie": LIE,
    "alie": ALIE,
    "min-max": MinMax,
    "min-sum": MinSum,
    "ipm": IPM,
    "mimic": Mimic,
    "gaussian": Gaussian,
    "noise": Noise,
    "nan": NaNs,
    "inf": Infs,
    "zero": Zero,
    "fang": Fang,
    "optimal-lie": OptimalLIE,
    "optimal-ipm": OptimalIPM,
    "gas-aware": GASAware,
}
ALIASES = ATTACK_ALIASES


def make_attack(text: str | Attack) -> Attack:
    """Build an attack from text such as "lie(z=1.5)" or "my_attacks.py:MyAttack".

    >>> make_attack("bit-flip")
    BitFlip()
    """
    if isinstance(text, Attack):
        return text
    attack: Attack = build(text, kind="attack", table=ATTACKS, aliases=ALIASES, base=Attack)
    return attack


def attack_text(attack: Attack) -> str:
    """Return the shortest text that `make_attack` turns back into the same attack."""
    return to_text(attack, Attack)
