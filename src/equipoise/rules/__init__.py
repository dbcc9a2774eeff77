"""The rules, one per file, and the base classes and helpers for rules of your own."""

from dataclasses import is_dataclass

from equipoise.rules._guarantees import (
    GuaranteeWarning,
    at_most_one_warning,
    serving,
    without_warnings,
)
from equipoise.rules.aggregator import Aggregator, MultiExchange
from equipoise.rules.balance import Balance
from equipoise.rules.balance_median import BalanceMedian
from equipoise.rules.base import Rule, WeightedRule, as_diagnostic, as_tolerated, own_share, uniform
from equipoise.rules.fedavg import FedAvg
from equipoise.rules.fltrust import FLTrust
from equipoise.rules.krum import Krum
from equipoise.rules.learn import LEARN
from equipoise.rules.median import Median
from equipoise.rules.mixing import as_shares, mix, mix_and_check
from equipoise.rules.multi_exchange import as_multi_exchange, run_exchanges
from equipoise.rules.per_client import PerClient
from equipoise.rules.per_group import PerGroup
from equipoise.rules.scclip import SCClip
from equipoise.rules.trimmed_mean import TrimmedMean
from equipoise.rules.ubar import UBAR
from equipoise.topology import library_rules

__all__ = [
    "LEARN",
    "UBAR",
    "Aggregator",
    "Balance",
    "BalanceMedian",
    "FLTrust",
    "FedAvg",
    "GuaranteeWarning",
    "Krum",
    "Median",
    "MultiExchange",
    "PerClient",
    "PerGroup",
    "Rule",
    "SCClip",
    "TrimmedMean",
    "WeightedRule",
    "as_diagnostic",
    "as_multi_exchange",
    "as_shares",
    "as_tolerated",
    "at_most_one_warning",
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
