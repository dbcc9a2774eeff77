"""Workloads: one aggregation of a graph of clients, with each rule."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import equipoise as eq
from benchmarks import naive
from benchmarks.naive import Opponent
from equipoise.kernels import native
from equipoise.rules import without_warnings

RULES: dict[str, eq.Aggregator] = {
    "FedAvg": eq.FedAvg(),
    "Krum": eq.Krum(),
    "TrimmedMean": eq.TrimmedMean(),
    "Median": eq.Median(),
    "FLTrust": eq.FLTrust(),
    "UBAR": eq.UBAR(),
    "SCClip": eq.SCClip(),
    "Balance": eq.Balance(),
    "BalanceMedian": eq.BalanceMedian(),
    "Gossip": eq.Gossip(),
    "ClippedGossip": eq.ClippedGossip(),
    "CSPlus": eq.CSPlus(),
    "GTS": eq.GTS(),
    "RTC": eq.RTC(),
    "NNA": eq.NNA(),
    "IOS": eq.IOS(),
    "FABA": eq.FABA(),
    "BridgeT": eq.Bridge("T"),
    "BridgeM": eq.Bridge("M"),
    "BridgeK": eq.Bridge("K"),
}

FURTHER_RULES: dict[str, Any] = {
    "MultiKrum": eq.MultiKrum(),
    "Bulyan": eq.Bulyan(),
    "MeaMed": eq.MeaMed(),
    "GeometricMedian": eq.GeometricMedian(),
    "CenteredClip": eq.CenteredClip(start="own"),
    "CAF": eq.CAF(),
    "MDA": eq.MDA(),
    "SMEA": eq.SMEA(),
    "BridgeB": eq.Bridge("B"),
    "SketchGuard": eq.SketchGuard(),
    "NNM": eq.NNM(eq.TrimmedMean()),
    "Bucketing": eq.Bucketing(eq.Median()),
    "ARC": eq.ARC(eq.TrimmedMean()),
    "StaticClip": eq.StaticClip(eq.Median()),
}
"""Rules beyond those of the BALANCE paper; wrappers are measured around order statistics."""

SPREAD = 1e-2  # of the models around their mean, relative: late in training clients nearly agree


@dataclass(frozen=True)
class Workload:
    """``n`` clients that hear ``degree`` others each; ``n = 1`` is the call for one client."""

    name: str
    n: int
    degree: int
    d: int

    def __str__(self) -> str:
        heard = f"{'client' if self.n == 1 else 'clients'}, {self.degree} neighbours each"
        return f"{self.n:,} {heard}, {self.d:,} parameters"

    @property
    def tolerated(self) -> int:
        """Of ten neighbours two are expected to be malicious."""
        return max(1, self.degree // 5)

    @property
    def values(self) -> int:
        """Parameters that arrive, over all edges."""
        return self.n * self.degree * self.d


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("1", 20, 10, 139_960),
        Workload("2", 50, 25, 1_000_000),
        Workload("3", 1_000, 10, 100_000),
        Workload("4", 100, 99, 1_000_000),
        Workload("5", 1, 10, 11_000_000),
    )
}


def sized(text: str) -> Workload:
    """A workload such as ``30x10x5000``: clients, neighbours of each, parameters."""
    sizes = re.fullmatch(r"(\d+)x(\d+)x(\d+)", text)
    if sizes is None:
        known = ", ".join(WORKLOADS)
        raise argparse.ArgumentTypeError(
            f"expected {known}, scale or clients x neighbours x parameters, found {text}"
        )
    return Workload(text, *(int(size) for size in sizes.groups()))


def workload_named(text: str) -> Workload | None:
    """One of the five, None for the scale, or any other as ``NxDEGREExD``."""
    return None if text == "scale" else WORKLOADS.get(text) or sized(text)


def first_parameter(models: Tensor, *_: Tensor) -> Tensor:
    """Losses for UBAR that cost nothing, so that what is measured is UBAR."""
    return models[:, 0]


class Round:
    """The models of a workload, and the ways to aggregate them."""

    def __init__(self, workload: Workload) -> None:
        self.n, degree = workload.n, workload.degree
        rows = self.n if self.n > 1 else degree + 1  # one client is the first of a complete graph
        source = torch.Generator().manual_seed(0)
        self.models = torch.randn(rows, workload.d, generator=source).mul_(SPREAD)
        self.models += torch.randn(workload.d, generator=source)
        self.topology = (
            eq.Topology.complete(rows)
            if degree == rows - 1
            else eq.Topology.regular(rows, degree, seed=0)
        )
        self.inputs: dict[str, Any] = dict(
            t=1, total=10, tolerated=workload.tolerated, loss_of=first_parameter
        )
        self.target = torch.empty_like(self.models)

    @property
    def out(self) -> Tensor:
        """Where aggregates go: the memory that the models are also copied to."""
        return self.target[0] if self.n == 1 else self.target

    def copy(self) -> Tensor:
        return self.target.copy_(self.models)

    def ours(self, rule: str, **inputs: Any) -> eq.Aggregated:
        """All clients in one call; a new inbox each time, for it remembers norms."""
        inputs = self.inputs | inputs
        aggregate = RULES[rule] if rule in RULES else FURTHER_RULES[rule]
        with without_warnings():  # time is measured, also where few neighbours are no guarantee
            if isinstance(aggregate, eq.SketchGuard):
                return self._exchanged(aggregate, **inputs)
            if self.n == 1:
                return aggregate(self.models[0], self.models[1:], **inputs)
            return aggregate(self.models, self.topology.deliver(self.models), **inputs)

    def _exchanged(self, rule: eq.SketchGuard, **inputs: Any) -> eq.Aggregated:
        """Sketches, then models. A client alone computes those of its messages as well."""
        own = self.models[0] if self.n == 1 else self.models
        replies = iter([rule.as_sent(0, self.models[1:]), self.models[1:]] if self.n == 1 else [])

        def exchange(sent: Tensor) -> Tensor | eq.Inbox:
            return next(replies) if self.n == 1 else self.topology.deliver(sent)

        return eq.run_exchanges(rule, own, exchange, **inputs)[1]

    def in_torch(self, rule: str, **inputs: Any) -> eq.Aggregated:
        with native.disabled():
            return self.ours(rule, **inputs)

    def one_by_one(self, opponent: Opponent, clients: int) -> Tensor:
        """So many of the clients, spread over the graph, in a loop."""
        if self.n == 1:
            return opponent.aggregate(self.models[0], self.models[1:])
        receivers = range(0, self.n, self.n // clients)[:clients]
        return naive.each_client(opponent, self.models, self.topology.senders, receivers)
