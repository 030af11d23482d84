"""The public names: the one list of them, for type checkers and for `outvote.__getattr__`.

One name a line; "X as X" marks it as public for type checkers.
"""

from outvote.attacks.attack import Attack as Attack
from outvote.attacks.attack import AttackOutput as AttackOutput
from outvote.attacks.attack_spec import make_attack as make_attack
from outvote.attacks.context import AttackContext as AttackContext
from outvote.attacks.fang import Fang as Fang
from outvote.attacks.gas_aware import GASAware as GASAware
from outvote.attacks.gaussian import Gaussian as Gaussian
from outvote.attacks.gaussian import Noise as Noise
from outvote.attacks.ipm import IPM as IPM
from outvote.attacks.ipm import OptimalIPM as OptimalIPM
from outvote.attacks.label_flip import LabelFlip as LabelFlip
from outvote.attacks.lie import ALIE as ALIE
from outvote.attacks.lie import LIE as LIE
from outvote.attacks.lie import OptimalLIE as OptimalLIE
from outvote.attacks.mimic import Mimic as Mimic
from outvote.attacks.min_max import MinMax as MinMax
from outvote.attacks.min_max import MinSum as MinSum
from outvote.attacks.simple import BitFlip as BitFlip
from outvote.attacks.simple import Infs as Infs
from outvote.attacks.simple import NaNs as NaNs
from outvote.attacks.simple import NoAttack as NoAttack
from outvote.attacks.simple import Zero as Zero
from outvote.errors import OutvoteWarning as OutvoteWarning
from outvote.errors import TooManyByzantine as TooManyByzantine
from outvote.files.aggregate_files import aggregate_files as aggregate_files
from outvote.models.model_spec import make_model as make_model
from outvote.partition import partition_by_group as partition_by_group
from outvote.partition import partition_dirichlet as partition_dirichlet
from outvote.partition import partition_iid as partition_iid
from outvote.partition import partition_shards as partition_shards
from outvote.report.runs import Runs as Runs
from outvote.report.runs import read_runs as read_runs
from outvote.rules.bucketing import Bucketing as Bucketing
from outvote.rules.bulyan import Bulyan as Bulyan
from outvote.rules.centered_clipping import CenteredClipping as CenteredClipping
from outvote.rules.client_matrix import ClientMatrix as ClientMatrix
from outvote.rules.clip import Clip as Clip
from outvote.rules.dnc import DnC as DnC
from outvote.rules.fltrust import FLTrust as FLTrust
from outvote.rules.foolsgold import FoolsGold as FoolsGold
from outvote.rules.gas import GAS as GAS
from outvote.rules.geometric_median import GeometricMedian as GeometricMedian
from outvote.rules.krum import Krum as Krum
from outvote.rules.krum import MultiKrum as MultiKrum
from outvote.rules.mda import MDA as MDA
from outvote.rules.meamed import MeaMed as MeaMed
from outvote.rules.mean import Mean as Mean
from outvote.rules.median import Median as Median
from outvote.rules.nnm import NNM as NNM
from outvote.rules.norm_clipping import NormClipping as NormClipping
from outvote.rules.rfa import RFA as RFA
from outvote.rules.rule import AffineRule as AffineRule
from outvote.rules.rule import Aggregation as Aggregation
from outvote.rules.rule import CoordinatewiseRule as CoordinatewiseRule
from outvote.rules.rule import Mixing as Mixing
from outvote.rules.rule import RoundInfo as RoundInfo
from outvote.rules.rule import Rule as Rule
from outvote.rules.rule import Traits as Traits
from outvote.rules.rule import VectorRule as VectorRule
from outvote.rules.rule import Wrapper as Wrapper
from outvote.rules.rule_spec import make_rule as make_rule
from outvote.rules.signguard import SignGuard as SignGuard
from outvote.rules.trimmed_mean import TrimmedMean as TrimmedMean
from outvote.rules.verdict import Verdict as Verdict
from outvote.server.step import Server as Server
from outvote.simulator import RoundReport as RoundReport
from outvote.simulator import simulate as simulate
from outvote.testing.conformance import ConformanceError as ConformanceError
from outvote.testing.conformance import check_attack as check_attack
from outvote.testing.conformance import check_rule as check_rule
from outvote.training.local_sgd import LocalSGD as LocalSGD

__version__: str
