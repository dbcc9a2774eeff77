"""All rules with all options, and the type of a case worked by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import equipoise as eq

RULES: dict[str, Any] = {
    "balance": eq.Balance(),
    "balance-variant-1": eq.Balance(gamma=0.5, kappa=0.0),
    "balance-decaying": eq.Balance(
        gamma=1.1, kappa=2.0, progress=lambda t, total: (t / total) ** 2
    ),
    "balance-weighted": eq.Balance(weighted=True),
    "balance-median": eq.BalanceMedian(gamma=0.35),
    "balance-median-wide": eq.BalanceMedian(gamma=1.7),
    "fedavg": eq.FedAvg(),
    "fedavg-weighted": eq.FedAvg(weighted=True),
    "fedavg-capped": eq.FedAvg(weighted=True, cap=1.5),
    "krum": eq.Krum(),
    "trimmed-mean": eq.TrimmedMean(),
    "trimmed-mean-weighted": eq.TrimmedMean(weighted=True),
    "median": eq.Median(),
    "median-weighted": eq.Median(weighted=True),
    "fltrust": eq.FLTrust(),
    "fltrust-plain": eq.FLTrust(weighted=False),
    "ubar-best": eq.UBAR(),
    "ubar-closest": eq.UBAR(empty="closest"),
    "ubar-own": eq.UBAR(empty="own"),
    "scclip": eq.SCClip(),
    "scclip-0.25": eq.SCClip(tau=0.25),
    "scclip-median": eq.SCClip(tau="median"),
    "scclip-second-largest": eq.SCClip(tau="second_largest"),
    "scclip-norm": eq.SCClip(mode="norm"),
    "scclip-weighted": eq.SCClip(weighted=True),
    "scclip-norm-weighted": eq.SCClip(mode="norm", weighted=True, cap=1.5),
    "scclip-gossip": eq.SCClip(tau=0.5, contains_own=True),
    "gossip": eq.Gossip(),
    "clipped-gossip": eq.ClippedGossip(),
    "cs-plus": eq.CSPlus(),
    "gts": eq.GTS(),
    "rtc": eq.RTC(),
    "nna": eq.NNA(),
    "ios": eq.IOS(),
    "faba": eq.FABA(),
    "bridge-t": eq.Bridge(),
    "bridge-m": eq.Bridge("M"),
    "bridge-k": eq.Bridge("K"),
    "bridge-b": eq.Bridge("B"),
    "multi-krum": eq.MultiKrum(),
    "bulyan": eq.Bulyan(),
    "mea-med": eq.MeaMed(),
    "geometric-median": eq.GeometricMedian(),
    "centered-clip-0.25": eq.CenteredClip(tau=0.25, steps=5, start="own"),
    "centered-clip-weighted": eq.CenteredClip(tau=0.25, start="own", weighted=True),
    "caf": eq.CAF(),
    "nnm-trimmed-mean": eq.NNM(eq.TrimmedMean()),
    "bucketing": eq.Bucketing(eq.FedAvg(), s=2),
    "arc": eq.ARC(eq.FedAvg()),
}

CONTAIN_OWN = (
    "scclip-gossip",
    "gossip",
    "clipped-gossip",
    "cs-plus",
    "gts",
    "rtc",
    "nna",
    "ios",
    "faba",
    "bridge-t",
    "bridge-m",
    "bridge-k",
    "bridge-b",
)


LEARNS: dict[str, Any] = {
    "learn-included": eq.LEARN(),
    "learn-excluded": eq.LEARN(own_update="excluded"),
    "learn-mixed": eq.LEARN(own_update="mixed", alpha=0.25),
}


@dataclass(frozen=True)
class Case:
    """The expected result of one client, and its source.

    ``received`` is a list of messages; ``senders`` are their ids, by default 0, 1, ... ``weights``
    is None for coordinate-wise rules. ``beyond`` says that ``tolerated`` exceeds the guarantee.
    Sections and equations are those of the BALANCE paper.
    """

    name: str
    rule: Any
    own: list[float]
    received: list[list[float]]
    model: list[float]
    weights: list[float] | None
    source: str
    inputs: dict[str, Any] = field(default_factory=dict)
    senders: list[int] | None = None
    beyond: bool = False

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Own (d,) and received (k, d), float64."""
        own = torch.tensor(self.own, dtype=torch.float64)
        return own, torch.tensor(self.received, dtype=torch.float64).reshape(-1, len(self.own))


@dataclass(frozen=True)
class LearnCase:
    """A complete graph of three clients with one parameter; own (10, 20, 30), update (1, 2, 6)."""

    name: str
    rule: Any
    t: int
    tolerated: int
    intermediate: list[float]
    model: list[float]
    beyond: bool = False
