"""Facts in the table of "Choose a rule" that cannot be derived from the rules."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import equipoise as eq

Rule = eq.Aggregator | eq.MultiExchange


@dataclass(frozen=True)
class Facts:
    """Facts about a rule besides its attributes.

    Args:
        rule: the rule, with its defaults.
        passes: for what it reads the received models, once each; the page explains the words.
        assumes: what must hold in practice for its aggregate to be good.
        sends: models that a client sends to each neighbor in a round.
        is_measured: whether its time means something.
    """

    rule: Rule
    passes: str
    assumes: str
    sends: str = "1"
    is_measured: bool = True


RULES: dict[str, Facts] = {
    "FedAvg": Facts(eq.FedAvg(), "sum", "no malicious neighbors"),
    "Krum": Facts(eq.Krum(), "pairs", "benign models form the tightest group"),
    "TrimmedMean": Facts(
        eq.TrimmedMean(), "order", "benign models have similar values of each coordinate"
    ),
    "Median": Facts(eq.Median(), "order", "benign models have similar values of each coordinate"),
    "FLTrust": Facts(eq.FLTrust(), "angles, sum", "lies point in another direction than own"),
    "UBAR": Facts(
        eq.UBAR(),
        "distances, losses, sum",
        "own data separates good models from bad ones",
    ),
    "LEARN": Facts(
        eq.LEARN(), "order, in each exchange", "as `TrimmedMean`", sends="1 + ⌈log₂(t + 1)⌉"
    ),
    "SCClip": Facts(eq.SCClip(), "distances, sum", "the radius fits the spread of benign models"),
    "Balance": Facts(
        eq.Balance(),
        "distances, sum",
        "benign models stay within `gamma` of each other, relative to their norm",
    ),
    "BalanceMedian": Facts(
        eq.BalanceMedian(),
        "distances, sum",
        "as `Balance`; half of the benign messages are enough",
    ),
    "MultiKrum": Facts(eq.MultiKrum(), "pairs, sum", "as `Krum`"),
    "Bulyan": Facts(eq.Bulyan(), "pairs, order", "as `Krum`"),
    "MeaMed": Facts(eq.MeaMed(), "order", "as `Median`"),
    "GeometricMedian": Facts(
        eq.GeometricMedian(), "order, pairs, sum", "most messages are close to each other"
    ),
    "CenteredClip": Facts(
        eq.CenteredClip(),
        "pairs, sum",
        "the radius fits the spread of benign models around the last aggregate",
    ),
    "CAF": Facts(eq.CAF(), "pairs, sum", "lies increase the variance"),
    "MDA": Facts(eq.MDA(), "pairs, sum", "lies increase the diameter"),
    "SMEA": Facts(eq.SMEA(), "pairs, sum", "lies increase the variance"),
    "SketchGuard": Facts(
        eq.SketchGuard(),
        "sketches, sum",
        "as `Balance`; attackers do not build lies with a sketch of 0",
        sends="s / d, and 1 to those that accept",
    ),
    "Gossip": Facts(eq.Gossip(), "sum", "no malicious neighbors"),
    "ClippedGossip": Facts(eq.ClippedGossip(), "distances, sum", "benign models are close to own"),
    "CSPlus": Facts(eq.CSPlus(), "distances, sum", "benign models are close to own"),
    "GTS": Facts(eq.GTS(), "distances, sum", "the farthest benign messages can be spared"),
    "RTC": Facts(eq.RTC(), "distances, sum", "as `GTS`; benign models are close to own"),
    "NNA": Facts(eq.NNA(), "distances, sum", "benign models are the closest to own"),
    "IOS": Facts(eq.IOS(), "pairs, sum", "lies are far from the mean"),
    "FABA": Facts(eq.FABA(), "pairs, sum", "lies are far from the mean"),
    'Bridge("T")': Facts(eq.Bridge("T"), "order", "as `TrimmedMean`"),
    'Bridge("M")': Facts(eq.Bridge("M"), "order", "as `Median`, with own"),
    'Bridge("K")': Facts(eq.Bridge("K"), "pairs", "as `Krum`, with own"),
    'Bridge("B")': Facts(eq.Bridge("B"), "pairs, order", "as `Bulyan`, with own"),
}

# Wrappers are measured around a median.
WRAPPERS: dict[str, Facts] = {
    "NNM(rule)": Facts(
        eq.NNM(eq.Median()),
        "pairs, k sums, then the rule",
        "as the rule, with less spread of its messages",
    ),
    "Bucketing(rule)": Facts(
        eq.Bucketing(eq.Median()),
        "sums, then the rule",
        "as the rule, with `f` of `k / s` messages",
    ),
    "ARC(rule)": Facts(
        eq.ARC(eq.Median()),
        "distances, k sums, then the rule",
        "as the rule; malicious messages are far away",
    ),
    "StaticClip(rule)": Facts(
        eq.StaticClip(eq.Median()),
        "distances, k sums, then the rule",
        "as the rule; `radius` fits the spread of benign models",
    ),
    "PerClient(rules)": Facts(
        eq.PerClient([eq.Median()]), "as the rules", "as the rule of each client", is_measured=False
    ),
    "PerGroup(groups, rules)": Facts(
        eq.PerGroup(eq.groups(torch.nn.Linear(1, 1)), eq.Median()),
        "as the rules",
        "as the rule of each group",
        is_measured=False,
    ),
}
