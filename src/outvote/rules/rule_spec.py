"""Rules as text: "gas(multi-krum, num_groups=1000)" <-> GAS(MultiKrum(), num_groups=1000)."""

from outvote.aliases import RULE_ALIASES
from outvote.rules.bucketing import Bucketing
from outvote.rules.bulyan import Bulyan
from outvote.rules.centered_clipping import CenteredClipping
from outvote.rules.clip import Clip
from outvote.rules.dnc import DnC
from outvote.rules.fltrust import FLTrust
from outvote.rules.foolsgold import FoolsGold
from outvote.rules.gas import GAS
from outvote.rules.geometric_median import GeometricMedian
from outvote.rules.krum import Krum, MultiKrum
from outvote.rules.mda import MDA
from outvote.rules.meamed import MeaMed
from outvote.rules.mean import Mean
from outvote.rules.median import Median
from outvote.rules.nnm import NNM
from outvote.rules.norm_clipping import NormClipping
from outvote.rules.norm_filter import NormFilter
from outvote.rules.rfa import RFA
from outvote.rules.rule import Rule
from outvote.rules.signguard import SignGuard
from outvote.rules.trimmed_mean import TrimmedMean
from outvote.text import build, to_text

RULES: dict[str, type[Rule]] = {
    "mean": Mean,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "meamed": MeaMed,
    "krum": Krum,
    "multi-krum": MultiKrum,
    "bulyan": Bulyan,
    "rfa": RFA,
    "geometric-median": GeometricMedian,
    "dnc": DnC,
    "mda": MDA,
    "centered-clipping": CenteredClipping,
    "norm-clipping": NormClipping,
    "fltrust": FLTrust,
    "foolsgold": FoolsGold,
    "signguard": SignGuard,
    "gas": GAS,
    "bucketing": Bucketing,
    "nnm": NNM,
    "clip": Clip,
    "norm-filter": NormFilter,
}
ALIASES = RULE_ALIASES


def make_rule(text: str | Rule) -> Rule:
    """Build a rule from text such as "gas(bucketing(rfa, size=2))" or "my_rules.py:MyRule".

    >>> make_rule("gas(median, num_groups=10)")
    GAS(rule=Median(even='mean'), num_groups=10, split='balanced')
    """
    if isinstance(text, Rule):
        return text
    rule: Rule = build(text, kind="rule", table=RULES, aliases=ALIASES, base=Rule)
    return rule


def rule_text(rule: Rule) -> str:
    """Return the shortest text that `make_rule` turns back into the same rule."""
    return to_text(rule, Rule)
