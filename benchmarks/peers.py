"""Opponents: a loop in plain torch, byzfl and Flower, one client at a time."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks import naive, naive_received
from benchmarks.naive import Opponent
from benchmarks.workloads import Round

PACKAGES = {"byzfl": "byzfl", "flower": "flwr"}  # as they are installed


def package_folder(name: str) -> Path | None:
    """Where a package is, without importing it; None where it is not installed."""
    spec = importlib.util.find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


@cache
def byzfl_aggregators() -> ModuleType | None:
    """``byzfl.aggregators``, or None where byzfl is not installed.

    ``import byzfl`` also imports its training framework and with it torchvision, which rules have
    no use for and which does not load beside every build of torch; so the package is entered
    without running its ``__init__``.
    """
    folder = package_folder("byzfl")
    if folder is None:
        return None
    if "byzfl" not in sys.modules:
        package = ModuleType("byzfl")
        package.__spec__, package.__path__ = importlib.util.find_spec("byzfl"), [str(folder)]
        sys.modules["byzfl"] = package
    return importlib.import_module("byzfl.aggregators")


BYZFL_RULES = {
    "FedAvg": "Average",
    "Krum": "Krum",
    "TrimmedMean": "TrMean",
    "Median": "Median",
    "MultiKrum": "MultiKrum",
    "MeaMed": "Meamed",
    "GeometricMedian": "GeometricMedian",
    "CenteredClip": "CenteredClipping",
    "CAF": "CAF",
    "MDA": "MDA",
    "SMEA": "SMEA",
}
WITHOUT_COUNT = ("FedAvg", "Median", "GeometricMedian", "CenteredClip")
BYZFL_WRAPPERS = ("NNM", "ARC")


def byzfl_rule(rule: str, tolerated: int) -> Opponent | None:
    """The rule of byzfl that is nearest to ours, if there is one."""
    found = byzfl_aggregators()
    if found is None:
        return None
    if rule == "NNA":
        # Which of the models is own is given by its place.
        monna = found.MoNNA(tolerated, 0)
        return Opponent(lambda own, received: monna(torch.cat([own[None], received])))
    if rule in BYZFL_WRAPPERS:
        change = getattr(importlib.import_module("byzfl.aggregators.preaggregators"), rule)
        trimmed = found.TrMean(tolerated)
        # It clips in place, and around 0.
        return Opponent(lambda own, received: trimmed(change(tolerated)(received.clone())))
    if rule not in BYZFL_RULES:
        return None
    # As many steps as ours take: those of the geometric median until nothing changes.
    steps = {"CenteredClip": {"L": 3, "tau": 1.0}, "GeometricMedian": {"T": 11}}
    options = steps.get(rule, {})
    counts = [] if rule in WITHOUT_COUNT else [tolerated]
    aggregator = getattr(found, BYZFL_RULES[rule])(*counts, **options)
    if rule != "CenteredClip":
        return Opponent(lambda own, received: aggregator(received))

    def clip(own: Tensor, received: Any) -> Tensor:
        # It keeps its last result, and starts there.
        aggregator.m = own
        return aggregator(received)

    return Opponent(clip)


@cache
def flower_aggregates() -> ModuleType | None:
    """``flwr.server.strategy.aggregate``, or None where Flower is not installed.

    ``import flwr`` starts from its network services, with their many dependencies. The file of
    aggregates needs numpy, and of Flower only names of types; so it is run alone, with stand-ins
    for these names.
    """
    folder = package_folder("flwr")
    if folder is None:
        return None
    spec = importlib.util.spec_from_file_location(
        "flower_aggregates", folder / "server/strategy/aggregate.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with patch.dict(
        sys.modules, {name: any_names(name) for name in ("flwr", "flwr.common", "flwr.server")}
    ):
        sys.modules["flwr.server.client_proxy"] = any_names("flwr.server.client_proxy")
        spec.loader.exec_module(module)
    return module


def any_names(name: str) -> ModuleType:
    """A module from which any name can be imported."""
    module = ModuleType(name)
    vars(module)["__getattr__"] = lambda wanted: Any
    return module


def flower_rule(rule: str, tolerated: int) -> Opponent | None:
    """The rule of Flower that is nearest to ours, if there is one."""
    found = flower_aggregates()
    names = {"FedAvg": "", "Krum": "_krum", "TrimmedMean": "_trimmed_avg", "Median": "_median"}
    if found is None or rule not in names:
        return None
    aggregate = getattr(found, f"aggregate{names[rule]}")
    if rule == "Krum":
        aggregate = partial(aggregate, num_malicious=tolerated, to_keep=0)
    return Opponent(
        partial(flower_call, aggregate, tolerated if rule == "TrimmedMean" else None), naive.listed
    )


def flower_call(
    aggregate: Callable[..., list[Any]], trim: int | None, own: Tensor, received: Iterable[Tensor]
) -> Tensor:
    """Models as Flower takes them: lists of numpy arrays, each with a number of examples."""
    results = [([model.numpy()], 1) for model in received]
    # the half keeps rounding from trimming one less
    cut = {} if trim is None else {"proportiontocut": (trim + 0.5) / len(results)}
    return torch.from_numpy(aggregate(results, **cut)[0])


def opponents(rule: str, work: Round) -> dict[str, Opponent]:
    """By name, the aggregates of one client to compare a rule with."""
    tolerated = work.inputs["tolerated"]
    found = {
        "naive": Opponent(partial((naive.RULES | naive_received.RULES)[rule], **work.inputs)),
        "byzfl": byzfl_rule(rule, tolerated),
        "flower": flower_rule(rule, tolerated),
    }
    return {name: opponent for name, opponent in found.items() if opponent is not None}


def versions() -> dict[str, str | None]:
    return {
        name: version(package) if package_folder(package) else None
        for name, package in PACKAGES.items()
    }
