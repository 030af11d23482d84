"""outvote: federated learning in which some clients may lie.

Names are loaded when they are first used, so that ``import outvote`` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outvote.errors import OutvoteWarning, TooManyByzantine
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
    from outvote.testing.conformance import ConformanceError, check_rule

__version__ = "0.1.0"

_WHERE = {
    "OutvoteWarning": "errors",
    "TooManyByzantine": "errors",
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
    "check_rule": "testing.conformance",
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
