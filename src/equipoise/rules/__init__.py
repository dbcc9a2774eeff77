"""The rules, one to a file."""

from equipoise.rules.balance import Balance
from equipoise.rules.balance_median import BalanceMedian
from equipoise.rules.fedavg import FedAvg
from equipoise.rules.fltrust import FLTrust
from equipoise.rules.guarantees import GuaranteeWarning
from equipoise.rules.krum import Krum
from equipoise.rules.learn import LEARN
from equipoise.rules.median import Median
from equipoise.rules.per_client import PerClient
from equipoise.rules.scclip import SCClip
from equipoise.rules.trimmed_mean import TrimmedMean
from equipoise.rules.ubar import UBAR

__all__ = [
    "LEARN",
    "UBAR",
    "Balance",
    "BalanceMedian",
    "FLTrust",
    "FedAvg",
    "GuaranteeWarning",
    "Krum",
    "Median",
    "PerClient",
    "SCClip",
    "TrimmedMean",
]
