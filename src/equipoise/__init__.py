"""Byzantine-robust decentralized aggregation for PyTorch.

In decentralized federated learning there is no server. In each round, every client trains its own
model, sends it to its neighbors, and aggregates the received models. Some neighbors are malicious
and may send arbitrary values, and different values to each receiver.

client
    a participant; ids run from 0 to n - 1
round
    ``t``, 0-based, of ``total``
message
    a model sent along one edge (sender, receiver)
rule
    an aggregator: turns the own model and the received messages into one model
own
    the model of the receiver after local training
malicious, benign
    clients that may, or may not, send false messages
tolerated
    the number of malicious neighbors that a rule assumes
exchange
    one sending of messages; most rules use one per round

Dimensions: ``n`` clients, ``k`` slots (the largest in-degree), ``d`` parameters, ``m`` distinct
messages, ``e`` directed edges.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from equipoise import attacks, data, metrics, models, plots, topology
from equipoise.attacks import Attack
from equipoise.kernels import native
from equipoise.messages import Inbox, Lies, pack, unpack
from equipoise.parameters import (
    flatten,
    groups,
    stack_models,
    trainable,
    unflatten,
    unstack_models,
)
from equipoise.rules import (
    LEARN,
    UBAR,
    Aggregator,
    Balance,
    BalanceMedian,
    FedAvg,
    FLTrust,
    GuaranteeWarning,
    Krum,
    Median,
    MultiExchange,
    PerClient,
    PerGroup,
    SCClip,
    TrimmedMean,
    as_multi_exchange,
    mix,
    run_exchanges,
)
from equipoise.simulation import EachRound, History, Round, Simulator
from equipoise.topology import Topology, draw_malicious
from equipoise.training import LocalSGD, Trainer
from equipoise.types import Aggregated, RoundInputs

if TYPE_CHECKING:
    from equipoise.peers import Peer

__version__ = "0.1.0"

native_available = native.available()
"""Whether the kernels in C are used; see `equipoise.kernels.native`."""

__all__ = [
    "LEARN",
    "UBAR",
    "Aggregated",
    "Aggregator",
    "Attack",
    "Balance",
    "BalanceMedian",
    "EachRound",
    "FLTrust",
    "FedAvg",
    "GuaranteeWarning",
    "History",
    "Inbox",
    "Krum",
    "Lies",
    "LocalSGD",
    "Median",
    "MultiExchange",
    "Peer",
    "PerClient",
    "PerGroup",
    "Round",
    "RoundInputs",
    "SCClip",
    "Simulator",
    "Topology",
    "Trainer",
    "TrimmedMean",
    "as_multi_exchange",
    "attacks",
    "data",
    "draw_malicious",
    "flatten",
    "groups",
    "metrics",
    "mix",
    "models",
    "native_available",
    "pack",
    "plots",
    "run_exchanges",
    "stack_models",
    "topology",
    "trainable",
    "unflatten",
    "unpack",
    "unstack_models",
]


def __getattr__(name: str) -> Any:
    """Import modules on first use that are slow to import or need extra packages."""
    if name in ("demo", "peers", "testing"):
        return import_module(f"equipoise.{name}")
    if name == "Peer":
        return import_module("equipoise.peers").Peer
    raise AttributeError(f"module 'equipoise' has no attribute {name!r}")
