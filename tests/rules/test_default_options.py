"""The default hyper-parameters of rules, as documented."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import pytest

import equipoise as eq

DEFAULTS: dict[type, dict[str, Any]] = {
    eq.Balance: {"gamma": 0.3, "kappa": 1.0, "progress": None, "weighted": False, "cap": 2.0},
    eq.BalanceMedian: {"gamma": 0.3},
    eq.FedAvg: {"weighted": False, "cap": math.inf},
    eq.FLTrust: {"weighted": True},
    eq.Krum: {"tolerated": None, "strict": False},
    eq.LEARN: {"tolerated": None, "own_update": "included", "alpha": 0.5, "strict": False},
    eq.Median: {"weighted": False, "cap": 2.0},
    eq.Bridge: {"variant": "T", "tolerated": None, "strict": False},
    eq.CSPlus: {"tolerated": None, "strict": False},
    eq.ClippedGossip: {"tolerated": None, "strict": False},
    eq.FABA: {"tolerated": None, "strict": False},
    eq.GTS: {"tolerated": None, "strict": False},
    eq.Gossip: {},
    eq.IOS: {"tolerated": None, "strict": False},
    eq.NNA: {"tolerated": None, "strict": False},
    eq.RTC: {"tolerated": None, "strict": False},
    eq.SCClip: {
        "tau": 1.0,
        "mode": "difference",
        "contains_own": False,
        "weighted": False,
        "cap": 2.0,
    },
    eq.TrimmedMean: {"tolerated": None, "strict": False, "weighted": False, "cap": 2.0},
    eq.UBAR: {"tolerated": None, "empty": "best", "strict": False},
}


@pytest.mark.parametrize("rule", DEFAULTS, ids=lambda rule: rule.__name__)
def test_default_options(rule: Any) -> None:
    assert asdict(rule()) == DEFAULTS[rule]
