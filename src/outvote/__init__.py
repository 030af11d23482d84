"""outvote: federated learning in which some clients may lie.

Names are loaded when they are first used, so that ``import outvote`` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outvote.attacks.alie import ALIE
    from outvote.attacks.base import Attack
    from outvote.attacks.bit_flip import BitFlip
    from outvote.attacks.crafted import Crafted, Forged
    from outvote.attacks.fang import Fang
    from outvote.attacks.gas_aware import GASAware
    from outvote.attacks.gaussian import Gaussian
    from outvote.attacks.infs import Infs
    from outvote.attacks.ipm import IPM
    from outvote.attacks.label_flip import LabelFlip
    from outvote.attacks.lie import LIE
    from outvote.attacks.mimic import Mimic
    from outvote.attacks.min_max import MinMax
    from outvote.attacks.min_sum import MinSum
    from outvote.attacks.nans import NaNs
    from outvote.attacks.no_attack import NoAttack
    from outvote.attacks.noise import Noise
    from outvote.attacks.optimal_ipm import OptimalIPM
    from outvote.attacks.optimal_lie import OptimalLIE
    from outvote.attacks.scene import Scene
    from outvote.attacks.spec import make_attack
    from outvote.attacks.zero import Zero
    from outvote.errors import OutvoteWarning, TooManyByzantine
    from outvote.models.spec import make_model
    from outvote.partition.by_group import partition_by_group
    from outvote.partition.dirichlet import partition_dirichlet
    from outvote.partition.iid import partition_iid
    from outvote.partition.shards import partition_shards
    from outvote.rules.answer import Answer
    from outvote.rules.base import AffineRule, CoordinatewiseRule, Facts, Rule, VectorRule
    from outvote.rules.bucketing import Bucketing
    from outvote.rules.bulyan import Bulyan
    from outvote.rules.centered_clipping import CenteredClipping
    from outvote.rules.clip import Clip
    from outvote.rules.dnc import DnC
    from outvote.rules.fltrust import FLTrust
    from outvote.rules.foolsgold import FoolsGold
    from outvote.rules.gas import GAS
    from outvote.rules.geometric_median import GeometricMedian
    from outvote.rules.krum import Krum
    from outvote.rules.mda import MDA
    from outvote.rules.meamed import MeaMed
    from outvote.rules.mean import Mean
    from outvote.rules.median import Median
    from outvote.rules.multi_krum import MultiKrum
    from outvote.rules.nnm import NNM
    from outvote.rules.norm_clipping import NormClipping
    from outvote.rules.points import Points
    from outvote.rules.rfa import RFA
    from outvote.rules.signguard import SignGuard
    from outvote.rules.spec import make_rule
    from outvote.rules.trimmed_mean import TrimmedMean
    from outvote.rules.verdict import Verdict
    from outvote.testing.attack_conformance import check_attack
    from outvote.testing.conformance import ConformanceError, check_rule

__version__ = "0.1.0"

_WHERE = {
    "ALIE": "attacks.alie",
    "Attack": "attacks.base",
    "BitFlip": "attacks.bit_flip",
    "Crafted": "attacks.crafted",
    "Fang": "attacks.fang",
    "Forged": "attacks.crafted",
    "GASAware": "attacks.gas_aware",
    "Gaussian": "attacks.gaussian",
    "Infs": "attacks.infs",
    "IPM": "attacks.ipm",
    "LabelFlip": "attacks.label_flip",
    "LIE": "attacks.lie",
    "make_attack": "attacks.spec",
    "Mimic": "attacks.mimic",
    "MinMax": "attacks.min_max",
    "MinSum": "attacks.min_sum",
    "NaNs": "attacks.nans",
    "NoAttack": "attacks.no_attack",
    "Noise": "attacks.noise",
    "OptimalIPM": "attacks.optimal_ipm",
    "OptimalLIE": "attacks.optimal_lie",
    "Scene": "attacks.scene",
    "Zero": "attacks.zero",
    "OutvoteWarning": "errors",
    "TooManyByzantine": "errors",
    "partition_by_group": "partition.by_group",
    "partition_dirichlet": "partition.dirichlet",
    "partition_iid": "partition.iid",
    "partition_shards": "partition.shards",
    "Answer": "rules.answer",
    "AffineRule": "rules.base",
    "CoordinatewiseRule": "rules.base",
    "Facts": "rules.base",
    "Rule": "rules.base",
    "VectorRule": "rules.base",
    "Bucketing": "rules.bucketing",
    "Bulyan": "rules.bulyan",
    "CenteredClipping": "rules.centered_clipping",
    "Clip": "rules.clip",
    "DnC": "rules.dnc",
    "FLTrust": "rules.fltrust",
    "FoolsGold": "rules.foolsgold",
    "GAS": "rules.gas",
    "GeometricMedian": "rules.geometric_median",
    "Krum": "rules.krum",
    "MDA": "rules.mda",
    "Mean": "rules.mean",
    "MeaMed": "rules.meamed",
    "Median": "rules.median",
    "MultiKrum": "rules.multi_krum",
    "NNM": "rules.nnm",
    "NormClipping": "rules.norm_clipping",
    "Points": "rules.points",
    "RFA": "rules.rfa",
    "SignGuard": "rules.signguard",
    "TrimmedMean": "rules.trimmed_mean",
    "Verdict": "rules.verdict",
    "ConformanceError": "testing.conformance",
    "check_attack": "testing.attack_conformance",
    "check_rule": "testing.conformance",
    "make_model": "models.spec",
    "make_rule": "rules.spec",
}
__all__ = [*_WHERE]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Load a public name from the module it lives in."""
    if name not in _WHERE:
        raise AttributeError(f"module 'outvote' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"outvote.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*globals(), *_WHERE])
