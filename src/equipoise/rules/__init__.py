"""The rules, one per file, and the base classes and helpers for rules of your own."""

from dataclasses import is_dataclass

from equipoise.rules._guarantees import (
    GuaranteeWarning,
    at_most_one_warning,
    serving,
    without_warnings,
)
from equipoise.rules.aggregator import Aggregator, MultiExchange
from equipoise.rules.arc import ARC
from equipoise.rules.balance import Balance
from equipoise.rules.balance_median import BalanceMedian
from equipoise.rules.base import Rule, WeightedRule, as_diagnostic, as_tolerated, own_share, uniform
from equipoise.rules.bridge import Bridge
from equipoise.rules.bucketing import Bucketing
from equipoise.rules.bulyan import Bulyan
from equipoise.rules.caf import CAF
from equipoise.rules.centered_clip import CenteredClip
from equipoise.rules.clipped_gossip import ClippedGossip
from equipoise.rules.cs_plus import CSPlus
from equipoise.rules.default_alpha import default_alpha
from equipoise.rules.faba import FABA
from equipoise.rules.fedavg import FedAvg
from equipoise.rules.fltrust import FLTrust
from equipoise.rules.geometric_median import GeometricMedian
from equipoise.rules.gossip import Gossip
from equipoise.rules.gts import GTS
from equipoise.rules.ios import IOS
from equipoise.rules.krum import Krum
from equipoise.rules.learn import LEARN
from equipoise.rules.mda import MDA
from equipoise.rules.mea_med import MeaMed
from equipoise.rules.median import Median
from equipoise.rules.mixing import as_shares, mix, mix_and_check
from equipoise.rules.multi_exchange import as_multi_exchange, run_exchanges
from equipoise.rules.multi_krum import MultiKrum
from equipoise.rules.nna import NNA
from equipoise.rules.nnm import NNM
from equipoise.rules.per_client import PerClient
from equipoise.rules.per_group import PerGroup
from equipoise.rules.rtc import RTC
from equipoise.rules.scclip import SCClip
from equipoise.rules.sketch_guard import SketchGuard
from equipoise.rules.smea import SMEA
from equipoise.rules.static_clip import StaticClip
from equipoise.rules.trimmed_mean import TrimmedMean
from equipoise.rules.ubar import UBAR
from equipoise.topology import library_rules

__all__ = [
    "ARC",
    "CAF",
    "FABA",
    "GTS",
    "IOS",
    "LEARN",
    "MDA",
    "NNA",
    "NNM",
    "RTC",
    "SMEA",
    "UBAR",
    "Aggregator",
    "Balance",
    "BalanceMedian",
    "Bridge",
    "Bucketing",
    "Bulyan",
    "CSPlus",
    "CenteredClip",
    "ClippedGossip",
    "FLTrust",
    "FedAvg",
    "GeometricMedian",
    "Gossip",
    "GuaranteeWarning",
    "Krum",
    "MeaMed",
    "Median",
    "MultiExchange",
    "MultiKrum",
    "PerClient",
    "PerGroup",
    "Rule",
    "SCClip",
    "SketchGuard",
    "StaticClip",
    "TrimmedMean",
    "WeightedRule",
    "as_diagnostic",
    "as_multi_exchange",
    "as_shares",
    "as_tolerated",
    "at_most_one_warning",
    "default_alpha",
    "mix",
    "mix_and_check",
    "own_share",
    "run_exchanges",
    "serving",
    "uniform",
    "without_warnings",
]

# `Topology.diagnose` judges all rules. These are the dataclasses here; their base classes are none.
_exported = [globals()[name] for name in sorted(__all__, key=str.lower)]
library_rules[:] = [rule for rule in _exported if isinstance(rule, type) and is_dataclass(rule)]
